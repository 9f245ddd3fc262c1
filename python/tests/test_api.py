"""The package as programs use it: managers, functions, agents, runs, models."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Annotated, Any, Literal

import toolcrib
from support import living, new_mark, servers, wait_for
from toolcrib import sync
from toolcrib._functions import described

CALC: dict[str, Any] = {"servers": {"calc": {"builtin": "calc"}}}
ECHO = '[[steps]]\nsay = "you said {{user}}"\n'
CALLS = """
[[steps]]
when = { role = "user" }
calls = [{ tool = "calc__evaluate", args = { expression = "6*7" } }]
[[steps]]
say = "{{last}}"
"""


async def add(a: int, b: int = 2) -> int:
    """Adds two numbers."""
    return a + b


def fail() -> None:
    raise ValueError("no sum today")


class Api(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "echo.toml").write_text(ECHO)
        (self.folder / "calls.toml").write_text(CALLS)

    async def test_calls(self) -> None:
        async with toolcrib.Manager(CALC) as m:
            self.assertEqual([tool.visible_name for tool in m.tools()], ["calc__evaluate"])
            result = await m.call_tool("calc", "evaluate", {"expression": "2^200"})
            self.assertEqual(result.text, str(2**200))
            self.assertFalse(result.is_error)
            self.assertEqual((await m.call_tool("calc.evaluate", arguments={"expression": "1+1"})).text, "2")
            calls = [m.call_tool("calc", "evaluate", {"expression": str(n)}) for n in range(64)]
            self.assertEqual([result.text for result in await asyncio.gather(*calls)], [str(n) for n in range(64)])
            with self.assertRaises(toolcrib.NotFound) as caught:
                await m.call_tool("calc", "evaluat")
            self.assertEqual((caught.exception.code, caught.exception.server), ("tool_not_found", "calc"))
            with self.assertRaises(toolcrib.ArgumentsInvalid):
                await m.call_tool("calc", "evaluate", {"expresion": "1"})
            self.assertEqual((await m.status())[0]["name"], "calc")
            self.assertIn("tools", await m.request("calc", "tools/list"))
        assert m.stopped
        self.assertEqual(m.stopped.survivors, [])
        with self.assertRaises(toolcrib.ToolcribError):
            await m.call_tool("calc", "evaluate", {"expression": "1"})

    async def test_functions(self) -> None:
        async with toolcrib.Manager(functions={"math": [add, fail], "more": {"plus": add}}) as m:
            self.assertEqual((await m.call_tool("math", "add", {"a": 40})).text, "42")
            self.assertEqual((await m.call_tool("more", "plus", {"a": 10**40 + 7, "b": 1})).text, str(10**40 + 8))
            failed = await m.call_tool("math", "fail")
            self.assertEqual((failed.is_error, failed.text), (True, "ValueError: no sum today"))

    async def test_cancelled_calls_are_cancelled_at_the_function(self) -> None:
        began, ended = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            began.set()
            try:
                await asyncio.sleep(600)
            finally:
                ended.set()

        async with toolcrib.Manager(functions={"f": [wait]}) as m:
            call = asyncio.ensure_future(m.call_tool("f", "wait"))
            await began.wait()
            call.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(ended.wait(), 30)
            with self.assertRaises(toolcrib.CallTimeout):
                await m.call_tool("f", "wait", timeout=0.2)

    async def test_faults_of_callbacks_cost_themselves_alone(self) -> None:
        def nan() -> dict[str, float]:
            return {"x": float("nan")}

        async def report(steps: int) -> str:
            return "done"

        async with toolcrib.Manager(CALC, functions={"f": [nan, report]}) as m:
            odd = await m.call_tool("f", "nan")
            self.assertTrue(odd.is_error or odd.content, odd)
            with self.assertRaises((TypeError, ValueError)):
                await m.call_tool("f", "report", {"steps": float("nan")})
            with self.assertRaises(TypeError):
                await m.call_tool("f", "report", {"steps": object()})
            llm = toolcrib.LlmClient(model="script:echo.toml", cwd=self.folder)
            with self.assertLogs("toolcrib", "ERROR"):
                answer = await llm.chat("a", on_delta=lambda delta: 1 / 0)
            self.assertEqual(answer.content, "you said a")
            await llm.close()
            self.assertEqual((await m.call_tool("f", "report", {"steps": 1})).text, "done")

    async def test_servers_by_parameters_and_events(self) -> None:
        mark = new_mark()
        named = servers(mark, 2)["servers"]
        m = toolcrib.Manager(servers={name: type("P", (), table)() for name, table in named.items()})
        events = m.events()
        async with m:
            self.assertEqual((await m.call_tool("s1", "echo", {"a": [1, "x"]})).text, '{"a": [1, "x"]}')
            await m.restart("s1")
            changed = await m.apply(None)
            self.assertEqual(changed["unchanged"], ["s0", "s1"])
        wait_for("the end of the servers", lambda: not living(mark))
        kinds = {event.kind async for event in events}
        self.assertLessEqual({"ready", "restarted", "stopped"}, kinds)

    async def test_failed_starts(self) -> None:
        with self.assertRaises(toolcrib.ConfigError) as caught:
            await toolcrib.Manager({"servers": {"x": {"comand": "y"}}}).start()
        self.assertIn("did you mean `command`?", str(caught.exception))
        broken = {"servers": {"x": {"command": "/does/not/exist", "required": True}, "y": {"command": "/nor/this"}}}
        with self.assertRaises(toolcrib.StartError) as failed:
            await toolcrib.Manager(broken).start()
        self.assertEqual([failure.server for failure in failed.exception.failures], ["x"])
        copied = pickle.loads(pickle.dumps(failed.exception))
        self.assertEqual(str(copied), str(failed.exception))

    async def test_models(self) -> None:
        async with toolcrib.LlmClient(model="script:echo.toml", cwd=self.folder) as llm:
            pieces: list[Any] = []
            answer = await llm.chat("hello", on_delta=pieces.append)
            self.assertEqual((answer.content, answer.message["role"]), ("you said hello", "assistant"))
            outcomes = await llm.generate_batch(["x", [{"role": "user", "content": "y"}]])
            self.assertEqual([one.content for one in outcomes if isinstance(one, toolcrib.ModelAnswer)], ["you said x", "you said y"])
            self.assertEqual((await llm.stats())["request_count"], 3)
        with self.assertRaises(toolcrib.ToolcribError):
            toolcrib.LlmClient("not an address", "m")

    async def test_agents_and_runs(self) -> None:
        config = {**CALC, "llm": {"model": "script:calls.toml"}}
        scored: list[str] = []

        async def score(task: dict[str, Any], report: toolcrib.TaskReport) -> float:
            await asyncio.sleep(0)
            scored.append(task["id"])
            return float(report.answer == "42" and task["id"] != "b")

        async with toolcrib.Manager(config, cwd=self.folder) as m:
            happened: list[Any] = []
            report = await m.agent(on_event=happened.append).run("6 by 7?", target="42")
            self.assertEqual((report.status, report.answer, report.tool_calls), ("passed", "42", 1))
            self.assertIn("call_ended", [event["event"] for event in happened])
            run = m.run([{"id": "a", "input": "q"}, {"id": "b", "input": "q"}], out=self.folder / "runs", score=score)
            statuses = {}
            async for event in run:
                if event.kind == "task_ended":
                    statuses[event.data.task] = event.data.status
            summary = await run
            self.assertEqual(statuses, {"a": "passed", "b": "failed"})
            self.assertEqual(sorted(scored), ["a", "b"])
            self.assertEqual((summary.totals["tasks"], summary.end), (2, "finished"))
            lines = (Path(summary.folder) / "results.jsonl").read_text().splitlines()
            self.assertEqual([json.loads(line)["task"] for line in lines], ["a", "b"])
        alone = await toolcrib.run(config, ["q"], cwd=self.folder, out=self.folder / "runs")
        self.assertEqual(alone.totals["tasks"], 1)

    def test_without_a_loop(self) -> None:
        with sync.Manager(CALC) as m:
            results: list[str] = []

            def call(number: int) -> None:
                results.append(m.call_tool("calc", "evaluate", {"expression": f"{number}*2"}).text)

            threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(sorted(map(int, results)), [number * 2 for number in range(8)])
        with sync.LlmClient(model="script:echo.toml", cwd=self.folder) as llm:
            self.assertEqual(llm.chat("a").content, "you said a")
            self.assertEqual(len(llm.generate_batch(["b", "c"])), 2)

    def test_schemas_of_functions(self) -> None:
        def search(
            query: Annotated[str, "words"], kinds: list[str], most: int | None = None, order: Literal["a", "b"] = "a"
        ) -> str:
            """Searches."""
            return query

        tool = described("search", search)
        self.assertEqual(tool["description"], "Searches.")
        self.assertEqual(tool["input_schema"]["required"], ["query", "kinds"])
        properties = tool["input_schema"]["properties"]
        self.assertEqual(properties["query"], {"type": "string", "description": "words"})
        self.assertEqual(properties["kinds"], {"type": "array", "items": {"type": "string"}})
        self.assertEqual(properties["most"]["anyOf"], [{"type": "integer"}, {"type": "null"}])
        self.assertEqual(properties["order"], {"enum": ["a", "b"], "default": "a"})

    def test_missing_program(self) -> None:
        import os

        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ["TOOLCRIB_BINARY"] = sys.executable
        with self.assertRaises(toolcrib.HostDied):
            sync.Manager(CALC).start()


if __name__ == "__main__":
    unittest.main()
