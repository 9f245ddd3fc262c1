"""A server that answers from a loop of asyncio, by threads, TLS and processes."""

import asyncio
import concurrent.futures
import multiprocessing
import os
import ssl
import subprocess
import sys
import threading

import tool_server


def square(number):
    return number * number


def tls():
    """A handshake in memory, up to the first message of the client, with the certificates of the system."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.pending > 0


def many(kind):
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context(kind)) as pool:
        return list(pool.map(square, range(5)))


def work():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        squares = list(pool.map(square, range(5)))
    return {
        "forked": tool_server.was_forked(), "thread": threading.current_thread().name, "threads": squares, "tls": tls(),
        "processes": [many(kind) for kind in ("spawn", "forkserver", "fork")], "pid": os.getpid(),
        "child": subprocess.run(["echo", "child"], capture_output=True, text=True, check=True).stdout,
    }  # fmt: skip


async def main():
    async def echo():
        process = await asyncio.create_subprocess_exec("echo", "async", stdout=subprocess.PIPE)
        return (await process.communicate())[0].decode()

    assert await echo() == "async\n"
    while line := await asyncio.to_thread(sys.stdin.readline):
        said = await asyncio.get_running_loop().run_in_executor(None, tool_server.answer, line, {"work": work})
        if said is not None:
            print(said, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
