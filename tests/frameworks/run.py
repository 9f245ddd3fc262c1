"""Starts the gateway with good and malformed servers, and puts the clients of others through it: one line for each check.

usage: python run.py [--verbose] [CLIENT..]      run.sh installs the clients before
The exit code is 1 if a check fails that KNOWN does not explain, or if an entry of KNOWN is not needed any more.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from plan import due, plan_of

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
INTO = TREE / "target/frameworks"
TOOLCRIB = os.environ.get("TOOLCRIB_BIN") or str(TREE / "target/debug/toolcrib")
EVERYTHING = TREE / "tests/servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
# How long a client may take in all; each item has its own limit (drive.py, drive.mjs).
LIMIT = 400

ALL = ["tools", "calls", "prompts", "resources", "templates"]
CLIENTS = {
    # name: (interpreter, adapter, what it can do)
    "mcp-1": ("python-1", "mcp_1", [*ALL, "valid"]),
    "mcp-2-legacy": ("python-2", "mcp_2:legacy", ALL),
    "mcp-2-modern": ("python-2", "mcp_2:2026-07-28", [*ALL, "valid"]),
    "fastmcp-legacy": ("python-2", "fastmcp:legacy", ALL),
    "fastmcp-auto": ("python-2", "fastmcp:auto", ALL),
    "langchain": ("python-1", "langchain", [*ALL, "agent"]),
    "smolagents": ("python-1", "smolagents", ["tools", "calls", "agent"]),
    "mcp-use": ("python-1", "mcp_use", ["tools", "calls", "prompts", "resources", "agent"]),
    "pydantic-ai": ("python-2", "pydantic_ai", ["tools", "calls", "resources", "templates", "agent"]),
    "openai-agents": ("python-2", "openai_agents", [*ALL, "agent"]),
    "llama-index": ("python-2", "llama_index", ["tools", "calls", "resources", "templates", "agent"]),
    "agno": ("python-2", "agno", ["tools", "calls", "agent"]),
    "google-adk": ("python-2", "google_adk", ["tools", "calls", "agent"]),
    "typescript-1": ("node", "sdk:1", [*ALL, "valid"]),
    "typescript-2-legacy": ("node", "sdk:2-legacy", ALL),
    "typescript-2-modern": ("node", "sdk:2-modern", [*ALL, "valid"]),
    "openai-agents-js": ("node", "openai-agents", ["tools", "calls", "agent"]),
    "ai-sdk": ("node", "ai-sdk", [*ALL, "agent"]),
    "langchain-js": ("node", "langchain", ["tools", "calls", "agent"]),
    "mastra": ("node", "mastra", [*ALL, "agent"]),
    "mcporter": ("node", "mcporter", ["tools", "calls"]),
}

class Known:
    """Faults that are the client's own."""

    def __init__(self):
        self.entries = json.loads((HERE / "KNOWN.json").read_text())
        self.seen = [[] for _ in self.entries]

    def explains(self, client, check, item, failed):
        for number, entry in enumerate(self.entries):
            # `connect` and the like has no item of its own: an entry names all that it is for.
            if re.search(entry["client"], client) and entry["check"] == check and re.search(entry.get("item", ""), item):
                self.seen[number].append(failed)
                if failed:
                    return entry["reason"]
        return None

    def stale(self):
        """Entries whose items were all fine."""
        return [entry for entry, seen in zip(self.entries, self.seen) if seen and not any(seen)]


class Started:
    """What has been started here, each in a process group of its own; all of it is ended."""

    def __init__(self):
        self.processes = []

    def start(self, command, **more):
        process = subprocess.Popen(command, start_new_session=True, **more)
        self.processes.append(process)
        return process

    def end(self, process):
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, how)
            except ProcessLookupError:
                break
            try:
                process.wait(10)
                if how == signal.SIGTERM:
                    time.sleep(0.1)
            except subprocess.TimeoutExpired:
                continue
        process.wait()
        if process in self.processes:
            self.processes.remove(process)

    def end_all(self):
        for process in list(self.processes):
            self.end(process)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listening(process, port, log):
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    sys.exit(f"frameworks: error: nothing listens at port {port}:\n{Path(log).read_text()[-2000:]}")


def server(name, command, *arguments):
    return f"[servers.{json.dumps(name)}]\ncommand = {json.dumps(command)}\nargs = {json.dumps(list(arguments))}\nrequired = false\n"


def configure(folder, expected):
    """The configurations: one server with everything beside a public one, and a server for each kind of tool."""
    malformed = [sys.executable, "-S", "-E", str(HERE / "malformed.py")]
    main, kinds = folder / "main", folder / "kinds"
    main.mkdir()
    kinds.mkdir()
    node = shutil.which("node")
    (main / "servers.toml").write_text(server("odd", *malformed) + server("results", *malformed, "--results") + server("everything", node, str(EVERYTHING), "stdio"))
    servers = expected["kinds"]["tools"]
    others = [expected["kinds"][of] for of in ("prompts", "resources", "templates")]
    text = ""
    for number, kind in enumerate(servers):
        # A server has one kind of each list, as far as there are some.
        these = [kind, *(kinds[number] for kinds in others if number < len(kinds))]
        text += server(kind, *malformed, "--kinds", ",".join(these))
    (kinds / "servers.toml").write_text(text)
    return main / "servers.toml", kinds / "servers.toml", servers


def serve(started, config, folder):
    port = free_port()
    log = folder / f"gateway-{port}.log"
    with open(log, "w") as file:
        command = [TOOLCRIB, "--config", str(config), "serve", "--http", f"127.0.0.1:{port}"]
        process = started.start(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    listening(process, port, log)
    return process, f"http://127.0.0.1:{port}/mcp", log


def follow(started, name, plan_file, target, environment):
    """Runs one client; gives what it reported, item by item."""
    interpreter, adapter, _ = CLIENTS[name]
    if interpreter == "node":
        command = ["node", "--no-warnings", str(INTO / "drive.mjs")]
    else:
        command = [str(INTO / interpreter / "bin/python"), "-W", "ignore", str(HERE / "drive.py")]
    log = plan_file.with_suffix(".log")
    with open(log, "w") as errors:
        process = started.start(
            [*command, adapter, str(plan_file), *target],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        )
        try:
            said, _ = process.communicate(timeout=LIMIT)
            end = f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            started.end(process)
            said, _ = process.communicate()
            end = f"it was ended after {LIMIT} s"
    reports = []
    for line in said.splitlines():
        if line.startswith('{"check"'):
            reports.append(json.loads(line))
    lines = log.read_text().strip().splitlines()
    return reports, f"{end}; {lines[-1][:200] if lines else 'no stderr'}"


def judge(name, way, reports, end, plan, known, verbose):
    """Prints the lines of one client; gives the number of checks that failed."""
    failed = 0
    by_check = {check: [] for check in due(CLIENTS[name][2], plan)}
    for one in reports:
        by_check.setdefault(one["check"], []).append(one)
    lost = any(one["check"] == "connect" and one["error"] for one in reports)
    for check, items in by_check.items():
        if lost and not items:
            continue  # That it did not connect is told.
        bad, explained = {}, set()
        for one in items:
            error = one["error"]
            reason = known.explains(f"{name} {way}", check, one["item"], error is not None)
            if error is not None and reason is None:
                # What many items say is told once; numbers of calls are no names.
                alike = error if one["item"].isdigit() else error.replace(one["item"], "*")
                bad.setdefault(alike, []).append(one["item"])
            elif error is not None:
                explained.add(reason)
        if not items:
            bad[f"it did not come to this: {end}"] = ["all"]
        label = f"{name:20}{way:7}{check} ({len(items)})"
        if bad:
            failed += 1
            count = sum(map(len, bad.values()))
            told = [f"{' '.join(these)}: {error[:300]}" for error, these in bad.items()]
            print(f"FAILED  {label}: {count}: {told[0] if not verbose else ''}", flush=True)
            for line in told if verbose else []:
                print(f"        {line}", flush=True)
        else:
            reasons = f": {' '.join(sorted(explained))}" if explained else ""
            print(f"{'known ' if explained else 'ok    '}  {label}{reasons}", flush=True)
    return failed


def main(arguments):
    verbose = "--verbose" in arguments
    names = [name for name in arguments if name != "--verbose"] or list(CLIENTS)
    unknown = [name for name in names if name not in CLIENTS]
    if unknown:
        sys.exit(f"frameworks: there is no client {unknown[0]!r}; there are: {' '.join(CLIENTS)}")
    if not os.access(TOOLCRIB, os.X_OK):
        sys.exit(f"frameworks: error: there is no {TOOLCRIB}; `cargo build --workspace` makes it, TOOLCRIB_BIN picks another")
    INTO.mkdir(parents=True, exist_ok=True)
    # Modules are looked for from where a script lies.
    shutil.copy(HERE / "drive.mjs", INTO)
    shutil.copytree(HERE / "adapters", INTO / "adapters", ignore=lambda _, files: [f for f in files if f.endswith(".py")], dirs_exist_ok=True)
    expected = json.loads(subprocess.check_output([sys.executable, str(HERE / "malformed.py"), "--expected"]))
    started, known, failed = Started(), Known(), 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        main_config, kinds_config, servers = configure(folder, expected)
        environment = {**os.environ, "OPENAI_API_KEY": "none", "ANONYMIZED_TELEMETRY": "false", "MCP_USE_ANONYMIZED_TELEMETRY": "false"}
        environment |= {"OPENAI_AGENTS_DISABLE_TRACING": "1", "MASTRA_TELEMETRY_DISABLED": "1", "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        # SDKs pass few variables on: `connect` looks below HOME for what is allowed.
        environment.pop("XDG_STATE_HOME", None)
        subprocess.run([TOOLCRIB, "--config", str(main_config), "trust"], env=environment, check=True, stdout=subprocess.DEVNULL)
        connect = [TOOLCRIB, "--config", str(main_config), "connect"]
        try:
            port = free_port()
            model_log = folder / "model.log"
            with open(model_log, "w") as file:
                model = started.start([sys.executable, str(HERE / "model.py"), str(port)], stdin=subprocess.DEVNULL, stdout=file, stderr=file)
            listening(model, port, model_log)
            gateway, url, log = serve(started, main_config, folder)
            neighbours, neighbours_url, _ = serve(started, kinds_config, folder)
            for name in names:
                for way, target, beside in (("http", [url], neighbours_url), ("stdio", connect, None)):
                    plan = plan_of(expected, f"http://127.0.0.1:{port}/v1", beside, servers)
                    plan_file = folder / f"{name}-{way}.json"
                    plan_file.write_text(json.dumps(plan))
                    reports, end = follow(started, name, plan_file, target, environment)
                    failed += judge(name, way, reports, end, plan, known, verbose)
            for which, process in (("gateway", gateway), ("gateway of the neighbours", neighbours)):
                if process.poll() is not None:
                    failed += 1
                    print(f"FAILED  the {which} has ended: {log.read_text()[-500:]}")
            kept = os.environ.get("FRAMEWORKS_LOGS")
            if kept:
                for file in folder.glob("*.log"):
                    shutil.copy(file, kept)
        finally:
            subprocess.run([TOOLCRIB, "--config", str(main_config), "down"], capture_output=True, check=False, timeout=60)
            started.end_all()
    for entry in known.stale():
        failed += 1
        print(f"FAILED  KNOWN.json: not needed any more: {entry['client']} {entry['check']} {entry.get('item', '')}")
    print(f"{failed} checks failed" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
