"""Functions of this program as tools: their schemas from signatures and docstrings, and their calls."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import types
import typing
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, is_dataclass
from typing import Any, Callable, Iterable, Mapping

Function = Callable[..., Any]
#: Functions by the names of their servers: lists of functions, or functions by the names of their tools.
Functions = Mapping[str, Iterable[Function] | Mapping[str, Function]]

_WORDS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    dict: {"type": "object"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    Any: {},
    inspect.Parameter.empty: {},
}


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type. Any value, if the type has no form in JSON."""
    if kind in _WORDS:
        return dict(_WORDS[kind])
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        schema = schema_of(arguments[0])
        described = next((word for word in arguments[1:] if isinstance(word, str)), None)
        return {**schema, "description": described} if described else schema
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(argument) for argument in arguments]}
    if origin in (list, set, frozenset, tuple) or (origin and issubclass_safely(origin, (list, set, tuple))):
        items = [argument for argument in arguments if argument is not ...]
        return {"type": "array", **({"items": schema_of(items[0])} if len(set(map(str, items))) == 1 else {})}
    if origin is not None and issubclass_safely(origin, typing.cast(Any, Mapping)):
        return {"type": "object", **({"additionalProperties": schema_of(arguments[1])} if len(arguments) == 2 else {})}
    if hasattr(kind, "model_json_schema"):
        return dict(kind.model_json_schema())
    return {}


def issubclass_safely(kind: Any, of: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, of)


def described(name: str, function: Function) -> dict[str, Any]:
    """A function as a tool."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception:
        hints = {}
    properties, required = {}, []
    takes_more = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_more = True
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{name}: the parameter `{parameter.name}` has no name in a call: use a keyword parameter")
        schema = schema_of(hints.get(parameter.name, parameter.annotation))
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            try:
                schema["default"] = json.loads(json.dumps(parameter.default))
            except (TypeError, ValueError):
                pass
        properties[parameter.name] = schema
    input_schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        input_schema["required"] = required
    if not takes_more:
        input_schema["additionalProperties"] = False
    return {"name": name, "description": inspect.getdoc(function) or "", "input_schema": input_schema}


class FunctionServers:
    """The functions of one manager."""

    def __init__(self, functions: Functions) -> None:
        self._all: dict[tuple[str, str], Function] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: ThreadPoolExecutor | None = None
        self.described: dict[str, Any] = {}
        for server, given in functions.items():
            if isinstance(given, Mapping):
                named = dict(typing.cast("Mapping[str, Function]", given))
            else:
                named = {one.__name__: one for one in given}
            self._all.update({(server, name): function for name, function in named.items()})
            tools = [described(name, function) for name, function in named.items()]
            self.described[server] = {"tools": tools}

    def run_in(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Runs coroutines in this loop; without one each in a loop of its own."""
        self._loop = loop

    def call(self, params: dict[str, Any], reply: Any) -> None:
        """Calls a function, and replies with its result. Called by the receiving thread, which it does not hold up."""
        function = self._all.get((params["server"], params["tool"]))
        if function is None:
            reply(LookupError(f"there is no function {params['tool']}"))
            return
        arguments = params["arguments"]
        if inspect.iscoroutinefunction(function) and self._loop is not None and self._loop.is_running():
            running = asyncio.run_coroutine_threadsafe(function(**arguments), self._loop)
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(thread_name_prefix="toolcrib-function")
            running = self._threads.submit(_run, function, arguments)
        reply.on_cancel(running.cancel)
        running.add_done_callback(lambda done: reply(_outcome(done)))

    def close(self) -> None:
        """Starts no further function."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _run(function: Function, arguments: dict[str, Any]) -> Any:
    result = function(**arguments)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result


def _outcome(done: Future[Any]) -> Any:
    if done.cancelled():
        return RuntimeError("it was cancelled")
    error = done.exception()
    if error is not None:
        return error
    try:
        return to_result(done.result())
    except Exception as unusable:
        return unusable


def to_result(value: Any) -> dict[str, Any]:
    """What a function returned as a tool's result: MCP's own form as it is, text as text, anything else as JSON."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    elif is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        return value
    if isinstance(value, str):
        return {"content": [{"type": "text", "text": value}]}
    if isinstance(value, bytes):
        blob = base64.b64encode(value).decode()
        return {"content": [{"type": "resource", "resource": {"uri": "data:,", "blob": blob}}]}
    if value is None:
        return {"content": []}
    result: dict[str, Any] = {"content": [{"type": "text", "text": json.dumps(value, ensure_ascii=False)}]}
    if isinstance(value, dict):
        result["structuredContent"] = value
    return result


