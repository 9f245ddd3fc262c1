// An agent in TypeScript on the tools of all servers, through the gateway.
//
// npm install @modelcontextprotocol/client openai; toolcrib serve --http 127.0.0.1:8808
// OPENAI_BASE_URL=.. OPENAI_API_KEY=.. MODEL=.. node agent.ts "What is 2^200?" http://127.0.0.1:8808/mcp

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import OpenAI from 'openai';

const [question, url] = process.argv.slice(2);
const toolcrib = new Client({ name: 'agent', version: '1' });
await toolcrib.connect(new StreamableHTTPClientTransport(new URL(url)));
const tools = (await toolcrib.listTools()).tools.map(({ name, description, inputSchema }) => (
  { type: 'function' as const, function: { name, description, parameters: inputSchema as Record<string, unknown> } }));
const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: question }];
for (;;) {
  const { message } = (await new OpenAI().chat.completions.create({ model: process.env.MODEL!, messages, tools })).choices[0];
  messages.push(message);
  for (const call of message.tool_calls ?? []) {
    if (call.type !== 'function') continue;
    const { content } = await toolcrib.callTool({ name: call.function.name, arguments: JSON.parse(call.function.arguments) });
    const text = content.map((block) => (block.type === 'text' ? block.text : '')).join('\n');
    messages.push({ role: 'tool', tool_call_id: call.id, content: text });
  }
  if (!message.tool_calls?.length) {
    console.log(message.content);
    break;
  }
}
await toolcrib.close();
