"""The checks that the tests of both Python SDKs share."""

from contextlib import asynccontextmanager

import anyio

# How long one check may take.
LIMIT = 60


class Checks:
    """Counts failures, and prints a line for each check."""

    failed = 0

    @asynccontextmanager
    async def __call__(self, name):
        try:
            with anyio.fail_after(LIMIT):
                yield
            print(f"ok      {name}", flush=True)
        except Exception as error:
            self.failed += 1
            text = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"FAILED  {name}: {text[:300]}", flush=True)


class Seen:
    """What the server said on its own."""

    ANSWERS = {"username": "ada", "email": "ada@example.com", "name": "ada", "color": "red", "ok": True}

    def __init__(self):
        self.logs, self.updates, self.changes = [], [], 0

    def notified(self, message):
        method = getattr(message, "method", "")
        if method == "notifications/resources/updated":
            self.updates.append(str(message.params.uri))
        elif method == "notifications/tools/list_changed":
            self.changes += 1

    @staticmethod
    def equal(one, other):
        assert one == other, f"{one!r}, not {other!r}"

    @staticmethod
    async def until(ready):
        while not ready():
            await anyio.sleep(0.02)


async def until_it_waits(call):
    """Until a call of `test_wait` is under way at the server."""
    await anyio.sleep(0.02)
    while text(await call("test_waiting", {})) == "0":
        await anyio.sleep(0.02)


def text(result):
    return "".join(getattr(part, "text", "") for part in result.content)


def field(value, first, second):
    """A field that the first SDK names as the protocol does, and the second one as Python does."""
    return getattr(value, first) if hasattr(value, first) else getattr(value, second)


async def run_checks(checks, seen, client, read_resource, complete, with_logs, cancel):
    """The checks for a client with `list_tools`, `call_tool` and so on; the functions are what differs between the SDKs."""
    call = client.call_tool
    async with checks("list tools"):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        tool = tools["test_structured_content"]
        seen.equal(field(tool.annotations, "readOnlyHint", "read_only_hint"), True)
        seen.equal(tool.meta["example.com/kept"], True)
        schema = field(tools["json_schema_2020_12_tool"], "inputSchema", "input_schema")
        seen.equal(schema["$defs"]["address"]["$anchor"], "address")
    async with checks("call"):
        assert "simple text response" in text(await call("test_simple_text", {}))
    async with checks("call: contents of each kind"):
        result = await call("test_multiple_content_types", {})
        seen.equal([part.type for part in result.content], ["text", "image", "resource"])
    async with checks("call: structured content and _meta"):
        result = await call("test_structured_content", {})
        seen.equal(field(result, "structuredContent", "structured_content"), {"celsius": 21.5, "sky": "clear"})
        seen.equal(result.meta["example.com/kept"], "yes")
    async with checks("call: an error of the tool"):
        seen.equal(field(await call("test_error_handling", {}), "isError", "is_error"), True)
    async with checks("list and read resources"):
        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        assert "test://static-text" in uris, uris
        assert "static text resource" in (await read_resource("test://static-text")).text
        assert (await read_resource("test://static-binary")).blob
    async with checks("read by a template"):
        templates = await client.list_resource_templates()
        seen.equal(len(field(templates, "resourceTemplates", "resource_templates")), 1)
        assert '"7"' in (await read_resource("test://template/7/data")).text
    async with checks("list and get prompts"):
        assert any(prompt.name == "test_prompt_with_arguments" for prompt in (await client.list_prompts()).prompts)
        prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "one", "arg2": "two"})
        assert "arg1='one', arg2='two'" in prompt.messages[0].content.text
    async with checks("complete"):
        seen.equal((await complete()).completion.values, ["paris", "park", "party"])
    async with checks("progress"):
        reports = []

        async def report(progress, _total, _message):
            reports.append(progress)

        await call("test_tool_with_progress", {}, progress_callback=report)
        seen.equal(reports, [0.0, 50.0, 100.0])
    async with checks("log messages"):
        await with_logs()
        await seen.until(lambda: len(seen.logs) >= 3)
        seen.equal(seen.logs, ["Tool execution started", "Tool processing data", "Tool execution completed"])
    async with checks("cancel"):
        before = text(await call("test_cancellations", {}))
        await cancel()
        while text(await call("test_cancellations", {})) == before:
            await anyio.sleep(0.05)
    async with checks("sampling"):
        assert "sampled this" in text(await call("test_sampling", {"prompt": "this"}))
    async with checks("elicitation"):
        answer = text(await call("test_elicitation", {"message": "Who?"}))
        assert "action=accept" in answer and "ada@example.com" in answer, answer
    async with checks("elicitation in two rounds"):
        answer = text(await call("test_input_required_result_multi_round", {}))
        assert "ada, red" in answer, answer
    async with checks("roots"):
        assert "file:///work" in text(await call("test_roots", {}))
    async with checks("ten calls at once"):
        # None of them is answered before all are there.
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(call, "test_meeting", {})
