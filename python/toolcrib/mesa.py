"""Models and steps for simulations with mesa-llm: the signatures of its ``ModuleLLM``, and a step of many agents at once.

``ModuleLLM`` here asks over shared connections, retries within limits, and counts. An answer has the members of litellm's that
mesa-llm reads: ``choices[0].message.content``, ``.tool_calls``, ``choices[0].finish_reason``, ``usage``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from types import SimpleNamespace
from typing import Any, Awaitable, Callable, Iterable, Literal, Sequence

from . import _errors, _types, sync
from ._core import LlmCore

__all__ = ["ModuleLLM", "StepReport", "disable_parallel_stepping", "enable_parallel_stepping", "step"]

_LOG = logging.getLogger(__name__)
_LOCAL = ("OLLAMA", "OLLAMA_CHAT")
#: Where the APIs of providers are that speak the OpenAI or the Anthropic format.
_PROVIDERS = {
    "ANTHROPIC": ("https://api.anthropic.com/v1", "anthropic"),
    "DEEPSEEK": ("https://api.deepseek.com/v1", None),
    "GEMINI": ("https://generativelanguage.googleapis.com/v1beta/openai", None),
    "GROQ": ("https://api.groq.com/openai/v1", None),
    "MISTRAL": ("https://api.mistral.ai/v1", None),
    "NOVITA": ("https://api.novita.ai/v3/openai", None),
    "OLLAMA": ("http://localhost:11434/v1", None),
    "OLLAMA_CHAT": ("http://localhost:11434/v1", None),
    "OPENAI": ("https://api.openai.com/v1", None),
    "OPENROUTER": ("https://openrouter.ai/api/v1", None),
    "XAI": ("https://api.x.ai/v1", None),
}


class ModuleLLM:
    """The model of an agent.

    Args:
        llm_model: ``PROVIDER/MODEL``.
        api_base: the endpoint. The default: that of the provider.
        system_prompt: instructions before each prompt. It can be changed.
        enable_caching, cache_size, cache_ttl: keep answers to the same request, so many, for so many seconds.
        enable_batching, batch_size: accepted for old code. Requests that are made together always go out together.
        settings: keys of the table ``[llm]``: ``max_in_flight``, ``retry``, ``temperature``, …

    Raises:
        ValueError: the name of the model has no provider; the variable with the provider's key is not set.
    """

    def __init__(
        self,
        llm_model: str,
        api_base: str | None = None,
        system_prompt: str | None = None,
        *,
        enable_caching: bool = False,
        enable_batching: bool = False,
        cache_size: int = 1000,
        cache_ttl: float = 300,
        batch_size: int = 10,
        **settings: Any,
    ) -> None:
        provider, slash, name = llm_model.partition("/")
        if not slash:
            raise ValueError(
                f"Invalid model format '{llm_model}'. Expected '{{provider}}/{{model}}', e.g. 'openai/gpt-4o'."
            )
        provider = provider.upper()
        if provider in _LOCAL:
            if api_base is None:
                api_base = "http://localhost:11434"
                _LOG.warning("Using default Ollama API base: %s. Give another one as `api_base`.", api_base)
            settings.setdefault("base_url", api_base.rstrip("/") + ("" if api_base.rstrip("/").endswith("/v1") else "/v1"))
        elif provider != "SCRIPT":
            key = os.environ.get(f"{provider}_API_KEY")
            if key is None:
                raise ValueError(
                    f"No API key found for {provider}. Please set the {provider}_API_KEY environment variable "
                    "(e.g., in your .env file)."
                )
            self.api_key = key
            if key:
                settings.setdefault("api_key", f"${{{provider}_API_KEY}}")
            known, api = _PROVIDERS.get(provider, (None, None))
            if api_base is None and known is None:
                raise ValueError(f"The endpoint of {provider} is not known: give it as `api_base`.")
            settings.setdefault("base_url", api_base or known)
            if api and not api_base:
                settings.setdefault("api", api)
        if enable_caching:
            settings.setdefault("cache", {"size": cache_size, "ttl": f"{cache_ttl}s"})
        self.llm_model, self.api_base, self.system_prompt = llm_model, api_base, system_prompt
        self._llm = sync.LlmClient(model=f"script:{name}" if provider == "SCRIPT" else name, **settings)
        self._closed = False

    def generate(
        self,
        prompt: str | list[str] | None = None,
        tool_schema: list[dict[str, Any]] | None = None,
        tool_choice: str = "auto",
        response_format: Any = None,
        system_prompt: str | None = None,
    ) -> Any:
        """Asks the model, and waits for its answer."""
        return _completion(self._ask(prompt, tool_schema, tool_choice, response_format, system_prompt).result())

    async def agenerate(
        self,
        prompt: str | list[str] | None = None,
        tool_schema: list[dict[str, Any]] | None = None,
        tool_choice: str = "auto",
        response_format: Any = None,
        system_prompt: str | None = None,
    ) -> Any:
        """Asks the model. Any number at once."""
        return _completion(await self._ask(prompt, tool_schema, tool_choice, response_format, system_prompt))

    def _ask(self, prompt: Any, tool_schema: Any, tool_choice: str, response_format: Any, system_prompt: Any) -> Any:
        options: dict[str, Any] = {}
        if tool_schema:
            options = {"tools": tool_schema, "tool_choice": tool_choice}
        if response_format is not None:
            options["extra_body"] = {"response_format": _form(response_format)}
        return self._llm._begin_chat(self._build_messages(prompt, system_prompt), None, None, options)

    def _build_messages(
        self, prompt: str | list[str] | None = None, system_prompt: str | None = None
    ) -> list[dict[str, Any]]:
        system = system_prompt if system_prompt is not None else self.system_prompt
        messages = [{"role": "system", "content": system or ""}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        elif isinstance(prompt, list):
            for index, part in enumerate(prompt):
                if not isinstance(part, str):
                    raise TypeError(
                        f"Invalid prompt list element at index {index}: type '{type(part).__name__}'. Expected str."
                    )
                messages.append({"role": "user", "content": part})
        elif prompt is not None:
            raise TypeError(f"Invalid prompt type '{type(prompt).__name__}'. Expected str, list[str], or None.")
        return messages

    def get_performance_stats(self) -> dict[str, Any]:
        """``request_count``, ``cache_hits``, ``cache_hit_rate``, ``batch_count``; and ``retries``, ``in_flight``, ``peak``, ``p50_ms``, ``p95_ms``,
        ``usage``, ``connections_opened``, ``connections_reused``."""
        return self._llm.stats()

    async def cleanup(self) -> None:
        """Ends requests under way, and lets go of the model. It can be called again."""
        if not self._closed:
            self._closed = True
            await self._llm._begin_close()


def _form(response_format: Any) -> Any:
    """A form of answers as the OpenAI chat API takes it, from one, or from a Pydantic model."""
    if isinstance(response_format, dict):
        return response_format
    schema = response_format.model_json_schema()
    return {"type": "json_schema", "json_schema": {"name": response_format.__name__, "schema": schema, "strict": True}}


def _completion(answer: _types.ModelAnswer) -> Any:
    """An answer with the members of litellm's."""
    calls = [
        SimpleNamespace(
            id=call["id"],
            type="function",
            function=SimpleNamespace(name=call["name"], arguments=call["arguments"]),
        )
        for call in answer.tool_calls
    ]
    message = SimpleNamespace(role="assistant", content=answer.content or None, tool_calls=calls or None)
    read, written = answer.usage.get("in", 0), answer.usage.get("out", 0)
    usage = SimpleNamespace(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)
    finish = "tool_calls" if calls else answer.finish or "stop"
    choice = SimpleNamespace(index=0, finish_reason=finish, message=message)
    return SimpleNamespace(id=f"chatcmpl-{id(answer):x}", model=answer.model, choices=[choice], usage=usage)


class StepReport:
    """What became of each agent in a step: ``acted``, ``pending``, and ``errors`` by agent."""

    def __init__(self) -> None:
        #: Agents that have acted in this step.
        self.acted: list[Any] = []
        #: Errors of agents that have not, in the order of the agents.
        self.errors: dict[Any, BaseException] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all agents have acted."""
        return not self.errors


OnError = Literal["keep", "raise"]
_DECIDED = "_toolcrib_answer"


async def step(
    agents: Iterable[Any],
    llm: ModuleLLM | LlmCore,
    *,
    observe: Callable[[Any], Any],
    apply: Callable[[Any, Any], Any],
    on_error: OnError = "keep",
    timeout: float | None = None,
) -> StepReport:
    """Steps many agents on one clock: all observe, all are decided for at once, and then they act in their order.

    An agent whose request fails or is late touches no other. Its error is in the report; a further call with the same agents asks only
    those that have not acted: nobody is asked twice.

    Args:
        agents: in the order in which they act.
        llm: the model.
        observe: makes the request of an agent: a prompt, messages, or a mapping with ``messages`` and options. Cheap.
        apply: acts on the answer: ``apply(agent, answer)``; may be a coroutine.
        on_error: ``"raise"``: the first error is raised before anybody acts; answers that came are kept for the next call.
        timeout: seconds for the requests.
    """
    client = llm._llm if isinstance(llm, ModuleLLM) else llm
    report, waiting, requests = StepReport(), [], []
    agents = list(agents)
    for agent in agents:
        if _DECIDED in agent.__dict__:
            continue
        try:
            seen = observe(agent)
            if isinstance(llm, ModuleLLM) and isinstance(seen, (str, list)) and not _is_conversation(seen):
                seen = llm._build_messages(seen)
            requests.append(seen)
            waiting.append(agent)
        except Exception as error:
            report.errors[agent] = error
    if requests:
        outcomes, done = client._begin_batch(requests, timeout)
        await done
        for index, outcome in outcomes:
            if isinstance(outcome, _errors.ToolcribError):
                report.errors[waiting[index]] = outcome
            else:
                setattr(waiting[index], _DECIDED, outcome)
    report.errors = {agent: report.errors[agent] for agent in agents if agent in report.errors}
    if report.errors and on_error == "raise":
        raise next(iter(report.errors.values()))
    for agent in agents:
        if agent in report.errors:
            continue
        # Whether it succeeds or not, it acts once.
        answer = agent.__dict__.pop(_DECIDED)
        try:
            acted = apply(agent, _completion(answer))
            if isinstance(acted, Awaitable):
                await acted
            report.acted.append(agent)
        except Exception as error:
            report.errors[agent] = error
            if on_error == "raise":
                raise
    return report


def _is_conversation(seen: Any) -> bool:
    return isinstance(seen, list) and bool(seen) and all(isinstance(one, dict) for one in seen)


_ORIGINAL: dict[Any, Any] = {}


def enable_parallel_stepping() -> None:
    """Has ``agents.shuffle_do("step")`` step all agents of a model with ``parallel_stepping`` at once, each by its ``astep`` if it has one.

    All agents are stepped, whatever becomes of the others; the first error is raised when all have ended. It holds for every kind of
    agent set of the installed mesa, in threads with an event loop and without one.
    """
    import mesa  # type: ignore[import-not-found, unused-ignore]

    for kind in _agent_sets(mesa):
        if kind not in _ORIGINAL:
            _ORIGINAL[kind] = kind.__dict__.get("shuffle_do")
            kind.shuffle_do = _shuffle_do


def disable_parallel_stepping() -> None:
    """Undoes :func:`enable_parallel_stepping`."""
    for kind, original in _ORIGINAL.items():
        if original is None:
            del kind.shuffle_do
        else:
            kind.shuffle_do = original
    _ORIGINAL.clear()


def _agent_sets(mesa: Any) -> list[Any]:
    module = __import__("mesa.agentset", fromlist=["x"]) if _has_module("mesa.agentset") else mesa.agent
    kinds = [value for value in vars(module).values() if isinstance(value, type) and "AgentSet" in value.__name__]
    return [kind for kind in kinds if "shuffle_do" in kind.__dict__]


def _has_module(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _shuffle_do(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
    agents = list(self)
    parallel = method == "step" and agents and getattr(agents[0].model, "parallel_stepping", False)
    if not parallel:
        kind = next(kind for kind in type(self).__mro__ if kind in _ORIGINAL)
        return _ORIGINAL[kind](self, method, *args, **kwargs)
    work = _step_all(agents)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return self
    # In a notebook: its loop cannot be waited for in its own thread.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
    return self


async def _step_all(agents: Sequence[Any]) -> None:
    async def one(agent: Any) -> None:
        if hasattr(agent, "astep"):
            await agent.astep()
        elif hasattr(agent, "step"):
            await asyncio.to_thread(agent.step)

    outcomes = await asyncio.gather(*map(one, agents), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
