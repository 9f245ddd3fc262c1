"""Values that toolcrib returns. Each keeps the whole object of the host in ``raw``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tool:
    """A tool of a server."""

    server: str
    #: The name on its server.
    name: str
    #: ``SERVER__TOOL``: the name for models.
    visible_name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    title: str | None = None
    #: The server's hints: ``readOnlyHint``, ``destructiveHint``, ``idempotentHint``, ``openWorldHint``.
    annotations: dict[str, Any] = field(default_factory=dict)

    def to_openai(self) -> dict[str, Any]:
        """The tool as the OpenAI chat API takes it."""
        function = {"name": self.visible_name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}


def tool(raw: dict[str, Any]) -> Tool:
    return Tool(**raw)


@dataclass(frozen=True)
class ToolResult:
    """The answer of a tool. A tool's own error is one with ``is_error``."""

    server: str
    tool: str
    #: All content blocks, in the form of MCP.
    content: list[dict[str, Any]]
    #: The structured result, if the tool gave one.
    structured: Any = None
    is_error: bool = False
    #: Seconds that it took.
    took: float = 0.0

    @property
    def text(self) -> str:
        """All texts, each in a line of its own. Other blocks are named by their type."""
        return "\n".join(block.get("text") or f"[{block.get('type')}]" for block in self.content)


def tool_result(raw: dict[str, Any]) -> ToolResult:
    return ToolResult(
        raw["server"], raw["tool"], raw["content"], raw["structured_content"], raw["is_error"], raw["took_ms"] / 1000
    )


@dataclass(frozen=True)
class StopReport:
    """What became of the servers of a manager."""

    #: One row for each server that had been started.
    servers: list[dict[str, Any]]
    #: Processes that are left: none, unless the system does not let them be ended.
    survivors: list[int]
    #: Seconds that it took.
    wall: float


def stop_report(raw: dict[str, Any]) -> StopReport:
    report = raw["report"]
    return StopReport(report["servers"], report["survivors"], report["wall_ms"] / 1000)


@dataclass(frozen=True)
class ModelAnswer:
    """The answer of a model."""

    #: The text; may be empty when tools were called.
    content: str
    #: The calls that the model wants: ``id``, ``name``, ``arguments`` (as JSON text).
    tool_calls: list[dict[str, Any]]
    #: The answer as a message of the OpenAI chat API, to go on with.
    message: dict[str, Any]
    finish: str | None
    #: Tokens: ``input``, ``output``, …
    usage: dict[str, Any]
    model: str
    #: Whether it was kept from an earlier request.
    cached: bool
    #: Attempts on the wire.
    attempts: int
    #: US dollars, if the price is known.
    cost_usd: float | None
    raw: dict[str, Any] = field(repr=False)


def model_answer(raw: dict[str, Any]) -> ModelAnswer:
    return ModelAnswer(
        raw["content"], raw["tool_calls"], raw["message"], raw.get("finish"), raw["usage"], raw["model"],
        raw["cached"], len(raw["attempts"]), raw.get("cost_usd"), raw,
    )


@dataclass(frozen=True)
class TaskReport:
    """How a task went. Every failure of a task is in here, and none is an exception."""

    task: str
    #: ``passed``, ``failed``, ``unscored``, ``errored``, ``cancelled``, …
    status: str
    answer: str | None
    score: float | None
    #: Why it has no answer: ``code``, ``message``, …
    error: dict[str, Any] | None
    #: The conversation, in the form of the OpenAI chat API. Empty in the events of a run, whose folder has it.
    transcript: list[dict[str, Any]]
    turns: int
    tool_calls: int
    #: All that ``results.jsonl`` has.
    raw: dict[str, Any] = field(repr=False)


def task_report(raw: dict[str, Any]) -> TaskReport:
    return TaskReport(
        raw["task"], raw["status"], raw.get("answer"), raw.get("score"), raw.get("error"), raw.get("transcript") or [],
        raw["turns"], raw["tool_calls"], raw,
    )


@dataclass(frozen=True)
class RunSummary:
    """How a run went."""

    #: The id of the run.
    run: str
    #: Its folder, with the reports and conversations of all tasks.
    folder: str
    #: Counts and rates over all tasks, as ``toolcrib run --json`` prints them.
    totals: dict[str, Any]
    #: ``finished``, ``stopped`` or ``budget_used_up``.
    end: str
    #: Seconds that the servers took to start, and the whole run.
    init: float
    wall: float
    raw: dict[str, Any] = field(repr=False)


def run_summary(raw: dict[str, Any]) -> RunSummary:
    return RunSummary(
        raw["run"], raw["folder"], raw["totals"], raw["end"], raw["init_ms"] / 1000, raw["wall_ms"] / 1000, raw
    )


@dataclass(frozen=True)
class Event:
    """Something that happened: ``kind`` in a word, and what the host tells of it."""

    kind: str
    data: Any


def event(raw: Any) -> Event:
    """An event of the host is an object with one member, or a word."""
    if isinstance(raw, dict) and len(raw) == 1:
        kind, data = next(iter(raw.items()))
        return Event(kind, data)
    return Event(raw.get("event", "event"), raw) if isinstance(raw, dict) else Event(str(raw), None)
