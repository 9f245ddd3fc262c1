#!/usr/bin/env bash
# Install the pinned clients of others (npm, PyPI) into target/frameworks, some 900 MB. Safe to run again.
# usage: bash tests/frameworks/install.sh        needs: node >= 20 with npm, Python >= 3.11 with venv (PYTHON=.. picks one)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir -p ../../target/frameworks
into=$(cd ../../target/frameworks && pwd -P)

say() { echo "frameworks: $*"; }
die() { echo "frameworks: error: $*" >&2; exit 1; }
current() { [ "$(cat "$1/.stamp" 2>/dev/null)" = "$2" ]; }

command -v npm >/dev/null || die "npm is missing; it comes with Node.js"
node -e 'process.exit(+process.versions.node.split(".")[0] >= 20 ? 0 : 1)' ||
  die "node $(node --version) is too old; Node.js 20 or newer is needed"
want=$(cat package.json package-lock.json | sha256sum)
if current "$into/node_modules" "$want"; then
  say "node_modules is up to date"
else
  say "installing node_modules (npm ci)"
  cp package.json package-lock.json "$into"
  npm ci --prefix "$into" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error >/dev/null ||
    die "npm ci failed (see above)"
  echo "$want" >"$into/node_modules/.stamp"
fi

python=${PYTHON:-python3}
"$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' ||
  die "$python is no Python 3.11 or newer with venv; PYTHON=.. picks another"
for major in 1 2; do
  venv=$into/python-$major
  # The scripts of a venv carry its absolute path: a moved tree is installed anew.
  want=$({ echo "$into"; cat "requirements-$major.txt"; } | sha256sum)
  if current "$venv" "$want"; then say "the frameworks on mcp $major.x are up to date"; continue; fi
  say "installing the frameworks on mcp $major.x ($("$python" --version))"
  rm -rf "$venv"
  "$python" -m venv "$venv" || die "$python could not make the virtual environment"
  "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile --no-deps -r "requirements-$major.txt" ||
    die "pip could not install requirements-$major.txt (see above)"
  echo "$want" >"$venv/.stamp"
done
say "ready"
