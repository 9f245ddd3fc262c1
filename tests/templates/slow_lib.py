"""Holds a template in its import while there is a file of that name beside this module; costs what an import of a library does."""

import os
import time

HOLD = os.path.join(os.path.dirname(__file__), "hold")


def hold():
    with open("/proc/self/cmdline", "rb") as command:
        is_template = command.read().startswith(b"toolcrib-template")
    while is_template and os.path.exists(HOLD):
        time.sleep(0.01)


hold()
