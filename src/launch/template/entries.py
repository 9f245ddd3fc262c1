"""Finds what the Python servers of one environment import for certain, without running any code of theirs.

First part of the program of a template: effects.py, imports.py, disk.py, members.py, request.py, end.py and template.py follow it in the
same file. A server's own package is only read, never run: it is run after the fork, with the server's own environment, arguments and
working directory.
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
import re
import signal

import _frozen_importlib as importer

STDLIB = os.path.dirname(os.__file__)
STDLIB_NAMES = getattr(sys, "stdlib_module_names", {"argparse", "asyncio", "json", "logging"})
SITE_FOLDERS = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
FILES_MAX = 2000  # The most sources of its own that are read for one server.
# Functions whose call, although only its value is kept, may change what later imports see.
CHANGES_MORE = re.compile(
    r"_*(load_\w*|\w*patch\w*|install\w*|inject\w*|set\w+|config\w*|init\w*|apply\w*|enable\w*|disable\w*|register\w*|add\w*|insert|append"
    r"|extend|update\w*|clear\w*|pop|remove\w*|chdir|umask|seed|basicConfig|simplefilter|filterwarnings|exec|eval|import_module|__import__"
    r"|run\w*|start\w*|main)"
)
HARMLESS_CALLS = {"getLogger", "print"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Pass, ast.Global, ast.Nonlocal, ast.Assert)


def is_below(path: str, folders: "list[str]") -> bool:
    return any(path.startswith(folder + os.sep) for folder in folders)


def is_stdlib(name: str) -> bool:
    """Whether a module belongs to Python itself."""
    if name not in sys.modules:
        return name.split(".")[0] in STDLIB_NAMES
    file = getattr(sys.modules[name], "__file__", None)
    if name == "__mp_main__" or not isinstance(file, str):
        return name.split(".")[0] in (*STDLIB_NAMES, *sys.builtin_module_names, "__main__", "__mp_main__") or sys.version_info < (3, 10)
    return is_below(file, [STDLIB]) and not is_below(file, SITE_FOLDERS)


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


def calls_of(node: ast.AST) -> "list[ast.Call]":
    return [part for part in ast.walk(node) if isinstance(part, ast.Call)]


def name_of(function: ast.AST) -> str:
    """The last part of the name of what is called."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_plain(target: ast.AST) -> bool:
    """Whether an assignment to this is only to a name of the module, or to `sys.argv[0]`, as console scripts do."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(map(is_plain, target.elts))
    if isinstance(target, ast.Subscript):
        return ast.unparse(target.value) == "sys.argv"
    return isinstance(target, ast.Name) or (isinstance(target, ast.Starred) and is_plain(target.value))


def is_value(node: ast.AST) -> bool:
    """Whether the calls in an expression are only for their values, as far as their names tell."""
    return not any(CHANGES_MORE.fullmatch(name_of(call.func)) for call in calls_of(node))


def has_effects(node: ast.AST, is_called: bool = False) -> bool:
    """Whether a statement, if it runs, may change what later imports see, or whether they come: imports of other packages may, too.
    It may return if it is of a function that `is_called` for its value."""
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            if not all(alias.name.split(".")[0] in STDLIB_NAMES for alias in part.names):
                return True
        elif isinstance(part, ast.ImportFrom):
            if part.level or (part.module or "").split(".")[0] not in STDLIB_NAMES:
                return True
        elif isinstance(part, ast.Expr):
            if any(name_of(call.func) not in HARMLESS_CALLS for call in calls_of(part)):
                return True
        elif isinstance(part, ast.Assign):
            if not (all(map(is_plain, part.targets)) and is_value(part.value)):
                return True
        elif isinstance(part, (ast.AugAssign, ast.AnnAssign)):
            if not (is_plain(part.target) and is_value(part)):
                return True
        elif isinstance(part, ast.Delete) or (isinstance(part, ast.Return) and not is_called):
            return True
    return False


def known_test(test: ast.AST, is_main: bool) -> "bool | None":
    """What the condition of an `if` comes to, where that is the same at each start of this Python."""
    text = ast.unparse(test)
    if text.endswith("TYPE_CHECKING"):
        return False
    if text in ("__name__ == '__main__'", "'__main__' == __name__"):
        return is_main
    allowed = (
        ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop, ast.Tuple, ast.Constant, ast.Subscript, ast.Slice,
        ast.Load,
    )  # fmt: skip
    for part in ast.walk(test):
        is_known = isinstance(part, ast.Attribute) and ast.unparse(part) in (
            "sys.version_info", "sys.platform", "os.name", "sys.version_info.major", "sys.version_info.minor",
        )  # fmt: skip
        is_module = isinstance(part, ast.Name) and part.id in ("sys", "os")
        if not (is_known or is_module or isinstance(part, allowed)):
            return None
    try:
        return bool(eval(compile(ast.Expression(test), "", "eval"), {"__builtins__": {}, "sys": sys, "os": os}))
    except Exception:
        return None


class Place:
    """A module of a server's own while it is read: its package, its functions, and the names that it takes from other such modules."""

    def __init__(self, package: str, is_main: bool, tree: ast.Module):
        self.package, self.is_main = package, is_main
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        self.functions = {node.name: node for node in tree.body if isinstance(node, kinds)}
        self.names: "dict[str, tuple[str, str]]" = {}


class Entry:
    """What a server imports from other packages for certain, in the order in which it does.

    It ends where the server's own code, as it is imported, may change what a later import sees: the modules after that are imported by
    the server itself."""

    def __init__(self, kind: str, name: str):
        self.folder = os.path.dirname(os.path.realpath(name)) if kind == "script" else None
        self.wanted: "dict[tuple[str, str], None]" = {}  # Modules, each with a name to take from it, or "".
        self.missing = kind == "script" and not os.path.isfile(name)
        self._specs: dict = {}
        self._seen: "set[str]" = set()
        self._places: "dict[str, Place]" = {}
        self.files: "set[str]" = set()  # That were read.
        self.is_unknown = False  # Its source cannot be read here.
        self._ends = False  # Nothing is certain any more.
        self._lacks = False  # A module is not there: what follows in a `try` does not run.
        if kind == "script":
            script = os.path.realpath(name)

            def is_listed(folder: str, file: str) -> bool:
                same = os.path.basename(file) == os.path.basename(script)
                return same and os.path.realpath(os.path.join(folder, file)) == script

            self.own = own_names(is_listed)
            self._read(script, "", "__main__")
        else:
            top = name.split(".")[0]
            self.own = own_names(lambda _, file: file.startswith(top + "/") or file == top + ".py") | {top}
            spec = self._find(name)
            if spec is not None and spec.submodule_search_locations is not None:
                self._visit(name)
                spec, package = self._find(name + ".__main__"), name
            else:
                package = name.rpartition(".")[0]
                self._visit(package)
            self.is_unknown = spec is None or not (spec.origin or "").endswith(".py")
            if not self.is_unknown:
                self._read(spec.origin, package, "__main__")

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
        """Of a module that is imported."""
        parts = name.split(".") if name else []
        for part in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            if self._ends or self._lacks or part in self._seen or len(self._seen) > FILES_MAX:
                continue
            self._seen.add(part)
            spec = self._find(part)
            if spec is None:
                return
            if not self._is_own(part, spec):
                self.wanted[part, ""] = None
            elif (spec.origin or "").endswith(".py"):
                is_package = spec.submodule_search_locations is not None
                self._read(spec.origin, part if is_package else part.rpartition(".")[0], part)
            else:
                self._ends = spec.origin is not None  # Compiled: who knows.

    def _read(self, path: str, package: str, name: str) -> None:
        self.files.add(path)
        try:
            with open(path, "rb") as file:
                tree = ast.parse(file.read(1 << 22), path)
        except (OSError, SyntaxError, ValueError, RecursionError):
            self._ends = True
            self.is_unknown |= name == "__main__"
            return
        self._places[name] = Place(package, name == "__main__", tree)
        self._run(tree.body, self._places[name])

    def _run(self, statements: list, place: Place) -> None:
        for node in statements:
            if self._ends or self._lacks:
                return
            self._step(node, place)

    def _step(self, node: ast.stmt, place: Place) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, place)
        elif isinstance(node, DEFINITIONS):
            pass
        elif isinstance(node, ast.ClassDef):
            self._run(node.body, place)
        elif isinstance(node, ast.If) and (test := known_test(node.test, place.is_main)) is not None:
            self._run(node.body if test else node.orelse, place)
        elif isinstance(node, (ast.Try, getattr(ast, "TryStar", ast.Try))):
            before, self._lacks = self._lacks, False
            self._run(node.body, place)
            lacks, self._lacks = self._lacks, before
            if lacks:
                self._ends |= any(map(has_effects, node.handlers))
            else:
                self._run(node.orelse, place)
            self._run(node.finalbody, place)
        elif isinstance(node, (ast.With, ast.AsyncWith)) and all(is_value(item.context_expr) for item in node.items):
            self._run(node.body, place)
        elif isinstance(node, ast.Expr):
            self._call(node, place)
        elif isinstance(node, ast.Raise):
            self._ends = True
        else:
            functions = [self._function(place, call.func) for call in calls_of(node)]
            inner = [statement for _, function in filter(None, functions) for statement in function.body]
            self._ends |= has_effects(node) or any(has_effects(part, is_called=True) for part in inner)

    def _call(self, node: ast.Expr, place: Place) -> None:
        """Of a statement that only calls: `main()`, `sys.exit(main())`. The functions that are called are run, and then nothing is certain."""
        calls = calls_of(node)
        if all(name_of(call.func) in HARMLESS_CALLS for call in calls):
            return
        for call in calls:
            found = self._function(place, call.func)
            if found:
                inside, function = found
                self._run(function.body, inside)
                break
        self._ends = True

    def _function(self, place: Place, called: ast.AST) -> "tuple[Place, ast.FunctionDef] | None":
        """The server's own function of this name, with its module."""
        name = called.id if isinstance(called, ast.Name) else ""
        for _ in range(10):  # A package may take it from one of its modules.
            if name in place.functions:
                return place, place.functions[name]
            module, name = place.names.get(name, ("", ""))
            if module not in self._places:
                return None
            place = self._places[module]
        return None

    def _import(self, node: "ast.Import | ast.ImportFrom", place: Place) -> None:
        if isinstance(node, ast.Import):
            bases = [alias.name for alias in node.names]
        else:
            package = place.package.split(".")
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            bases = [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")] if base else []
            place.names.update((alias.asname or alias.name, (base, alias.name)) for alias in node.names)
        for name in bases:
            self._visit(name)
        tops = {name.split(".")[0] for name in bases}
        if not self._ends and any(self._find(top) is None for top in tops):
            self._lacks = True
        # A package may import what it offers only when it is asked for.
        elif not self._ends and isinstance(node, ast.ImportFrom) and (bases[:1] or [""])[0] in self._seen:
            if (bases[0], "") in self.wanted:
                self.wanted.update(((bases[0], alias.name), None) for alias in node.names if alias.name != "*")


def group_of(entries: "list[Entry]", cuts: "set[str]") -> "list[Entry]":
    """The servers that can share a template: those that import none of `cuts`, if there are any. What a program imports behind one of
    these would see its effects, and must not be imported before it because of others."""
    known = [entry for entry in entries if not entry.is_unknown]
    return [entry for entry in known if not any(is_module_at(module, cuts) for module, _ in entry.wanted)] or known


def order_of(entries: "list[Entry]", cuts: "set[str]") -> "list[tuple[str, str]]":
    """What every one of the servers imports, in the order of the first: of each only what it imports before one of the modules `cuts`."""
    orders = []
    for entry in entries:
        names = list(entry.wanted)
        ends = [at for at, (module, _) in enumerate(names) if is_module_at(module, cuts)]
        orders.append(names[: ends[0]] if ends else names)
    others = list(map(set, orders[1:]))
    return [name for name in orders[0] if all(name in other for other in others)] if orders else []
