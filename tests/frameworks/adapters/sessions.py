"""What the clients have in common whose session has the methods of the official SDK's `ClientSession`."""

from mcp import types

TYPES = {
    "tools": types.Tool,
    "prompts": types.Prompt,
    "resources": types.Resource,
    "resourceTemplates": types.ResourceTemplate,
}


def valid(of, item):
    TYPES[of].model_validate(item)


def items(listed, name):
    """The official SDK gives an object with the list, others the list itself."""
    return listed if isinstance(listed, list) else getattr(listed, name)


class Client:
    def __init__(self, session):
        self.session = session

    async def tools(self):
        return [tool.name for tool in items(await self.session.list_tools(), "tools")]

    async def prompts(self):
        return [prompt.name for prompt in items(await self.session.list_prompts(), "prompts")]

    async def resources(self):
        return [resource.uri for resource in items(await self.session.list_resources(), "resources")]

    async def call(self, name, arguments):
        return await self.session.call_tool(name, arguments)

    async def prompt(self, name, arguments):
        return await self.session.get_prompt(name, arguments)

    async def read(self, uri):
        return await self.session.read_resource(uri)
