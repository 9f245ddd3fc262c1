"""A server on numpy."""

import sys

WAS_IMPORTED = "numpy" in sys.modules

import numpy

try:
    import seeds_numpy  # Of one test.
except ImportError:
    pass

import tool_server


def draw():
    return {
        "forked": tool_server.was_forked(), "was_imported": WAS_IMPORTED,
        "product": float((numpy.ones((64, 64)) @ numpy.arange(64.0)).sum()),
        "chance": [numpy.random.random(), float(numpy.random.default_rng().random()), int(numpy.random.randint(1 << 62))],
    }  # fmt: skip


if __name__ == "__main__":
    tool_server.serve({"draw": draw})
