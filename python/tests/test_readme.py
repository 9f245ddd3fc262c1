"""The examples of the README run as they are, on a model of this machine."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import tempfile
import types
import unittest
from pathlib import Path
from typing import Any

from support import ROOT
from test_mesa import Endpoint

import toolcrib

TASKS = '{"id": "a", "input": "What is 6*7?"}\n{"id": "b", "input": "And 7*7?"}\n'


class Readme(unittest.TestCase):
    def test_examples(self) -> None:
        endpoint = Endpoint()
        self.addCleanup(endpoint.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        Path(folder.name, "servers.toml").write_text('[servers.calc]\nbuiltin = "calc"\n')
        Path(folder.name, "tasks.jsonl").write_text(TASKS)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / "python" / "README.md").read_text(), re.DOTALL)
        self.assertEqual(len(blocks), 5)
        printed = [self.run_block(block.replace("http://127.0.0.1:8000/v1", endpoint.url)) for block in blocks]
        self.assertIn(str(2**200), printed[0])
        self.assertEqual(printed[1], "42\n")
        self.assertEqual(printed[2], "5.0 km\n")
        self.assertIn("a failed", printed[3])
        self.assertIn("Hello", printed[4])

    def run_block(self, block: str) -> str:
        code = compile(block, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        names: dict[str, Any] = {"toolcrib": toolcrib}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            running = types.FunctionType(code, names)()
            if inspect.iscoroutine(running):
                asyncio.run(running)
        return out.getvalue()


if __name__ == "__main__":
    unittest.main()
