"""An agent in Python on the tools of all servers, through the gateway.

pip install mcp openai; toolcrib serve --http 127.0.0.1:8808
OPENAI_BASE_URL=.. OPENAI_API_KEY=.. MODEL=.. python agent.py "What is 2^200?" http://127.0.0.1:8808/mcp
"""

import asyncio, json, os, sys
from mcp import Client
from openai import AsyncOpenAI


async def main(question, url):
    async with Client(url) as toolcrib:
        functions = [{"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
                     for tool in (await toolcrib.list_tools()).tools]
        request = {"model": os.environ["MODEL"], "tools": [{"type": "function", "function": it} for it in functions]}
        messages = [{"role": "user", "content": question}]
        while True:
            answer = (await AsyncOpenAI().chat.completions.create(messages=messages, **request)).choices[0].message
            if not answer.tool_calls:
                return print(answer.content)
            messages.append(answer)
            for call in answer.tool_calls:
                result = await toolcrib.call_tool(call.function.name, json.loads(call.function.arguments))
                text = "\n".join(block.text for block in result.content if block.type == "text")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


asyncio.run(main(*sys.argv[1:]))
