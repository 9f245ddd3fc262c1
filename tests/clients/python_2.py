"""Checks a server by the official Python SDK 2.x: one line for each check, exit code 1 if one fails.

usage: python python_2.py legacy|modern URL | COMMAND [ARGUMENT..]
The server is the fixture of the conformance suite (crates/toolcrib-fakes/examples/conformance), alone or behind a gateway.
"""

import sys

import anyio
from mcp import Client, StdioServerParameters, types

from checks import Checks, Seen, run_checks, until_it_waits


async def main(era, target):
    checks, seen = Checks(), Seen()
    modern = era == "modern"

    async def sampling(_context, params):
        content = types.TextContent(type="text", text=f"sampled {params.messages[0].content.text}")
        return types.CreateMessageResult(role="assistant", model="none", content=content)

    async def elicitation(_context, _params):
        return types.ElicitResult(action="accept", content=seen.ANSWERS)

    async def roots(_context):
        return types.ListRootsResult(roots=[types.Root(uri="file:///work", name="work")])

    async def log(params):
        seen.logs.append(params.data)

    async def message(message):
        seen.notified(getattr(message, "root", message))

    if not target[0].startswith("http"):
        server = StdioServerParameters(command=target[0], args=target[1:])
    else:
        server = target[0]
    client = Client(
        server,
        mode="2026-07-28" if modern else "legacy",
        sampling_callback=sampling,
        elicitation_callback=elicitation,
        list_roots_callback=roots,
        logging_callback=log,
        message_handler=message,
    )
    async with client:
        async with checks("connect"):
            seen.equal(client.protocol_version, "2026-07-28" if modern else "2025-11-25")

        async def read_resource(uri):
            return (await client.read_resource(uri)).contents[0]

        async def complete():
            ref = types.PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
            return await client.complete(ref, {"name": "arg1", "value": "par"})

        async def with_logs():
            if modern:
                level = {"io.modelcontextprotocol/logLevel": "info"}
                await client.call_tool("test_tool_with_logging", {}, meta=level)
            else:
                await client.set_logging_level("info")
                await client.call_tool("test_tool_with_logging", {})

        async def cancel():
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "test_wait", {"ms": 15000})
                await until_it_waits(client.call_tool)
                group.cancel_scope.cancel()

        await run_checks(checks, seen, client, read_resource, complete, with_logs, cancel)
        if not modern:
            async with checks("subscribe to a resource"):
                await client.subscribe_resource("test://watched-resource")
                await client.call_tool("test_trigger_resource_update", {"uri": "test://watched-resource"})
                await seen.until(lambda: "test://watched-resource" in seen.updates)
            async with checks("a changed list of tools"):
                await client.call_tool("test_trigger_tool_change", {})
                await seen.until(lambda: seen.changes > 0)
            async with checks("ping"):
                await client.send_ping()
        else:
            async with checks("listen to changes of a resource and of the list of tools"):
                watched = "test://watched-resource"
                async with client.listen(resource_subscriptions=[watched], tools_list_changed=True) as events:
                    await client.call_tool("test_trigger_resource_update", {"uri": watched})
                    await client.call_tool("test_trigger_tool_change", {})
                    kinds = []
                    async for event in events:
                        kinds.append(type(event).__name__)
                        if len(kinds) == 2:
                            break
                    seen.equal(len(set(kinds)), 2)
    return checks.failed


sys.exit(1 if anyio.run(main, sys.argv[1], sys.argv[2:]) else 0)
