#!/usr/bin/env bash
# Install the pinned peers whose teardown `toolcrib-lab torture` scores, all below this folder. Safe to run again.
# usage: bash tests/peers/install.sh        needs: npm, Python >= 3.11 with venv (PYTHON=.. picks one)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { echo "peers: $*"; }
die() { echo "peers: error: $*" >&2; exit 1; }
current() { [ "$(cat "$1/.stamp" 2>/dev/null)" = "$2" ]; }

command -v npm >/dev/null || die "npm is missing; it comes with Node.js"
want=$(cat package.json package-lock.json | sha256sum)
if current node_modules "$want"; then
  say "node_modules is up to date"
else
  say "installing node_modules (npm ci; with the Node.js 24 that mcporter needs)"
  # The engine warning is about the Node.js that runs npm, not the one installed here.
  npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error >/dev/null \
    || die "npm ci failed (see above)"
  echo "$want" > node_modules/.stamp
fi

python=${PYTHON:-python3}
"$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' \
  || die "$python is no Python 3.11 or newer with venv; PYTHON=.. picks another"
# The scripts of a venv carry its absolute path: a moved tree is installed anew.
want=$({ pwd -P; cat requirements.txt; } | sha256sum)
if current venv "$want"; then
  say "venv is up to date"
else
  say "installing venv from requirements.txt ($("$python" --version))"
  rm -rf venv
  "$python" -m venv venv || die "$python could not make the virtual environment"
  venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r requirements.txt \
    || die "pip could not install requirements.txt (see above)"
  venv/bin/python -m pip --disable-pip-version-check check >/dev/null \
    || die "requirements.txt is not a closed set; run venv/bin/pip check"
  echo "$want" > venv/.stamp
fi
say "ready"
