#!/usr/bin/env bash
# Run the server that get.sh fetched, in the foreground (this process becomes the server), on 127.0.0.1 only.
# usage: run.sh DIR MODEL.gguf PORT [more llama-server options]
# environment: ENGINE_SLOTS (4) answers at once, ENGINE_CONTEXT (49152) tokens for each; one byte, one token.
# The unpacked libc starts the program directly: no root, no chroot, no namespaces. Stop it with SIGTERM.
set -euo pipefail

die() { echo "run.sh: $*" >&2; exit 1; }
[ $# -ge 3 ] || die "usage: run.sh DIR MODEL.gguf PORT [more llama-server options]"
[ -e "$1/root/.complete" ] || die "no engine in $1; run get.sh first"
[ -r "$2" ] || die "no model $2; run make_model.py first"
root=$(cd "$1/root" && pwd)
model=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
port=$3
shift 3

one() { find "$root/usr" "$@" | sort | head -n 1; }
loader=$(one -name 'ld-linux*.so*' ! -path '*/libc6-prof/*')
server=$(one -path '*/bin/llama-server')
libs=$(dirname "$(one -name 'libllama.so.*')")
backends=$(dirname "$(one -name 'libggml-cpu*.so')")
[ -x "$loader" ] && [ -x "$server" ] || die "the packages in $root are not as expected"

slots=${ENGINE_SLOTS:-4}
threads=$(nproc)
if [ "$threads" -gt 2 ]; then threads=2; fi  # more do not help a model this small
cd "$backends"                               # the server looks for its CPU code in the current folder
unset LD_PRELOAD LD_LIBRARY_PATH
export GOMP_SPINCOUNT=0                      # idle threads must not spin beside other work
exec "$loader" --library-path "$libs:$libs/llama" "$server" \
  --model "$model" --alias tiny --host 127.0.0.1 --port "$port" \
  --parallel "$slots" --ctx-size $((slots * ${ENGINE_CONTEXT:-49152})) --threads "$threads" \
  --jinja --offline --no-ui --metrics "$@"
