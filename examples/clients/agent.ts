// An agent in TypeScript on the tools of all servers, through the gateway.
//
// With `toolcrib serve` in another terminal, a model at any OpenAI-compatible endpoint, and Node 22.18 or newer:
// npm install @modelcontextprotocol/client openai
// OPENAI_BASE_URL=.. OPENAI_API_KEY=.. MODEL=.. node agent.ts "What is 2^200?" http://127.0.0.1:7171/mcp

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import OpenAI from 'openai';

const [question, url] = process.argv.slice(2);
const toolcrib = new Client({ name: 'agent', version: '1' });
await toolcrib.connect(new StreamableHTTPClientTransport(new URL(url)));
const tools = (await toolcrib.listTools()).tools.map(({ name, description = '', inputSchema }) => {
  const call = async (args: Record<string, unknown>) => (await toolcrib.callTool({ name, arguments: args })).content
    .map((block) => (block.type === 'text' ? block.text : '')).join('\n');
  return { type: 'function' as const, function: { name, description, parameters: inputSchema as object, parse: JSON.parse, function: call } };
});
const messages = [{ role: 'user' as const, content: question }];
console.log(await new OpenAI().chat.completions.runTools({ model: process.env.MODEL!, messages, tools }).finalContent());
await toolcrib.close();
