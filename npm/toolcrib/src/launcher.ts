/**
 * The command `toolcrib` of npm: the program of this platform in place of this process, or as its child where Node.js cannot replace
 * itself. The child gets the signals that this process gets, and ends when this process is killed: it holds one end of a pair of sockets.
 */
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { constants } from "node:os";
import { isatty } from "node:tty";
import { findBinary } from "./binary.js";
import { ToolcribError } from "./error.js";

/** Signals of a terminal: it sends them to the child as well. */
const OF_TERMINALS: NodeJS.Signals[] = ["SIGINT", "SIGQUIT", "SIGHUP"];
const OTHERS: NodeJS.Signals[] = ["SIGTERM", "SIGUSR2"];
/** Exit code of a shell for a command that it cannot find. */
const NOT_FOUND = 127;

function launch(): void {
  const [binary, args] = [findBinary(), process.argv.slice(2)];
  // In place of this process, from Node 22.15 and 23.11 on.
  const { execve } = process as { execve?: (file: string, args: string[]) => never };
  if (execve) {
    execve.call(process, binary, [binary, ...args]);
  }
  const env = { ...process.env, TOOLCRIB_LAUNCHER: `3:${process.pid}` };
  const child = spawn(binary, args, { env, stdio: ["inherit", "inherit", "inherit", "pipe"] });
  for (const signal of OF_TERMINALS) {
    process.on(signal, () => isInForeground() || child.kill(signal));
  }
  for (const signal of OTHERS) {
    process.on(signal, () => child.kill(signal));
  }
  child.on("error", (error) => fail(error.message));
  child.on("exit", (code, signal) => {
    if (signal === null) {
      process.exit(code ?? 1);
    }
    // This process ends as the child did.
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
    // A signal that is ignored, or that this process handles in another way.
    setTimeout(() => process.exit(128 + constants.signals[signal]), 100);
  });
}

/** Whether this process belongs to the foreground of its terminal, which then has sent a signal to the child too. */
function isInForeground(): boolean {
  try {
    const fields = readFileSync("/proc/self/stat", "latin1").split(") ").at(-1)?.split(" ") ?? [];
    const [group, foreground] = [fields[2], fields[5]];
    return group === foreground;
  } catch {
    return [0, 1, 2].some((descriptor) => isatty(descriptor));
  }
}

function fail(message: string, help?: string | null): never {
  process.stderr.write(`error: ${message}\n${help ? `  = help: ${help}\n` : ""}`);
  process.exit(NOT_FOUND);
}

try {
  launch();
} catch (error) {
  if (!(error instanceof ToolcribError)) {
    throw error;
  }
  fail(error.message, error.help);
}
