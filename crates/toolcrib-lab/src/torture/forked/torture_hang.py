"""Takes for ever to be imported by a template."""

import time

with open("/proc/self/cmdline", "rb") as file:
    if file.read().startswith(b"toolcrib-template"):
        time.sleep(600)
