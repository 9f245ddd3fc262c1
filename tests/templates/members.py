"""Servers of PyPI, compared member by member: what two forks and two ordinary starts have in all their modules once they have listed
their tools.

usage: python3 tests/templates/members.py FOLDER [NAME..]      needs: the network of PyPI

Each line of public.txt is installed into an environment of its own in FOLDER. Each server is given a handler of SIGUSR2 that writes
the constants of its modules, and the settings of its process, to a file. What is equal in the ordinary starts has to be so in the forks,
and what differs between the ordinary starts has to differ between the forks.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from public import check_each, install
from zygote import CODE, ask, normal_start, until_ready

FOLDER = "TOOLCRIB_MEMBERS"  # A variable, the same for the template and its forks.
DUMP = """
import os, signal

def dump(*_):
    import json, re
    names = {"__name__": "members_dump"}
    code = os.path.join(os.path.dirname(__file__), "members_code.txt")
    exec(compile(open(code).read(), code, "exec"), names)
    names["gc"] = type("gc", (), {**vars(names["gc"]), "get_freeze_count": int})  # That of a fork is not 0.
    state = {key: re.sub("0x[0-9a-f]+", "", repr(value)) for key, value in {**names["settings"](), **names["far_settings"]()}.items()}
    names["STARTUP_MODULES"] = {"__main__"}  # Here all modules are there before the program.
    told = {"modules": names["told_modules"](), "state": state}
    path = os.path.join(os.environ["TOOLCRIB_MEMBERS"], str(os.getpid()))
    with open(path + ".new", "w") as file:
        json.dump(told, file)
    os.rename(path + ".new", path)

signal.signal(signal.SIGUSR2, dump)
"""
ORDINARY = 6  # Starts with a seed of their own: a value that is drawn from two is the same in all of them once in 32 times.
# What every two processes differ in, or what the template itself uses.
STATE_OF_EACH = ("changed its place among processes",)


def messages():
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "members", "version": "1"}}
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    return [first, {"jsonrpc": "2.0", "method": "notifications/initialized"}, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}]


def told_by(pid, stdin, stdout, folder):
    """What the process tells of itself, and its tools."""
    answers = ask(stdin, stdout, messages(), 2)
    os.kill(pid, signal.SIGUSR2)
    path, ends = Path(folder) / str(pid), time.monotonic() + 120
    while not path.exists():
        if time.monotonic() > ends or not os.path.exists(f"/proc/{pid}"):
            raise RuntimeError("it does not tell what it has")
        time.sleep(0.02)
    told = json.loads(path.read_text())
    path.unlink()
    tools = [answer["result"]["tools"] for answer in answers if answer.get("id") == 2]
    return {**told, "tools": json.dumps(tools, sort_keys=True)}


def compare(ordinary, seeded, forks):
    """The differences in words, and how many constants were compared, how many differ at each start, and how many by the seed of hashes or
    the layout of memory."""
    first, fork = ordinary[0], forks[0]
    found, equal, differ, by_seed = [], 0, 0, 0
    if fork["tools"] != first["tools"]:
        found.append("other tools")
    for name in sorted({*first["modules"], *fork["modules"]}):
        if name not in fork["modules"] or name not in first["modules"]:
            if all((name in told["modules"]) == (name in first["modules"]) for told in ordinary):
                found.append(f"{name} is only in {'the ordinary start' if name in first['modules'] else 'the fork'}")
            continue
        for key in sorted({*first["modules"][name], *fork["modules"][name]}):
            own, fixed, forked = ([told["modules"].get(name, {}).get(key) for told in starts] for starts in (ordinary, seeded, forks))
            if fixed[0] == fixed[1] is not None and {*own, *fixed} != {fixed[0]}:
                by_seed += 1
            elif len({*own}) == 1:
                equal += 1
                if {*forked} != {*own}:
                    found.append(f"{name}.{key} is another one")
            else:
                differ += 1
                if forked[0] == forked[1] not in own:  # What is drawn from a few values may be the same.
                    found.append(f"{name}.{key} is the same in both forks")
    for key, value in first["state"].items():
        if key not in STATE_OF_EACH and {told["state"][key] for told in ordinary} == {value} != {fork["state"][key]}:
            found.append(f"the fork has {key}: {fork['state'][key][:200]} in place of {value[:200]}")
    return found, equal, differ, by_seed


def check(folder, package, words):
    environment = install(folder, package)
    python = str(environment / "bin/python")
    site = subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
    for name, text in ("members_dump.py", DUMP), ("members_code.txt", CODE.rsplit("if __name__ ==", 1)[0]), ("members.pth", "import members_dump\n"):
        Path(site, name).write_text(text)
    for _ in range(2):
        subprocess.run([python, "-m", "compileall", "-q", site], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    state = folder / f"{environment.name}.members"
    state.mkdir(exist_ok=True)
    env = {"PATH": f"{environment}/bin:/usr/bin:/bin", "HOME": str(state), "LANG": "C.UTF-8", FOLDER: str(state)}
    variables = [word for word in words if "=" in word and word.split("=")[0].isupper()]
    server_env = {**env, **dict(word.split("=", 1) for word in variables)}
    words = [word for word in words if word not in variables]
    entry = ["module", words[2]] if words[0] == "python" else ["script", str(environment / "bin" / words[0])]
    command = [python, *words[1:]] if words[0] == "python" else [python, entry[1], *words[1:]]
    told = []
    for number, seed in enumerate([{}] * ORDINARY + [{"PYTHONHASHSEED": number} for number in "11234"]):
        # Two of them also with the same layout of memory: some sets are in the order of addresses, and forks have those of their template.
        fixed = ["setarch", "-R"] if number in (ORDINARY, ORDINARY + 1) else []
        process = normal_start([*fixed, *command], {**server_env, **seed}, str(state))
        try:
            told.append(told_by(process.pid, process.stdin.fileno(), process.stdout.fileno(), state))
        except (AssertionError, KeyError, BrokenPipeError):
            process.kill()
            error = process.communicate()[1].decode(errors="replace").strip().splitlines()
            return environment.name, "does not start", " ".join(error)[-150:]
        process.kill()
        process.communicate()
    template, ready = until_ready(python, [entry], env)
    try:
        for _ in range(2):
            started = template.start(command, server_env, str(state), "python")
            if started.refused:
                return environment.name, "refused", started.refused["what"]
            told.append(told_by(started.told["pid"], started.stdin, started.stdout, state))
            os.kill(started.told["pid"], signal.SIGKILL)
            started.await_end()
            for file in (started.stdin, started.stdout, started.stderr):
                os.close(file)
    finally:
        template.end()
    found, equal, differ, by_seed = compare(told[:ORDINARY], told[ORDINARY:-2], told[-2:])
    if not equal:
        found.append("nothing was compared")
    count = len(told[-1]["modules"])
    left_out = ", ".join(sorted(name for name in ready["skipped"]))
    about = f"{ready['modules']} of the template; {count} modules, {equal} constants equal"
    about += f", {differ} other ones at each start, {by_seed} by the seed of hashes or the layout of memory"
    about += f"; without {left_out}"[:150] if left_out else ""
    return environment.name, "WRONG" if found else "equal", "; ".join([about, *found[:10]])


if __name__ == "__main__":
    sys.exit(check_each(check, 16, *sys.argv[1:]))
