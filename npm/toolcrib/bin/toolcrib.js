#!/usr/bin/env node
// The command `toolcrib`, as npm and npx start it.
import "../dist/launcher.js";
