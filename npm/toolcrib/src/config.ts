/** Configurations as this package takes them and as the host does. */
import { fileURLToPath } from "node:url";
import type { Params } from "./connection.js";

/** The content of a `servers.toml`, or `mcpServers` in the form of other clients. */
export interface ConfigDocument {
  servers?: Record<string, ServerSettings>;
  mcpServers?: Record<string, ServerSettings>;
  defaults?: object;
  llm?: object;
  agent?: object;
  run?: object;
  [table: string]: unknown;
}

/** A table `[servers.NAME]`: docs/configuration.md has all its keys. */
export interface ServerSettings {
  command?: string;
  args?: string[];
  env?: Record<string, string>;
  cwd?: string;
  url?: string;
  headers?: Record<string, string>;
  builtin?: string;
  required?: boolean;
  [key: string]: unknown;
}

/** A path of a `servers.toml` or of a folder with one, a document, or the text of one in TOML. */
export type Config = string | URL | ConfigDocument | Toml;

/** The text of a `servers.toml`. */
export class Toml {
  constructor(readonly text: string) {}
}

/** Options of reading a configuration. */
export interface ConfigOptions {
  /** A profile of the configuration. */
  profile?: string;
  /** Settings with precedence over those of the configuration: `KEY=VALUE`. */
  set?: string[];
  /** Only these servers: names or patterns. */
  servers?: string[];
  /** The folder that relative paths are relative to. Default: the current one. */
  folder?: string;
  /** All variables that `${NAME}` and `inherit_env` find. Default: those of the program. */
  env?: Record<string, string | undefined>;
}

/** The configuration for the host. None: it is found as the command line finds it. */
export function configParams(config: Config | undefined, options: ConfigOptions): Params {
  const { profile, set, servers } = options;
  return { ...source(config), profile, set, servers, ...surroundings(options) };
}

/** Folder and variables: those of this program are not those that the host was started with. */
export function surroundings(options: Pick<ConfigOptions, "folder" | "env">): Params {
  return { folder: options.folder ?? process.cwd(), env: { ...(options.env ?? process.env) } };
}

function source(config: Config | undefined): Params {
  if (config === undefined) {
    return { file: null };
  }
  if (typeof config === "string") {
    return { file: config };
  }
  if (config instanceof URL) {
    return { file: fileURLToPath(config) };
  }
  return config instanceof Toml ? { text: config.text } : { document: config };
}
