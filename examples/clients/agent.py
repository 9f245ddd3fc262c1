"""An agent in Python on the tools of all servers, through the gateway.

With `toolcrib serve` in another terminal, and a model at any OpenAI-compatible endpoint:
pip install mcp openai
OPENAI_BASE_URL=.. OPENAI_API_KEY=.. MODEL=.. python agent.py "What is 2^200?" http://127.0.0.1:7171/mcp
"""

import asyncio, json, os, sys
from mcp import Client
from openai import AsyncOpenAI


async def main(question, url):
    ask, messages = AsyncOpenAI().chat.completions.create, [{"role": "user", "content": question}]
    async with Client(url) as toolcrib:
        tools = [{"type": "function", "function": {"name": it.name, "description": it.description, "parameters": it.input_schema}}
                 for it in (await toolcrib.list_tools()).tools]
        while (answer := (await ask(model=os.environ["MODEL"], messages=messages, tools=tools)).choices[0].message).tool_calls:
            messages.append(answer)
            for call in answer.tool_calls:
                result = await toolcrib.call_tool(call.function.name, json.loads(call.function.arguments))
                text = "\n".join(block.text for block in result.content if block.type == "text")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    print(answer.content)


asyncio.run(main(*sys.argv[1:]))
