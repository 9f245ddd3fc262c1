"""Checks a server by the official Python SDK 1.x: one line for each check, exit code 1 if one fails.

usage: python python_1.py URL | COMMAND [ARGUMENT..]
The server is the fixture of the conformance suite (crates/toolcrib-fakes/examples/conformance), alone or behind a gateway.
"""

import sys
from contextlib import asynccontextmanager

import anyio
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from checks import Checks, Seen, run_checks, until_it_waits


@asynccontextmanager
async def streams(target):
    if target[0].startswith("http"):
        async with streamable_http_client(target[0]) as (read, write, _):
            yield read, write
    else:
        async with stdio_client(StdioServerParameters(command=target[0], args=target[1:])) as (read, write):
            yield read, write


async def main(target):
    checks, seen = Checks(), Seen()

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
        if isinstance(message, types.ServerNotification):
            seen.notified(message.root)

    async with streams(target) as (read, write):
        session = ClientSession(
            read,
            write,
            sampling_callback=sampling,
            elicitation_callback=elicitation,
            list_roots_callback=roots,
            logging_callback=log,
            message_handler=message,
        )
        async with session:
            async with checks("connect"):
                await session.initialize()

            async def read_resource(uri):
                return (await session.read_resource(uri)).contents[0]

            async def complete():
                ref = types.PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
                return await session.complete(ref, {"name": "arg1", "value": "par"})

            async def with_logs():
                await session.set_logging_level("info")
                await session.call_tool("test_tool_with_logging", {})

            async def cancel():
                # This SDK sends no cancellation when a call is given up: it is sent here by the request's id.
                number = session._request_id
                async with anyio.create_task_group() as group:
                    group.start_soon(session.call_tool, "test_wait", {"ms": 15000})
                    await until_it_waits(session.call_tool)
                    params = types.CancelledNotificationParams(requestId=number, reason="enough")
                    cancelled = types.CancelledNotification(method="notifications/cancelled", params=params)
                    await session.send_notification(types.ClientNotification(cancelled))
                    group.cancel_scope.cancel()

            await run_checks(checks, seen, session, read_resource, complete, with_logs, cancel)
            async with checks("subscribe to a resource"):
                await session.subscribe_resource("test://watched-resource")
                await session.call_tool("test_trigger_resource_update", {"uri": "test://watched-resource"})
                await seen.until(lambda: "test://watched-resource" in seen.updates)
            async with checks("a changed list of tools"):
                await session.call_tool("test_trigger_tool_change", {})
                await seen.until(lambda: seen.changes > 0)
            async with checks("ping"):
                await session.send_ping()
    return checks.failed


sys.exit(1 if anyio.run(main, sys.argv[1:]) else 0)
