// An MCP server on standard streams. Its arguments say how hard it is to end: `ignore-eof`, `ignore-term`, `helper` (a process that
// leaves its group). It uses no SDK, so that no mistake is shared with what is tested.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const flags = process.argv.slice(2);
if (flags.includes("ignore-term")) {
  process.on("SIGTERM", () => {});
}
if (flags.includes("helper")) {
  spawn("sleep", ["600"], { detached: true, stdio: "ignore" }).unref();
}
if (flags.includes("ignore-eof")) {
  setInterval(() => {}, 1000);
}
if (flags.includes("fail")) {
  console.error("fatal: no key");
  process.exit(3);
}

const tools = ["echo", "sleep", "progress", "numbers", "fail"];
const resource = { uri: "test://one", name: "one", mimeType: "text/plain" };
const send = (message) => process.stdout.write(`${typeof message === "string" ? message : JSON.stringify(message)}\n`);
const answer = (id, result) => send({ jsonrpc: "2.0", id, result });
const text = (value, more = {}) => ({ content: [{ type: "text", text: value }], ...more });

const methods = {
  initialize: (id, { protocolVersion }) =>
    answer(id, { protocolVersion, capabilities: { tools: {}, resources: {}, prompts: {} }, serverInfo: { name: "test", version: "1" } }),
  ping: (id) => answer(id, {}),
  "tools/list": (id) => answer(id, { tools: tools.map((name) => ({ name, inputSchema: { type: "object" } })) }),
  "resources/list": (id) => answer(id, { resources: [resource] }),
  "resources/templates/list": (id) => answer(id, { resourceTemplates: [] }),
  "resources/read": (id, { uri }) => answer(id, { contents: [{ uri, text: "the text" }] }),
  "prompts/list": (id) => answer(id, { prompts: [{ name: "greet", arguments: [{ name: "who" }] }] }),
  "prompts/get": (id, params) =>
    answer(id, { messages: [{ role: "user", content: { type: "text", text: `Hello ${params.arguments?.who}` } }] }),
  "tools/call": (id, { name, arguments: args = {}, _meta }) => {
    if (name === "sleep") {
      setTimeout(() => answer(id, text("slept")), args.ms);
    } else if (name === "numbers") {
      send(`{"jsonrpc":"2.0","id":${JSON.stringify(id)},"result":{"content":[{"type":"text","text":"9007199254740993"}],"structuredContent":{"big":9007199254740993,"small":1}}}`);
    } else if (name === "fail") {
      answer(id, text("it failed", { isError: true }));
    } else {
      for (const progress of name === "progress" ? [1, 2] : []) {
        send({ jsonrpc: "2.0", method: "notifications/progress", params: { progressToken: _meta?.progressToken, progress, total: 2 } });
      }
      answer(id, text(JSON.stringify(args)));
    }
  },
};

createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params = {} } = JSON.parse(line);
  if (id === undefined || method === undefined) {
    return;
  }
  const known = methods[method];
  if (known) {
    known(id, params);
  } else {
    send({ jsonrpc: "2.0", id, error: { code: -32601, message: `no method ${method}` } });
  }
});
