// OpenAI's Agents SDK (npm `@openai/agents`), with a model by chat completions.

import { Agent, MCPServerStdio, MCPServerStreamableHttp, OpenAIChatCompletionsModel, run, setTracingDisabled } from '@openai/agents';
import OpenAI from 'openai';

setTracingDisabled(true);

export async function connect(target) {
  const isHttp = /^https?:/.test(target[0]);
  const server = isHttp
    ? new MCPServerStreamableHttp({ url: target[0], name: 'toolcrib' })
    : new MCPServerStdio({ command: target[0], args: target.slice(1), name: 'toolcrib' });
  await server.connect();
  return {
    tools: async () => (await server.listTools()).map((one) => one.name),
    call: (name, args) => server.callTool(name, args),
    agent: async (baseURL, question) => {
      const model = new OpenAIChatCompletionsModel(new OpenAI({ baseURL, apiKey: 'none', maxRetries: 0 }), 'fake');
      return (await run(new Agent({ name: 'agent', model, mcpServers: [server] }), question)).finalOutput;
    },
    close: () => server.close(),
  };
}
