"""LlamaIndex (PyPI `llama-index-tools-mcp`). Its OpenAI model needs an older `openai` than others here: the loop is ours."""

from contextlib import asynccontextmanager

from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

from adapters import loop


class Client:
    converted = None

    def __init__(self, client):
        self.client = client

    async def by_name(self):
        if self.converted is None:
            self.converted = await McpToolSpec(self.client).to_tool_list_async()
        return {tool.metadata.name: tool for tool in self.converted}

    async def tools(self):
        await self.by_name()
        return [tool.metadata.name for tool in self.converted]

    async def resources(self):
        return [resource.uri for resource in (await self.client.list_resources()).resources]

    async def templates(self):
        return [template.uri_template for template in (await self.client.list_resource_templates()).resource_templates]

    async def call(self, name, arguments):
        return (await (await self.by_name())[name].acall(**arguments)).raw_output

    async def read(self, uri):
        return await self.client.read_resource(uri)

    async def agent(self, base_url, question):
        await self.by_name()
        functions = [tool.metadata.to_openai_tool(skip_length_check=True)["function"] for tool in self.converted]
        return await loop.run(base_url, question, functions, self.call)


@asynccontextmanager
async def connect(target, _variant):
    yield Client(BasicMCPClient(target[0], args=target[1:]))
