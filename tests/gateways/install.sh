#!/usr/bin/env bash
# Install the pinned gateways that `toolcrib-lab bench gateway` measures beside toolcrib, into target/gateways, and write there
# peers.json, which says how each is started. Safe to run again.
# usage: bash tests/gateways/install.sh        needs: npm, cargo, Python >= 3.11 with venv (PYTHON=.. picks one)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir -p ../../target/gateways
into=$(cd ../../target/gateways && pwd -P)

say() { echo "gateways: $*"; }
die() { echo "gateways: error: $*" >&2; exit 1; }
current() { [ "$(cat "$1/.stamp" 2>/dev/null)" = "$2" ]; }

command -v npm >/dev/null || die "npm is missing; it comes with Node.js"
want=$(cat package.json package-lock.json | sha256sum)
if current "$into" "$want"; then
  say "node_modules is up to date"
else
  say "installing node_modules (npm ci; with the Node.js 24 that mcporter needs)"
  cp package.json package-lock.json "$into"
  # The engine warning is about the Node.js that runs npm, not the one installed here.
  npm ci --prefix "$into" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error >/dev/null ||
    die "npm ci failed (see above)"
  echo "$want" >"$into/.stamp"
fi

python=${PYTHON:-python3}
"$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' ||
  die "$python is no Python 3.11 or newer with venv; PYTHON=.. picks another"
# They need other releases of the SDK: one environment for each.
for gateway in fastmcp mcp-proxy; do
  venv=$into/$gateway
  # The scripts of a venv carry its absolute path: a moved tree is installed anew.
  want=$({ echo "$into"; cat "requirements-$gateway.txt"; } | sha256sum)
  if current "$venv" "$want"; then say "$gateway is up to date"; continue; fi
  say "installing $gateway ($("$python" --version))"
  rm -rf "$venv"
  "$python" -m venv "$venv" || die "$python could not make the virtual environment"
  "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps -r "requirements-$gateway.txt" ||
    die "pip could not install requirements-$gateway.txt (see above)"
  echo "$want" >"$venv/.stamp"
done

# Its default features are for what is not measured here, and take minutes to build.
rust=$into/mcp-proxy-rust
want="mcp-proxy 0.6.0"
if current "$rust" "$want"; then
  say "mcp-proxy of crates.io is up to date"
else
  say "installing mcp-proxy of crates.io (cargo install; some minutes)"
  cargo install --quiet --locked mcp-proxy --version 0.6.0 --no-default-features --features protocol-2026-07-28 \
    --root "$rust" --target-dir "$into/build" || die "cargo could not install mcp-proxy (see above)"
  rm -rf "$into/build"
  echo "$want" >"$rust/.stamp"
fi

node=$(ls "$into"/node_modules/node-linux-*/bin/node)
sed -e "s|NODE|$node|g; s|INTO|$into|g" peers.json >"$into/peers.json"
say "ready: toolcrib-lab bench gateway --peers $into/peers.json"
