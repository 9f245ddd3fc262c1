"""Compares servers that are forked from a template with the same servers started in the ordinary way.

usage: check.py [--effects] [PYTHON ..] [--servers VENV]: the interpreters to check (default: this one), or the folder of the public
servers, which are measured too, or both. --effects: only what imports change, or make by chance.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from effects import check_effects
from refusals import check_refusals
from zygote import HERE, Output, Template, ask, normal_start, private_memory, until_ready

SHARED_LIB = """
import asyncio, concurrent.futures, logging, multiprocessing, os, random, ssl, tempfile, uuid
from os import getcwd
from sys import argv
LEVEL = os.environ.get("SHARED_LIB_LEVEL", os.environ.get("TOOLCRIB_LEVEL", "none"))
SEEDED, BY_CHANCE = random.Random(5), random.Random()
try: import no_such_thing
except ImportError: pass
class Kept: pass
KEPT = Kept()
def authkey(): return multiprocessing.current_process().authkey.hex()
"""
WAYS = (
    "error chained code words interrupt text hook bad_hook thread unflushed os_exit detached own_end library_end library_generator "
    "library_file library_database"
).split()


class Lab:
    """A folder with an environment that has a library and a server."""

    def __init__(self, python: str):
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="toolcrib-templates-"))
        self.cwd = os.path.join(self.folder, "work")
        os.mkdir(self.cwd)
        subprocess.run([python, "-m", "venv", "--without-pip", os.path.join(self.folder, "env")], check=True)
        self.python = os.path.join(self.folder, "env/bin/python")
        self.site = subprocess.check_output([self.python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
        probe = open(os.path.join(HERE, "probe.py")).read()
        self.library("shared_lib", SHARED_LIB)
        os.mkdir(os.path.join(self.site, "probe_server"))
        self.write("site:probe_server/__init__.py", "from . import part\nimport shared_lib\n")
        self.write("site:probe_server/part.py", "import json.tool, email.message\nPART = 1\n")
        self.write("site:probe_server/__main__.py", probe)
        os.mkdir(os.path.join(self.site, "probe_server-1.dist-info"))
        record = "probe_server/__init__.py,,\n../../../bin/probe-server,,\n../../../bin/probe-uv,,\n../../../bin/probe-long,,\n"
        self.write("site:probe_server-1.dist-info/RECORD", record)
        body = "import sys\nfrom probe_server.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
        self.write("env/bin/probe-server", f"#!{self.python}\n# -*- coding: utf-8 -*-\nimport re\n{body}")
        self.write("env/bin/probe-uv", f"#!{self.python}\n# -*- coding: utf-8 -*-\n{body}")
        self.write("env/bin/probe-long", f"#!/bin/sh\n'''exec' \"{self.python}\" \"$0\" \"$@\"\n' '''\n{body}")
        self.write("work/probe.py", probe)
        self.write("work/sub/../cwd_module.py", probe)
        self.write("scripts/deep.py", probe)
        self.write("work/wrong.py", "def broken(:\n")
        os.symlink("../scripts/deep.py", os.path.join(self.cwd, "link.py"))
        self.env = {
            "TOOLCRIB_OWNER": "family", "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": self.folder, "LANG": "C.UTF-8",
        }
        self.server_env = {"TOOLCRIB_OWNER": "server-1", **{k: v for k, v in self.env.items() if k != "TOOLCRIB_OWNER"}}
        self.server_env.update({"OWN": "sëcret=1", "TZ": "Asia/Tokyo", "EMPTY": ""})
        self.modules = [["module", "probe_server"], ["module", "cwd_module"]]
        names = ("env/bin/probe-server", "env/bin/probe-uv", "env/bin/probe-long", "work/probe.py", "work/link.py", "work/wrong.py")
        self.entries = self.modules + [["script", os.path.join(self.folder, name)] for name in names]
        for _ in range(2):  # Compiled files, as an installer makes them.
            subprocess.run([self.python, "-c", "import shared_lib, probe_server.__main__"], cwd=self.cwd, check=True)

    def library(self, name: str, text: str) -> None:
        os.makedirs(os.path.join(self.site, name), exist_ok=True)
        self.write(f"site:{name}/__init__.py", text)

    def write(self, name: str, text: str) -> str:
        path = os.path.join(self.site, name[5:]) if name.startswith("site:") else os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def template(self, flags: "list[str]" = (), **kwargs) -> Template:
        kwargs.setdefault("entries", self.entries)
        return Template(self.python, list(flags), env=kwargs.pop("env", self.env), **kwargs)


def outcome_of(started, limit: float = 60) -> dict:
    if started.refused:
        return {"out": "", "err": f"refused: {started.refused}", "status": None}
    out, err = Output(started.stdout), Output(started.stderr)
    os.close(started.stdin)
    status, cpu = started.await_end()
    return {"out": out.text(), "err": err.text(), "status": status}


def normal_outcome(args: list, env: dict, cwd: str, executable=None) -> dict:
    process = normal_start(args, env, cwd, executable)
    out, err = process.communicate(b"", timeout=60)
    return {"out": out.decode(), "err": err.decode(), "status": process.returncode}


def plain(value):
    """Without what differs between any two starts."""
    if isinstance(value, str):
        return re.sub(r"0x[0-9a-f]+", "0x", value)
    if isinstance(value, list):
        return list(map(plain, value))
    return {name: plain(part) for name, part in value.items()} if isinstance(value, dict) else value


def facts_of(outcome: dict) -> dict:
    """What the probe has told."""
    return json.loads([line for line in outcome["out"].splitlines() if line.startswith('{"facts"')][0])


def compare(what: str, normal: dict, forked: dict) -> "list[str]":
    """The differences, in words."""
    try:
        first, second = facts_of(normal), facts_of(forked)
    except (ValueError, IndexError):
        return [f"{what}: {key}: {normal[key]!r} and {forked[key]!r}" for key in normal if plain(normal[key]) != plain(forked[key])]
    found = [f"{what}: {key}: {normal[key]!r}, {forked[key]!r}" for key in ("err", "status") if plain(normal[key]) != plain(forked[key])]
    lines = [[line[:9] for line in outcome["out"].splitlines()] for outcome in (normal, forked)]
    if lines[0] != lines[1]:
        found.append(f"{what}: the order of the output: {lines[0]}, {lines[1]}")
    for name, value in first["facts"].items():
        other = second["facts"].get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            pairs = [(f"{name}.{key}", value.get(key), other.get(key)) for key in {**value, **other}]
        else:
            pairs = [(name, value, other)]
        found += [f"{what}: {key}:\n   {one!r}\n   {two!r}" for key, one, two in pairs if plain(one) != plain(two)]
    same = [one for one, two in zip(first["by_chance"], second["by_chance"]) if one == two]
    return found + [f"{what}: the same random value: {value}" for value in same]


def check_starts(lab: Lab) -> "list[str]":
    """Every form of command with the usual flags."""
    found, chance, count = [], [], 0
    python = lab.python
    version = json.loads(subprocess.check_output([python, "-c", "import sys; print(list(sys.version_info[:2]))"]))
    scripts = {
        "path": (os.path.join(lab.cwd, "probe.py"), "probe.py"), "relative": ("probe.py",), "dot": ("./probe.py",),
        "symlink": (os.path.join(lab.cwd, "link.py"),), "console": (os.path.join(lab.folder, "env/bin/probe-server"),),
    }
    flag_sets = [[], ["-u"], ["-I"], ["-E", "-s"], ["-B"], ["-X", "utf8"], ["-W", "ignore::UserWarning", "-O"]]
    flag_sets += [["-P"]] if version >= [3, 11] else []
    for flags in flag_sets:
        template = lab.template(flags)
        ready = template.report()
        if "ready" not in ready:
            found.append(f"{flags}: {ready}")
            continue
        forms = [["-m", "probe_server"]] + [[words[0]] for words in scripts.values()]
        if not flags:
            forms += [[os.path.join(lab.folder, "env/bin/probe-uv")], [os.path.join(lab.folder, "env/bin/probe-long")]]
        for form in forms:
            args = [python, *flags, *form, "light" if flags else "dump", "--x", "ü"]
            started = template.start(args, lab.server_env, lab.cwd, "python")
            if started.refused:
                found.append(f"{args[1:]}: {started.refused}")
                continue
            told = started.told
            if told["said"] != "ok" or told["settings"] != {"limits": 7} or not told["is_parent"] or not told["is_leader"]:
                found.append(f"{args[1:]}: told to the guard: {told}")
            forked = outcome_of(started)
            found += compare(" ".join(args[1:]), normal_outcome(args, lab.server_env, lab.cwd), forked)
            try:
                chance += facts_of(forked)["by_chance"]
            except (ValueError, IndexError):
                pass
            count += 1
        if not flags:
            for way in WAYS:
                for form in (["-m", "probe_server"], ["probe.py"]):
                    args = [python, *form, way]
                    forked = outcome_of(template.start(args, lab.server_env, lab.cwd, "python"))
                    files = [sorted(os.listdir(lab.cwd))]
                    found += compare(" ".join(args[1:]), normal_outcome(args, lab.server_env, lab.cwd), forked)
                    files.append(sorted(os.listdir(lab.cwd)))
                    found += [f"{way}: the files that are left: {files}"] if files[0] != files[1] else []
                    count += 1
            # The modules of the template are not cleared.
            args = [python, "probe.py", "quick"]
            outputs = normal_outcome(args, lab.server_env, lab.cwd)["out"], outcome_of(template.start(args, lab.server_env, lab.cwd, "python"))["out"]
            is_quick = ["an object of the library has ended" in output for output in outputs] == [True, False]
            if is_quick != (version >= [3, 10]):
                found.append(f"whether the end is quick: {outputs}")
            for form in (["wrong.py"], ["-m", "cwd_module"]):
                refused = template.start([python, *form], lab.server_env, lab.cwd, "python").refused
                if "cannot be read" not in (refused or {}).get("what", ""):
                    found.append(f"{form} could import anything: {refused}")
            # The name of a console script, executed as a program.
            script = os.path.join(lab.folder, "env/bin/probe-server")
            forked = outcome_of(template.start([python, script, "dump"], lab.server_env, lab.cwd, "probe-server"))
            found += compare("a console script", normal_outcome([script, "dump"], lab.server_env, lab.cwd), forked)
        template.end()
        text = template.output.text()
        if text:
            found.append(f"{flags}: the template has printed {text!r}")
    if len(set(chance)) != len(chance):
        found.append("two servers have had the same random value")
    print(f"  {count} starts compared")
    return found


def check_environments(lab: Lab) -> "list[str]":
    """Environments as containers have them: in some Python sets LC_CTYPE by itself (PEP 538)."""
    found, base = [], {name: value for name, value in lab.env.items() if name != "LANG"}
    proxy = {"HTTP_PROXY": "http://127.0.0.1:9", "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"}
    python = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    extras = [{}, {"LANG": "de_DE.UTF-8"}, {"LC_CTYPE": "C"}, {"LC_ALL": "C"}, {"PYTHONCOERCECLOCALE": "0"}, proxy, python]
    for extra in extras:
        env = {**base, **extra}
        template = lab.template(env=env)
        ready = template.report()
        if "ready" in ready:
            args = [lab.python, "-m", "probe_server", "dump", "ü"]
            server_env = {**env, "TOOLCRIB_OWNER": "server-1", "OWN": "1"}
            forked = outcome_of(template.start(args, server_env, lab.cwd, "python"))
            found += compare(f"with {extra}", normal_outcome(args, server_env, lab.cwd), forked)
        else:
            found.append(f"with {extra}: {ready}")
        template.end()
    template = lab.template(env={**base, "PYTHONCOERCECLOCALE": "warn"})
    template.report()
    started = template.start([lab.python, "-m", "probe_server"], {**base, "PYTHONCOERCECLOCALE": "warn"}, lab.cwd, "python")
    if not started.refused:
        found.append("a warning of the locale would be missing")
    template.end()
    return found


def check_leak_checks(lab: Lab) -> "list[str]":
    """Modules made with nanobind tell of objects that are left at the end: nothing may be left because of the template."""
    thing = "import os\nclass Thing:\n    def __del__(self, write=os.write): write(2, b'freed')\n"
    lab.library("leaks_lib", thing + "Thing.__module__ = 'nanobind'\nThing.itself = [Thing()]\nThing.itself[0].itself = Thing.itself\n")
    args = [lab.python, lab.write("work/leaks.py", "import leaks_lib\n")]
    template = lab.template(entries=[["script", args[1]]])
    template.report()
    forked = outcome_of(template.start(args, lab.server_env, lab.cwd, "python"))
    normal = normal_outcome(args, lab.server_env, lab.cwd)
    template.end()
    return compare("with leak checks", normal, forked) + ([] if normal["err"] == "freed" else ["nothing was freed"])


def messages() -> "list[dict]":
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "check", "version": "1"}}
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    return [first, {"jsonrpc": "2.0", "method": "notifications/initialized"}, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}]


def check_servers(venv: str) -> "list[str]":
    """The public servers: equal answers, and what 24 of them cost."""
    venv, found = os.path.abspath(venv), []
    python = os.path.join(venv, "bin/python")
    env = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    names = ["mcp-server-time", "mcp-server-git", "mcp-server-fetch"]
    scripts = [os.path.join(venv, "bin", name) for name in names]
    forms = [[script] for script in scripts] + [["-m", name.replace("-", "_")] for name in names]
    templates = []
    for name, script in zip(names, scripts):
        template, ready = until_ready(python, [["script", script], ["module", name.replace("-", "_")]], env)
        templates.append(template)
        print(f"  {name}: {ready['modules']} modules", json.dumps({"left out": ready["skipped"], "environment": ready["environment"]}))
    ordinary = []
    for at, form in enumerate(forms):
        template = templates[at % 3]
        process = normal_start([python, *form], env, "/")
        normal = ask(process.stdin.fileno(), process.stdout.fileno(), messages(), 2)
        process.kill()
        usage = os.wait4(process.pid, 0)[2]
        ordinary.append((usage.ru_utime + usage.ru_stime) * 1000)
        started = template.start([python, *form], env, "/", "python")
        if started.refused:
            found.append(f"{form}: {started.refused}")
            continue
        if ask(started.stdin, started.stdout, messages(), 2) != normal:
            found.append(f"{form}: other answers than those of an ordinary start")
        outcome = outcome_of(started)
        if (outcome["status"], outcome["err"]) != (0, ""):
            found.append(f"{form}: {outcome}")
    begin = time.monotonic()
    all24 = [templates[number % 3].start([python, *forms[number % 3]], env, "/", "python") for number in range(24)]
    for started in all24:
        ask(started.stdin, started.stdout, messages()[:1], 1)
    wall, cpu = time.monotonic() - begin, 0.0
    memory = [private_memory(started.told["pid"]) for started in all24]
    for started in all24:
        os.kill(started.told["pid"], 9)
        cpu += started.await_end()[1]
        for file in (started.stdin, started.stdout, started.stderr):
            os.close(file)
    millis = cpu * 1000 / 24
    print(f"  24 servers: {wall * 1000:.0f} ms, {millis:.1f} ms of CPU each, {sum(memory) / 24 / 2**20:.1f} MiB of private memory each")
    for template in templates:
        template.end()
    mean = sum(ordinary) / len(ordinary)
    print(f"  in the ordinary way: {mean:.0f} ms of CPU each")
    return found + ([f"a forked server takes {millis:.0f} ms of CPU, an ordinary one {mean:.0f}"] if millis * 3 > mean else [])


def main() -> int:
    args, servers = sys.argv[1:], None
    if "--servers" in args:
        servers = args.pop(args.index("--servers") + 1)
        args.remove("--servers")
    checks = [check_starts, check_environments, check_leak_checks, check_refusals]
    if "--effects" in args:
        args.remove("--effects")
        checks = [check_effects]
    found = []
    for python in args or ([] if servers else [sys.executable]):
        print(python, flush=True)
        lab = Lab(python)
        try:
            found += [f"{python}: {words}" for check in checks for words in check(lab)]
        finally:
            shutil.rmtree(lab.folder)
    if servers:
        found += check_servers(servers)
    print("\n".join(found) or "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
