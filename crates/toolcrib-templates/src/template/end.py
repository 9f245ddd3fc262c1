"""The end of a server, which leaves the modules of its template as they are. Seventh part of the program, after request.py.

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
        self.kept, self.told = {}, []
        self.cycle = [self]  # Never freed as long as it is frozen, with all that is in it.

    def prepare(self) -> None:
        """Now the template has imported."""
        # Some tell on stderr of each of their objects that is left at the end.
        tells = any(getattr(kind, "__module__", "") == "nanobind" for kind in set(map(type, gc.get_objects())))
        # Before Python 3.10 an open database cannot be found.
        if sys.version_info < (3, 10) or tells:
            return
        self.told = with_finalizers()
        for name, module in sys.modules.items():
            if isinstance(module, types.ModuleType) and name not in ("sys", "builtins", "__main__"):
                kept = Kept()
                kept.__dict__ = module.__dict__
                self.kept[name] = kept

    def run(self) -> None:
        """The last thing that the server does before Python clears its modules."""
        if not self.kept or self.has_finalizers():
            self.kept.clear()
            self.told.clear()
            gc.unfreeze()
            return
        known = {name: kept for name, kept in self.kept.items() if name in sys.modules}
        self.cycle += map(sys.modules.get, known)
        sys.modules.update(known)

    def has_finalizers(self) -> bool:
        try:
            if any(not is_closed(value) for value in self.told):
                return True
            if not with_finalizers():
                return False
            if gc.isenabled():
                gc.collect()  # As Python does next.
            return with_finalizers() != []
        except Exception:  # Of code of the server that is asked.
            return True


class Kept:
    """Stands for a module that is not to be cleared, also for what is imported later still."""


def with_finalizers() -> list:
    """The objects that have to be told of their end, but for those that are frozen, and the standard streams: they are flushed."""
    database = getattr(sys.modules.get("sqlite3"), "Connection", ())  # Its end tidies up files, unseen by Python.
    told = {kind for kind in set(map(type, gc.get_objects())) if hasattr(kind, "__del__") or issubclass(kind, database)}
    known = set(map(id, standard_streams()))
    return [value for value in gc.get_objects() if type(value) in told and id(value) not in known and not is_closed(value)]


def standard_streams() -> list:
    found = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
    for part in ("buffer", "raw"):
        for stream in list(found):
            try:
                found.append(getattr(stream, part, None))
            except ValueError:
                pass  # It was taken off.
    return found


def is_closed(value) -> bool:
    """Of files, generators, and the streams of anyio."""
    if isinstance(value, types.GeneratorType):
        return value.gi_frame is None
    return value.closed if isinstance(value, io.IOBase) else getattr(value, "__dict__", {}).get("_closed") is True


QUICK_END = QuickEnd()
atexit.register(QUICK_END.run)  # The first one that is registered is the last one that runs.
