// LangChain for TypeScript (npm `@langchain/mcp-adapters`, `@langchain/langgraph`), with a model by chat completions.

import { createReactAgent } from '@langchain/langgraph/prebuilt';
import { MultiServerMCPClient } from '@langchain/mcp-adapters';
import { ChatOpenAI } from '@langchain/openai';

export async function connect(target) {
  const isHttp = /^https?:/.test(target[0]);
  const server = isHttp ? { transport: 'http', url: target[0] } : { transport: 'stdio', command: target[0], args: target.slice(1), stderr: 'ignore' };
  const client = new MultiServerMCPClient({ mcpServers: { toolcrib: server }, throwOnLoadError: true });
  let tools;
  const converted = async () => (tools ??= await client.getTools());
  await client.initializeConnections?.();
  return {
    tools: async () => (await converted()).map((one) => one.name),
    call: async (name, args) => {
      const tool = (await converted()).find((one) => one.name === name);
      if (!tool) throw new Error(`there is no tool ${name}`);
      return tool.invoke(args);
    },
    agent: async (baseURL, question) => {
      const llm = new ChatOpenAI({ model: 'fake', apiKey: 'none', maxRetries: 0, configuration: { baseURL } });
      const agent = createReactAgent({ llm, tools: await converted() });
      return (await agent.invoke({ messages: [{ role: 'user', content: question }] })).messages.at(-1).content;
    },
    close: () => client.close(),
  };
}
