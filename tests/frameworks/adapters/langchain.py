"""LangChain (PyPI `langchain-mcp-adapters`, `langchain`), with a model by chat completions."""

from contextlib import asynccontextmanager

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI

from adapters import mcp_1


class Client(mcp_1.Client):
    """Prompts and resources are those of the session that the adapters give."""

    converted = None

    async def by_name(self):
        if self.converted is None:
            self.converted = await load_mcp_tools(self.session)
        return {tool.name: tool for tool in self.converted}

    async def tools(self):
        await self.by_name()
        return [tool.name for tool in self.converted]

    async def call(self, name, arguments):
        return await (await self.by_name())[name].ainvoke(arguments)

    async def agent(self, base_url, question):
        await self.by_name()
        model = ChatOpenAI(model="fake", base_url=base_url, api_key="none", max_retries=0)
        agent = create_agent(model, self.converted)
        said = await agent.ainvoke({"messages": [{"role": "user", "content": question}]})
        return said["messages"][-1].content


@asynccontextmanager
async def connect(target, _variant):
    if target[0].startswith("http"):
        server = {"transport": "http", "url": target[0]}
    else:
        server = {"transport": "stdio", "command": target[0], "args": target[1:]}
    async with MultiServerMCPClient({"toolcrib": server}).session("toolcrib") as session:
        yield Client(session)
