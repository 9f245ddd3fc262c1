#!/usr/bin/env bash
# Install the pinned conformance suites, with the Node.js 22 that they need, into target/conformance. Safe to run again.
# usage: bash tests/conformance/install.sh        needs: npm
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
into=../../target/conformance

command -v npm >/dev/null || { echo "conformance: error: npm is missing; it comes with Node.js" >&2; exit 1; }
want=$(cat package.json package-lock.json | sha256sum)
if [ "$(cat "$into/.stamp" 2>/dev/null)" = "$want" ]; then
  echo "conformance: up to date"
  exit
fi
echo "conformance: installing (npm ci)"
mkdir -p "$into"
cp package.json package-lock.json "$into"
# The engine warning is about the Node.js that runs npm, not the one installed here.
npm ci --prefix "$into" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error >/dev/null ||
  { echo "conformance: error: npm ci failed (see above)" >&2; exit 1; }
echo "$want" >"$into/.stamp"
echo "conformance: ready"
