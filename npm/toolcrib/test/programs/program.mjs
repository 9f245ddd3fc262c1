// A program whose end is tested: three servers that are hard to end, calls in flight, and the end that its arguments name.
import { readFileSync, readdirSync } from "node:fs";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";
import { Manager } from "toolcrib";

const server = new URL("../servers/server.mjs", import.meta.url).pathname;

/** A manager with calls under way on each of its servers. */
async function work(calls = true) {
  const env = { TOOLCRIB_TEST_MARK: process.env.TOOLCRIB_TEST_MARK };
  const entry = { command: process.execPath, args: [server, "ignore-eof", "ignore-term", "helper"], env };
  const never = { call: () => new Promise(() => {}) };
  const manager = await Manager.start({ servers: { one: entry, two: entry, three: entry } }, { functions: { own: { never } } });
  if (manager.report.ready !== 4) {
    throw new Error(`started: ${JSON.stringify(manager.report)}`);
  }
  for (const name of calls ? ["one", "two", "three"] : []) {
    void manager.callTool({ server: name, tool: "sleep" }, { ms: 600_000 }).catch(() => {});
  }
  if (calls) {
    void manager.callTool("own.never").catch(() => {});
  }
  void (async () => {
    for await (const _ of manager.events());
  })();
  return manager;
}

const until = async (condition) => {
  for (const end = Date.now() + 20_000; !condition(); ) {
    if (Date.now() > end) {
      throw new Error("it took too long");
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
};

/** Pids of other processes with the mark. */
const marked = () =>
  readdirSync("/proc").filter((pid) => {
    try {
      const mark = `TOOLCRIB_TEST_MARK=${process.env.TOOLCRIB_TEST_MARK}`;
      return Number(pid) && pid !== String(process.pid) && readFileSync(`/proc/${pid}/environ`, "latin1").includes(mark);
    } catch {
      return false;
    }
  });

/** Children of this process that ended and were not waited for. */
const zombies = () =>
  readdirSync("/proc").filter((pid) => {
    try {
      const [state, parent] = readFileSync(`/proc/${pid}/stat`, "latin1").split(") ").at(-1).split(" ");
      return state === "Z" && Number(parent) === process.pid;
    } catch {
      return false;
    }
  });

const newWorker = async (end) => {
  const worker = new Worker(new URL(import.meta.url), { workerData: end, stderr: true });
  const ended = new Promise((resolve) => worker.once("exit", resolve));
  worker.on("error", () => {});
  await new Promise((resolve) => worker.once("message", resolve));
  return { worker, ended };
};

const ends = {
  return: async () => void (await work(false)),
  exit: async () => {
    await work();
    process.exit(3);
  },
  "uncaught error": async () => {
    await work();
    setTimeout(() => {
      throw new Error("on purpose");
    }, 10);
  },
  "unhandled rejection": async () => {
    await work();
    void Promise.reject(new Error("on purpose"));
  },
  abort: async () => {
    await work();
    process.abort();
  },
  signal: async () => {
    await work();
    console.log("ready");
  },
  shutdown: async () => {
    const manager = await work();
    await manager.shutdown();
    await until(() => marked().length === 0);
  },
  kill: async () => {
    const manager = await work();
    manager.kill();
    await until(() => marked().length === 0);
  },
  "exit while it starts": async () => {
    const starting = work();
    await until(() => marked().length > 2);
    process.exit(3);
    await starting;
  },
  "worker terminated": async () => {
    const { worker } = await newWorker("stay");
    await worker.terminate();
    await until(() => marked().length === 0 && zombies().length === 0);
  },
  "worker exits": async () => {
    const { ended } = await newWorker("exit");
    await ended;
    await until(() => marked().length === 0 && zombies().length === 0);
  },
  "worker fails": async () => {
    const { ended } = await newWorker("fail");
    await ended;
    await until(() => marked().length === 0 && zombies().length === 0);
  },
  "two workers": async () => {
    const [first, second] = await Promise.all([newWorker("stay"), newWorker("stay")]);
    const both = marked().length;
    await first.worker.terminate();
    await until(() => marked().length <= both / 2);
    // The other one works on.
    second.worker.postMessage("call");
    const [answer] = await new Promise((resolve) => second.worker.once("message", (...answer) => resolve(answer)));
    if (answer !== "{}") {
      throw new Error(`the answer: ${answer}`);
    }
    await second.worker.terminate();
    await until(() => marked().length === 0 && zombies().length === 0);
  },
  "exit with workers": async () => {
    await Promise.all([newWorker("stay"), newWorker("stay"), work()]);
    process.exit(3);
  },
  "signal with workers": async () => {
    await Promise.all([newWorker("stay"), newWorker("stay"), work()]);
    console.log("ready");
  },
};

if (isMainThread) {
  await ends[process.argv[2]]();
} else {
  const manager = await work();
  parentPort.postMessage("ready");
  if (workerData === "exit") {
    process.exit(3);
  } else if (workerData === "fail") {
    throw new Error("on purpose");
  }
  parentPort.once("message", async () => parentPort.postMessage((await manager.callTool("one.echo")).text));
}
