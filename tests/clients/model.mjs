// A model for the examples: it calls the tool `greet` with the name in the question, and then says what the tool gave.
// usage: node model.mjs PORT

import { createServer } from 'node:http';

createServer((request, response) => {
  let body = '';
  request.on('data', (data) => { body += data; });
  request.on('end', () => {
    const { messages, tools } = JSON.parse(body);
    const last = messages.at(-1);
    const tool = tools.find((tool) => /(^|__)greet$/.test(tool.function.name));
    const call = { id: 'call-1', type: 'function', function: { name: tool?.function.name, arguments: JSON.stringify({ name: last.content }) } };
    const message = last.role === 'tool'
      ? { role: 'assistant', content: `The tool says: ${last.content}` }
      : { role: 'assistant', content: null, tool_calls: [call] };
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ id: 'answer', object: 'chat.completion', created: 0, model: 'fake', choices: [{ index: 0, finish_reason: 'stop', message }] }));
  });
}).listen(Number(process.argv[2]), '127.0.0.1');
