"""smolagents with mcpadapt (PyPI), with a model by chat completions. Both are synchronous: each call has a thread."""

import asyncio
import re
from contextlib import asynccontextmanager

from mcp import StdioServerParameters
from smolagents import MCPClient, OpenAIServerModel, ToolCallingAgent


class Client:
    def __init__(self, converted):
        self.converted = converted

    @staticmethod
    def shown(name):
        """Its tools are functions of Python."""
        return re.sub(r"\W", "_", name)

    async def tools(self):
        return [tool.name for tool in self.converted]

    async def call(self, name, arguments):
        tool = next((tool for tool in self.converted if tool.name == self.shown(name)), None)
        if tool is None:
            raise KeyError(name)
        return await asyncio.to_thread(lambda: tool(**arguments))

    async def agent(self, base_url, question):
        model = OpenAIServerModel("fake", api_base=base_url, api_key="none")
        agent = ToolCallingAgent(tools=self.converted, model=model, max_steps=4, verbosity_level=0)
        return await asyncio.to_thread(agent.run, question)


@asynccontextmanager
async def connect(target, _variant):
    if target[0].startswith("http"):
        server = {"transport": "streamable-http", "url": target[0]}
    else:
        server = StdioServerParameters(command=target[0], args=target[1:])
    client = await asyncio.to_thread(MCPClient, server, structured_output=False)
    try:
        yield Client(client.get_tools())
    finally:
        await asyncio.to_thread(client.disconnect)
