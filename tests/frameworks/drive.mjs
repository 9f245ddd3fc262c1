// Puts one TypeScript client through the plan: one line of JSON for each item, which run.py reads. The same as drive.py.
// usage: node drive.mjs ADAPTER[:VARIANT] PLAN.json URL | COMMAND [ARGUMENT..]
//
// An adapter (adapters/*.mjs) exports `connect(target, variant)`, which gives an object with what the client can do, and `close()`.

import { readFileSync } from 'node:fs';

const LIMIT = 20_000;
const [name, planFile, ...target] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(planFile));
const [adapterName, variant] = name.split(':');
const adapter = await import(`./adapters/${adapterName}.mjs`);

const report = (check, item, error = null) => process.stdout.write(`${JSON.stringify({ check, item, error })}\n`);
const words = (error) => String(error?.stack && error.message ? `${error.name}: ${error.message}` : error).replace(/\s+/g, ' ').slice(0, 400);

async function within(promise) {
  let late;
  const limit = new Promise((_, reject) => { late = setTimeout(() => reject(new Error('no answer within 20 s: it hangs')), LIMIT); });
  try {
    return await Promise.race([promise, limit]);
  } finally {
    clearTimeout(late);
  }
}

/** One call; `says` has to be in what it gives, or, where it may fail, in its error. */
async function item(check, of, run, says, orError = false) {
  try {
    let said;
    try {
      const given = await within(run());
      said = typeof given === 'string' ? given : JSON.stringify(given) ?? '';
    } catch (error) {
      if (!orError || !String(error?.message).includes(says)) throw error;
      said = String(error.message);
    }
    if (says && !said.includes(says)) throw new Error(`\`${says}\` is not in: ${said.slice(0, 200)}`);
    report(check, of);
  } catch (error) {
    report(check, of, words(error));
  }
}

/** One call, of which only a hang is a fault. */
async function ends(check, of, run) {
  try {
    await within(run());
  } catch (error) {
    if (String(error?.message).includes('it hangs')) return report(check, of, words(error));
  }
  report(check, of);
}

async function lists(client, wanted) {
  const have = {};
  for (const { check, of, names, unique, longest } of wanted) {
    if (!client[of]) continue;
    have[of] ??= await within(client[of]()).catch(words);
    if (typeof have[of] === 'string') {
      report(check, 'the list', have[of]);
      continue;
    }
    const set = new Set(have[of]);
    for (const one of names) report(check, one, set.has(one) ? null : `not among ${set.size}`);
    if (unique) report(check, 'each name once', set.size === have[of].length ? null : 'a name is there twice');
    if (longest) {
      const long = have[of].find((one) => one.length > longest);
      report(check, 'no long name', long ?? null);
    }
  }
}

async function follow(client) {
  await lists(client, plan.lists);
  for (const { check, by, calls, 'or error': orError } of plan.calls) {
    const does = client[by === 'ends' ? 'call' : by];
    if (!does) continue;
    for (const one of calls) {
      const run = async () => does(...one.with);
      await (by === 'ends' ? ends(check, one.name, run) : item(check, one.name, run, one.says, orError));
    }
  }
  if (client.call) {
    const numbers = Array.from({ length: 20 }, (_, number) => `number ${number}.`);
    await Promise.all(numbers.map((text, at) => item(plan.many.check, String(at), async () => client.call(plan.many.name, { text }), text)));
  }
  if (client.agent) {
    for (const one of plan.agent.questions) {
      await item(plan.agent.check, one.name, async () => client.agent(plan.model, one.asks), one.says);
    }
  }
}

/** Each item that the gateway lists, by the types of the client: this names what makes a list unreadable. */
async function validate(url) {
  const head = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' };
  let session = {};
  const post = async (body) => {
    const response = await fetch(url, { method: 'POST', headers: { ...head, ...session }, body: JSON.stringify({ jsonrpc: '2.0', ...body }) });
    const text = await response.text();
    const data = text.split('\n').filter((line) => line.startsWith('data:') && line.slice(5).trim()).at(-1);
    return [data || text.trim() ? JSON.parse(data ? data.slice(5) : text) : null, response.headers];
  };
  const protocolVersion = '2025-11-25';
  const [, headers] = await post({ id: 0, method: 'initialize', params: { protocolVersion, capabilities: {}, clientInfo: { name: 'raw', version: '1' } } });
  session = { 'mcp-session-id': headers.get('mcp-session-id'), 'mcp-protocol-version': protocolVersion };
  await post({ method: 'notifications/initialized' });
  for (const [method, of] of Object.entries(plan.valid.lists)) {
    let cursor;
    do {
      const [{ result }] = await post({ id: 1, method, params: cursor ? { cursor } : {} });
      for (const listed of result[of]) {
        const label = `${of} ${listed?.name ?? listed?.uri ?? JSON.stringify(listed)}`;
        try {
          await adapter.valid(of, listed, variant);
          report(plan.valid.check, label);
        } catch (error) {
          report(plan.valid.check, label, words(error));
        }
      }
      cursor = result.nextCursor;
    } while (cursor);
  }
}

async function connected(to, check, run) {
  try {
    const client = await within(adapter.connect(to, variant));
    if (check === 'connect') report(check, 'connect');
    try {
      await run(client);
    } finally {
      await within(client.close()).catch(() => {});
    }
  } catch (error) {
    report(check, 'connect', words(error));
  }
}

await connected(target, 'connect', follow);
if (plan.neighbours) {
  const wanted = plan['neighbour lists'];
  await connected([plan.neighbours], wanted[0].check, (client) => lists(client, wanted));
  if (adapter.valid && !variant.includes('legacy')) await validate(plan.neighbours);
}
process.exit(0);
