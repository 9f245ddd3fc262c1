// Mastra (npm `@mastra/mcp`, `@mastra/core`), with a model by chat completions. It puts the server's name before each name.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { Agent } from '@mastra/core/agent';
import { MCPClient } from '@mastra/mcp';

const PREFIX = 'toolcrib_';
let number = 0;

export async function connect(target) {
  const isHttp = /^https?:/.test(target[0]);
  const server = isHttp ? { url: new URL(target[0]) } : { command: target[0], args: target.slice(1), stderr: 'ignore' };
  const client = new MCPClient({ id: `client-${number++}`, servers: { toolcrib: server } });
  let tools;
  const converted = async () => (tools ??= await client.listTools());
  await converted().catch(() => {});
  return {
    tools: async () => Object.keys(await converted()).map((name) => name.replace(PREFIX, '')),
    prompts: async () => ((await client.prompts.list()).toolcrib ?? []).map((one) => one.name),
    resources: async () => ((await client.resources.list()).toolcrib ?? []).map((one) => one.uri),
    templates: async () => ((await client.resources.templates()).toolcrib ?? []).map((one) => one.uriTemplate),
    call: async (name, args) => (await converted())[PREFIX + name].execute(args, {}),
    prompt: (name, args) => client.prompts.get({ serverName: 'toolcrib', name, args }),
    read: (uri) => client.resources.read('toolcrib', uri),
    agent: async (baseURL, question) => {
      const model = createOpenAICompatible({ name: 'fake', baseURL, apiKey: 'none' })('fake');
      const agent = new Agent({ id: 'agent', name: 'agent', instructions: 'Call tools.', model, tools: await converted() });
      return (await agent.generate(question, { maxSteps: 5 })).text;
    },
    close: () => client.disconnect(),
  };
}
