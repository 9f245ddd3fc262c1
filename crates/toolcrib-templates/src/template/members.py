"""The constants of modules, so that the imports of two processes can be compared. Fifth part of the program, after disk.py.

The other process is a witness: it imports the same modules in the same order. What differs between the two would differ between two
ordinary starts, and must not be the same in all forks."""

import bisect
import collections
import resource

try:
    from _sha2 import sha512
except ImportError:  # Before Python 3.12.
    from _sha512 import sha512

# Objects of one module that are looked at, and how deep.
MEMBERS_MAX, DEPTH = 100_000, 7
WORTH_MODULES = 50  # A program that imports so many more than others do gets a template of its own.
WITNESS_MAX = 60  # Seconds.
NOT_COMPARED = re.compile(
    r"__(file|cached|spec|loader|builtins|path|dict|weakref|warningregistry|annotations\w*|slotnames|pydantic_(core|validator|serial|decor|generic|com|parent)\w*)"
    r"__|_abc_impl"
)
KEPT_HASH = re.compile(r"_*(\w+__)?(cached_)?hash(_?(value|code))?_*")
NUMBERS = re.compile(r"0x[0-9a-fA-F]{6,16}|\d{12,20}")
TOKEN = re.compile(r"[\w+/=.:-]*")
EXACT = (str, bytes, int, float, complex, bool, type(None))
READABLE = {
    ("datetime", "datetime"), ("datetime", "date"), ("datetime", "time"), ("datetime", "timedelta"), ("datetime", "timezone"),
    ("decimal", "Decimal"), ("fractions", "Fraction"), ("uuid", "UUID"), ("itertools", "count"), ("re", "Pattern"), ("builtins", "range"),
    ("builtins", "slice"), ("pathlib", "PosixPath"), ("pathlib", "PurePosixPath"), ("ipaddress", "IPv4Address"), ("ipaddress", "IPv6Address"),
}  # fmt: skip
OPAQUE = ("weakref", "_weakref", "_weakrefset", "typing", "ast", "importlib", "_frozen_importlib", "_frozen_importlib_external", "random", "_random")
# What is in objects of compiled code.
CONTENTS = {
    ("_io", "StringIO"): lambda value: value.getvalue(), ("_io", "BytesIO"): lambda value: value.getvalue(),
    ("_contextvars", "ContextVar"): lambda value: value_of(value), ("_thread", "_local"): lambda value: dict(vars(value)),
    ("_io", "TextIOWrapper"): lambda value: value.name, ("_io", "BufferedReader"): lambda value: value.name,
    ("_io", "BufferedWriter"): lambda value: value.name, ("_io", "FileIO"): lambda value: value.name,
}  # fmt: skip


def areas_now() -> "list[tuple[int, int]]":
    """Where the memory of this process is: numbers that point there are places, which differ from start to start."""
    with open("/proc/self/maps", "rb") as file:
        return sorted(tuple(int(part, 16) for part in line.split()[0].split(b"-")) for line in file)


class Members:
    """Tells the constants of modules, each name in a hash."""

    def __init__(self):
        self.areas = areas_now()
        # Of which each server gets its own.
        own = [os.environ, os.environb, sys.argv, getattr(sys, "orig_argv", None), getattr(sys.modules.get("linecache"), "cache", None)]
        self.own = {id(thing) for thing in own}
        # Most words are in many modules, and most classes in many objects.
        self.texts: "dict[str, bytes]" = {}
        self.compared: "dict[str, bool]" = {}
        self.slots: "dict[type, list]" = {}

    def of(self, name: str, parts: "set[str] | None" = None) -> "dict[str, str]":
        """Of the names of one module. Adds all that is in them to `parts`, too."""
        module = sys.modules[name]
        self.module, self.package = name, name.split(".")[0]
        self.known, self.left, self.parts = {}, MEMBERS_MAX, parts
        names = getattr(module, "__dict__", {})
        told = {key: self._tell(value, 0) for key, value in list(names.items()) if self._is_compared(key)}
        return {key: hash_of(value) for key, value in told.items()}

    def _is_compared(self, name) -> bool:
        if type(name) is not str:
            return True
        found = self.compared.get(name)
        if found is None:
            found = self.compared[name] = not NOT_COMPARED.fullmatch(name)
        return found

    def _is_place(self, number: int) -> bool:
        if number <= 1 << 32:
            return False
        at = bisect.bisect_right(self.areas, (number, sys.maxsize))
        return at > 0 and number < self.areas[at - 1][1]

    def _text(self, text: str) -> bytes:
        if len(text) > 64:
            return self._told_text(text)
        told = self.texts.get(text)
        if told is None:
            told = self.texts[text] = self._told_text(text)
        return told

    def _told_text(self, text: str) -> bytes:
        def plain(found):
            word = found.group()
            return "PLACE" if self._is_place(int(word, 16 if word.startswith("0x") else 10)) else word

        if len(text) < 1 << 20:
            text = NUMBERS.sub(plain, text)
        # It may have been joined in the order of a set, if it is no token or time.
        is_joined = len(text) >= 64 or (not TOKEN.fullmatch(text) and sum(map(str.isdigit, text)) < 6)
        return repr("".join(sorted(text)) if is_joined else text).encode("utf-8", "surrogatepass")

    def _tell(self, value, depth: int) -> bytes:
        """What refers to itself is told again and again, down to the last level: in the same way in whatever order."""
        if type(value) in EXACT:
            told = self._exact(value)
        else:
            place = id(value), depth
            told = self.known.get(place)
            if told is not None:
                return told
            told = self._told(value, depth)
            if len(told) > 64:
                told = hash_of(told).encode()
            self.known[place] = told
        if self.parts is not None and depth > 0:
            self.parts.add(hash_of(told))
        return told

    def _exact(self, value) -> bytes:
        if type(value) is str:
            told = self._text(value)
        elif type(value) is int and self._is_place(value):
            told = b"PLACE"
        else:
            told = repr(value).encode()
        return told if len(told) <= 64 else hash_of(told).encode()

    def _told(self, value, depth: int) -> bytes:
        kind = type(value)
        if issubclass(kind, types.ModuleType):
            return b"module"
        if depth > DEPTH or self.left <= 0:
            return b""
        if id(value) in self.own:
            return b"own"
        self.left -= 1
        depth += 1
        if kind in (tuple, collections.deque):
            return b"(" + b",".join([self._tell(part, depth) for part in list(value)]) + b")"
        if kind in (list, set, frozenset):  # The order of a list may be that of a set.
            return b"[" + b",".join(sorted([self._tell(part, depth) for part in list(value)])) + b"]"
        if issubclass(kind, (dict, types.MappingProxyType)):
            return self._table(value, depth) + self._fields(value, depth)
        if issubclass(kind, EXACT[:5]):
            base = next(base for base in EXACT if issubclass(kind, base))
            return self._tell(base.__add__(value, base()), depth) + self._fields(value, depth)
        if kind is types.FunctionType:
            return self._function(value, depth)
        if kind is types.BuiltinFunctionType:
            return name_of_function(value)
        if kind in (staticmethod, classmethod):
            return self._tell(value.__func__, depth)
        if kind is types.MethodType:
            return self._tell(value.__func__, depth) + self._tell(value.__self__, depth)
        if kind is Noted:
            return b"stand-in"
        if kind is property:
            return b"".join([self._tell(part, depth) for part in (value.fget, value.fset)])
        if issubclass(kind, type):
            module = type.__getattribute__(value, "__module__")
            told = f"class {module}.{type.__getattribute__(value, '__qualname__')}".encode("utf-8", "replace")
            return told + (self._table(vars(value), depth) if module == self.module else b"")
        return self._thing(value, kind, depth)

    def _table(self, value, depth: int) -> bytes:
        items = list(dict.items(value) if isinstance(value, dict) else value.items())
        pairs = [self._tell(key, depth) + b":" + self._tell(part, depth) for key, part in items if self._is_compared(key)]
        return b"{" + b",".join(sorted(pairs)) + b"}"

    def _is_of_another(self, value) -> bool:
        """Whether a function is a name of a module of another package, or of Python: it is told with its own module."""
        module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
        names = getattr(sys.modules.get(module), "__dict__", {}) if type(module) is type(name) is str else {}
        return names.get(name) is value and module.split(".")[0] != self.package

    def _function(self, value, depth: int) -> bytes:
        if value.__globals__ is globals():
            return b"stand-in"  # It could not be put back, and is nowhere else.
        if self._is_of_another(value):
            return name_of_function(value)
        cells = []
        for cell in value.__closure__ or ():
            try:
                cells.append(self._tell(cell.cell_contents, depth))
            except ValueError:
                pass  # It is empty.
        kept = [self._tell(part, depth) for part in (value.__defaults__, value.__kwdefaults__)]
        return name_of_function(value) + b",".join([*kept, self._table(value.__dict__, depth), *cells])

    def _thing(self, value, kind: type, depth: int) -> bytes:
        place = type.__getattribute__(kind, "__module__"), kind.__qualname__
        name = ".".join(map(str, place)).encode("utf-8", "replace")
        if place in READABLE:
            return name + self._text(repr(value))
        if str(place[0]).split(".")[0] in OPAQUE:
            return name
        try:
            view = memoryview(value)
            if view.nbytes < 1 << 16 and "O" not in view.format and "P" not in view.format:
                return name + view.tobytes()
        except (TypeError, ValueError, BufferError):
            pass
        if place in CONTENTS:
            return name + self._tell(CONTENTS[place](value), depth)
        if callable(getattr(kind, "hexdigest", None)) and kind.__module__.startswith("_"):
            return name + value.copy().hexdigest().encode()
        if isinstance(value, logging.Logger):  # Of the tree of loggers only itself.
            return name + self._table({key: part for key, part in vars(value).items() if key not in ("manager", "parent", "_cache")}, depth)
        is_cached = place == ("functools", "_lru_cache_wrapper")
        if is_cached and self._is_of_another(value):
            return name_of_function(value)
        told = self._fields(value, depth)
        if (not told or is_cached) and gc.is_tracked(value):
            told += b",".join(sorted([self._tell(part, depth) for part in gc.get_referents(value) if not isinstance(part, type)]))
        return name + told

    def _fields(self, value, depth: int) -> bytes:
        """What an object keeps, without running any code of its class."""
        told = []
        try:
            fields = object.__getattribute__(value, "__dict__")
            if type(fields) is dict:
                told.append(self._table({name: part for name, part in fields.items() if not is_kept_hash(name, part)}, depth))
        except (AttributeError, TypeError):
            pass
        kind = type(value)
        if kind not in self.slots:
            self.slots[kind] = slots_of_class(kind)
        for name, _, part in slots_of(value, self.slots[kind]):
            if self._is_compared(name) and not is_kept_hash(name, part):
                told.append(name.encode() + b"=" + self._tell(part, depth))
        return b"".join(told)


def value_of(variable):
    try:
        return variable.get()  # With its default.
    except LookupError:
        return None


def is_kept_hash(name, value) -> bool:
    """Whether an object keeps its own hash there: it differs with the seed of hashes."""
    return type(value) is int and type(name) is str and KEPT_HASH.fullmatch(name) is not None


def name_of_function(value) -> bytes:
    """Functions are told by their names, so that one in place of another is seen."""
    return f"function {value.__module__}.{value.__qualname__}".encode("utf-8", "replace")


def hash_of(told: bytes) -> str:
    return sha512(told).hexdigest()[:16]


def told_modules() -> "dict[str, dict[str, str]]":
    members = Members()
    names = [name for name in list(sys.modules) if name not in STARTUP_MODULES and not is_stdlib(name)]
    return {name: members.of(name) for name in names}


def witness(plan: dict) -> None:
    """Imports what is in the plan, and tells the constants of all modules on the standard output. A program whose imports are to be
    watched is imported whole: it tells what changes what later imports see, too."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != plan["parent"]:
        os._exit(1)
    output = os.dup(1)
    os.dup2(2, 1)  # What imports print.
    gc.disable()
    be_another_process()
    told: dict = {"seeds": [], "cuts": []}
    if plan["watched"]:
        watch = Watch([], True)
        watch.run([(module, name) for module, name in plan["witness"]])
        told["cuts"] = [(what, names) for what, names in watch.problems if names[0].endswith(CUT)]
    else:
        seeds: "list[tuple[str, str]]" = []
        seed = random.Random.seed
        random.Random.seed = noting_seeds(seed, id, seeds, str)
        for module, name in plan["witness"]:
            try:
                getattr(importlib.import_module(module), name or "__name__", None)
            except BaseException:
                pass  # It is missing then.
        random.Random.seed = seed
        told["seeds"] = [seed for _, seed in seeds]
    told["count"], told["modules"] = len(sys.modules), told_modules()
    data = json.dumps(told).encode()
    while data:
        data = data[os.write(output, data) :]
    os._exit(0)


def be_another_process() -> None:
    """Differs from the template in what one server differs in from another: what an import makes of it is found by the comparison."""
    name = "/witness/of/imports.py"
    main = types.ModuleType("__main__")
    main.__file__, main.own = name, sys.modules["__main__"]  # Whose names are those of this program.
    sys.modules["__main__"] = main
    sys.argv[:] = [name, "--witness"]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [*sys.orig_argv[:1], name, "--witness"]
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_STACK):
        soft, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (1 << 30 if soft == resource.RLIM_INFINITY else max(soft - 1, 0), hard))


class Witness:
    """Another process that imports."""

    def __init__(self, template: "Template", imported: list, watched: bool):
        self.watched = watched
        plan = json.dumps({"witness": imported, "watched": watched, "parent": os.getpid()})
        self.read, write = os.pipe()
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, write, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_CLOSE, ZYGOTE), (os.POSIX_SPAWN_CLOSE, MANAGER),
        ]  # fmt: skip
        words = [*template.command, b"-c", template.code, os.fsencode(plan)]
        self.pid = os.posix_spawn(words[0], words, variables_of(template.environment), file_actions=actions)
        os.close(write)

    def told(self, ends: float) -> dict:
        """What it tells until then. It has ended after that."""
        data = []
        try:
            while select.select([self.read, MANAGER], [], [], max(ends - time.monotonic(), 0))[0] == [self.read]:
                part = os.read(self.read, 1 << 20)
                if not part:
                    return json.loads(b"".join(data) or b"{}")
                data.append(part)
            return {}
        finally:
            os.close(self.read)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def variables_of(environment: "list[bytes]") -> "dict[bytes, bytes]":
    return dict(variable.split(b"=", 1) for variable in environment if variable.find(b"=", 1) > 0)


def compared(template: "Template") -> "list[tuple[str, list[str]]]":
    """What differs between this process and others: one that imports the same, and one for each program that imports more, which does
    that in its own order. In words, and the modules to leave out."""
    watch, ends = template.watch, time.monotonic() + WITNESS_MAX
    todo = [(watch.imported, None)]
    todo += [(order_of([entry], watch.cuts), entry) for entry in template.more]
    renewed = {*RENEWED, *((names["__name__"], name) for names, name, _ in watch.renewed)}
    own, found = told_modules(), []
    while todo:
        count = len(os.sched_getaffinity(0))
        some, todo = todo[:count], todo[count:]
        for one, entry in [(Witness(template, imported, entry is not None), entry) for imported, entry in some]:
            told = one.told(ends)
            if "modules" not in told:
                found.append(("what it imports could not be compared with another import", []))
                continue
            if entry and told["count"] < len(sys.modules) + WORTH_MODULES:
                template.near.append(entry)
            found += [(what, names) for what, names in told["cuts"]]
            found += differences(own, told["modules"], renewed, one.watched)
            if not one.watched:
                found += seeds_that_differ(watch.seeds, told["seeds"])
    return found


def differences(own: dict, others: dict, renewed: "set[tuple[str, str]]", has_more: bool) -> "list[tuple[str, list[str]]]":
    """`has_more`: the other process has imported more, so that modules may have more names."""
    found = []
    for module, names in own.items():
        other = others.get(module)
        if other is None:
            found.append((f"{module} is not imported each time", [module]))
            continue
        all_names = {*names} & {*other} if has_more else {*names, *other}
        differing = sorted(name for name in all_names if names.get(name) != other.get(name) and (module, name) not in renewed)
        if differing:
            # One of several that are here, too: what a set has first or last.
            parts: "set[str]" = set()
            Members().of(module, parts)
            differing = [name for name in differing if other.get(name) not in parts]
        if differing:
            found.append((f"the import of {module} makes a value that differs from start to start: {', '.join(differing[:3])}", [module]))
    return found


def seeds_that_differ(own: "list[tuple[str, str]]", others: "list[str]") -> "list[tuple[str, list[str]]]":
    pairs = [(module, seed, other) for (module, seed), other in zip(own, others + [""] * len(own))]
    what = "seeds chance with a value that differs from start to start"
    differing = [module for module, seed, other in pairs if seed != other and module and not is_stdlib(module)]
    return [(f"the import of {module} {what}", [module]) for module in differing]
