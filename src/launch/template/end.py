"""The end of a server, which leaves the modules of its template as they are. Fourth part of the program, after request.py.

Python clears every module as it ends. In a fork that writes to most pages of the template, each of which is copied for it: as much
work as the whole start of the server. All that only the server has ends as ever.
"""

import atexit
import gc
import io
import sys
import types


class QuickEnd:
    """Takes the modules of the template away before Python clears them, unless something is left that has to be told of its end:
    it could be in one of them."""

    def __init__(self):
        self.kept = {}
        self.cycle = [self]  # Never freed as long as it is frozen, with all that is in it.

    def prepare(self) -> None:
        """Now the template has imported."""
        # Some tell on stderr of each of their objects that is left at the end.
        tells = any(getattr(kind, "__module__", "") == "nanobind" for kind in set(map(type, gc.get_objects())))
        # Before Python 3.10 an open database cannot be found.
        if sys.version_info < (3, 10) or tells or has_finalizers():
            return
        for name, module in sys.modules.items():
            if isinstance(module, types.ModuleType) and name not in ("sys", "builtins", "__main__"):
                kept = Kept()
                kept.__dict__ = module.__dict__
                self.kept[name] = kept

    def run(self) -> None:
        """The last thing that the server does before Python clears its modules."""
        if self.kept and has_finalizers() and gc.isenabled():
            gc.collect()  # As Python does next.
        if not self.kept or has_finalizers():
            self.kept.clear()
            gc.unfreeze()
            return
        known = {name: kept for name, kept in self.kept.items() if name in sys.modules}
        self.cycle += map(sys.modules.get, known)
        sys.modules.update(known)


class Kept:
    """Stands for a module that is not to be cleared, also for what is imported later still."""


def has_finalizers() -> bool:
    """Whether an object that is not frozen has to be told of its end. The standard streams are flushed anyway."""
    database = getattr(sys.modules.get("sqlite3"), "Connection", ())  # Its end tidies up files, unseen by Python.
    told = {kind for kind in set(map(type, gc.get_objects())) if hasattr(kind, "__del__") or issubclass(kind, database)}
    streams = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
    for part in ("buffer", "raw"):
        streams += [getattr(stream, part, None) for stream in streams]
    known = set(map(id, streams))
    return any(type(value) in told and id(value) not in known and not is_closed(value) for value in gc.get_objects())


def is_closed(value) -> bool:
    """Of files, and of the streams of anyio."""
    return value.closed if isinstance(value, io.IOBase) else getattr(value, "__dict__", {}).get("_closed") is True


QUICK_END = QuickEnd()
atexit.register(QUICK_END.run)  # The first one that is registered is the last one that runs.
