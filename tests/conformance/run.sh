#!/usr/bin/env bash
# Score the fixture, the gateway before it, and the library as a client by the official conformance suite (run.mjs says how).
# usage: bash tests/conformance/run.sh [alone] [gateway] [crossed] [client]        default: all of them
#   TOOLCRIB, TOOLCRIB_LAB, FIXTURE pick other programs than those of target/debug
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
bash install.sh
node=$(ls ../../target/conformance/node_modules/node-linux-*/bin/node)
exec "$node" run.mjs "$@"
