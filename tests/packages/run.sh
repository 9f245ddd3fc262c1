#!/usr/bin/env bash
# Installs each package that `packaging/build.sh` has built into an empty place, where there is no cargo, and uses it as a new user does.
# usage: tests/packages/run.sh [wheel|uvx|npm]...          needs: Python 3.10 or newer with venv, Node.js 20 or newer with npm
# With TOOLCRIB_LAB=FILE (target/release/toolcrib-lab), each program is tortured as well.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
packages=$PWD/target/packages
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python=${PYTHON:-python3}
tools=$PWD/target/packaging/venv/bin

step() { printf '\n== %s\n' "$*"; }
die() { echo "packages: $*" >&2; exit 1; }

# Nothing of this machine but the system: no cargo, no configuration, no caches, no program of this clone.
alone() {
  env -i PATH="$1:/usr/bin:/bin" HOME="$place/home" XDG_RUNTIME_DIR="$place/run" LANG=C.UTF-8 bash -euo pipefail -c "cd '$place/work'; $2"
}
mkdir -p "$place"/{home,run,work}
chmod 700 "$place/run"
printf '[servers.time]\nbuiltin = "time"\n[servers.calc]\ncommand = "toolcrib"\nargs = ["builtin", "calc"]\n' >"$place/work/servers.toml"

# The commands that a new user tries. PATH has the program.
use() {
  local path=$1 began
  began=$(date +%s%N)
  alone "$path" 'toolcrib --version; toolcrib call calc.evaluate expression=2^10 --no-daemon 2>/dev/null || toolcrib call calc.evaluate expression=2^10'
  echo "first answer after $((($(date +%s%N) - began) / 1000000)) ms"
  alone "$path" 'toolcrib demo --out runs >/dev/null 2>&1'
  alone "$path" 'toolcrib doctor 2>&1' | tee "$place/doctor" | grep -i guard || die "no word of guards: $(cat "$place/doctor")"
  alone "$path" 'toolcrib up -d >/dev/null 2>&1; toolcrib call calc.evaluate expression=6*7; toolcrib down'
  alone "$path" 'toolcrib install claude-code --print' | tee "$place/entry"
  if grep -E '/\.cache/uv|/_npx/' "$place/entry"; then die "the entry names a cache"; fi
}

torture() {
  [ -n "${TOOLCRIB_LAB:-}" ] || return 0
  "$TOOLCRIB_LAB" --quiet torture --command "$1" --promised
}

wheel() {
  local file; file=$(ls "$packages"/toolcrib-*.whl)
  step "wheel by pip: $(du -h "$file" | cut -f1)"
  "$python" -m venv "$place/venv"
  local began; began=$(date +%s%N)
  "$place/venv/bin/pip" --disable-pip-version-check --quiet install --no-index "$file"
  echo "installed in $((($(date +%s%N) - began) / 1000000)) ms"
  use "$place/venv/bin"
  alone "$place/venv/bin" 'python -m toolcrib --version'
  # The tests of the package, with the program that it finds by itself.
  cp -r python/tests "$place/tests"
  alone "$place/venv/bin" "cd '$place/tests'; python -m unittest test_api test_ends 2>&1 | tail -3"
  torture "$place/venv/bin/toolcrib"
}

uvx() {
  local file; file=$(ls "$packages"/toolcrib-*.whl)
  step "wheel by uvx"
  [ -x "$tools/uvx" ] || "$tools/pip" --disable-pip-version-check --quiet install uv==0.13.8
  alone "$tools" "uvx --offline --from '$file' toolcrib --version"
  alone "$tools" "uvx --offline --from '$file' toolcrib install claude-code --print" | tee "$place/entry"
  if grep -E '/\.cache/uv' "$place/entry"; then die "the entry names a cache"; fi
}

npm() {
  step "npm packages: $(du -ch "$packages"/toolcrib-*.tgz | tail -1 | cut -f1)"
  local node; node=$(dirname "$(command -v node)")
  mkdir -p "$place/node"
  (cd "$place/node" && command npm init --yes >/dev/null && command npm install --silent --offline --no-audit --no-fund "$packages"/toolcrib-*.tgz)
  use "$place/node/node_modules/.bin:$node"
}

[ $# -gt 0 ] || set -- wheel uvx npm
for what in "$@"; do "$what"; done
step "no process left"
pgrep -f "$place" && die "processes are left" || echo none
