"""The official Python SDK 2.x (PyPI `mcp`), in the old era of the protocol and in the new one."""

from contextlib import asynccontextmanager

from mcp import Client as Connection
from mcp import StdioServerParameters

from . import sessions
from .sessions import valid  # noqa: F401  (drive.py asks for it)


class Client(sessions.Client):
    async def templates(self):
        return [template.uri_template for template in (await self.session.list_resource_templates()).resource_templates]


@asynccontextmanager
async def connect(target, variant):
    server = target[0] if target[0].startswith("http") else StdioServerParameters(command=target[0], args=target[1:])
    async with Connection(server, mode=variant) as session:
        yield Client(session)
