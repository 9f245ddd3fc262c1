"""The smallest agent, for frameworks whose own one needs more packages: it sends the tools as the framework converted them."""

import asyncio
import json
import urllib.error
import urllib.request


async def run(base_url, question, functions, call):
    """`functions` is what goes to the model; `call(name, arguments)` calls the tool by the framework."""
    messages = [{"role": "user", "content": question}]
    tools = [{"type": "function", "function": function} for function in functions]
    for _ in range(5):
        said = await asyncio.to_thread(ask, base_url, {"model": "fake", "messages": messages, "tools": tools})
        messages.append(said)
        if not said.get("tool_calls"):
            return said["content"]
        for one in said["tool_calls"]:
            result = await call(one["function"]["name"], json.loads(one["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": str(result)})
    raise RuntimeError("the model does not come to an end")


def ask(base_url, body):
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code}: {error.read().decode()[:400]}") from None
