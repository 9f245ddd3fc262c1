/** Helpers of all tests: marked processes, servers, scratch folders. */
import { randomUUID } from "node:crypto";
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { setTimeout as sleep } from "node:timers/promises";
import type { TestContext } from "node:test";
import type { ServerSettings } from "toolcrib";

/** The folder of the package. */
export const PACKAGE = fileURLToPath(new URL("../../", import.meta.url));

// Of the workspace, unless another one is named.
process.env["TOOLCRIB_BINARY"] ??= join(PACKAGE, "../../target/debug/toolcrib");

/** The variable that marks all processes of a test. */
export const VARIABLE = "TOOLCRIB_TEST_MARK";

export const newMark = (): string => randomUUID();

/** The server of the tests, with these flags. */
export function server(flags: string[] = [], mark?: string): ServerSettings {
  const args = [join(PACKAGE, "test/servers/server.mjs"), ...flags];
  return { command: process.execPath, args, ...(mark ? { env: { [VARIABLE]: mark } } : {}) };
}

/** The living processes with a mark, as their pids and command lines. */
export function processes(mark: string): string[] {
  const found: string[] = [];
  for (const pid of readdirSync("/proc").filter((name) => Number(name) > 0)) {
    try {
      if (readFileSync(`/proc/${pid}/environ`, "latin1").includes(`${VARIABLE}=${mark}`)) {
        found.push(`${pid} ${readFileSync(`/proc/${pid}/cmdline`, "latin1").replaceAll("\0", " ")}`);
      }
    } catch {
      // It has ended, or belongs to somebody else.
    }
  }
  return found;
}

/** Waits until nothing is left of a test. */
export async function nothingLeft(mark: string): Promise<void> {
  await until(() => processes(mark).length === 0, () => `left: ${processes(mark).join("\n")}`);
}

/** Milliseconds that a condition may take to hold, on a machine with much to do. */
const LIMIT = 30_000;

export async function until(condition: () => boolean, why: () => string = () => "it took too long"): Promise<void> {
  for (const end = Date.now() + LIMIT; !condition(); ) {
    if (Date.now() > end) {
      throw new Error(why());
    }
    await sleep(20);
  }
}

/** A folder with files that goes with the test. */
export function folder(test: TestContext, files: Record<string, string> = {}): string {
  const path = mkdtempSync(join(tmpdir(), "toolcrib-npm-"));
  test.after(() => rmSync(path, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(files)) {
    writeFileSync(join(path, name), text);
  }
  return path;
}
