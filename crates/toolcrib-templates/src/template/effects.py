"""What imports may change in this process, and in Python's own modules. Second part of the program, after entries.py.

What is compared around each import is cheap to find out. The attributes of Python's own modules are only looked at while a template is
made for packages that were not compared yet (members.py)."""

import _locale
import _thread
import codecs
import ctypes
import logging
import socket
import types
import warnings

# Functions as they are when nobody watches.
CALLS = {"getcwd": os.getcwd, "open": os.open, "read": os.read, "close": os.close}
STATUS = re.compile(
    rb"^(?:Umask|Uid|Gid|Groups|Sig(?:Blk|Ign|Cgt)|Cap...|NoNewPrivs|Seccomp|Seccomp_filters|Speculation\w+|THP_enabled|Cpus_allowed"
    rb"|Mems_allowed):.*$", re.M,
)  # fmt: skip
PR_GET = {"dumpable": 3, "keepcaps": 7, "securebits": 27, "no_new_privs": 39, "thp": 42}
# What Python's own modules find out when it is first needed, or keep of what they were asked: by module and name.
OWN_DOING = re.compile(
    r"sys\.(modules|argv|path|meta_path|path_hooks|last_\w+)|_?warnings\.(filters|onceregistry|_filters_version)|.*\._?\w*cache\w*"
    r"|_frozen_importlib\._(module_locks|blocking_on)|sysconfig\._CONFIG_VARS\w*|tempfile\.(tempdir|_name_sequence)|uuid\._\w+|gettext\._(translations|localedirs)|importlib\.\w+\._\w+"
    r"|.*\.__(slotnames|module)__|six\.(_MovedItems|moves)\..*|pydantic\.plugin\._loader\._\w+|.*\.__pydantic_\w+__"
    r"|inspect\.(modulesbyfile|_filesbymodname)|multiprocessing\.\w+\._\w+|threading\._\w+|.*\.__warningregistry__|logging\._(handlers|handlerList)|asyncio\.events\._event_loop_policy|.*\.dispatch_table|typing\._(cleanups|check_generic|collect_parameters|collect_type_vars)"  # As typing_extensions sets them.
)


def read_whole(path: str) -> bytes:
    file = CALLS["open"](path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return CALLS["read"](file, 1 << 16)
    finally:
        CALLS["close"](file)


def link_of(path: str) -> "str | None":
    try:
        return os.readlink(path)
    except OSError:
        return None


def told_by(path: str) -> "bytes | None":
    try:
        return read_whole(path)
    except OSError:
        return None


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False


def process_leftovers() -> dict:
    """What a fork does not survive, or must not share. The keys are words of a report."""
    return {
        "started a thread": len(os.listdir("/proc/self/task")),
        "left a descriptor open": tuple(os.listdir("/proc/self/fd")),
        "left a child process": has_children(),
    }


def shared_memory() -> "list[bytes]":
    """The parts of memory that a process and its forks would share, and may write."""
    with open("/proc/self/maps", "rb") as file:
        return [line for line in file if line.split(b" ", 2)[1] == b"rw-s"]


def filters_of_others(filters: tuple, package: str) -> list:
    """The filters of warnings of Python's own kinds that do not name this package: the others are of warnings of packages."""

    def is_own(entry: tuple) -> bool:
        _, message, category, module, _ = entry
        words = [str(getattr(part, "pattern", part) or "") for part in (message, module)]
        return any(package in word for word in words) or not is_stdlib(str(getattr(category, "__module__", "builtins")))

    return [entry for entry in filters if not is_own(entry)]


def process_status() -> "list[bytes]":
    """Without the two signals that the C library keeps for itself: it catches them once there was a thread."""
    lines = STATUS.findall(read_whole("/proc/self/status"))
    return [b"%x" % (int(line[7:], 16) & ~(3 << 31)) if line.startswith(b"SigCgt:") else line for line in lines]


def environment_now() -> "set[bytes]":
    """The variables of this process, in Python and in C."""
    return {*c_variables(), *(name + b"=" + value for name, value in os.environ._data.items())}


def settings() -> dict:
    """What is set for the whole process. The keys are words of a report."""
    root = logging.root
    return {
        "changed the handler of a signal": tuple(map(signal._signal.getsignal, range(1, signal.NSIG))),
        "changed the working directory": CALLS["getcwd"](),
        "changed the umask, signals, users or rights of the process": process_status(),
        "changed a limit of the process": read_whole("/proc/self/limits"),
        "changed the priority of the process": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
        "changed the default time-out of sockets": socket.getdefaulttimeout(),
        "changed the locale": _locale.setlocale(_locale.LC_ALL, None),
        "changed a hook, a path or a stream of Python": (
            sys.excepthook, sys.displayhook, sys.unraisablehook, sys.breakpointhook, tuple(sys.path), tuple(sys.path_hooks), sys.gettrace(),
            sys.getprofile(), sys.stdin, sys.stdout, sys.stderr, sys.dont_write_bytecode, tuple(sys.warnoptions),
        ),  # fmt: skip
        "changed a limit of Python": (
            sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags(), sys.get_asyncgen_hooks(), gc.get_threshold(),
            gc.isenabled(), gc.get_debug(), len(gc.callbacks), gc.get_freeze_count(), getattr(sys, "get_int_max_str_digits", int)(),
            sys.get_coroutine_origin_tracking_depth(),
        ),  # fmt: skip
        "changed the root logger": (
            root.level, tuple(root.handlers), tuple(root.filters), root.manager.disable, tuple(logging._levelToName.items()),
            root.disabled, root.propagate,
        ),  # fmt: skip
    }  # fmt: skip


def far_settings() -> dict:
    """As [settings]: what takes longer to find out, or is rarely set."""
    policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
    faults, threads = sys.modules.get("faulthandler"), sys.modules.get("threading")
    return {
        "changed its place among processes": (
            os.getpgrp(), os.getsid(0), link_of("/proc/self/root"), told_by("/proc/self/cgroup"),
            [link_of(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))],
        ),  # fmt: skip
        "changed a setting of the process": (
            [any(signal.getitimer(kind)) for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
            [told_by(f"/proc/self/{name}") for name in ("oom_score_adj", "coredump_filter", "personality", "timerslack_ns", "comm")],
            [ctypes.CDLL(None).prctl(number, 0, 0, 0, 0) for number in PR_GET.values()], sorted(os.sched_getaffinity(0)),
        ),  # fmt: skip
        "changed the context of decimals": decimals(),
        "set the policy of event loops": policy if policy is not None and not is_stdlib(type(policy).__module__) else None,
        "changed how faults are told": faults.is_enabled() if faults else False,
        "changed the stack or the hooks of threads": (
            stack_size(), getattr(threads, "_trace_hook", None), getattr(threads, "_profile_hook", None),
        ),  # fmt: skip
        "changed a stream of Python": [
            (file and (file.encoding, file.errors, file.line_buffering)) for file in (sys.stdin, sys.stdout, sys.stderr)
        ],  # fmt: skip
        "added a finder of modules": finders(),
    }


def stack_size() -> int:
    size = _thread.stack_size()  # To ask for it sets it to 0.
    if size:
        _thread.stack_size(size)
    return size


def decimals() -> list:
    """How decimals are worked out; without the module, what it begins with."""
    module = sys.modules.get("_decimal") or sys.modules.get("_pydecimal")
    if module is None:
        return [(28, "ROUND_HALF_EVEN", -999999, 999999, 1, 0, ["DivisionByZero", "InvalidOperation", "Overflow"])] * 2
    contexts = module.getcontext(), module.DefaultContext
    traps = [sorted(kind.__name__ for kind, is_set in context.traps.items() if is_set) for context in contexts]
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
    return [(*(getattr(context, name) for name in names), kinds) for context, kinds in zip(contexts, traps)]


def c_variables() -> "list[bytes]":
    table, found = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ"), []
    while table and table[len(found)] is not None:
        found.append(table[len(found)])
    return found


def finders() -> tuple:
    """Those of sys.meta_path that come before the last one of Python's own: what is behind finds only what nobody else does."""
    own = [at for at, finder in enumerate(sys.meta_path) if (finder if isinstance(finder, type) else type(finder)).__module__ in OWN_FINDERS]
    return tuple(sys.meta_path[: max(own, default=-1) + 1])


OWN_FINDERS = ("_frozen_importlib", "_frozen_importlib_external", "importlib._bootstrap", "importlib._bootstrap_external")


def changed(before: dict, now: dict) -> "list[str]":
    """The keys of what has changed, and was known before: what is found only now was there with its module."""
    return [what for what, value in now.items() if what in before and before[what] != value]


class Attributes:
    """The names in modules and in their classes, with what they are, to see what others make of them."""

    def __init__(self):
        self._known: dict = {}  # By the name of a module or class: its package, the owner, its names, and copies of small tables.
        self._loggers = loggers()
        self._before: "set[str]" = set()  # What was known as the import that is watched began.

    def begin(self) -> None:
        """An import begins. What it changes in packages that it is the first to load, no program has seen otherwise."""
        self._before = set(self._known)

    def take(self, names: "set[str]") -> None:
        """Of modules that have been imported."""
        for name in names:
            module = sys.modules.get(name)
            if not isinstance(module, types.ModuleType) or name == "__main__":
                continue
            package, values = package_of(name), dict(vars(module))
            self._known[name] = package, module, values, tables_of(values)
            for value in values.values():
                if isinstance(value, type) and value.__module__ == name:
                    self._known[f"{name}.{value.__qualname__}"] = package, value, dict(vars(value)), {}

    def changes(self, by: str) -> "list[str]":
        """The names that are not what they were, which become known, but for those of the package `by`, which may have changed them."""
        found = []
        for owner_name, (package, owner, values, tables) in list(self._known.items()):
            now = vars(owner)
            if is_equal(now, values) and (not tables or all([is_equal(now[name], table) for name, table in tables.items()])):
                continue
            self._known[owner_name] = package, owner, dict(now), tables_of(now) if tables else {}
            if package == by or (package and owner_name not in self._before):
                continue
            names = [name for name in {*values, *now} if values.get(name, found) is not now.get(name, found)]
            if package and "__getattr__" in now:  # It finds names when they are asked for.
                names = [name for name in names if name in values]
            names += [name for name, table in tables.items() if values.get(name) is now.get(name) and not is_equal(now[name], table)]
            found += [f"{owner_name}.{name}" for name in names if not is_module_of(now.get(name), owner_name, name)]
        before, self._loggers = self._loggers, loggers()
        own = {by, *(package for name, (package, *_) in self._known.items() if name not in self._before)} - {""}
        others = [name for name, state in self._loggers.items() if state != before.get(name, LOGGER) and package_of(name) not in own]
        return sorted(name for name in found if not OWN_DOING.fullmatch(name)) + [f"the logger {name}" for name in sorted(others)]


LOGGER = (logging.NOTSET, (), (), True, False)


def loggers() -> dict:
    """What is set of each logger but the root, by its name."""
    return {
        name: (
            logger.level, tuple(handler for handler in logger.handlers if type(handler) is not logging.NullHandler),
            tuple(logger.filters), logger.propagate, logger.disabled,
        )
        for name, logger in list(logging.root.manager.loggerDict.items()) if isinstance(logger, logging.Logger)
    }  # fmt: skip


def package_of(module: str) -> str:
    """The name of a package, and "" for all of Python's own."""
    return "" if is_stdlib(module) else module.partition(".")[0]


def tables_of(values: dict) -> dict:
    """Copies of tables that a module has under its own names."""
    return {name: type(value)(value) for name, value in list(values.items()) if type(value) in (dict, list, set) and name != "__builtins__"}


def is_equal(one, other) -> bool:
    """What is the same object is equal; of the others who knows."""
    try:
        return bool(one == other)
    except Exception:
        return False


def is_module_of(value, owner: str, name: str) -> bool:
    """Whether a name is a module below its owner: its import sets it."""
    return isinstance(value, types.ModuleType) and value.__name__ in (f"{owner}.{name}", name)
