// Checks a server by the official TypeScript client: one line for each check, exit code 1 if one fails.
// usage: node typescript.mjs 1|2-legacy|2-modern URL | COMMAND [ARGUMENT..]
// The server is the fixture of the conformance suite (crates/toolcrib-fakes/examples/conformance), alone or behind a gateway.

const [kind, ...target] = process.argv.slice(2);
const isFirst = kind === '1';
const isModern = kind === '2-modern';
const capabilities = { sampling: {}, elicitation: {}, roots: {} };
const info = { name: 'toolcrib-clients', version: '1' };

let client;
let transport;
if (isFirst) {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
  const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
  const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
  client = new Client(info, { capabilities });
  transport = reach(StreamableHTTPClientTransport, StdioClientTransport);
} else {
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
  const versionNegotiation = { mode: isModern ? { pin: '2026-07-28' } : 'legacy' };
  client = new Client(info, { capabilities, versionNegotiation });
  transport = reach(StreamableHTTPClientTransport, StdioClientTransport);
}
function reach(Http, Stdio) {
  if (/^https?:/.test(target[0])) return new Http(new URL(target[0]));
  return new Stdio({ command: target[0], args: target.slice(1), stderr: 'ignore' });
}

/** The first SDK wants schemas, the second one names of methods. */
async function onRequest(method, handler) {
  if (!isFirst) return client.setRequestHandler(method, handler);
  const types = await import('@modelcontextprotocol/sdk/types.js');
  const schemas = {
    'sampling/createMessage': types.CreateMessageRequestSchema,
    'elicitation/create': types.ElicitRequestSchema,
    'roots/list': types.ListRootsRequestSchema,
  };
  client.setRequestHandler(schemas[method], handler);
}
async function onNotification(method, handler) {
  if (!isFirst) return client.setNotificationHandler(method, handler);
  const types = await import('@modelcontextprotocol/sdk/types.js');
  const schemas = {
    'notifications/message': types.LoggingMessageNotificationSchema,
    'notifications/resources/updated': types.ResourceUpdatedNotificationSchema,
    'notifications/tools/list_changed': types.ToolListChangedNotificationSchema,
  };
  client.setNotificationHandler(schemas[method], handler);
}
const call = (name, args = {}, options = undefined, meta = undefined) => {
  const params = { name, arguments: args, ...(meta && { _meta: meta }) };
  return isFirst ? client.callTool(params, undefined, options) : client.callTool(params, options);
};
const text = (result) => result.content.map((part) => part.text ?? '').join('');

let failed = 0;
async function check(name, run) {
  let late;
  const limit = new Promise((_, reject) => { late = setTimeout(() => reject(new Error('no answer in 60 s')), 60000); });
  try {
    await Promise.race([run(), limit]);
    console.log(`ok      ${name}`);
  } catch (error) {
    failed++;
    console.log(`FAILED  ${name}: ${String(error?.message ?? error).replace(/\s+/g, ' ').slice(0, 300)}`);
  }
  clearTimeout(late);
}
function equal(is, wanted) {
  if (JSON.stringify(is) !== JSON.stringify(wanted)) throw new Error(`${JSON.stringify(is)}, not ${JSON.stringify(wanted)}`);
}
function holds(is, wanted) {
  if (!is.includes(wanted)) throw new Error(`${JSON.stringify(is)} without ${JSON.stringify(wanted)}`);
}
const until = async (ready) => { while (!ready()) await new Promise((done) => setTimeout(done, 20)); };

const logs = [];
const updates = [];
let changes = 0;
await onRequest('sampling/createMessage', async (request) => ({
  role: 'assistant', model: 'none',
  content: { type: 'text', text: `sampled ${request.params.messages[0].content.text}` },
}));
await onRequest('elicitation/create', async () => (
  { action: 'accept', content: { username: 'ada', email: 'ada@example.com', name: 'ada', color: 'red', ok: true } }
));
await onRequest('roots/list', async () => ({ roots: [{ uri: 'file:///work', name: 'work' }] }));
await onNotification('notifications/message', (message) => { logs.push(message.params.data); });
if (!isModern) {
  await onNotification('notifications/resources/updated', (message) => { updates.push(message.params.uri); });
  await onNotification('notifications/tools/list_changed', () => { changes++; });
}

await check('connect', () => client.connect(transport));
if (failed > 0) process.exit(1);
await check('list tools', async () => {
  const { tools } = await client.listTools();
  const tool = tools.find((tool) => tool.name === 'test_structured_content');
  equal([tool.annotations.readOnlyHint, tool._meta['example.com/kept'], tool.icons.length], [true, true, 1]);
  equal(tool.outputSchema.required, ['celsius', 'sky']);
  const schema = tools.find((tool) => tool.name === 'json_schema_2020_12_tool').inputSchema;
  equal([schema.$defs.address.$anchor, schema.if.required], ['address', ['address']]);
});
await check('call', async () => holds(text(await call('test_simple_text')), 'simple text response'));
await check('call: contents of each kind', async () => {
  equal((await call('test_multiple_content_types')).content.map((part) => part.type), ['text', 'image', 'resource']);
});
await check('call: structured content and _meta', async () => {
  const result = await call('test_structured_content');
  equal([result.structuredContent, result._meta['example.com/kept']], [{ celsius: 21.5, sky: 'clear' }, 'yes']);
  equal(result.content[0].annotations.audience, ['user']);
});
await check('call: an error of the tool', async () => equal((await call('test_error_handling')).isError, true));
await check('call: no such tool', async () => {
  const outcome = await call('no_such_tool').then((result) => result.isError, () => true);
  equal(outcome, true);
});
await check('list and read resources', async () => {
  const { resources } = await client.listResources();
  holds(resources.map((resource) => resource.uri), 'test://static-text');
  holds((await client.readResource({ uri: 'test://static-text' })).contents[0].text, 'static text resource');
  equal((await client.readResource({ uri: 'test://static-binary' })).contents[0].mimeType, 'image/png');
});
await check('read by a template', async () => {
  const { resourceTemplates } = await client.listResourceTemplates();
  equal(resourceTemplates.map((template) => template.uriTemplate), ['test://template/{id}/data']);
  holds((await client.readResource({ uri: 'test://template/7/data' })).contents[0].text, '"7"');
});
await check('list and get prompts', async () => {
  holds((await client.listPrompts()).prompts.map((prompt) => prompt.name), 'test_prompt_with_arguments');
  const prompt = await client.getPrompt({ name: 'test_prompt_with_arguments', arguments: { arg1: 'one', arg2: 'two' } });
  holds(prompt.messages[0].content.text, "arg1='one', arg2='two'");
});
await check('complete', async () => {
  const ref = { type: 'ref/prompt', name: 'test_prompt_with_arguments' };
  const { completion } = await client.complete({ ref, argument: { name: 'arg1', value: 'par' } });
  equal(completion.values, ['paris', 'park', 'party']);
});
await check('progress', async () => {
  const reports = [];
  await call('test_tool_with_progress', {}, { onprogress: (report) => reports.push(report.progress) });
  equal(reports, [0, 50, 100]);
});
await check('log messages', async () => {
  if (isModern) {
    await call('test_tool_with_logging', {}, undefined, { 'io.modelcontextprotocol/logLevel': 'info' });
  } else {
    await client.setLoggingLevel('info');
    await call('test_tool_with_logging');
  }
  await until(() => logs.length >= 3);
  equal(logs, ['Tool execution started', 'Tool processing data', 'Tool execution completed']);
});
await check('cancel', async () => {
  const cancellations = async () => Number(text(await call('test_cancellations')));
  const before = await cancellations();
  const stop = new AbortController();
  const calling = call('test_wait', { ms: 15000 }, { signal: stop.signal }).then(() => 'answered', () => 'aborted');
  while (text(await call('test_waiting')) === '0') await new Promise((done) => setTimeout(done, 20));
  stop.abort('enough');
  equal(await calling, 'aborted');
  while (await cancellations() === before) await new Promise((done) => setTimeout(done, 50));
});
await check('sampling', async () => holds(text(await call('test_sampling', { prompt: 'this' })), 'sampled this'));
await check('elicitation', async () => {
  holds(text(await call('test_elicitation', { message: 'Who?' })), 'action=accept');
  holds(text(await call('test_elicitation', { message: 'Who?' })), 'ada@example.com');
});
await check('elicitation in two rounds', async () => {
  holds(text(await call('test_input_required_result_multi_round')), 'ada, red');
});
await check('roots', async () => holds(text(await call('test_roots')), 'file:///work'));
if (!isModern) {
  await check('subscribe to a resource', async () => {
    await client.subscribeResource({ uri: 'test://watched-resource' });
    await call('test_trigger_resource_update', { uri: 'test://watched-resource' });
    await until(() => updates.includes('test://watched-resource'));
    await client.unsubscribeResource({ uri: 'test://watched-resource' });
  });
  await check('a changed list of tools', async () => {
    const before = changes;
    await call('test_trigger_tool_change');
    await until(() => changes > before);
  });
  await check('ping', () => client.ping());
}
await check('ten calls at once', async () => {
  // None of them is answered before all are there.
  const meeting = Array.from({ length: 10 }, () => call('test_meeting'));
  for (const result of await Promise.all(meeting)) equal(text(result), 'met');
});
await check('close', () => client.close());
process.exit(failed > 0 ? 1 : 0);
