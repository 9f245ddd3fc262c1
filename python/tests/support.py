"""Helpers of the tests: servers that can be found again, and programs that end in some way."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Sequence

#: The variable that marks every server of one test.
VARIABLE = "TOOLCRIB_TEST_MARK"
ROOT = Path(__file__).resolve().parents[2]
#: Seconds that a condition may take to hold.
DEADLINE = 60.0

#: A server that ignores the end of its input and SIGTERM, with a helper that has left its process group.
STUBBORN = """
import json, os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
def answer(id, result): print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        answer(m["id"], {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}})
    elif m.get("method") == "tools/list":
        tool = {"name": "hang", "inputSchema": {"type": "object"}}
        answer(m["id"], {"tools": [tool, {**tool, "name": "echo"}, {**tool, "name": "work"}]})
    elif m.get("method") == "tools/call" and m["params"]["name"] == "echo":
        answer(m["id"], {"content": [{"type": "text", "text": json.dumps(m["params"].get("arguments"))}]})
    elif m.get("method") == "tools/call" and m["params"]["name"] == "work":
        token = m["params"]["_meta"]["progressToken"]
        for n in (1, 2, 3):
            params = {"progressToken": token, "progress": n, "total": 3, "message": f"step {n}"}
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}), flush=True)
        answer(m["id"], {"content": [{"type": "text", "text": "worked"}]})
    elif "id" in m and m.get("method") != "tools/call":
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
signal.pause()
"""


def servers(mark: str, count: int) -> dict[str, Any]:
    """A configuration with so many stubborn servers."""
    one = {"command": sys.executable, "args": ["-c", STUBBORN], "env": {VARIABLE: mark}, "template": False}
    return {"servers": {f"s{number}": one for number in range(count)}}


def new_mark() -> str:
    return uuid.uuid4().hex


def living(mark: str) -> list[int]:
    """The processes with the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{VARIABLE}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"no sign of: {what}")
        time.sleep(0.02)


class Program:
    """A Python program with eight servers and calls in flight. It prints `ready` and reads a line before it ends."""

    HEAD = """
        import asyncio, os, signal, subprocess, sys, threading, time
        import support, toolcrib
        # A job in the background of a script has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from toolcrib import sync
        mark = sys.argv[1]
        config = support.servers(mark, 8)
        def ready():
            print("ready", flush=True)
            sys.stdin.readline()
    """

    def __init__(self, body: str, *, arguments: Sequence[str] = ()) -> None:
        self.mark = new_mark()
        text = textwrap.dedent(self.HEAD) + textwrap.dedent(body)
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        # Python 3.12 and newer warn of every fork of a program with threads.
        command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", text, self.mark, *arguments]
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def until_ready(self) -> None:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if line != "ready\n":
            _, error = self.process.communicate()
            raise AssertionError(f"not ready: {line!r}\n{error}")
        assert len(living(self.mark)) >= 8

    def go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """The exit code and what it wrote to stderr, once it has ended."""
        try:
            self.output, error = self.process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, error

    def await_no_process(self) -> None:
        wait_for("the end of all processes", lambda: not living(self.mark))
