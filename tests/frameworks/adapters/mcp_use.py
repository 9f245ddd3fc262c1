"""mcp-use (PyPI `mcp-use`), with LangChain's model by chat completions."""

from contextlib import asynccontextmanager

from langchain_openai import ChatOpenAI
from mcp_use import MCPAgent, MCPClient

from . import sessions


class Client(sessions.Client):
    def __init__(self, client, session):
        super().__init__(session)
        self.client = client

    async def agent(self, base_url, question):
        model = ChatOpenAI(model="fake", base_url=base_url, api_key="none", max_retries=0)
        # It makes tools of prompts, and cannot take one without a description, which the protocol allows.
        without = [prompt.name for prompt in await self.session.list_prompts() if not prompt.description]
        agent = MCPAgent(
            llm=model, client=self.client, max_steps=5, memory_enabled=False, retry_on_error=False, disallowed_tools=without
        )
        return await agent.run(question)


@asynccontextmanager
async def connect(target, _variant):
    server = {"url": target[0]} if target[0].startswith("http") else {"command": target[0], "args": target[1:]}
    client = MCPClient({"mcpServers": {"toolcrib": server}})
    try:
        yield Client(client, await client.create_session("toolcrib"))
    finally:
        await client.close_all_sessions()
