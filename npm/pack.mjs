#!/usr/bin/env node
// Makes the packages for npm: `node npm/pack.mjs BINARY FOLDER [PLATFORM]`. BINARY is the program `toolcrib` for PLATFORM (linux-x64),
// FOLDER gets one file for it and one for the package that all platforms share, which must be built (`npm ci && npm run build`).
import { execFileSync } from "node:child_process";
import { chmodSync, copyFileSync, cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const [binary, folder, platform = "linux-x64"] = process.argv.slice(2);
if (binary === undefined || folder === undefined) {
  console.error("usage: node npm/pack.mjs BINARY FOLDER [PLATFORM]");
  process.exit(2);
}
if (!existsSync(join(here, "toolcrib", "dist", "index.js"))) {
  console.error("npm/toolcrib is not built: run `npm ci && npm run build` there");
  process.exit(1);
}
const out = resolve(folder);
mkdirSync(out, { recursive: true });
const scratch = mkdtempSync(join(tmpdir(), "toolcrib-pack-"));
try {
  const program = copied(`toolcrib-${platform}`);
  mkdirSync(join(program, "bin"), { recursive: true });
  copyFileSync(binary, join(program, "bin", "toolcrib"));
  chmodSync(join(program, "bin", "toolcrib"), 0o755);
  pack(program);

  const shared = copied("toolcrib");
  const description = JSON.parse(readFileSync(join(shared, "package.json"), "utf8"));
  // Not in the sources: a package that is not published yet cannot be in their lock file.
  description.optionalDependencies = { [`toolcrib-${platform}`]: description.version };
  delete description.scripts;
  delete description.devDependencies;
  writeFileSync(join(shared, "package.json"), `${JSON.stringify(description, null, 2)}\n`);
  pack(shared);
} finally {
  rmSync(scratch, { recursive: true });
}

/** A copy of a package without what is installed or made for tests, with the licences. */
function copied(name) {
  const path = join(scratch, name);
  const left = ["node_modules", "build"].map((part) => join(here, name, part));
  cpSync(join(here, name), path, { recursive: true, filter: (source) => !left.includes(source) });
  for (const licence of ["LICENSE-APACHE", "LICENSE-MIT"]) {
    copyFileSync(join(here, "..", licence), join(path, licence));
  }
  return path;
}

function pack(path) {
  execFileSync("npm", ["pack", "--silent", "--pack-destination", out], { cwd: path, stdio: ["ignore", "inherit", "inherit"] });
}
