"""Public servers from PyPI and npm, if `tests/servers/install.sh` has installed them, and how the program is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from support import ROOT, Program, wait_for

import toolcrib

CONFIG = ROOT / "tests" / "servers" / "servers.toml"


@unittest.skipUnless((CONFIG.parent / "venv").exists(), "run tests/servers/install.sh")
class PublicServers(unittest.IsolatedAsyncioTestCase):
    async def test_all_that_a_server_offers(self) -> None:
        async with toolcrib.Manager(CONFIG, only=["everything", "time", "memory"]) as m:
            self.assertEqual(m.report.failures, {})
            now = await m.call_tool("time", "get_current_time", {"timezone": "UTC"})
            self.assertEqual(now.structured["timezone"], "UTC")
            wrong = await m.call_tool("time", "get_current_time", {"timezone": "Mars"})
            self.assertTrue(wrong.is_error)
            listed = await m.request("everything", "resources/list")
            contents = await m.read_resource("everything", listed["resources"][0]["uri"])
            self.assertIn("text", contents[0])
            prompt = await m.prompt("everything", "simple-prompt")
            self.assertEqual(prompt["messages"][0]["role"], "user")
            told: list[Any] = []
            arguments = {"duration": 1, "steps": 2}
            name = next(tool.name for tool in m.tools() if "long" in tool.name.lower() and tool.server == "everything")
            await m.call_tool("everything", name, arguments, progress=lambda *of: told.append(of[:2]))
            self.assertEqual(told, [(1, 2), (2, 2)])
            pid = m.report.servers[0].pid
            await m.restart("everything")
            status = next(row for row in await m.status() if row.name == "everything")
            self.assertEqual((status.state, status.pid != pid), ("ready", True))
        self.assertEqual([m.stopped and m.stopped.survivors, m.stopped and len(m.stopped.servers)], [[], 3])

    def test_the_program_is_killed(self) -> None:
        program = Program(
            """
            m = sync.Manager(sys.argv[2]).start()
            os.environ[support.VARIABLE] = mark
            for n in range(8): threading.Thread(target=lambda: m.call_tool("everything.echo", arguments={"message": "x"}), daemon=True).start()
            print("ready", *[row.pid for row in m.report.servers], flush=True)
            time.sleep(600)
            """,
            arguments=[str(CONFIG)],
        )
        assert program.process.stdout
        pids = program.process.stdout.readline().split()[1:]
        self.assertEqual(len(pids), 8)
        program.process.kill()
        program.end()
        wait_for("the end of the servers", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


class Binary(unittest.TestCase):
    """The program is found as pip installs it."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def found(self, python: str, *, site: Path, env: dict[str, str]) -> str:
        code = "import toolcrib; print(toolcrib.find_binary())"
        env = {"PATH": os.defpath, "HOME": str(self.folder), "PYTHONPATH": str(site), **env}
        return subprocess.run([python, "-c", code], env=env, check=True, capture_output=True, text=True).stdout.strip()

    def package(self, site: Path) -> Path:
        shutil.copytree(ROOT / "python" / "toolcrib", site / "toolcrib", ignore=shutil.ignore_patterns("__pycache__"))
        return site

    def program(self, path: Path, text: str = "\x7fELF") -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def test_where_it_is_looked_for(self) -> None:
        venv = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        python = str(venv / "bin" / "python")
        site = self.package(self.folder / "target")
        # A script of this package in PATH is not the program, which would start itself for ever.
        self.program(self.folder / "scripts" / "toolcrib", "#!/usr/bin/python3\n")
        path = {"PATH": f"{self.folder / 'scripts'}:{self.folder / 'path'}:{os.defpath}"}
        with self.assertRaises(subprocess.CalledProcessError) as failed:
            self.found(python, site=site, env=path)
        self.assertIn("TOOLCRIB_BINARY", failed.exception.stderr)
        places = [
            (self.folder / "path" / "toolcrib", path),
            (self.folder / ".local" / "bin" / "toolcrib", path),
            (self.folder / "target" / "bin" / "toolcrib", path),
            (venv / "bin" / "toolcrib", path),
            (self.folder / "named", {**path, "TOOLCRIB_BINARY": str(self.folder / "named")}),
        ]
        # Each has precedence over those before it.
        for place, env in places:
            program = self.program(place)
            self.assertEqual(self.found(python, site=site, env=env), program)

    def test_prefix(self) -> None:
        site = self.package(self.folder / "prefix" / "lib" / "python3" / "site-packages")
        program = self.program(self.folder / "prefix" / "bin" / "toolcrib")
        self.assertEqual(self.found(sys.executable, site=site, env={}), program)

    def test_the_command(self) -> None:
        done = subprocess.run([sys.executable, "-m", "toolcrib", "--version"], capture_output=True, text=True)
        self.assertTrue(done.stdout.startswith("toolcrib "), done.stdout + done.stderr)
        with mock.patch.dict(os.environ, {"TOOLCRIB_BINARY": "/bin/true"}):
            self.assertEqual(toolcrib.find_binary(), "/bin/true")


if __name__ == "__main__":
    unittest.main()
