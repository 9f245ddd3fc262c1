/**
 * Values that the host tells of.
 *
 * What toolcrib also writes to files (reports, events, totals, rows of servers) has the names that it has there, such as `tool_calls`.
 */

/** An object of JSON. */
export type JsonObject = Record<string, unknown>;

/** A tool of a server. */
export interface Tool {
  server: string;
  /** Its name on its server. */
  name: string;
  /** Its name for models: `SERVER__TOOL`. */
  visibleName: string;
  title: string | null;
  description: string | null;
  inputSchema: JsonObject;
  outputSchema: JsonObject | null;
  annotations: JsonObject | null;
}

/** A block of content, as in MCP. */
export interface Content {
  type: string;
  text?: string;
  [member: string]: unknown;
}

/** The result of a call. */
export interface CallResult {
  server: string;
  tool: string;
  content: Content[];
  /** Integers beyond 2^53 are bigints, unless the manager has `integers: "number"`. */
  structuredContent: JsonObject | null;
  /** The tool's own error: it is a result that a model can read. */
  isError: boolean;
  tookMs: number;
  /** All texts of the content, one below the other. */
  text: string;
}

/** Progress of a call. */
export interface Progress {
  progress: number;
  total: number | null;
  message: string | null;
}

/** Something that happened to a server: `type` says what, such as `ready`, `lost` or `restarted`. */
export interface ServerEvent {
  type: string;
  server?: string;
  /** Events that were dropped before this one, since the program did not read them. */
  dropped?: number;
  [member: string]: unknown;
}

/** The start of each server. */
export interface StartReport {
  servers: JsonObject[];
  ready: number;
  wall_ms: number;
}

/** The end of each server. */
export interface StopReport {
  servers: JsonObject[];
  /** Processes that are left. */
  survivors: JsonObject[];
  wall_ms: number;
  [member: string]: unknown;
}

/** A server as it is now. */
export interface ServerStatus {
  name: string;
  state: string;
  pid: number | null;
  calls: number;
  errors: number;
  restarts: number;
  in_flight: number;
  [member: string]: unknown;
}

/** Changes by a new configuration. */
export interface ApplyReport {
  added: string[];
  removed: string[];
  restarted: string[];
  unchanged: string[];
  failures: JsonObject[];
  tools: Tool[];
  warnings: string[];
}

/** A message of a conversation, as the OpenAI chat API has it. */
export interface Message {
  role: string;
  content?: unknown;
  [member: string]: unknown;
}

/** A task: a question, or an object as in docs/tasks.md. */
export type Task = string | JsonObject;

/** The end of a task: a line of `results.jsonl`, with the conversation. */
export interface TaskReport {
  task: string;
  /** `passed`, `failed`, `errored`, `unscored` or `cancelled`. */
  status: string;
  answer: string | null;
  score: number | null;
  turns: number;
  error: JsonObject | null;
  transcript?: Message[];
  [member: string]: unknown;
}

/** Something that an agent does: a line of the events of agents, docs/run-folder.md. */
export interface AgentEvent {
  event: string;
  task: string;
  agent: string;
  [member: string]: unknown;
}

/** An object with one member, as an event: its name is the type. */
export function typed(event: unknown): { type: string; [member: string]: unknown } {
  if (typeof event !== "object" || event === null) {
    return { type: String(event) };
  }
  const [type = "", value] = Object.entries(event)[0] ?? [];
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  return isObject ? Object.assign({ type }, value, { type }) : { type, value };
}

/** An event of a server, as the host tells it. */
export function serverEventOf(raw: unknown): ServerEvent {
  const event: ServerEvent = typed(raw);
  const row = event["row"] as { name?: string; server?: string } | undefined;
  const server = event.server ?? row?.name ?? row?.server;
  return server === undefined ? event : { ...event, server };
}

/** A tool as the host describes it. */
export function toolOf(raw: JsonObject): Tool {
  const { server, name, visible_name, title, description, input_schema, output_schema, annotations } = raw;
  return {
    server,
    name,
    visibleName: visible_name,
    title,
    description,
    inputSchema: input_schema,
    outputSchema: output_schema,
    annotations,
  } as Tool;
}

/** An object with its own members named as JavaScript names them. What these hold stays as it is. */
export function camelCased(raw: JsonObject): JsonObject {
  const camel = (name: string) => name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(raw).map(([name, value]) => [camel(name), value]));
}
