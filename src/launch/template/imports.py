"""Finds and imports the modules that the Python servers of one environment share.

First part of the program of a template: disk.py, request.py and template.py follow it in the same file. A server's own package is
only read, never run: it is run after the fork, with the server's own environment, arguments and working directory.
"""

import sys

if sys.path[:1] == [""]:
    del sys.path[0]  # The working directory, which `-c` adds: its files are none of ours.
STARTUP_MODULES = frozenset(sys.modules)

import ast
import builtins
import gc
import importlib
import importlib.machinery
import os
import random
import signal

import _frozen_importlib as importer

STDLIB = os.path.dirname(os.__file__)
STDLIB_NAMES = getattr(sys, "stdlib_module_names", {"argparse", "asyncio", "json", "logging"})
SITE_FOLDERS = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
# What these modules read as they are imported changes nothing in them (GitPython runs `git version`), or is renewed.
HARMLESS = {"git": ("*", "<cwd>"), "rich": ("<cwd>",)}
# These modules read all variables, and use those that begin so, in capitals or not.
PREFIXES = {"fastmcp": "FASTMCP_*", "fastmcp.settings": "FASTMCP_*"}
# What the first call of nearly every server on these packages imports, inside of a function.
LATER = {"anyio": "anyio._backends._asyncio", "httpx": "httpcore"}
FILES_MAX = 2000  # The most sources of its own that are read for one server.


def is_below(path: str, folders: "list[str]") -> bool:
    return any(path.startswith(folder + os.sep) for folder in folders)


def is_stdlib(name: str) -> bool:
    """Whether a module belongs to Python itself."""
    if name not in sys.modules:
        return name.split(".")[0] in STDLIB_NAMES
    file = getattr(sys.modules[name], "__file__", None)
    return file is None or (is_below(file, [STDLIB]) and not is_below(file, SITE_FOLDERS))


def is_module_at(name: str, names: "set[str] | list[str] | frozenset[str]") -> bool:
    """Whether `name` is one of the modules `names` or below one."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in names for count in range(1, len(parts) + 1))


def own_names(is_listed) -> "set[str]":
    """The top-level modules of the distribution of which `is_listed(folder, file)` holds for a file."""
    for folder in SITE_FOLDERS:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            try:
                with open(os.path.join(folder, name, "RECORD"), encoding="utf-8") as record:
                    files = [line.rsplit(",", 2)[0] for line in record]
            except (OSError, ValueError):
                continue
            if any(is_listed(folder, file) for file in files):
                tops = (file.split("/")[0].split(".")[0] if "/" not in file else file.split("/")[0] for file in files)
                return {top for top in tops if top.isidentifier() and top != "__pycache__"}
    return set()


def imports_of(tree: ast.AST):
    """The imports of a module, but those for type checkers, and whether each runs with it: not in a function."""
    inside = (ast.stmt, ast.excepthandler, getattr(ast, "match_case", ast.stmt))
    todo = [(tree, True)]
    while todo:
        node, runs = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, runs
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            children = node.orelse
        runs = runs and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        todo += [(child, runs) for child in children if isinstance(child, inside)]


class Entry:
    """What a server's own modules import, found without running any code of theirs."""

    def __init__(self, kind: str, name: str):
        self.folder = os.path.dirname(os.path.realpath(name)) if kind == "script" else None
        self.shared: "set[tuple[str, str]]" = set()  # Modules, each with a name to take from it, or "".
        self.missing = kind == "script" and not os.path.isfile(name)
        self._specs: dict = {}
        self._seen: "set[str]" = set()
        if kind == "script":
            script = os.path.realpath(name)

            def is_listed(folder: str, file: str) -> bool:
                same = os.path.basename(file) == os.path.basename(script)
                return same and os.path.realpath(os.path.join(folder, file)) == script

            self.own = own_names(is_listed)
            self._read(script, "")
        else:
            top = name.split(".")[0]
            self.own = own_names(lambda _, file: file.startswith(top + "/") or file == top + ".py") | {top}
            self._visit(name)
            self._visit(name + ".__main__")

    def _find(self, name: str):
        if name not in self._specs:
            self._specs[name] = self._search(name)
        return self._specs[name]

    def _search(self, name: str):
        parent, _, _ = name.rpartition(".")
        path = None
        if parent:
            above = self._find(parent)
            path = above and above.submodule_search_locations
            if path is None:
                return None
            # The list of a namespace package asks for its parent, which is not imported.
            path = list(getattr(path, "_path", path))
        elif self.folder:
            spec = importlib.machinery.PathFinder.find_spec(name, [self.folder])
            if spec is not None and spec.origin and name not in STARTUP_MODULES:
                return spec
        for finder in sys.meta_path:
            try:
                spec = finder.find_spec(name, path, None)
            except Exception:
                spec = None
            if spec is not None:
                return spec
        return None

    def _is_own(self, name: str, spec) -> bool:
        if name.split(".")[0] in self.own:
            return True
        if spec.origin in ("built-in", "frozen"):
            return False
        places = [spec.origin] if spec.origin else list(getattr(spec.submodule_search_locations, "_path", []))
        if self.folder and any(os.path.dirname(place) == self.folder for place in places):
            return True
        return not all(is_below(place, [STDLIB, *SITE_FOLDERS]) for place in places)

    def _visit(self, name: str) -> None:
        parts = name.split(".")
        for part in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            if part in self._seen or len(self._seen) > FILES_MAX:
                continue
            self._seen.add(part)
            spec = self._find(part)
            if spec is None:
                return
            if not self._is_own(part, spec):
                self.shared.add((part, ""))
            elif (spec.origin or "").endswith(".py"):
                is_package = spec.submodule_search_locations is not None
                self._read(spec.origin, part if is_package else part.rpartition(".")[0])

    def _read(self, path: str, package: str) -> None:
        try:
            with open(path, "rb") as file:
                tree = ast.parse(file.read(1 << 22), path)
        except (OSError, SyntaxError, ValueError, RecursionError):
            return
        for node, runs in imports_of(tree):
            if isinstance(node, ast.Import):
                bases = [alias.name for alias in node.names]
            else:
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                bases = [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")] if base else []
            for name in bases:
                # Of the imports in functions, only Python's own modules: they cost little.
                if runs or (name.split(".")[0] in STDLIB_NAMES and name.split(".")[0] not in self.own):
                    self._visit(name)
            # A package may import what it offers only when it is asked for.
            if runs and isinstance(node, ast.ImportFrom) and (bases[:1] or [""])[0] in self._seen:
                if (bases[0], "") in self.shared:
                    self.shared.update((bases[0], alias.name) for alias in node.names if alias.name != "*")


class Watch:
    """Imports modules, and notes what they read and leave that a fork of this process must not share."""

    def __init__(self, avoid: "list[str]"):
        self.avoid = avoid
        self.names: "dict[str, set[str]]" = {}  # Variables that were read, each with the modules that did.
        self.disk = Disk(self)
        self.shared: "set[str]" = set()  # Modules that have made an identifier by chance, the same in all servers.
        self.writes: "dict[str, str | None]" = {}  # Variables that imports set, or deleted.
        self.problems: "list[tuple[str, list[str]]]" = []  # In words, and the modules to leave out.
        self.skipped: "dict[str, str]" = {}
        self.not_found: "set[str]" = set()  # Top-level modules that imports have looked for.
        self.seeded: list = []  # Random generators with a seed of their own.
        self._loading: "list[str]" = []
        self._undo: list = []
        self._left = self._leftovers()

    # A finder at the end of sys.meta_path.
    def find_spec(self, name, path=None, target=None):
        if path is None:
            self.not_found.add(name)

    def invalidate_caches(self):
        pass

    def run(self, wanted: "list[tuple[str, str]]") -> None:
        """Imports modules, and takes names from them; see [Entry.shared]."""
        self._start()
        for module, name in wanted:
            self._import(module, name)
        for module, later in LATER.items():
            if module in sys.modules:
                self._import(later)
        self._stop()

    def _import(self, module: str, name: str = "") -> None:
        if is_module_at(module, self.avoid):
            self.skipped[module] = "left out"
            return
        before = set(sys.modules)
        try:
            found = importlib.import_module(module)
            if name:
                getattr(found, name, None)
        except BaseException as error:
            self.skipped[module] = f"{type(error).__name__}: {error}"[:300]
            self._roll_back(module, before)
        self._check([module])

    def _roll_back(self, name: str, before: "set[str]") -> None:
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
            if name not in HARMLESS.get(module, ()) and not name.startswith("TOOLCRIB_"):  # Our own marks.
                self.names.setdefault(name, set()).add(module)

    def _note_random(self) -> None:
        if sys._getframe(2).f_globals["__name__"] == "uuid":
            self.shared.add(self._loading[-1])
        else:
            self.blame("made a random value")

    def blame(self, what: str, modules: "list[str] | None" = None) -> None:
        modules = [name for name in (self._loading if modules is None else modules) if not is_stdlib(name)]
        if modules:
            self.problems.append((f"the import of {modules[-1]} {what}", modules))

    def _leftovers(self) -> dict:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            children = True
        except ChildProcessError:
            children = False
        return {
            "started a thread": len(os.listdir("/proc/self/task")),
            "left a descriptor open": tuple(os.listdir("/proc/self/fd")),
            "left a child process": children,
            "changed the handler of a signal": tuple(map(signal._signal.getsignal, range(1, signal.NSIG))),
            "changed the working directory": CALLS["getcwd"](),
        }

    def _check(self, modules: "list[str] | None" = None) -> None:
        left = self._leftovers()
        for what, now in left.items():
            if now != self._left[what]:
                self.blame(what, modules)
        self._left = left

    def _load(self, load, spec):
        self._check()  # Of what those that wait for this import have done until now.
        self._loading.append(spec.name)
        try:
            if is_module_at(spec.name, self.avoid):
                self.blame("is to be left out")
            return load(spec)
        finally:
            self._check()
            self._loading.pop()

    def _is_own_doing(self) -> bool:
        """Whether Python itself asks: what it keeps is renewed in each server (`renew`)."""
        module = self._loading[-1] if self._loading else "sys"
        return is_stdlib(module) or module.startswith("numpy.random") or sys._getframe(2).f_globals["__name__"] == "logging"

    def _start(self) -> None:
        load = importer._load_unlocked
        self.replace(importer, "_load_unlocked", lambda spec: self._load(load, spec))
        sys.meta_path.append(self)
        for environ in (os.environ, os.environb):
            self._undo.append((environ, "__class__", type(environ)))
            environ.__class__ = watched_environment(self, type(environ))
        seed = random.Random.seed

        def noted_seed(generator, a=None, *args, **kwargs):
            if a is not None:
                self.seeded.append(generator)
            return seed(generator, a, *args, **kwargs)

        self.replace(random.Random, "seed", noted_seed)
        for name in ("getcwd", "getcwdb"):
            self._note_calls(os, name, lambda: self.note("<cwd>"))
        self._note_calls(os, "getpid", lambda: self.blame("asked for the process id"))
        for module, name in ((os, "urandom"), (random, "_urandom")):
            self._note_calls(module, name, self._note_random)
        self.disk.start()
        self.replace(sys, "argv", watched_arguments(self))

    def _note_calls(self, module, name: str, note) -> None:
        function = getattr(module, name)

        def noted(*args):
            if self._undo and not self._is_own_doing():
                note()
            return function(*args)

        self.replace(module, name, noted)

    def replace(self, holder, name: str, value) -> None:
        """Until the end of the imports."""
        self._undo.append((holder, name, vars(holder)[name], value))
        setattr(holder, name, value)

    def _stop(self) -> None:
        sys.meta_path.remove(self)
        self.disk.stop()
        undo, self._undo = self._undo, []
        kept = {id(new[0]): old for _, _, old, *new in undo if new}
        for holder, name, old, *_ in undo:
            setattr(holder, name, old)
        # Modules may have copied a name: `from os import getcwd`.
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None) or {}
            for name, value in list(names.items()):
                if id(value) in kept and module is not sys.modules["__main__"]:
                    names[name] = kept[id(value)]

    def generators(self) -> list:
        """The random generators that imports have made, each with a seed by chance."""
        by_chance = [
            thing for thing in gc.get_objects()
            if issubclass(type(thing), random.Random) and not issubclass(type(thing), random.SystemRandom)
        ]
        return [thing for thing in by_chance if not any(thing is seeded for seeded in self.seeded)]


# The functions as they are when nobody watches.
CALLS = {"getcwd": os.getcwd}


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

        def __setitem__(self, name, value):
            super().__setitem__(name, value)
            watch.writes[text(name)] = text(value)

        def __delitem__(self, name):
            super().__delitem__(name)
            watch.writes[text(name)] = None

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
