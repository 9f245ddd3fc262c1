"""Puts one Python client through the plan: one line of JSON for each item, which run.py reads.

usage: python drive.py ADAPTER[:VARIANT] PLAN.json URL | COMMAND [ARGUMENT..]

An adapter (adapters/*.py) has `connect(target, variant)`, an asynchronous context manager, which gives an object with what the
client can do: `tools()`, `prompts()`, `resources()`, `templates()` give names; `call(name, arguments)`, `prompt(name, arguments)`
and `read(uri)` give text; `agent(base_url, question)` gives the answer of the agent;
`shown(name)` is how the client writes the name of a tool. `valid(list, item)`, of an adapter, raises if the
client's own types do not take an item of a list.
"""

import asyncio
import importlib
import json
import logging
import sys
import urllib.request

# How long an item may take; longer is a hang.
LIMIT = 20


def report(check, item, error=None):
    print(json.dumps({"check": check, "item": item, "error": error}), flush=True)


def words(error):
    """An error with what is inside a group of them."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(words(inner) for inner in error.exceptions)
    return " ".join(f"{type(error).__name__}: {error}".split())


async def within(coroutine):
    try:
        return await asyncio.wait_for(coroutine, LIMIT)
    except TimeoutError:
        raise RuntimeError(f"no answer within {LIMIT} s: it hangs") from None


async def item(check, name, coroutine, says, or_error=False):
    """One call; `says` has to be in what it gives, or, where it may fail, in its error."""
    try:
        try:
            said = str(await within(coroutine))
        except Exception as error:
            if not or_error or says not in str(error):
                raise
            said = str(error)
        if says and says not in said:
            raise AssertionError(f"`{says}` is not in: {said[:200]}")
        report(check, name)
    except Exception as error:
        report(check, name, words(error)[:400])


async def ends(check, name, coroutine):
    """One call, of which only a hang is a fault."""
    try:
        await asyncio.wait_for(coroutine, LIMIT)
    except TimeoutError:
        return report(check, name, f"no answer within {LIMIT} s: it hangs")
    except Exception:  # noqa: S110 - any answer will do
        pass
    report(check, name)


async def lists(client, wanted):
    """Compares each list that the client has with what has to be in it."""
    have = {}
    for want in wanted:
        of, check = want["of"], want["check"]
        if not hasattr(client, of):
            continue
        if of not in have:
            try:
                have[of] = [str(name) for name in await within(getattr(client, of)())]
            except Exception as error:
                have[of] = words(error)[:400]
        if isinstance(have[of], str):
            report(check, "the list", have[of])
            continue
        for name in want["names"]:
            shown = client.shown(name) if of == "tools" and hasattr(client, "shown") else name
            report(check, name, None if shown in have[of] else f"not among {len(have[of])}")
        if want.get("unique"):
            twice = sorted({name for name in have[of] if have[of].count(name) > 1})
            report(check, "each name once", f"twice: {twice}" if twice else None)
        longest = max(have[of], key=len, default="")
        if want.get("longest"):
            report(check, "no long name", longest if len(longest) > want["longest"] else None)


async def follow(client, plan):
    await lists(client, plan["lists"])
    for calls in plan["calls"]:
        does = getattr(client, {"ends": "call"}.get(calls["by"], calls["by"]), None)
        if does is None:
            continue
        for one in calls["calls"]:
            if calls["by"] == "ends":
                await ends(calls["check"], one["name"], does(*one["with"]))
            else:
                await item(calls["check"], one["name"], does(*one["with"]), one["says"], calls.get("or error"))
    if hasattr(client, "call"):
        many = plan["many"]
        await asyncio.gather(
            *(
                item(many["check"], f"{number}", client.call(many["name"], {"text": f"number {number}."}), f"number {number}.")
                for number in range(20)
            )
        )
    if hasattr(client, "agent"):
        for one in plan["agent"]["questions"]:
            await item(plan["agent"]["check"], one["name"], client.agent(plan["model"], one["asks"]), one["says"])


def validate(adapter, plan, url):
    """Each item that the gateway lists, by the types of the client: this names what makes a list unreadable."""
    for method, of in plan["valid"]["lists"].items():
        body = {"jsonrpc": "2.0", "id": 1, "method": method}
        for listed in pages(url, body, of):
            name = listed.get("name") or listed.get("uri") if isinstance(listed, dict) else listed
            try:
                adapter.valid(of, listed)
                report(plan["valid"]["check"], f"{of} {name}")
            except Exception as error:
                report(plan["valid"]["check"], f"{of} {name}", words(error)[:300])


def pages(url, body, of):
    listed, cursor = [], {}
    session = {}
    start = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    _, headers = post(url, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": start}, session)
    session = {"mcp-session-id": headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    post(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
    while True:
        answer, _ = post(url, {**body, "params": cursor}, session)
        listed += answer["result"][of]
        if not answer["result"].get("nextCursor"):
            return listed
        cursor = {"cursor": answer["result"]["nextCursor"]}


def post(url, body, headers):
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=LIMIT) as response:
        text = response.read().decode()
        data = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:") and line[5:].strip()]
        text = data[-1] if data else text
        return (json.loads(text) if text.strip() else None), response.headers


async def main(name, plan, target):
    adapter_name, _, variant = name.partition(":")
    adapter = importlib.import_module(f"adapters.{adapter_name}")
    check = "connect"
    try:
        async with adapter.connect(target, variant) as client:
            report(check, "connect")
            await follow(client, plan)
    except Exception as error:
        report(check, "connect", words(error)[:400])
    if plan.get("neighbours"):
        try:
            async with adapter.connect([plan["neighbours"]], variant) as client:
                await lists(client, plan["neighbour lists"])
        except Exception as error:
            report(plan["neighbour lists"][0]["check"], "connect", words(error)[:400])
        if hasattr(adapter, "valid"):
            validate(adapter, plan, plan["neighbours"])


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with open(sys.argv[2]) as file:
        wanted = json.load(file)
    asyncio.run(main(sys.argv[1], wanted, sys.argv[3:]))
