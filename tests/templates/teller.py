"""A server that tells all that it can see of its process and of chance."""

import ctypes
import multiprocessing
import os
import random
import secrets
import ssl
import sys
import tempfile
import uuid

import tool_server

BY_SHARED_MODULE = random.Random()


def c_environment():
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    table, found = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ"), []
    while table[len(found)] is not None:
        found.append(os.fsdecode(table[len(found)]))
    return found, [os.fsdecode(libc.getenv(name.encode()) or b"") for name in ("OWN", "PATH", "NOT_SET")]


def read(name):
    with open("/proc/self/" + name, errors="replace") as file:
        return file.read()


def link(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return None  # The descriptor that has listed them.


def chance():
    folder = tempfile.mkdtemp(prefix="telling-")
    os.rmdir(folder)
    state = random.getstate()[1]
    return [
        random.getrandbits(64), random.random(), BY_SHARED_MODULE.getrandbits(64), random.SystemRandom().random(),
        hash(state), str(uuid.uuid4()), secrets.token_hex(), os.urandom(16).hex(), ssl.RAND_bytes(16).hex(), folder,
        tempfile.mktemp(), multiprocessing.current_process().authkey.hex(),
    ]  # fmt: skip


def tell():
    return {
        "forked": tool_server.was_forked(), "pid": os.getpid(), "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None),
        "environment": dict(os.environ), "c": c_environment(), "environ": read("environ"), "cmdline": read("cmdline"),
        "cwd": [os.getcwd(), os.readlink("/proc/self/cwd")], "files": [link(number) for number in os.listdir("/proc/self/fd")],
        "chance": chance(),
    }  # fmt: skip


if __name__ == "__main__":
    tool_server.serve({"tell": tell})
