"""Configurations and environments as the host reads them."""

from __future__ import annotations

import os
from typing import Any, Iterable, Mapping, Sequence, TypeGuard, Union

#: The path of a ``servers.toml``; or its tables and keys as a mapping; or ``StdioServerParameters`` of the MCP SDK, in a list or by their
#: names. ``None``: found as the command line finds it.
Config = Union[None, str, "os.PathLike[str]", Mapping[str, Any], Sequence[Any]]
#: Servers by name: ``StdioServerParameters`` of the MCP SDK, a table of ``servers.toml``, or an address. In a list they are ``server1``, ….
Servers = Union[Mapping[str, Any], Iterable[Any]]


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
    if _are_servers(config):
        if servers is not None:
            raise TypeError("the servers are either `config` or `servers`")
        config, servers = None, config
    if servers is not None:
        if not isinstance(servers, Mapping):
            servers = {f"server{number}": value for number, value in enumerate(servers, 1)}
        if config is not None and not isinstance(config, Mapping):
            raise TypeError("`servers` can be added to a mapping, and not to a file")
        tables = {**(config or {}).get("servers", {}), **{name: server(value) for name, value in servers.items()}}
        config = {**(config or {}), "servers": tables}
    if isinstance(config, Mapping):
        params["document"] = {key: value for key, value in config.items() if value is not None}
    elif isinstance(config, (str, os.PathLike)):
        params["file"] = os.path.abspath(os.path.join(params["folder"], os.fspath(config)))
    else:
        params["file"] = None
    if profile is not None:
        params["profile"] = profile
    params["set"], params["servers"] = list(set), list(only or ())
    return params


def _are_servers(config: Config) -> TypeGuard[Mapping[str, Any] | Sequence[Any]]:
    if isinstance(config, Mapping):
        return bool(config) and all(hasattr(value, "command") for value in config.values())
    return config is not None and not isinstance(config, (str, os.PathLike))


def server(value: Any) -> dict[str, Any]:
    """A server as a table of ``servers.toml``. Parameters of the MCP SDK have the same keys, and values that are meant literally."""
    if isinstance(value, str):
        return {"url": value}
    if isinstance(value, Mapping):
        return dict(value)
    given = {key: getattr(value, key, None) for key in ("command", "args", "env", "cwd", "url", "headers")}
    return {key: _literal(item) for key, item in given.items() if item is not None}


def _literal(value: Any) -> Any:
    """The value without variables: ``$`` means itself."""
    if isinstance(value, Mapping):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_literal(item) for item in value]
    return os.fspath(value).replace("$", "$$") if isinstance(value, (str, os.PathLike)) else value


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this process, or those that are given. Those that are no text are left out."""
    return {name: value for name, value in (os.environ if env is None else env).items() if _is_text(name + value)}


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
