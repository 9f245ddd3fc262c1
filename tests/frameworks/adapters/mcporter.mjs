// mcporter (npm `mcporter`), which calls tools from scripts.

import { createRuntime } from 'mcporter';

export async function connect(target) {
  const isHttp = /^https?:/.test(target[0]);
  const command = isHttp
    ? { kind: 'http', url: new URL(target[0]) }
    : { kind: 'stdio', command: target[0], args: target.slice(1), cwd: process.cwd() };
  const runtime = await createRuntime({ servers: [{ name: 'toolcrib', command }] });
  const options = { disableOAuth: true };
  return {
    tools: async () => (await runtime.listTools('toolcrib', { ...options, includeSchema: true })).map((one) => one.name),
    call: (name, args) => runtime.callTool('toolcrib', name, { ...options, args }),
    close: () => runtime.close(),
  };
}
