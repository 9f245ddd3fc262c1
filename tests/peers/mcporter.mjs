// mcporter's library as the owner of a server, for `toolcrib-lab torture --command`.
//
// usage: node mcporter.mjs END SERVER..      versions: package.json, package-lock.json
//
// What the ends are in Node:
//   drop      the runtime is forgotten and the garbage collected (--expose-gc); the program lives on
//   cancel    `runtime.close()` is awaited; the program lives on
//   return    `runtime.close()` is awaited in a `finally`, then the program ends by itself
//   panic     an error that nobody catches
//   exit      process.exit(0)
//   abort     process.abort()
//   sigterm, sigint, sigkill   no handler, as in the library
// There is no leak and no runtime-first: a Node program does not end while it has an open session.
import { createRuntime } from 'mcporter';

const [end, command, ...args] = process.argv.slice(2);
const lifetime = 600_000;

const say = (word) => process.stdout.write(`${word}\n`);
const stay = () => new Promise((resolve) => setTimeout(resolve, lifetime));

async function open() {
  const definition = { name: 'tortured', command: { kind: 'stdio', command, args, cwd: process.cwd() } };
  const runtime = await createRuntime({ servers: [definition] });
  await runtime.callTool('tortured', 'echo', { args: {} });
  say('ready');
  return runtime;
}

let runtime = await open();
switch (end) {
  case 'drop':
    runtime = undefined;
    globalThis.gc?.();
    say('ended');
    await stay();
    break;
  case 'cancel':
    await runtime.close();
    say('ended');
    await stay();
    break;
  case 'return':
    await runtime.close();
    break;
  case 'panic':
    throw new Error('on purpose, with a session open');
  case 'exit':
    process.exit(0);
  case 'abort':
    process.abort();
  case 'sigterm':
  case 'sigint':
  case 'sigkill':
    await stay();
    break;
  default:
    throw new Error(`unknown end ${end}`);
}
