#!/usr/bin/env bash
# Install the pinned packages of others that the tests of the Python package use, into target/python. Safe to run again.
# usage: bash python/tests/install.sh        needs: Python >= 3.11 with venv (PYTHON=.. picks one); 3.12 for mesa-llm
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir -p ../../target/python
into=$(cd ../../target/python && pwd -P)

say() { echo "python: $*"; }
die() { echo "python: error: $*" >&2; exit 1; }

python=${PYTHON:-python3}
"$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' ||
  die "$python is no Python 3.11 or newer with venv; PYTHON=.. picks another"
for name in mcp-1 mcp-2 mesa; do
  venv=$into/$name
  if [ $name = mesa ] && ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
    say "mesa-llm needs Python 3.12: it is left out"
    continue
  fi
  # The scripts of a venv carry its absolute path: a moved tree is installed anew.
  want=$({ echo "$venv"; "$python" --version; cat "requirements-$name.txt"; } | sha256sum)
  if [ "$(cat "$venv/.stamp" 2>/dev/null)" = "$want" ]; then say "$name is up to date"; continue; fi
  say "installing $name ($("$python" --version))"
  rm -rf "$venv"
  "$python" -m venv "$venv" || die "$python could not make the virtual environment"
  "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile --no-deps -r "requirements-$name.txt" ||
    die "pip could not install requirements-$name.txt (see above)"
  "$venv/bin/python" -m pip --disable-pip-version-check check >/dev/null ||
    die "requirements-$name.txt is not a closed set; run $venv/bin/pip check"
  echo "$want" >"$venv/.stamp"
done
say "ready"
