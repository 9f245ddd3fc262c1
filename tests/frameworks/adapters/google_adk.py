"""Google's ADK (PyPI `google-adk`). Its model for chat completions needs LiteLLM: the loop is ours."""

from contextlib import asynccontextmanager
from unittest.mock import MagicMock

from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams, StreamableHTTPConnectionParams
from mcp import StdioServerParameters

from adapters import loop


class Client:
    converted = None

    def __init__(self, toolset):
        self.toolset = toolset

    async def by_name(self):
        if self.converted is None:
            self.converted = await self.toolset.get_tools()
        return {tool.name: tool for tool in self.converted}

    async def tools(self):
        await self.by_name()
        return [tool.name for tool in self.converted]

    async def call(self, name, arguments):
        context = MagicMock(tool_confirmation=None)
        return await (await self.by_name())[name].run_async(args=arguments, tool_context=context)

    async def agent(self, base_url, question):
        await self.by_name()
        functions = []
        for tool in self.converted:
            declared = tool._get_declaration()
            schema = declared.parameters_json_schema
            if schema is None and declared.parameters is not None:
                schema = lower(declared.parameters.model_dump(mode="json", exclude_none=True))
            functions.append({"name": declared.name, "description": declared.description, "parameters": schema})
        return await loop.run(base_url, question, functions, self.call)


def lower(schema):
    """Gemini writes its types in capitals."""
    if isinstance(schema, dict):
        return {key: value.lower() if key == "type" and isinstance(value, str) else lower(value) for key, value in schema.items()}
    return [lower(one) for one in schema] if isinstance(schema, list) else schema


@asynccontextmanager
async def connect(target, _variant):
    if target[0].startswith("http"):
        parameters = StreamableHTTPConnectionParams(url=target[0], timeout=30)
    else:
        parameters = StdioConnectionParams(server_params=StdioServerParameters(command=target[0], args=target[1:]), timeout=30)
    toolset = McpToolset(connection_params=parameters)
    try:
        yield Client(toolset)
    finally:
        await toolset.close()
