"""Configurations and environments as the host reads them."""

from __future__ import annotations

import os
from typing import Any, Iterable, Mapping, Union

#: The path of a ``servers.toml``, or its tables and keys as a mapping. ``None``: found as the command line finds it.
Config = Union[None, str, "os.PathLike[str]", Mapping[str, Any]]
#: Servers by name: parameters of the MCP SDK, a table of ``servers.toml``, or an address.
Servers = Mapping[str, Any]


def config_params(
    config: Config = None,
    *,
    servers: Servers | None = None,
    only: Iterable[str] | None = None,
    profile: str | None = None,
    set: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """The member ``config`` of a request (docs/host.md)."""
    params: dict[str, Any] = {"env": environment(env), "folder": os.path.abspath(cwd or os.getcwd())}
    if servers is not None:
        if config is not None and not isinstance(config, Mapping):
            raise TypeError("`servers` can be added to a mapping, and not to a file")
        tables = {**(config or {}).get("servers", {}), **{name: server(value) for name, value in servers.items()}}
        config = {**(config or {}), "servers": tables}
    if isinstance(config, Mapping):
        params["document"] = {key: value for key, value in config.items() if value is not None}
    else:
        params["file"] = None if config is None else os.path.abspath(os.path.join(params["folder"], os.fspath(config)))
    if profile is not None:
        params["profile"] = profile
    params["set"], params["servers"] = list(set), list(only or ())
    return params


def server(value: Any) -> dict[str, Any]:
    """A server as a table of ``servers.toml``: ``StdioServerParameters`` of the MCP SDK have the same keys."""
    if isinstance(value, str):
        return {"url": value}
    if not isinstance(value, Mapping):
        value = {key: getattr(value, key, None) for key in ("command", "args", "env", "cwd", "url", "headers")}
    return {key: item for key, item in value.items() if item is not None}


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this process, or those that are given. Those that are no text are left out."""
    return {name: value for name, value in (os.environ if env is None else env).items() if _is_text(name + value)}


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
