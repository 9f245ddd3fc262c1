#!/usr/bin/env bash
# Put clients of others (SDKs and agent frameworks, npm and PyPI) through `toolcrib serve` and `toolcrib connect`.
# usage: bash tests/frameworks/run.sh [--verbose] [CLIENT..]      default: all of them (run.py has their names)
#   TOOLCRIB_BIN picks another program than target/debug/toolcrib; FRAMEWORKS_LOGS=FOLDER keeps the logs
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
bash "$here/install.sh"
[ -d "$here/../servers/node_modules" ] || bash "$here/../servers/install.sh"
exec "$here/../../target/frameworks/python-2/bin/python" "$here/run.py" "$@"
