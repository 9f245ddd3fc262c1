"""Servers of PyPI, forked from a template and not: what they offer and answer must be the same.

usage: python3 tests/templates/public.py FOLDER [NAME..]      needs: the network of PyPI, target/debug/{toolcrib,toolcrib-lab}

Each line of public.txt is installed into an environment of its own in FOLDER. Each server is lent several times, so that its later
starts are forks; then tasks call its tools, with arguments made up from the schemas, with templates and without.
"""

import json, os, re, shutil, subprocess, sys, tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent.parent / "target/debug"
CALLS = 6
VALUES = {"string": "one", "integer": 3, "number": 1.5, "boolean": True, "array": [], "object": {}}


def run(program, *words, config=None, limit=300):
    chosen = ["--config", str(config)] if config else []
    # Only the user's own configuration names a cache.
    own = {"XDG_CONFIG_HOME": str(config.parents[1])} if config else {}
    return subprocess.run([PROGRAMS / program, *chosen, *map(str, words)], env=os.environ | own, capture_output=True, text=True, timeout=limit)


def install(folder, package):
    """The environment of a package; made once."""
    environment = folder / re.split("[=<>\\[]", package)[0]
    if not (environment / ".done").exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([environment / "bin/python", "-m", "pip", "install", "-q", *package.split("+")], check=True)
        (environment / ".done").touch()
    return environment


def value(schema):
    kind = schema.get("type")
    return schema.get("default", schema["enum"][0] if schema.get("enum") else VALUES.get(kind if isinstance(kind, str) else "string", "one"))


def plain(answer):
    """Without what differs from start to start: times, ids, addresses, ports, process ids."""
    text = json.dumps(answer, sort_keys=True)
    text = re.sub(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|/tmp/[\w./-]+", "ID", text)
    return re.sub(r"\d+", "N", text)


def answers(config, tasks, folder):
    """What the calls of the tasks came to."""
    out = Path(tempfile.mkdtemp(dir=folder))
    done = run("toolcrib", "-q", "run", tasks, "-j", 2, "--out", out, config=config)
    results = next(out.rglob("results.jsonl"), None)
    if results is None:
        sys.exit(f"no results: {done.stderr[-500:]}")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return {row["task"]: plain([row["status"], row["answer"], row["error"]]) for row in rows}


def proof(state):
    """What the starts with templates came to, and what the template is without."""
    said, avoided = set(), []
    for file in (state / "cache/template").glob("*.json"):
        record = json.loads(file.read_text())
        avoided += record.get("avoid", [])
        for kind, what in record.get("proof", {}).items():
            said.add(f"off: {what['reason']}" if kind == "off" else kind)
    words = ", ".join(sorted(said)) or "ordinary"
    return words + (f"; its template is without {', '.join(sorted(set(avoided)))[:60]}" if avoided else "")


def check(folder, package, words):
    environment = install(folder, package)
    name = environment.name
    state = folder / f"{name}.state"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    configs = {}
    for way, template in ("on", '"auto"'), ("off", "false"):
        configs[way] = state / "toolcrib" / f"{way}.toml"
        configs[way].parent.mkdir(exist_ok=True)
        command = str(environment / "bin" / words[0])
        configs[way].write_text(
            f"[defaults]\ntemplate = {template}\ncache_folder = {str(state / 'cache')!r}\n"
            f"[servers.it]\ncommand = {command!r}\nargs = {words[1:]!r}\nscope = \"task\"\n"
            f"cwd = {str(state)!r}\nstartup_timeout = \"60s\"\n"
        )
    listed = run("toolcrib", "--json", "tools", "--schema", config=configs["off"])
    [server] = json.loads(listed.stdout)["servers"]
    if server["error"]:
        return name, "does not start", server["error"]["message"]
    tools = server["tools"]
    if not tools:
        return name, "has no tools", ""
    tasks = state / "tasks.jsonl"
    with tasks.open("w") as file:
        for number in range(CALLS):
            tool = tools[number % len(tools)]
            schema = tool.get("input_schema", {})
            required = {key: value(schema.get("properties", {}).get(key, {})) for key in schema.get("required", [])}
            file.write(json.dumps({"id": str(number), "calls": [{"tool": f"it.{tool['name']}", "args": required}]}) + "\n")
    loans = {way: run("toolcrib-lab", "--json", "bench", "templates", "--loans", 4, config=config) for way, config in configs.items()}
    for way, loan in loans.items():
        if loan.returncode:
            return name, "WRONG", f"{way}: {loan.stderr.strip()[-200:]}"
    memory = {way: json.loads(loan.stdout)["private_kib"] for way, loan in loans.items()}
    memory = {way: f"{sum(kib) // max(len(kib), 1) // 1024} MiB" for way, kib in memory.items()}
    seen = {"off": answers(configs["off"], tasks, state)}
    # An ordinary start, a fork that is compared with it, and forks.
    for _ in range(3):
        seen["on"] = answers(configs["on"], tasks, state)
    for task, answer in seen["off"].items():
        if seen["on"].get(task) != answer:
            return name, "WRONG", f"task {task}: {seen['on'].get(task)[:200]} in place of {answer[:200]}"
    return name, f"{len(seen['off'])} calls equal", f"{memory['on']} / {memory['off']}; {proof(state)}"


def check_each(check, width, folder, *names):
    """Checks each line of public.txt, or those of these names, and says what it came to. Returns whether one is wrong."""
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for line in (HERE / "public.txt").read_text().splitlines():
        package, *words = line.split()
        if line.startswith("#") or names and package.split("==")[0] not in names:
            continue
        try:
            row = check(folder, package, words)
        except Exception as error:
            row = package, "?", repr(error)[:300]
        wrong += row[1] == "WRONG"
        print("{:<32} {:<{width}} {}".format(*row, width=width), flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(check_each(check, 20, *sys.argv[1:]))
