"""A server with an import that can hang in a template."""

import slow_lib
import tool_server

if __name__ == "__main__":
    import os

    tool_server.serve({"tell": lambda: {"forked": tool_server.was_forked(), "pid": os.getpid(), "hold": slow_lib.HOLD}})
