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
# Functions of Python whose call changes nothing that an import could see, without `key=`. They may be called by their own names alone.
HARMLESS_BUILTINS = set(
    "print abs all any bool bytearray bytes callable chr dict enumerate float format frozenset getattr hasattr hash id int isinstance"
    " issubclass iter len list max min next object ord property range repr reversed round set slice sorted str sum super tuple type vars zip"
    .split()
)
# Others, by the last part of their names, unless they are the server's own. A class of another package is one, too.
HARMLESS_CALLS = set(
    "getLogger cast namedtuple field fields compile escape partial suppress catch_warnings timedelta join split strip lower upper replace"
    " format encode decode startswith endswith removeprefix removesuffix get items keys values copy resolve parent absolute with_name"
    " with_suffix dirname basename abspath exists is_file is_dir expanduser getenv getcwd cwd count index total_seconds".split()
)
# What a block may be of, so that only its body does something.
HARMLESS_BLOCKS = {"suppress", "catch_warnings"}
# Decorators and the like of definitions: they keep what they are given.
HARMLESS_MARKS = set(
    "property setter getter deleter partial dataclass staticmethod classmethod cached_property lru_cache cache wraps contextmanager asynccontextmanager abstractmethod overload"
    " final override runtime_checkable total_ordering singledispatch field_validator model_validator validator field_serializer"
    " computed_field tool resource prompt completion list_tools call_tool list_resources read_resource list_resource_templates"
    " list_prompts get_prompt set_logging_level subscribe_resource unsubscribe_resource progress_notification custom_route lifespan"
    " command option argument group pass_context version_option".split()
)
TYPES_ONLY = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "t.TYPE_CHECKING")
# Packages that change nothing of others and keep nothing of their process as they are imported: compared, member by member, in forks
# and ordinary starts. By the names of their modules: those of the MCP SDK, with all that it imports, and others that many servers use.
KNOWN_PACKAGES = frozenset(
    "mcp mcp_types pydantic pydantic_core pydantic_settings annotated_types typing_extensions typing_inspection anyio sniffio idna certifi"
    " h11 httpcore httpx httpx2 httpcore2 httpx_sse starlette sse_starlette uvicorn multipart python_multipart jsonschema"
    " jsonschema_specifications referencing rpds attr attrs cryptography cffi jwt opentelemetry click rich typer shellingham markdown_it"
    " mdurl pygments dotenv exceptiongroup importlib_metadata zipp git gitdb smmap requests urllib3 charset_normalizer markdownify bs4"
    " soupsieve six readabilipy html5lib webencodings lxml protego tzlocal tzdata dateutil pytz yaml numpy structlog loguru colorama"
    " jinja2 markupsafe itsdangerous orjson tqdm aiohttp multidict yarl frozenlist propcache aiosignal attrs fastmcp packaging".split()
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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


def is_stdlib_file(spec) -> bool:
    place = spec.origin or ""
    return place in ("built-in", "frozen") or (is_below(place, [STDLIB]) and not is_below(place, SITE_FOLDERS))


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


def runs_in(node: ast.AST) -> "list[ast.AST]":
    """The parts of a statement that run with it: without the bodies of functions that it only defines."""
    parts, found = [node], []
    while parts:
        part = parts.pop()
        found.append(part)
        if isinstance(part, (*FUNCTIONS, ast.ClassDef)):
            for mark in part.decorator_list:  # Their names are looked at by themselves.
                parts += [*mark.args, *mark.keywords, mark.func] if isinstance(mark, ast.Call) else [mark]
        if isinstance(part, FUNCTIONS):
            parts += [*part.args.defaults, *filter(None, part.args.kw_defaults)]
        elif isinstance(part, ast.ClassDef):
            parts += [*part.bases, *part.keywords, *part.body]
        elif not isinstance(part, ast.Lambda):
            parts += ast.iter_child_nodes(part)
    return found


def is_harmless(call: ast.Call, place: "Place") -> bool:
    """Whether a call is known to change nothing that later imports could see: of Python or of another package."""
    function, name = call.func, name_of(call.func)
    if isinstance(function, ast.Name):
        if name in place.assigned or place.is_own(name):
            return False
        if name not in place.foreign:
            takes = {"type": 1, "iter": 1}.get(name, len(call.args))  # With more of them they make a class, or call a function.
            is_plain_call = len(call.args) <= takes and all(keyword.arg != "key" for keyword in call.keywords)
            return (name in HARMLESS_BUILTINS and is_plain_call) or is_exception(name)
        name = place.foreign[name]
        return name in HARMLESS_CALLS or is_class_name(name)
    if any(isinstance(part, ast.Name) and place.is_own(part.id) for part in ast.walk(function)):
        return False
    root = function
    while isinstance(root, ast.Attribute):
        root = root.value
    is_class = is_class_name(name) and isinstance(root, ast.Name) and root.id in place.foreign
    return isinstance(function, ast.Attribute) and (name in HARMLESS_CALLS or is_class)


def is_class_name(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def is_exception(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def has_effects(node: ast.AST, place: "Place", is_called: bool = False, known: "frozenset[str]" = frozenset()) -> bool:
    """Whether a statement, if it runs, may change what later imports see, or whether they come: imports of other packages may, too.
    It may return if it is of a function that `is_called` for its value, and call the functions `known`."""
    for part in runs_in(node):
        if isinstance(part, ast.Import):
            if not all(alias.name.split(".")[0] in STDLIB_NAMES for alias in part.names):
                return True
        elif isinstance(part, ast.ImportFrom):
            if part.level or (part.module or "").split(".")[0] not in STDLIB_NAMES:
                return True
        elif isinstance(part, ast.Call):
            if not is_harmless(part, place) and getattr(part.func, "id", "") not in known:
                return True
        elif isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(part.ctx, ast.Load):
            if ast.unparse(part.value) != "sys.argv":  # Console scripts set `sys.argv[0]`.
                return True
        elif isinstance(part, (*FUNCTIONS, ast.ClassDef)):
            if not is_plain_definition(part, place):
                return True
        elif isinstance(part, ast.withitem):
            if not isinstance(part.context_expr, ast.Call) or name_of(part.context_expr.func) not in HARMLESS_BLOCKS:
                return True
        elif isinstance(part, (ast.Await, ast.Yield, ast.YieldFrom)) or (isinstance(part, ast.Return) and not is_called):
            return True
    return False


def is_plain_definition(node: ast.AST, place: "Place") -> bool:
    """Whether decorators, bases and the like only keep what is defined."""
    marks = [part.func if isinstance(part, ast.Call) else part for part in node.decorator_list]
    if not all(name_of(mark) in HARMLESS_MARKS for mark in marks):
        return False
    others = [mark for mark in marks if name_of(mark) not in ("setter", "getter", "deleter")]
    if any(isinstance(part, ast.Name) and place.is_own(part.id) for mark in others for part in ast.walk(mark)):
        return False
    if not isinstance(node, ast.ClassDef):
        return True
    is_own = any(isinstance(part, ast.Name) and place.is_own(part.id) for base in node.bases for part in ast.walk(base))
    return not is_own and all(keyword.arg in ("total", "frozen", "kw_only") for keyword in node.keywords)


def known_test(test: ast.AST, is_main: bool) -> "bool | None":
    """What the condition of an `if` comes to, where that is the same at each start of this Python."""
    text = ast.unparse(test)
    if text in TYPES_ONLY:
        return False
    if text.startswith("not ") and text[4:] in TYPES_ONLY:
        return True
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

    def __init__(self, package: str, is_main: bool, tree: ast.Module, places: "dict[str, Place]"):
        self.package, self.is_main, self._places = package, is_main, places
        self.functions = {node.name: node for node in tree.body if isinstance(node, FUNCTIONS)}
        self.names: "dict[str, tuple[str, str]]" = {}  # What is taken from modules: from which, and its name there.
        self.foreign: "dict[str, str]" = {}  # What is taken from other packages and Python, and its name there.
        self.assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        self.assigned |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        self._is_any_own = False  # Whether it takes all names of a module of the server itself.
        self._defined = {node.name for node in ast.walk(tree) if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
        for node in ast.walk(tree):
            # A value that may be something of its own, under another name.
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                inside = list(ast.walk(node.value))
                if any(isinstance(part, ast.Lambda) or getattr(part, "id", None) in self._defined for part in inside):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    self._defined |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}

    def take(self, name: str, there: str, is_own: bool) -> None:
        """Of an import: the name here and there."""
        if not is_own:
            self.foreign[name] = there
        elif there == "*":
            self._is_any_own = True
        elif there == "":
            self._defined.add(name)

    def is_own(self, name: str, depth: int = 10) -> bool:
        """Whether a name may stand for a function, a class or a module of the server itself."""
        if self._is_any_own or name in self._defined:
            return True
        module, there = self.names.get(name, ("", ""))
        if name in self.foreign or not module:
            return False
        place = self._places.get(module)
        return place is None or depth == 0 or f"{module}.{there}" in self._places or place.is_own(there, depth - 1)


class Entry:
    """What a server imports from other packages for certain, in the order in which it does.

    It ends where the server's own code, as it is imported, may change what a later import sees: the modules after that are imported by
    the server itself."""

    def __init__(self, kind: str, name: str, is_all: bool):
        self.is_all = is_all  # Whether more than known packages may be imported.
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

    def _may_be_own(self, name: str) -> bool:
        spec = self._find(name)
        return spec is None or self._is_own(name, spec)

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
                if not (self.is_all or part.split(".")[0] in KNOWN_PACKAGES or is_stdlib_file(spec)):
                    self._ends = True  # What it changes may be seen by what comes after it.
                    return
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
        self._places[name] = Place(package, name == "__main__", tree, self._places)
        self._run(tree.body, self._places[name])

    def _run(self, statements: list, place: Place) -> None:
        for node in statements:
            if self._ends or self._lacks:
                return
            self._step(node, place)

    def _step(self, node: ast.stmt, place: Place) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, place)
        elif isinstance(node, ast.ClassDef):
            head = ast.ClassDef(node.name, node.bases, node.keywords, [], node.decorator_list)
            self._ends |= has_effects(head, place)
            self._run(node.body, place)
        elif isinstance(node, ast.If) and (test := known_test(node.test, place.is_main)) is not None:
            self._run(node.body if test else node.orelse, place)
        elif isinstance(node, (ast.Try, getattr(ast, "TryStar", ast.Try))):
            before, self._lacks = self._lacks, False
            self._run(node.body, place)
            lacks, self._lacks = self._lacks, before
            if lacks or not all(isinstance(part, (ast.Import, ast.ImportFrom)) for part in node.body):
                self._ends |= any(has_effects(handler, place) for handler in node.handlers)
            if not lacks:
                self._run(node.orelse, place)
            self._run(node.finalbody, place)
        elif isinstance(node, ast.With) and not any(has_effects(item, place) for item in node.items):
            self._run(node.body, place)
        elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
            self._call(node, place)
        elif isinstance(node, ast.Raise):
            self._ends = True
        else:
            functions = {name_of(call.func): found for call in calls_of(node) if (found := self._function(place, call.func))}
            inner = [(statement, inside) for inside, function in functions.values() for statement in function.body]
            self._ends |= has_effects(node, place, known=frozenset(functions))
            self._ends |= any(has_effects(statement, inside, is_called=True) for statement, inside in inner)

    def _call(self, node: ast.Expr, place: Place) -> None:
        """Of a statement that only calls: `main()`, `sys.exit(main())`. The function that is called is run, and then nothing is certain."""
        calls = [call for call in calls_of(node) if not is_harmless(call, place)]
        for call in calls:
            found = self._function(place, call.func)
            if found:
                # What runs before it must be harmless.
                around = {id(outer) for outer in calls if any(part is call for part in ast.walk(outer))}
                inside, function = found
                if all(id(other) in around for other in calls):
                    self._run(function.body, inside)
                break
        self._ends |= bool(calls)

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
            for alias in node.names:
                place.take(alias.asname or alias.name.split(".")[0], "", self._may_be_own(alias.name))
        else:
            package = place.package.split(".")
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            bases = [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")] if base else []
            names = [(alias.asname or alias.name, alias.name) for alias in node.names]
            place.names.update((known, (base, name)) for known, name in names)
            is_own = node.level > 0 or self._may_be_own(base)
            for known, name in names:
                place.take(known, name, is_own)
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
