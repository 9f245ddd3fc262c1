#!/usr/bin/env bash
# One call for a real inference server: fetch it once into DIR, make the model, become the server on 127.0.0.1:PORT.
# usage: up.sh DIR PORT [more llama-server options]      ready when GET /health says {"status":"ok"}
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 2 ] || { echo "up.sh: usage: up.sh DIR PORT [more llama-server options]" >&2; exit 1; }
command -v python3 >/dev/null || { echo "up.sh: python3 is missing" >&2; exit 1; }
dir=$1
port=$2
shift 2
bash "$here/get.sh" "$dir"
python3 "$here/make_model.py" "$dir/tiny.gguf"
exec bash "$here/run.sh" "$dir" "$dir/tiny.gguf" "$port" "$@"
