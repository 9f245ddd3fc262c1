// Vercel's AI SDK (npm `ai`, `@ai-sdk/mcp`), with a model by chat completions.

import { createMCPClient } from '@ai-sdk/mcp';
import { Experimental_StdioMCPTransport as Stdio } from '@ai-sdk/mcp/mcp-stdio';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, stepCountIs } from 'ai';

export async function connect(target) {
  const isHttp = /^https?:/.test(target[0]);
  const transport = isHttp ? { type: 'http', url: target[0] } : new Stdio({ command: target[0], args: target.slice(1), stderr: 'ignore' });
  const client = await createMCPClient({ transport });
  let tools;
  const converted = async () => (tools ??= await client.tools());
  return {
    tools: async () => Object.keys(await converted()),
    prompts: async () => (await client.listPrompts()).prompts.map((one) => one.name),
    resources: async () => (await client.listResources()).resources.map((one) => one.uri),
    templates: async () => (await client.listResourceTemplates()).resourceTemplates.map((one) => one.uriTemplate),
    call: async (name, args) => (await converted())[name].execute(args, { toolCallId: 'call', messages: [] }),
    prompt: (name, args) => client.getPrompt({ name, arguments: args }),
    read: (uri) => client.readResource({ uri }),
    agent: async (baseURL, prompt) => {
      const model = createOpenAICompatible({ name: 'fake', baseURL, apiKey: 'none' })('fake');
      return (await generateText({ model, prompt, tools: await converted(), stopWhen: stepCountIs(5), maxRetries: 0 })).text;
    },
    close: () => client.close(),
  };
}
