/** The ends of a program: whatever they are, no process is left and nothing hangs. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { test } from "node:test";
import { PACKAGE, VARIABLE, newMark, nothingLeft, processes } from "./support.js";

/** Milliseconds that a program may take, on a machine with much to do. */
const LIMIT = 60_000;

function start(end: string, mark: string) {
  const path = join(PACKAGE, "test/programs/program.mjs");
  const child = spawn(process.execPath, [path, end], { env: { ...process.env, [VARIABLE]: mark }, stdio: ["ignore", "pipe", "pipe"], timeout: LIMIT });
  let errors = "";
  child.stderr.on("data", (data) => (errors += String(data)));
  return { child, ended: once(child, "close") as Promise<[number | null, string | null]>, errors: () => errors };
}

const outcomes: Record<string, [number | null, string | null]> = {
  return: [0, null],
  exit: [3, null],
  "uncaught error": [1, null],
  "unhandled rejection": [1, null],
  abort: [null, "SIGABRT"],
  shutdown: [0, null],
  kill: [0, null],
  "exit while it starts": [3, null],
  "worker terminated": [0, null],
  "worker exits": [0, null],
  "worker fails": [0, null],
  "two workers": [0, null],
  "exit with workers": [3, null],
};

for (const [end, outcome] of Object.entries(outcomes)) {
  test(`the end of a program: ${end}`, async () => {
    const mark = newMark();
    const { ended, errors } = start(end, mark);
    assert.deepEqual(await ended, outcome, errors());
    await nothingLeft(mark);
  });
}

for (const signal of ["SIGTERM", "SIGINT", "SIGKILL", "SIGHUP"] as const) {
  for (const end of ["signal", "signal with workers"]) {
    test(`the end of a program: ${signal}, ${end}`, async () => {
      const mark = newMark();
      const { child, ended, errors } = start(end, mark);
      await once(child.stdout, "data");
      assert.ok(processes(mark).length > 6, processes(mark).join("\n"));
      child.kill(signal);
      assert.deepEqual(await ended, [null, signal], errors());
      await nothingLeft(mark);
    });
  }
}

test("a host that is killed leaves nothing", async () => {
  const mark = newMark();
  const { child, ended, errors } = start("signal", mark);
  await once(child.stdout, "data");
  const host = processes(mark).find((line) => line.includes(" host --fd "));
  assert.ok(host);
  process.kill(Number.parseInt(host), "SIGKILL");
  // Who waits for events hears of it.
  assert.deepEqual(await ended, [1, null]);
  assert.match(errors(), /the host of toolcrib has ended by SIGKILL[^]*code: 'host_lost'/);
  await nothingLeft(mark);
});
