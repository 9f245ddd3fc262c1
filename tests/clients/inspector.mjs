// Checks a server by the command line of the official Inspector: one line for each check, exit code 1 if one fails.
// usage: node inspector.mjs URL | COMMAND [ARGUMENT..]
// It asks and shows one thing each time; what a server asks its client is not for it.

import { spawnSync } from 'node:child_process';

const target = process.argv.slice(2);
const program = new URL('./node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js', import.meta.url);
let failed = 0;
function check(name, args, wanted) {
  // Its options come first where the target is a command, since all after it is for the command.
  const words = [program.pathname, '--cli', ...args, '--', ...target];
  const url = /^https?:/.test(target[0]);
  const { status, stdout, stderr } = spawnSync(process.execPath, url ? [program.pathname, '--cli', target[0], '--transport', 'http', ...args] : words,
    { encoding: 'utf8', timeout: 60000 });
  const good = status === 0 && wanted.test(stdout);
  if (!good) failed++;
  console.log(good ? `ok      ${name}` : `FAILED  ${name}: exit ${status}: ${`${stdout} ${stderr}`.replace(/\s+/g, ' ').slice(0, 300)}`);
}
check('list tools', ['--method', 'tools/list'], /"test_simple_text"/);
check('call', ['--method', 'tools/call', '--tool-name', 'test_simple_text'], /simple text response/);
check('call with an argument', ['--method', 'tools/call', '--tool-name', 'test_custom_header', '--tool-arg', 'value=7up'], /"7up"/);
check('call: structured content', ['--method', 'tools/call', '--tool-name', 'test_structured_content'], /"celsius": ?21\.5/);
check('call: progress', ['--method', 'tools/call', '--tool-name', 'test_tool_with_progress'], /Progress test completed/);
check('list resources', ['--method', 'resources/list'], /test:\/\/static-text/);
check('read', ['--method', 'resources/read', '--uri', 'test://static-text'], /static text resource/);
check('list templates', ['--method', 'resources/templates/list'], /test:\/\/template/);
check('list prompts', ['--method', 'prompts/list'], /"test_simple_prompt"/);
check('get a prompt', ['--method', 'prompts/get', '--prompt-name', 'test_prompt_with_arguments', '--prompt-args', 'arg1=one', 'arg2=two'],
  /arg1='one', arg2='two'/);
process.exit(failed > 0 ? 1 : 0);
