"""Agno (PyPI `agno`), with a model by chat completions."""

from contextlib import asynccontextmanager

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from agno.tools.mcp import MCPTools
from mcp import StdioServerParameters


class Client:
    def __init__(self, toolkit):
        self.toolkit = toolkit

    async def tools(self):
        return list(self.toolkit.functions)

    async def call(self, name, arguments):
        result = await self.toolkit.functions[name].entrypoint(**arguments)
        # Pictures are beside the text.
        return f"{result.content} {'with an image' if result.images else ''}"

    async def agent(self, base_url, question):
        model = OpenAILike(id="fake", base_url=base_url, api_key="none", max_retries=0)
        said = await Agent(model=model, tools=[self.toolkit], telemetry=False).arun(question)
        return said.content


@asynccontextmanager
async def connect(target, _variant):
    if target[0].startswith("http"):
        toolkit = MCPTools(url=target[0], transport="streamable-http", timeout_seconds=30)
    else:
        # It takes a command line of known programs only, and anything in this way.
        server = StdioServerParameters(command=target[0], args=target[1:])
        toolkit = MCPTools(server_params=server, transport="stdio", timeout_seconds=30)
    await toolkit.connect()
    try:
        if not toolkit.initialized:
            raise RuntimeError("agno could not list the tools (it logs why and goes on without them)")
        yield Client(toolkit)
    finally:
        await toolkit.close()
