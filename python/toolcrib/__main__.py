"""``python -m toolcrib``: the command line."""

import os
import sys

from ._find import find_binary

if __name__ == "__main__":
    program = find_binary()
    # In its place: no process stays between, whatever ends it.
    os.execv(program, [program, *sys.argv[1:]])
