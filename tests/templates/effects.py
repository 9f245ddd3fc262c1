"""What an import changes, or makes by chance, is in no server that does not import it, and in the others as after an ordinary start."""

import json
import os
import shutil

from zygote import Output, normal_start, until_ready

CHANGES = {
    "umask": "import os\nos.umask(0)",
    "blocked": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])",
    "handler": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "limit": "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "nice": "import os\nos.nice(3)",
    "cores": "import os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
    "timer": "import signal\nsignal.setitimer(signal.ITIMER_VIRTUAL, 1000)",
    "timeout": "import socket\nsocket.setdefaulttimeout(7)",
    "locale": "import locale\nlocale.setlocale(locale.LC_NUMERIC, 'C')\nlocale.setlocale(locale.LC_ALL, 'C')",
    "warnings": "import warnings\nwarnings.simplefilter('ignore')",
    "logger": "import logging\nlogging.getLogger().setLevel(logging.DEBUG)",
    "basic": "import logging\nlogging.basicConfig(level=logging.INFO, format='%(message)s')",
    "disabled": "import logging\nlogging.disable(logging.CRITICAL)",
    "level_name": "import logging\nlogging.addLevelName(5, 'TRACE')",
    "recursion": "import sys\nsys.setrecursionlimit(5000)",
    "json": "import json\n_old = json.dumps\ndef dumps(*args, **kwargs): return _old(*args, **kwargs)\njson.dumps = dumps",
    "tls": "import ssl\nssl._create_default_https_context = ssl._create_unverified_context",
    "tls_class": "import ssl\nssl.SSLSocket.mine = 1",
    "socket": "import socket\nclass Socket(socket.socket): pass\nsocket.socket = Socket",
    "http": "import http.client\nhttp.client.HTTPConnection.debuglevel = 3",
    "opener": "import urllib.request as it\nit.install_opener(it.build_opener())",
    "schemes": "import urllib.parse\nurllib.parse.uses_netloc.append('mine')",
    "types": "import mimetypes\nmimetypes.add_type('text/mine', '.mine')",
    "codec": "import codecs\ncodecs.register(lambda name: codecs.lookup('ascii') if name == 'mine' else None)",
    "builtin": "import builtins\nbuiltins.mine = 1",
    "names": "vars(__import__('json'))['mine'] = 1",
    "variable": "import os\nos.environ['MY_SECRET'] = 'of-one'",
    "dotenv": "import os\nos.environ.setdefault('MY_OTHER', 'of-one')",
    "c_variable": "import os\nos.putenv('MY_THIRD', 'of-one')",
    "c_library": "import ctypes\nctypes.CDLL(None).setenv(b'MY_FOURTH', b'of-one', 1)",
    "path": "import sys\nsys.path.append('/mine')",
    "finder": "import sys\nclass Finder:\n    def find_spec(self, *_): return None\nsys.meta_path.insert(0, Finder())",
    "hook": "import sys\nsys.excepthook = lambda *_: None",
    "collector": "import gc\ngc.set_threshold(9, 9, 9)",
    "no_collector": "import gc\ngc.disable()",
    "decimals": "import decimal\ndecimal.getcontext().prec = 5",
    "all_decimals": "import decimal\ndecimal.DefaultContext.prec = 7",
    "stack": "import threading\nthreading.stack_size(1 << 20)",
    "loops": "import asyncio\nclass Policy(asyncio.DefaultEventLoopPolicy): pass\nasyncio.set_event_loop_policy(Policy())",
    "stream": "import sys\nsys.stderr.reconfigure(errors='strict')",
    "seed": "import random\nrandom.seed(5)",
    "interval": "import sys\nsys.setswitchinterval(0.5)",
    "nested": "import umask_inside_lib",
}  # fmt: skip
if len(os.sched_getaffinity(0)) == 1:
    del CHANGES["cores"]
STATE = """
def state():
    import asyncio, builtins, codecs, ctypes, decimal, gc, http.client, json, locale, logging, mimetypes, os, resource, signal, socket, ssl
    import sys, threading, urllib.parse, urllib.request, warnings
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    umask = os.umask(0)
    os.umask(umask)
    def has_codec(name):
        try:
            return codecs.lookup(name).name
        except LookupError:
            return None
    root = logging.getLogger()
    told = dict(line.split(":\t") for line in open("/proc/self/status"))
    # Without 32 and 33, which the C library keeps for itself: whether they are ignored depends on how a process was started.
    ignored = int(told["SigIgn"], 16) & ~(3 << 31)
    status = [ignored, *(told[name] for name in ("SigBlk", "Cpus_allowed", "NoNewPrivs"))]
    return {
        "umask": umask, "status": status, "limits": [resource.getrlimit(number) for number in range(16)], "nice": os.nice(0),
        "timer": signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0, "timeout": socket.getdefaulttimeout(),
        "locale": locale.setlocale(locale.LC_ALL), "warnings": [repr(entry) for entry in warnings.filters],
        "logger": [root.level, len(root.handlers), root.manager.disable, logging.getLevelName(5)], "recursion": sys.getrecursionlimit(),
        "json": [json.dumps.__module__, hasattr(json, "mine")], "verify": str(ssl._create_default_https_context().verify_mode),
        "classes": [hasattr(ssl.SSLSocket, "mine"), socket.socket.__module__], "http": http.client.HTTPConnection.debuglevel,
        "opener": urllib.request._opener is None, "schemes": urllib.parse.uses_netloc, "types": mimetypes.guess_type("x.mine"),
        "codec": has_codec("mine"), "builtin": hasattr(builtins, "mine"), "variables": dict(os.environ),
        "c": [str(libc.getenv(name)) for name in (b"MY_SECRET", b"MY_OTHER", b"MY_THIRD", b"MY_FOURTH")], "path": sys.path,
        "finders": [(part if isinstance(part, type) else type(part)).__name__ for part in sys.meta_path],
        "hook": sys.excepthook is sys.__excepthook__, "collector": [gc.get_threshold(), gc.isenabled()],
        "decimals": [decimal.getcontext().prec, decimal.DefaultContext.prec], "stack": threading.stack_size(),
        "loops": type(asyncio.get_event_loop_policy()).__name__, "stream": sys.stderr.errors, "interval": sys.getswitchinterval(),
        "modules": sorted(name for name in sys.modules if name.endswith("_lib")),
    }

import json, random, sys
print(json.dumps([state(), random.random() if "seed_lib" in sys.modules else None]), flush=True)
"""
CHANCE = {
    "getrandom": "import os\nVALUE = os.getrandom(8).hex()",
    "tls": "import ssl\nVALUE = ssl.RAND_bytes(8).hex()",
    "device": "with open('/dev/urandom', 'rb', buffering=0) as file: VALUE = file.read(8).hex()",
    "number": "import os\nfile = os.open('/dev/urandom', os.O_RDONLY)\nVALUE = os.read(file, 8).hex()\nos.close(file)",
    "raw": "import io\nwith io.FileIO('/dev/urandom') as file: VALUE = file.read(8)\nVALUE = VALUE.hex()",
    "kernel": "VALUE = open('/proc/sys/kernel/random/uuid').read()",
    "c": "import ctypes\nplace = ctypes.create_string_buffer(8)\nctypes.CDLL(None).getrandom(place, 8, 0)\nVALUE = place.raw.hex()",
    "named": "import ctypes\nplace = ctypes.create_string_buffer(8)\nctypes.CDLL(None).getrandom(place, 8, 0)\nVALUE = api_hash = place.raw.hex()",
    "child": "import subprocess\nVALUE = subprocess.check_output(['cat', '/proc/sys/kernel/random/uuid']).decode()",
    "seeded": "import random, time\nVALUE = random.Random(time.time_ns()).getrandbits(64)",
    "drawn": "import random\nVALUE = random.getrandbits(64)",
    "shuffled": "import random\nVALUE = list(range(50))\nrandom.shuffle(VALUE)",
    "uuid4": "import uuid\nVALUE = str(uuid.uuid4())",
    "uuid1": "import uuid\nVALUE = str(uuid.uuid1())",
    "time": "import time\nVALUE = time.time_ns()",
    "clock": "import time\nVALUE = f'session-{time.monotonic():.9f}'",
    "name": "import tempfile\nVALUE = tempfile.mktemp()",
    "process": "VALUE = open('/proc/self/stat').read().split()[0]",
    "attribute": "import ctypes\nclass Keys:\n    a = ctypes.c_uint64()\n    ctypes.CDLL(None).getrandom(ctypes.byref(a), 8, 0)\n    KEY = a.value\nVALUE = None",
    "field": "import dataclasses, time\n@dataclasses.dataclass\nclass Item:\n    born: int = time.time_ns()\nVALUE = None",
    "closure": "import time\ndef make():\n    born = time.time_ns()\n    return lambda: born\nget = make()\nVALUE = None",
    "default": "import time\ndef get(born=time.time_ns()): return born\nVALUE = None",
    "object": "import time\nclass Config: pass\nCONFIG = Config()\nCONFIG.parts = {'inner': [time.time_ns()]}\nVALUE = None",
    "slots": "import time\nclass Slim:\n    __slots__ = ('born',)\nSLIM = Slim()\nSLIM.born = time.time_ns()\nVALUE = None",
    "enum": "import enum, time\nclass Kind(enum.Enum):\n    BORN = time.time_ns()\nVALUE = None",
    "part": "import functools, time\nget = functools.partial(int, str(time.time_ns()))\nVALUE = None",
    "date": "import datetime\nVALUE = str(datetime.datetime.now())",
    "date_kept": "import datetime\nBORN = datetime.datetime.now()\nVALUE = None",
    "cached": "import functools, time\n@functools.cache\ndef get(): return time.time_ns()\nget()\nVALUE = None",
    "bound": "import time\nclass Client:\n    def __init__(self): self.born = time.time_ns()\n    def get(self): return self.born\nget = Client().get\nVALUE = None",
    "adapter": "import logging, time\nLOG = logging.LoggerAdapter(logging.getLogger('x'), {'run': time.time_ns()})\nVALUE = None",
    "context": "import contextvars, time\nRUN = contextvars.ContextVar('run', default=time.time_ns())\nVALUE = None",
    "salt": "import time\nclass Store: pass\nSTORE = Store()\nSTORE.hash_salt = time.time_ns()\nVALUE = None",
    "uuid_kept": "import uuid\ndef make():\n    key = uuid.uuid4().hex\n    return lambda: key\nget = make()\nVALUE = None",
    "uuid_cached": "import functools, uuid\n@functools.cache\ndef get(): return uuid.uuid1().hex\nget()\nVALUE = None",
    "signer": "import hashlib, time\nSIGNER = hashlib.sha256(str(time.time_ns()).encode())\nVALUE = None",
    "buffer": "import io, time\nBUFFER = io.StringIO(str(time.time_ns()))\nVALUE = None",
    "generator": "import random, time\nGENERATOR = random.Random(time.time_ns())\nVALUE = None",
}  # fmt: skip
# How the value that is in no plain name is found.
KEPT = {
    "attribute": "it.Keys.KEY", "field": "it.Item().born", "closure": "it.get()", "default": "it.get()", "part": "it.get()",
    "object": "it.CONFIG.parts['inner'][0]", "slots": "it.SLIM.born", "enum": "it.Kind.BORN.value", "date_kept": "str(it.BORN)",
    "generator": "it.GENERATOR.getrandbits(64)", "cached": "it.get()", "bound": "it.get()", "adapter": "it.LOG.extra['run']",
    "context": "it.RUN.get()", "salt": "it.STORE.hash_salt", "uuid_kept": "it.get()", "uuid_cached": "it.get()",
    "signer": "it.SIGNER.hexdigest()", "buffer": "it.BUFFER.getvalue()",
}  # fmt: skip


def said(lab, template, args: list) -> "tuple[str, str]":
    """What a server has written, and how a fork was refused."""
    if template is None:
        out, err = normal_start([lab.python, *args], lab.server_env, lab.cwd).communicate(b"", timeout=60)
        return out.decode() or err.decode(), ""
    started = template.start([lab.python, *args], lab.server_env, lab.cwd, "python")
    if started.refused:
        return "", started.refused["what"]
    out, err = Output(started.stdout), Output(started.stderr)
    os.close(started.stdin)
    started.await_end()
    return out.text() or err.text(), ""


def check_changes(lab) -> "list[str]":
    """Servers that each import one library more than the others, and one that imports none."""
    lab.library("umask_inside_lib", "import os\nos.umask(0o27)\n")
    scripts = {"none": lab.write("effects/with_none.py", "import shared_lib\n" + STATE)}
    for name, text in CHANGES.items():
        lab.library(f"{name}_lib", text + "\n")
        scripts[name] = lab.write(f"effects/with_{name}.py", f"import {name}_lib\nimport shared_lib\n" + STATE)
    found, compared = [], ("none", "seed", "umask", "tls", "variable", "nested", "loops")
    ordinary = {name: said(lab, None, [scripts[name]])[0] for name in compared}
    # Of all together: it has nothing of one of them, and is not for those that change what others see.
    template, ready = until_ready(lab.python, [["script", script] for script in scripts.values()], lab.env)
    for name, script in scripts.items():
        told, refused = said(lab, template, [script])
        if name in ("none", "seed") and told != ordinary[name] or name not in ("none", "seed") and "changes what later" not in refused:
            found.append(f"{name}, beside others: {differing(ordinary.get(name, ''), told)} {refused}")
    template.end()
    # With so little more as one of them imports, a template of its own does not pay.
    if "shared_lib" in ready["skipped"] or len(ready["partial"]) != len(CHANGES) - 1:
        found.append(f"beside others: {ready}")
    for name, script in scripts.items():
        # Each by itself: what it imports behind the change is not imported before.
        template = lab.template(entries=[["script", script]])
        report = template.report()
        template.end()
        avoid = report.get("failed", {"avoid": []})["avoid"]
        if name != "none" and not {f"{name}_lib", f"{name}_lib>"} & {*avoid}:
            found.append(f"{name} has changed nothing: {report}")
        if name in compared:
            template, ready = until_ready(lab.python, [["script", script]], lab.env)
            if (told := said(lab, template, [script])) != (ordinary[name], ""):
                found.append(f"{name}, alone: {differing(ordinary[name], told[0])} {told[1]}")
            template.end()
    return found


def differing(ordinary: str, told: str) -> str:
    try:
        first, second = json.loads(ordinary)[0], json.loads(told)[0]
    except (ValueError, IndexError):
        return f"{told[-500:]!r} in place of {ordinary[-500:]!r}"
    return "; ".join(f"{name}: {second[name]} in place of {value}" for name, value in first.items() if value != second[name])


def check_chance(lab) -> "list[str]":
    """What differs between two ordinary starts differs between two forks."""
    for name, text in CHANCE.items():
        lab.library(f"chance_{name}", text + "\n")
    names = ", ".join(f"chance_{name}" for name in CHANCE)
    values = ", ".join(f"'{name}': (lambda it: {KEPT.get(name, 'it.VALUE')})(chance_{name})" for name in CHANCE)
    script = lab.write("effects/chance.py", f"import {names}\nimport shared_lib\nimport json\nprint(json.dumps({{{values}}}))\n")
    template, _ = until_ready(lab.python, [["script", script]], lab.env)
    told = [said(lab, way, [script])[0] for way in (None, None, template, template)]
    template.end()
    try:
        told = [json.loads(text) for text in told]
    except ValueError:
        return [f"chance: {told}"]
    ordinary = [f"{name} is the same at each start" for name in CHANCE if told[0][name] == told[1][name]]
    return ordinary + [f"{name} is the same in two forks: {told[2][name]}" for name in CHANCE if told[2][name] == told[3][name]]


OWN = """
import os
{before}
import reads_lib
import json
print(json.dumps(reads_lib.SEEN))
"""
BEFORE = {
    "a variable": "os.environ['READ_BY_LIB'] = 'set'",
    "a default": "os.environ.setdefault('READ_BY_LIB', 'set')",
    "a function": "def prepare():\n    os.environ['READ_BY_LIB'] = 'set'\n_ = prepare()",
    "a module beside it": "import own_settings",
    "a condition": "if os.getpid():\n    os.environ['READ_BY_LIB'] = 'set'",
    "a conditional import": "if os.getpid():\n    import sets_lib",
    "an attribute": "import json as it\nit.READ_BY_LIB = 'set'",
    "a condition that calls": "def load():\n    os.environ['READ_BY_LIB'] = 'set'\nif not load(): pass",
    "an assertion": "def load():\n    os.environ['READ_BY_LIB'] = 'set'\n    return True\nassert load()",
    "a value of a name": "def read():\n    return os.environ.setdefault('READ_BY_LIB', 'set')\nDONE = read()",
    "a context": "import unittest.mock\nunittest.mock.patch.dict(os.environ, {'READ_BY_LIB': 'set'}).start()",
    "a block": "import contextlib\n@contextlib.contextmanager\ndef setting():\n    os.environ['READ_BY_LIB'] = 'set'\n    yield\nwith setting(): pass",
    "a decorator": "def setting(it):\n    os.environ['READ_BY_LIB'] = 'set'\n    return it\n@setting\ndef function(): pass",
    "a default": "def setting():\n    os.environ['READ_BY_LIB'] = 'set'\ndef function(it=setting()): pass",
    "a loop": "def setting():\n    os.environ['READ_BY_LIB'] = 'set'\n    return []\nfor _ in setting(): pass",
    "a handler": "try:\n    int('x')\nexcept ValueError:\n    os.environ['READ_BY_LIB'] = 'set'",
    "an own class": "class Settings:\n    def __init__(self): os.environ['READ_BY_LIB'] = 'set'\nsettings = Settings()",
    "a base": "class Base:\n    def __init_subclass__(cls): os.environ['READ_BY_LIB'] = 'set'\nclass Child(Base): pass",
    "not for types": "from typing import TYPE_CHECKING\nif not TYPE_CHECKING: os.environ['READ_BY_LIB'] = 'set'",
    "an operator": "os.environ |= {'READ_BY_LIB': 'set'}",
    "a patched block": "from unittest import mock\nwith mock.patch.dict(os.environ, READ_BY_LIB='set'):\n    import reads_lib",
    "a lambda": "GO = lambda: os.environ.__setitem__('READ_BY_LIB', 'set')\nX = GO()",
    "a name that is harmless elsewhere": "print = os.environ.__setitem__\nX = print('READ_BY_LIB', 'set')",
    "a method of an own class": "class A:\n    @staticmethod\n    def get(): os.environ['READ_BY_LIB'] = 'set'\nX = A.get()",
    "a key": "X = max(['READ_BY_LIB'], key=lambda name: os.environ.setdefault(name, 'set'))",
    "a map": "X = list(map(lambda name: os.environ.setdefault(name, 'set'), ['READ_BY_LIB']))",
    "a target": "for os.environ['READ_BY_LIB'] in ['set']: pass",
    "two of a name": "def update(): return 1\nX = [update(), os.environ.update(READ_BY_LIB='set')]",
    "a class made by a call": "class Base:\n    def __init_subclass__(cls): os.environ['READ_BY_LIB'] = 'set'\nX = type('Child', (Base,), {})",
    "a call": "import functools\nfunctools.partial(os.environ.update, {'READ_BY_LIB': 'set'})()",
}
NOT_SURE = """
import os
if len(os.sys.argv) > 5: import sets_lib
try: import no_such_thing_at_all
except ImportError: import shared_lib
def later(): import xml.dom
import json, sys
print(json.dumps(sorted({"sets_lib", "xml.dom"} & set(sys.modules))))
"""


def check_order(lab) -> "list[str]":
    """What a server's own code does before an import is seen by it, and what it imports only perhaps is not there."""
    lab.library("reads_lib", "import os, json\nSEEN = [os.environ.get('READ_BY_LIB'), getattr(json, 'READ_BY_LIB', None)]\n")
    lab.library("sets_lib", "import os\nos.environ['READ_BY_LIB'] = 'set'\n")
    lab.write("effects/own_settings.py", "import os\nos.environ['READ_BY_LIB'] = 'set'\n")
    found = []
    scripts = [(what, OWN.format(before=before)) for what, before in BEFORE.items()] + [("what is not sure", NOT_SURE)]
    for number, (what, text) in enumerate(scripts):
        script = lab.write(f"effects/own_{number}.py", text)
        template, _ = until_ready(lab.python, [["script", script]], lab.env)
        ordinary, forked = said(lab, None, [script]), said(lab, template, [script])
        template.end()
        if ordinary != forked or ("set" in ordinary[0]) != (what != "what is not sure"):
            found.append(f"{what}: {forked} in place of {ordinary}")
    return found


PATCHED = "class Session: verify = True\ndef get(): return 'plain'\n"
PATCHES = """
import logging, os, sys, types
import patched_lib
patched_lib.get = lambda: 'patched'
patched_lib.Session.verify = False
fake = types.ModuleType('sqlite3')
fake.sqlite_version = 'fake'
sys.modules['sqlite3'] = fake
logging.getLogger('patched_lib').setLevel(logging.ERROR)
"""
USES = """
import logging, sqlite3
from patched_lib import Session, get
SEEN = [get(), Session.verify, sqlite3.sqlite_version, logging.getLogger('patched_lib').level]
"""
PROCESS = """
import __main__, functools, os, resource, sys, uuid
import dataclasses
IS_INTERACTIVE = not hasattr(__main__, '__file__')
HAS_OPTION = '--debug' in sys.orig_argv if hasattr(sys, 'orig_argv') else True
IS_NAMED = '--debug' in repr(sys.argv)
IS_TOLD = b'--debug' in open('/proc/self/cmdline', 'rb').read()
ENVIRONMENT = b'OF_THIS_SERVER' in open('/proc/self/environ', 'rb').read()
LIMIT = resource.getrlimit(resource.RLIMIT_STACK)
TIMES_FORKED = []
os.register_at_fork(after_in_child=lambda: TIMES_FORKED.append(1))
class Token:
    urandom, pid = os.urandom, os.getpid
@dataclasses.dataclass
class Item:
    key: object = dataclasses.field(default_factory=uuid.uuid4)
TABLE, PART = {'where': os.getcwd}, functools.partial(os.getcwd)
def tell(pid=os.getpid):
    return [IS_INTERACTIVE, HAS_OPTION, IS_NAMED, IS_TOLD, ENVIRONMENT, LIMIT, TIMES_FORKED, len(Token().urandom(4)), Token().pid() == os.getpid(),
        pid is os.getpid, TABLE['where'] is os.getcwd, PART.func is os.getcwd, dataclasses.fields(Item)[0].default_factory is uuid.uuid4]
"""


def check_context(lab) -> "list[str]":
    """Packages see what they have seen after an ordinary start: of others, of their process, and of the functions of Python."""
    for name, text in (("patched_lib", PATCHED), ("patches_lib", PATCHES), ("uses_lib", USES), ("process_lib", PROCESS)):
        lab.library(name, text)
    end = "import json\nprint(json.dumps({}))\n"
    uses = lab.write("effects/uses.py", "import uses_lib, patches_lib, shared_lib\n" + end.format("uses_lib.SEEN"))
    patches = lab.write("effects/patches.py", "import patches_lib, shared_lib\n")
    process = lab.write("effects/process.py", "import process_lib, shared_lib\n" + end.format("process_lib.tell()"))
    found = []
    for scripts, args in (([uses, patches], [uses]), ([process], [process, "--debug"])):
        template, _ = until_ready(lab.python, [["script", script] for script in scripts], lab.env)
        ordinary, forked = said(lab, None, args), said(lab, template, args)
        template.end()
        # What changes others is in no template beside them: then the start is an ordinary one.
        if forked != ordinary and not forked[1]:
            found.append(f"{args[0]}: {forked} in place of {ordinary}")
    template, _ = until_ready(lab.python, [["script", process]], lab.env, flags=["-u", "-B"])
    ordinary, forked = said(lab, None, ["-uB", process, "--debug"]), said(lab, template, ["-uB", process, "--debug"])
    template.end()
    if forked != ordinary:
        found.append(f"two flags in one word: {forked} in place of {ordinary}")
    return found


READS = """
import json, os, pkgutil
HERE = os.path.dirname(__file__)
CONFIG = json.load(open(os.path.join(HERE, 'conf.json')))
"""


def check_files(lab) -> "list[str]":
    """A template ends once a file that a package has read is another one, or has come to where its modules or paths are."""
    found = []
    script = lab.write("effects/reads_files.py", "import reads_files_lib, shared_lib\n")
    folder = os.path.join(lab.site, "reads_files_lib")
    for name, text in (("conf.json", "[2]"), ("local_settings.py", ""), ("../paths_of_others.pth", "")):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.join(folder, "__pycache__"))
        for file, content in (("__init__.py", READS), ("conf.json", "[1]")):
            with open(os.path.join(folder, file), "w") as out:
                out.write(content)
        template, _ = until_ready(lab.python, [["script", script]], lab.env)
        with open(os.path.join(folder, name), "w") as out:
            out.write(text)
        refused = said(lab, template, [script])[1]
        template.end()
        if "have changed" not in refused:
            found.append(f"{name} is another: {refused!r}")
        os.remove(os.path.join(folder, name))
    return found


def check_effects(lab) -> "list[str]":
    return check_changes(lab) + check_chance(lab) + check_order(lab) + check_context(lab) + check_files(lab)
