// The official TypeScript SDKs: 1 (npm `@modelcontextprotocol/sdk`), and 2 (`@modelcontextprotocol/client`) in both eras.

import { Client as First } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as FirstStdio } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport as FirstHttp } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
import * as second from '@modelcontextprotocol/client';
import { StdioClientTransport as SecondStdio } from '@modelcontextprotocol/client/stdio';

const INFO = { name: 'toolcrib-frameworks', version: '1' };
const LISTS = { tools: 'Tool', prompts: 'Prompt', resources: 'Resource', resourceTemplates: 'ResourceTemplate' };

export function valid(of, item, variant) {
  if (variant !== '1') return specTypes(LISTS[of], item);
  return types[`${LISTS[of]}Schema`].parse(item);
}

async function specTypes(name, item) {
  const found = await second.specTypeSchemas[name]['~standard'].validate(item);
  if (found.issues) throw new Error(JSON.stringify(found.issues));
}

export async function connect(target, variant) {
  const isFirst = variant === '1';
  const mode = variant === '2-modern' ? { pin: '2026-07-28' } : 'legacy';
  const client = isFirst ? new First(INFO) : new second.Client(INFO, { versionNegotiation: { mode } });
  const [Http, Stdio] = isFirst ? [FirstHttp, FirstStdio] : [second.StreamableHTTPClientTransport, SecondStdio];
  const isHttp = /^https?:/.test(target[0]);
  await client.connect(isHttp ? new Http(new URL(target[0])) : new Stdio({ command: target[0], args: target.slice(1), stderr: 'ignore' }));
  const all = async (method, of, member) => {
    const found = [];
    let cursor;
    do {
      const page = await client[method](cursor ? { cursor } : undefined);
      found.push(...page[of].map((one) => one[member]));
      cursor = page.nextCursor;
    } while (cursor);
    return found;
  };
  return {
    tools: () => all('listTools', 'tools', 'name'),
    prompts: () => all('listPrompts', 'prompts', 'name'),
    resources: () => all('listResources', 'resources', 'uri'),
    templates: () => all('listResourceTemplates', 'resourceTemplates', 'uriTemplate'),
    call: (name, args) => client.callTool({ name, arguments: args }),
    prompt: (name, args) => client.getPrompt({ name, arguments: args }),
    read: (uri) => client.readResource({ uri }),
    close: () => client.close(),
  };
}
