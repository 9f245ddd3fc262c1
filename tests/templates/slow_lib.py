"""Holds a template in its import while there is a file of that name beside this module; costs what an import of a library does.
It asks as compiled code does, unseen: else it would be left out, or end the template."""

import os
import posix
import time

HOLD = os.path.join(os.path.dirname(__file__), "hold")


def hold():
    command = posix.open("/proc/self/cmdline", posix.O_RDONLY)
    is_template = posix.read(command, 100).startswith(b"toolcrib-template")
    posix.close(command)
    while is_template and is_held():
        time.sleep(0.01)


def is_held():
    try:
        return bool(posix.stat(HOLD))
    except FileNotFoundError:
        return False


hold()
