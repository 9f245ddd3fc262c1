"""Imports the modules that servers share, and watches what the imports do. Third part of the program, after effects.py."""

import functools
import itertools
import subprocess
import time

# What these modules read as they are imported changes nothing in them (GitPython runs `git version`), or is renewed.
HARMLESS = {"git": ("*", "<cwd>"), "rich": ("<cwd>",)}
MARKS = ("TOOLCRIB_OWNER", "TOOLCRIB_TEMPLATE")  # Variables of toolcrib's own.
# These modules read all variables, and use those that begin so, in capitals or not.
PREFIXES = {"fastmcp": "FASTMCP_*", "fastmcp.settings": "FASTMCP_*"}
# What every server on this package imports as it begins to serve, inside of a function.
LATER = {"mcp.server.stdio": "anyio._backends._asyncio"}
# Of these modules, once they are there, what makes values by chance.
BY_CHANCE = {"_ssl": ("RAND_bytes", "RAND_pseudo_bytes"), "_uuid": ("generate_time_safe",), "uuid": ("uuid4",)}
# Names whose values by chance each server makes anew.
RENEWED = {("rich.style", "_id_generator"): lambda: itertools.count(random.randint(0, 2**24))}
UUID = re.compile(r"[0-9a-f]{8}(-?)([0-9a-f]{4}\1){3}[0-9a-f]{12}")
CELL = (lambda value: lambda: value)(0).__closure__[0]
CUT = ">"  # Behind a name to be left out: with all that is imported after it.


class Watch:
    """Imports modules, and notes what they read, leave and change that a fork of this process must not share.

    A change of what others see is imported by each server itself, and so is what a program imports after it. Most of these are only
    looked for if `is_new`: what was compared once does the same again."""

    def __init__(self, avoid: "list[str]", is_new: bool):
        self.avoid = [name for name in avoid if not name.endswith(CUT)]
        self.cuts = {name[: -len(CUT)] for name in avoid if name.endswith(CUT)}
        self.is_new, self.began = is_new, time.time_ns()
        self._loaded: "set[str]" = set()
        self.names: "dict[str, set[str]]" = {}  # Variables that were read, each with the modules that did.
        self.set_by: "dict[bytes, str]" = {}  # Variables that were set or removed, each with the module that did it last.
        self.disk = Disk(self)
        self.problems: "list[tuple[str, list[str]]]" = []  # In words, and the modules to leave out.
        self.skipped: "dict[str, str]" = {}
        self.imported: "list[tuple[str, str]]" = []  # In this order.
        self.not_found: "set[str]" = set()  # Top-level modules that imports have looked for.
        self.seeded: list = []  # Random generators with a seed of their own.
        self.seeds: "list[tuple[str, str]]" = []  # Of these, each with the module that has made it.
        self.uuids: list = []  # That were made by chance, each with the module that asked.
        self.renewed: "list[tuple[dict, str, object]]" = []  # Names that have one of them: each server gets others.
        self._wanted = ""
        self._loading: "list[str]" = []
        self._undo: list = []
        self._left, self._shared = process_leftovers(), shared_memory()
        self._settings = settings()
        self._filters = tuple(warnings.filters)
        self._drawn = drawn()
        self._far = far_settings()
        self._attributes = Attributes()

    # A finder at the end of sys.meta_path.
    def find_spec(self, name, path=None, target=None):
        if path is None:
            self.not_found.add(name)

    def invalidate_caches(self):
        pass

    def run(self, wanted: "list[tuple[str, str]]") -> None:
        """Imports modules, and takes names from them; see [Entry.wanted]."""
        self._start()
        self.skipped.update((module, "left out, with what is imported after it") for module in self.cuts)
        if self.is_new:
            self._attributes.take(set(sys.modules))
        for module, name in wanted:
            self._import(module, name)
        for module, later in LATER.items():
            if not self.cuts and module in sys.modules:
                self._import(later)
        self._check_settings([name for name, _ in wanted][-1:])  # Also of what was compared before.
        self._stop()
        self._find_uuids()

    def _import(self, module: str, name: str = "") -> None:
        if is_module_at(module, self.avoid) or is_module_at(module, self.cuts):
            self.skipped[module] = "left out"
            return
        self._wanted = module
        before, self._loaded = dict(sys.modules), set()
        self._attributes.begin()
        seeds, variables = len(self.seeds), environment_now()
        try:
            found = importlib.import_module(module)
            if name:
                getattr(found, name, None)
            self.imported.append((module, name))
        except BaseException as error:
            self.skipped[module] = f"{type(error).__name__}: {error}"[:300]
            self._roll_back(module, before)
            del self.seeds[seeds:]
        self._check([module])
        shared, self._shared = self._shared, shared_memory()
        if self._shared != shared:
            self.blame("left memory that forks would share", [module])
        # What is set for a while, and then as it was, is seen by nobody else.
        for name in sorted({variable.partition(b"=")[0] for variable in variables ^ environment_now()}):
            self.blame_change(f"set or removed the variable {os.fsdecode(name)}", [self.set_by.get(name, module)])
        if self.is_new and (sys.modules.keys() != before.keys() or module in self.skipped):
            self._check_far(module)
        if self.is_new and module not in self.skipped:
            self._check_modules(module, before, self._loaded)

    def _roll_back(self, name: str, before: dict) -> None:
        """Forgets what a failed import has loaded: half a package would be found by the server."""
        added = [module for module in sys.modules if module not in before and not is_stdlib(module)]
        for module in added:
            old = sys.modules.pop(module)
            parent, _, child = module.rpartition(".")
            if vars(sys.modules.get(parent, importlib)).get(child) is old:
                delattr(sys.modules[parent], child)
            if isinstance(getattr(old, "__loader__", None), importlib.machinery.ExtensionFileLoader):
                # Many of them can be loaded only once in a process.
                self.blame("failed after it had loaded a compiled module", [name])

    def loading(self) -> "str | None":
        """The module whose code runs now, if any does and is watched."""
        return self._loading[-1] if self._undo and self._loading else None

    def note(self, name: str) -> None:
        module = self._loading[-1] if self._loading else "sys"
        names = {name}
        if name == "*" and module in PREFIXES:
            names = {PREFIXES[module], PREFIXES[module].lower()}
        for name in names:
            if name not in HARMLESS.get(module, ()) and name not in MARKS:
                self.names.setdefault(name, set()).add(module)

    def blame(self, what: str, modules: "list[str] | None" = None) -> None:
        """Of what a fork must not have: these modules are left out, and those that need them."""
        modules = [name for name in (self._loading if modules is None else modules) if not is_stdlib(name)]
        if modules:
            needing = [self._wanted] if self._wanted and not is_stdlib(self._wanted) else []
            self.problems.append((f"the import of {modules[-1]} {what}", [*needing, *modules]))

    def blame_change(self, what: str, modules: "list[str] | None" = None) -> None:
        """Of what later imports may see: nothing that a program imports after it may be imported before it."""
        modules = self._loading if modules is None else modules
        if modules and not is_stdlib(modules[-1]):
            self.problems.append((f"the import of {modules[-1]} {what}", [self._wanted + CUT]))

    def _check(self, modules: "list[str] | None" = None) -> None:
        left = process_leftovers()
        for what in changed(self._left, left):
            self.blame(what, modules)
        self._left = left
        if not self.is_new:
            return
        self._check_settings(modules)
        loading = self._loading if modules is None else modules
        filters = tuple(warnings.filters)
        if loading and len({str(filters_of_others(known, loading[-1].split(".")[0])) for known in (self._filters, filters)}) > 1:
            self.blame_change("changed the filters of warnings", modules)
        self._filters, before, self._drawn = filters, self._drawn, drawn()
        is_drawn = any(old not in (None, new) for old, new in zip(before, self._drawn))
        if loading and is_drawn and loading[-1] not in {module for module, _ in RENEWED}:
            self.blame("drew a number by chance", loading)

    def _check_settings(self, modules: "list[str] | None") -> None:
        found = settings()
        for what in changed(self._settings, found):
            self.blame_change(what, modules)
        self._settings = found

    def _check_far(self, module: str) -> None:
        """As [Watch._check], of what takes longer to find out."""
        found = far_settings()
        for what in changed(self._far, found):
            self.blame_change(what, [module])
        self._far = found
        self._check_attributes([module])

    def _check_attributes(self, modules: "list[str] | None" = None) -> None:
        loading = self._loading if modules is None else modules
        names = self._attributes.changes(package_of(loading[-1]) if loading else "")
        if names:
            self.blame_change(f"changed {', '.join(names[:3])}", modules)

    def _check_modules(self, module: str, before: dict, loaded: "set[str]") -> None:
        """Of modules that are not what has been loaded under their names."""
        replaced = [name for name, known in before.items() if sys.modules.get(name) is not known]
        packages = {package_of(name) for name in loaded}
        added = {name.partition(".")[0] for name in {*sys.modules} - {*before} - loaded if package_of(name) not in packages}
        # Some have a name that no file has, which is nobody else's.
        replaced += [name for name in added if name in STDLIB_NAMES or importlib.machinery.PathFinder.find_spec(name)]
        if replaced:
            self.blame_change(f"put another module in place of {', '.join(sorted(replaced)[:3])}", [module])

    def _load(self, load, spec):
        self._check()  # Of what those that wait for this import have done until now.
        self._loaded.add(spec.name)
        # What a package does to itself, and Python's own modules to each other, is no change: looked at around each group of them.
        is_first = self.is_new and bool(self._loading) and package_of(spec.name) != package_of(self._loading[-1])
        if is_first:
            self._check_attributes()
        self._loading.append(spec.name)
        try:
            if is_module_at(spec.name, self.avoid):
                self.blame("is to be left out")
            elif is_module_at(spec.name, self.cuts):
                self.blame_change("is to be left out, with what follows")
            module = load(spec)
            for name in BY_CHANCE.get(spec.name, ()):
                self._watch_chance(module, name)
            return module
        finally:
            self._check()
            if is_first:
                self._check_attributes()
            self._loading.pop()
            if self.is_new:
                self._attributes.take({spec.name})

    def _is_own_doing(self) -> bool:
        """Whether Python itself asks: what it keeps is renewed in each server (`renew`)."""
        module = self._loading[-1] if self._loading else "sys"
        return is_stdlib(module) or module.startswith("numpy.random") or sys._getframe(2).f_globals["__name__"] == "logging"

    def _start(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # A daemon becomes a child of this process, and is found.
        load = importer._load_unlocked
        self.replace(importer, "_load_unlocked", lambda spec: self._load(load, spec))
        sys.meta_path.append(self)
        for environ in (os.environ, os.environb):
            self._undo.append((environ, "__class__", type(environ)))
            environ.__class__ = watched_environment(self, type(environ))
        self.replace(random.Random, "seed", noting_seeds(random.Random.seed, self._note_seed, self.seeds, self.loading))
        for name in ("getcwd", "getcwdb"):
            self._note_calls(os, name, lambda *_: self.note("<cwd>"))
        self._note_calls(os, "getpid", lambda *_: self.blame("asked for the process id"))
        for module, name in ((os, "urandom"), (os, "getrandom"), (random, "_urandom")):
            self._watch_chance(module, name)
        for module, names in BY_CHANCE.items():
            for name in names if module in sys.modules else ():
                self._watch_chance(sys.modules[module], name)
        for module, name in ((os, "putenv"), (os, "unsetenv")):
            self._note_calls(module, name, self._note_variable)
        self.replace(random.Random, "setstate", noting_states(random.Random.setstate, self._note_seed))
        for holder, name in ((subprocess.Popen, "__init__"), (os, "system"), (os, "posix_spawn"), (os, "posix_spawnp")):
            self._note_calls(holder, name, self._note_program)
        for name in ("seed", "setstate"):
            self._note_calls(random, name, lambda *args: self.blame("set the seed of chance") if args and args[0] is not None else None)
        self._note_calls(os, "register_at_fork", lambda *_: self.blame("asked to be told of forks"))
        self._note_calls(codecs, "register", lambda *_: self.blame_change("registered a codec"))
        self._note_calls(codecs, "register_error", self._note_handler)
        for name in ("disable", "enable", "freeze"):
            self._note_calls(gc, name, lambda *_: self.blame_change("changed when Python collects garbage"))
        self._note_calls(sys, "addaudithook", lambda *_: self.blame_change("added an audit hook"))
        self.disk.start()
        self.replace(sys, "argv", watched_arguments(self))

    def _note_program(self, *_) -> None:
        """What it says may differ from server to server."""
        if (self.loading() or "").partition(".")[0] not in HARMLESS:
            self.blame("has run a program")

    def _note_variable(self, name, *_) -> None:
        self.set_by[os.fsencode(name)] = self.loading() or "sys"

    def _note_seed(self, generator) -> None:
        if generator is random._inst:
            self.blame("set the seed of chance")
        self.seeded.append(generator)

    def _watch_chance(self, module, name: str) -> None:
        if name == "uuid4":
            uuid4 = module.uuid4

            def noted():
                made = uuid4()
                if self.loading():
                    self.uuids.append((made, self.loading()))
                return made

            self.replace(module, name, functools.update_wrapper(noted, uuid4))
        elif hasattr(module, name):
            self._note_calls(module, name, self._note_chance)

    def _note_handler(self, name: str, *_) -> None:
        """Of errors in texts; one with a new name is nobody else's."""
        try:
            codecs.lookup_error(name)
        except (LookupError, TypeError):
            return
        self.blame_change("replaced how errors in texts are handled")

    def _note_chance(self, *_) -> None:
        if sys._getframe(2).f_code.co_name != "uuid4":  # These are noted as such.
            self.blame("made a random value")

    def _note_calls(self, module, name: str, note) -> None:
        function = getattr(module, name)

        def noted(*args, **kwargs):
            if self._undo and not self._is_own_doing():
                note(*args)
            return function(*args, **kwargs)

        self.replace(module, name, functools.update_wrapper(noted, function))

    def replace(self, holder, name: str, value) -> None:
        """Until the end of the imports."""
        self._undo.append((holder, name, vars(holder)[name], value))
        setattr(holder, name, value)

    def _stop(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 0)
        sys.meta_path.remove(self)
        self.disk.stop()
        undo, self._undo = self._undo, []
        kept = {id(new[0]): old for _, _, old, *new in undo if new}
        for holder, name, old, *_ in undo:
            setattr(holder, name, old)
        put_back(kept, [new[0] for _, _, _, *new in undo if new])
        self._attributes = None

    def _find_uuids(self) -> None:
        """Finds the names of modules that have the UUIDs that were made, or texts with one in them. One that is elsewhere is the same in
        all forks."""
        made = {text: (uuid, by) for uuid, by in self.uuids for text in (str(uuid), uuid.hex)}
        owners, found = {}, set()
        for module in list(sys.modules.values()) if made else ():
            names = getattr(module, "__dict__", None)
            if type(names) is not dict or module is sys.modules["__main__"]:
                continue
            owners[id(names)] = names
            for name, value in list(names.items()):
                text = str(value) if any(value is uuid for uuid, _ in made.values()) else value
                match = UUID.search(text) if type(text) is str and len(text) < 1000 else None
                if match and match.group() in made:
                    self.renewed.append((names, name, made[match.group()][0]))
                    found.add(id(made[match.group()][0]))
        for names, name, uuid in self.renewed:
            kept = {id(owner) for owner in gc.get_referrers(names[name]) if isinstance(owner, (dict, list, tuple, set, type(CELL)))}
            if kept - {id(self.uuids), *owners, *map(id, self.uuids), *map(id, self.renewed), *map(id, made.values())}:
                found.discard(id(uuid))
        for uuid, by in self.uuids:
            if id(uuid) not in found:
                self.blame("made a random value", [by])

    def generators(self) -> list:
        """The random generators that imports have made, each with a seed by chance."""
        by_chance = [
            thing for thing in gc.get_objects()
            if issubclass(type(thing), random.Random) and not issubclass(type(thing), random.SystemRandom)
        ]
        return [thing for thing in by_chance if not any(thing is seeded for seeded in self.seeded)]


def put_back(kept: "dict[int, object]", replaced: list) -> None:
    """Modules may have copied what was replaced: `from os import getcwd`, also into tables, classes, objects and defaults. What keeps one
    after that differs from what it is in the process that this one is compared with."""
    holders = [holder for holder in gc.get_referrers(*replaced) if holder is not replaced]
    tuples = [holder for holder in holders if type(holder) is tuple]
    # All at once: this looks at every object of the process.
    functions = [it for it in (gc.get_referrers(*tuples) if tuples else []) if type(it) is types.FunctionType]
    # A class does not notice what is changed in its table.
    for holder in sorted(holders, key=lambda holder: not isinstance(holder, type)):
        try:
            put_back_in(holder, kept)
        except Exception:
            pass  # It does not let itself be changed.
    for function in functions:
        if any(function.__defaults__ is holder for holder in tuples):
            function.__defaults__ = tuple(kept.get(id(value), value) for value in function.__defaults__)


def put_back_in(holder, kept: "dict[int, object]") -> None:
    if isinstance(holder, type):
        for name in [name for name, value in vars(holder).items() if id(value) in kept]:
            setattr(holder, name, kept[id(vars(holder)[name])])
    elif isinstance(holder, type(CELL)):
        holder.cell_contents = kept.get(id(holder.cell_contents), holder.cell_contents)
    elif isinstance(holder, (list, dict)):
        kind = list if isinstance(holder, list) else dict
        places = enumerate(holder) if kind is list else dict.items(holder)
        for place, value in [(place, kept[id(value)]) for place, value in places if id(value) in kept]:
            kind.__setitem__(holder, place, value)
    elif isinstance(holder, functools.partial):
        function, *rest = holder.__reduce__()[2]
        holder.__setstate__((kept.get(id(function), function), *rest))
    elif not isinstance(holder, (tuple, types.FunctionType, types.FrameType, types.ModuleType)):
        fields = getattr(holder, "__dict__", None)
        if type(fields) is dict:
            put_back_in(fields, kept)
        for _, member, value in slots_of(holder, slots_of_class(type(holder))):
            if id(value) in kept:
                member.__set__(holder, kept[id(value)])


def slots_of(holder, slots: "list[tuple[str, object]]") -> "list[tuple[str, object, object]]":
    """What an object keeps in these slots of its classes: names, the slots, and their values."""
    found = []
    for name, member in slots:
        try:
            found.append((name, member, member.__get__(holder)))
        except AttributeError:
            pass  # It is not set.
    return found


def slots_of_class(kind: type) -> "list[tuple[str, object]]":
    return [
        (name, member) for base in kind.__mro__ if base.__module__ != "builtins"
        for name, member in vars(base).items() if type(member) is types.MemberDescriptorType
    ]  # fmt: skip


def renew_values(renewed: "list[tuple[dict, str, object]]") -> None:
    """Makes other UUIDs in place of these, and what is in [RENEWED]."""
    for (module, name), make in RENEWED.items():
        if hasattr(sys.modules.get(module), name):
            setattr(sys.modules[module], name, make())
    others: dict = {}
    for names, name, uuid in renewed:
        other = others.setdefault(uuid, sys.modules["uuid"].uuid4())
        value = names[name]
        names[name] = other if value is uuid else value.replace(str(uuid), str(other)).replace(uuid.hex, other.hex)


def drawn() -> "tuple[int | None, ...]":
    """Differs once a number was drawn from Python's own generator or that of numpy, or one of them was seeded."""
    state = getattr(sys.modules.get("numpy.random"), "get_state", None)
    try:
        of_numpy = hash((state()[1].tobytes(), state()[2])) if state else None
    except Exception:
        of_numpy = -1  # Another kind of generator was put in its place.
    return hash(random._inst.getstate()), of_numpy


def noting_seeds(seed, note, seeds: "list[tuple[str, str]]", loading):
    """A function in place of `random.Random.seed` that notes generators with a seed of their own."""

    def noted(generator, a=None, *args, **kwargs):
        if a is not None:
            note(generator)
            seeds.append((loading() or "", repr(a)[:1000]))
        return seed(generator, a, *args, **kwargs)

    return functools.update_wrapper(noted, seed)


def noting_states(setstate, note):
    def noted(generator, state):
        note(generator)
        return setstate(generator, state)

    return functools.update_wrapper(noted, setstate)


def watched_environment(watch: Watch, original: type) -> type:
    def text(name) -> str:
        return os.fsdecode(name) if isinstance(name, (str, bytes)) else "*"

    class Environment(original):
        def __getitem__(self, name):
            watch.note(text(name))
            return super().__getitem__(name)

        def __iter__(self):
            watch.note("*")
            return super().__iter__()

    return Environment


def watched_arguments(watch: Watch) -> list:
    def noted(name: str):
        original = getattr(list, name)

        def method(self, *args):
            if watch._undo and not watch._is_own_doing():
                watch.blame("read the arguments of the program")
            return original(self, *args)

        return method

    methods = {name: noted(name) for name in ("__getitem__", "__iter__", "__len__", "__contains__", "copy", "index")}
    return type("list", (list,), methods)(sys.argv)
