"""Plays the zygote and the manager of a template: starts it, asks it for servers, and gives them files and a guard."""

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = os.path.join(HERE, "../../crates/toolcrib-templates/src/template")
CODE = "\n".join(open(os.path.join(PARTS, part + ".py")).read() for part in ("entries", "effects", "imports", "disk", "members", "request", "end", "template"))
GUARD = ["python3", "-I", "-S", os.path.join(HERE, "guard.py")]
LIMIT = 60.0

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


class Output(threading.Thread):
    """Reads a pipe to its end."""

    def __init__(self, file: int):
        super().__init__(daemon=True)
        self.file, self.data = file, b""
        self.start()

    def run(self):
        with open(self.file, "rb") as pipe:
            self.data = pipe.read()

    def text(self) -> str:
        self.join(LIMIT)
        assert not self.is_alive(), "the pipe stays open"
        return self.data.decode()


def receive(sock: socket.socket, size: int = 1 << 18) -> bytes:
    sock.settimeout(LIMIT)
    return sock.recv(size)


class Started:
    """A server that was forked from a template, with its files."""

    def __init__(self, control, stdin: int, stdout: int, stderr: int):
        self.control, self.stdin, self.stdout, self.stderr = control, stdin, stdout, stderr
        self.refused = None
        self.told: dict = {}

    def await_end(self) -> "tuple[int, float]":
        end = json.loads(receive(self.control))
        os.waitpid(self.told["guard"], 0)
        self.control.close()
        return end["status"], end["cpu"]


class Template:
    def __init__(self, python: str, flags: "list[str]", entries: list, env: dict, cwd: str = "/", avoid: list = (), proven: str = ""):
        self.python, self.flags, self.number = python, flags, 0
        pairs = [os.pipe(), os.pipe()]
        self.zygote, theirs3 = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.manager, theirs4 = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files = [pairs[0][0], pairs[1][1], pairs[1][1], theirs3.fileno(), theirs4.fileno()]
        plan = json.dumps({"entries": entries, "avoid": list(avoid), "all": True, "proven": proven})
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
                for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                high = [fcntl.fcntl(file, fcntl.F_DUPFD, 100) for file in files]
                for number, file in enumerate(high):
                    os.dup2(file, number)
                os.closerange(5, 65536)
                os.chdir(cwd)
                os.execve(python, [python, *flags, "-c", CODE, plan], env)
            finally:
                os._exit(126)
        for file in {pairs[0][0], pairs[1][1]}:
            os.close(file)
        self.stdin, self.output = pairs[0][1], Output(pairs[1][0])
        theirs3.close(), theirs4.close()

    def report(self) -> dict:
        packet = receive(self.manager)
        assert packet, f"the template has ended: {self.output.text()}"
        return json.loads(packet)

    def start(self, args: list, env: dict, cwd: str, name: str, release=True, guard: str = "5", stderr=None) -> Started:
        header = {"guard_args": [*GUARD, "adopt"], "guard_env": {"TOOLCRIB_GUARD": guard}, "name": name}
        words = [json.dumps({"fork": header, "settings": {"limits": 7}}), cwd, str(len(args)), *args]
        words += [f"{name}={value}" for name, value in env.items()]
        memory = os.memfd_create("start")
        os.write(memory, b"".join(os.fsencode(word) + b"\0" for word in words))
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        go_read, go_write = os.pipe()
        files = [memory, theirs.fileno(), in_read, out_write, err_write if stderr is None else stderr, go_read]
        self.number += 1
        socket.send_fds(self.zygote, [struct.pack("<Q", self.number)], files)
        for file in (memory, in_read, out_write, err_write, go_read):
            os.close(file)
        theirs.close()
        started = Started(control, in_write, out_read, err_read)
        number, pid = struct.unpack("<Qq", receive(self.zygote, 16))
        assert number == self.number
        if pid == -1:
            os.close(go_write)
            started.refused = json.loads(receive(control))["refused"]
            return started
        if release is None:
            started.fork, started.go = pid, go_write
            return started
        if release:
            os.write(go_write, b"1")
        os.close(go_write)
        if not release:
            assert receive(control) == b"" and os.waitpid(pid, 0)[1] == 0
            return started
        started.told = json.loads(receive(control))
        if "guard" in started.told:
            assert started.told["guard"] == pid, (started.told, pid)
        return started

    def end(self) -> None:
        """Ends it as the zygote's end does, and waits for it."""
        self.zygote.close()
        os.waitpid(self.pid, 0)
        self.manager.close()
        os.close(self.stdin)


def until_ready(python: str, entries: list, env: dict, flags: list = (), **kwargs) -> "tuple[Template, dict]":
    """A template without what it cannot have, and what it reports."""
    avoid: list = []
    for _ in range(8):
        template = Template(python, list(flags), entries, env, avoid=avoid, **kwargs)
        report = template.report()
        if "ready" in report:
            return template, report["ready"]
        template.end()
        assert not {*report["failed"]["avoid"]} <= {*avoid}, report
        avoid = report["failed"]["avoid"]
    raise AssertionError(report)


def normal_start(args: list, env: dict, cwd: str, executable: "str | None" = None) -> subprocess.Popen:
    """Starts a server in the ordinary way, as its guard does."""
    pipe = subprocess.PIPE

    def prepare():
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen(args, executable=executable, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=env, preexec_fn=prepare)


def private_memory(pid: int) -> int:
    """Bytes of memory that only this process has."""
    lines = [line.split() for line in open(f"/proc/{pid}/smaps_rollup") if line.startswith("Private")]
    return sum(int(line[1]) for line in lines) << 10


def ask(write: int, read: int, messages: "list[dict]", answers: int) -> "list[dict]":
    """Sends JSON-RPC messages, and returns that many answers."""
    os.write(write, b"".join(json.dumps(message).encode() + b"\n" for message in messages))
    data, deadline = b"", time.monotonic() + LIMIT
    while data.count(b"\n") < answers:
        assert select.select([read], [], [], deadline - time.monotonic())[0], "no answer"
        piece = os.read(read, 1 << 16)
        assert piece, f"the server has ended after {data!r}"
        data += piece
    return [json.loads(line) for line in data.splitlines()]


if sys.version_info < (3, 9):
    sys.exit("needs Python 3.9 or newer")
