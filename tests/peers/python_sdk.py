"""The MCP Python SDK as the owner of a server, for `toolcrib-lab torture --command`.

usage: python python_sdk.py END SERVER..      versions: requirements.txt

What the ends are in Python:
  drop           the contexts are entered by hand and forgotten; the garbage is collected; the loop lives on
  cancel         the `async with` blocks are left in order; the loop lives on
  return         `main` returns out of the `async with` blocks, asyncio.run() ends
  leak           the open contexts stay in a global; `main` returns, asyncio.run() ends
  runtime-first  the loop is stopped and closed with the session open
  panic          an exception that nobody catches leaves the `async with` blocks
  exit           os._exit(0)
  abort          os.abort()
  sigterm, sigint, sigkill   Python's own handling: SIGINT raises KeyboardInterrupt
"""

import asyncio
import gc
import os
import sys
from contextlib import AsyncExitStack

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

END, COMMAND, *ARGUMENTS = sys.argv[1:]
LIFETIME = 600
leaked = []


def say(word):
    print(word, flush=True)


def client():
    return stdio_client(StdioServerParameters(command=COMMAND, args=ARGUMENTS))


async def call(session):
    await session.initialize()
    result = await session.call_tool("echo", {})
    assert result.content, result
    say("ready")


async def open_by_hand():
    stack = AsyncExitStack()
    streams = await stack.enter_async_context(client())
    session = await stack.enter_async_context(ClientSession(*streams[:2]))
    await call(session)
    return stack


async def within_blocks():
    async with client() as streams, ClientSession(*streams[:2]) as session:
        await call(session)
        match END:
            case "panic":
                raise RuntimeError("on purpose, with a session open")
            case "exit":
                os._exit(0)
            case "abort":
                os.abort()
            case "sigterm" | "sigint" | "sigkill":
                await asyncio.sleep(LIFETIME)
            case "cancel" | "return":
                pass
            case _:
                raise ValueError(f"unknown end {END}")


async def main():
    match END:
        case "drop":
            stack = await open_by_hand()
            del stack
            gc.collect()
        case "leak":
            leaked.append(await open_by_hand())
            return
        case _:
            await within_blocks()
            if END != "cancel":
                return
    say("ended")
    await asyncio.sleep(LIFETIME)


if END == "runtime-first":
    loop = asyncio.new_event_loop()
    leaked.append(loop.run_until_complete(open_by_hand()))
    loop.stop()
    loop.close()
else:
    asyncio.run(main())
