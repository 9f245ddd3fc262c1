#!/usr/bin/env bash
# Score the peers with the built `toolcrib-lab torture`: one table each. Arguments go on to it, such as --repeat 3.
# usage: bash tests/peers/run.sh [python|mcporter|mcporter-cli|toolcrib] [ARGUMENTS..]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
lab=${TOOLCRIB_LAB:-../../target/debug/toolcrib-lab}
node=$(ls -d "$PWD"/node_modules/node-linux-*/bin/node)

peers=(python mcporter mcporter-cli toolcrib)
case "${1:-}" in python | mcporter | mcporter-cli | toolcrib) peers=("$1"); shift ;; esac
worst=0
for peer in "${peers[@]}"; do
  echo "== $peer"
  case $peer in
    python) one=(--command "venv/bin/python python_sdk.py {end} {server}") ;;
    mcporter) one=(--ends drop,cancel,return,panic,exit,abort,sigterm,sigint,sigkill
      --command "$node --expose-gc mcporter.mjs {end} {server}") ;;
    # The command line ends by itself after one call: no other end can be asked of it.
    mcporter-cli) one=(--ends return
      --command "sh -c '$node node_modules/mcporter/dist/cli.js call --stdio \"{server}\" echo && echo ready'") ;;
    toolcrib) one=() ;;
  esac
  "$lab" torture -q --wait 5s "${one[@]}" "$@" || worst=$?
done
exit "$worst"
