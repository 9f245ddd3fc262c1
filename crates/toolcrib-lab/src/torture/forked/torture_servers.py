"""Tool servers that are hard to end, for `toolcrib-lab torture`: each is forked from a template that has imported this module.

Standard library only. A server answers calls once all that it starts runs. Nothing of it lasts longer than LIFETIME.
"""

import asyncio
import gc
import json
import multiprocessing
import os
import signal
import ssl
import subprocess
import sys
import threading
import time

LIFETIME = 600
MARK = "PYTHON_TORTURE"  # Variables that begin so are those of the template, too: it is counted as its servers are.
ENDS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def sleep_deaf(ready=None):
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    if ready is not None:
        ready.send("ready")
    time.sleep(LIFETIME)


def fork(run):
    """A fork of this process, once `run` has written to the file that it is given, or that is closed."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            run(write)
        finally:
            os._exit(1)
    os.close(write)
    said = os.read(read, 1)
    os.close(read)
    return said


def deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)


def setsid_helper():
    def run(ready):
        os.setsid()
        os.write(ready, b"x")
        sleep_deaf()

    assert fork(run) == b"x"


def daemon():
    """Forked twice, without files, with an environment of its own."""

    def run(ready):
        os.setsid()
        if os.fork():
            os._exit(0)
        try:
            os.closerange(0, ready)
            os.execve("/bin/sleep", ["sleep", str(LIFETIME)], {MARK: os.environ[MARK]})
        except OSError:
            os.write(ready, b"x")

    assert fork(run) == b""


def processes():
    """Both ways of multiprocessing that start a Python; the server waits for these processes as it ends."""
    for kind in ("spawn", "forkserver"):
        context = multiprocessing.get_context(kind)
        ours, theirs = context.Pipe()
        context.Process(target=sleep_deaf, args=(theirs,)).start()
        assert ours.poll(60) and ours.recv() == "ready"


def threads():
    """A loop of asyncio in a thread of its own. It waits for threads that outlive it, after a process and the begin of a TLS session."""
    deaf()
    begun = threading.Event()

    async def run():
        loop = asyncio.get_running_loop()
        await asyncio.create_subprocess_exec("sleep", str(LIFETIME), stdin=subprocess.DEVNULL)
        context = await loop.run_in_executor(None, ssl.create_default_context)
        session = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            begun.set()
        await asyncio.gather(*(loop.run_in_executor(None, time.sleep, LIFETIME) for _ in range(4)))

    threading.Thread(target=asyncio.run, args=(run(),)).start()
    assert begun.wait(60)


def copy():
    """Starts itself again by the command line that the system tells, as programs do that reload themselves."""
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().split(b"\0")[:-1]
    assert words == [os.fsencode(word) for word in getattr(sys, "orig_argv", words)], words
    child = subprocess.Popen([*words, "copy"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout.readline() == b"ready\n"


def session():
    """A leader of a process group may not begin a session: it joins another group first."""
    os.setpgid(0, os.getsid(0))
    os.setsid()
    deaf()


def answer(request, folder):
    method, params = request.get("method"), request.get("params") or {}
    if method == "initialize":
        about = {"name": "torture", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": "echo", "description": "Says how it was started", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        with open(os.path.join(folder, "called"), "a"):
            pass
        how = "forked" if gc.get_freeze_count() else "ordinary"  # A template keeps its objects out of garbage collections.
        return {"content": [{"type": "text", "text": how}]}
    return {} if method == "ping" else None


def main(*traits):
    """A server with these traits, each the name of a function above."""
    if sys.argv[-1] == "copy":
        print("ready", flush=True)
        sleep_deaf()
    for trait in traits:
        globals()[trait]()
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            result = answer(request, sys.argv[1])
            said = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}), flush=True)
    if "deaf" in traits or "session" in traits:
        time.sleep(LIFETIME)
