#!/usr/bin/env bash
# Install the pinned public MCP servers the tests talk to, all below this folder. Safe to run again.
# usage: bash tests/servers/install.sh        needs: node >= 20 with npm, Python >= 3.11 with venv (PYTHON=.. picks one)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
here=$(pwd -P)

say() { echo "servers: $*"; }
die() { echo "servers: error: $*" >&2; exit 1; }

# Two test binaries may call this at the same time: the second one waits, then finds everything in place.
writable=no
if [ -w . ] && { [ ! -e .install.lock ] || [ -w .install.lock ]; }; then writable=yes; fi
if [ $writable = yes ] && command -v flock >/dev/null; then
  exec 9> .install.lock
  flock 9
fi

# --- what must be there -------------------------------------------------------------------------------------------
command -v node >/dev/null || die "node is missing; install Node.js 20 or newer"
command -v npm >/dev/null || die "npm is missing; it comes with Node.js"
node -e 'process.exit(+process.versions.node.split(".")[0] >= 20 ? 0 : 1)' \
  || die "node $(node --version) is too old; Node.js 20 or newer is needed"

new_enough='import sys; sys.exit(0 if sys.version_info >= (3, 11) else 1)'
python=
for p in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
  if command -v "$p" >/dev/null && "$p" -c "$new_enough" 2>/dev/null; then python=$p; break; fi
  if [ "$p" = "${PYTHON:-}" ]; then die "PYTHON=$PYTHON is not a Python 3.11 or newer"; fi
done
[ -n "$python" ] || die "Python 3.11 or newer is missing (python3, python3.11, python3.12, python3.13 were tried)"
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing the system package python3-venv"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install python3-venv; } >/dev/null \
      || die "apt-get could not install python3-venv"
  fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null \
    || die "$python cannot make virtual environments; install python3-venv"
fi

# --- one step per environment -------------------------------------------------------------------------------------
# The stamp names the folder too: the scripts in a venv carry its absolute path, so a moved tree is installed anew.
stamp_of() {
  "$python" -c 'import hashlib, sys
h = hashlib.sha256(sys.argv[1].encode())
for name in sys.argv[2:]: h.update(open(name, "rb").read())
print(h.hexdigest())' "$here" "$@"
}
may_install() { [ $writable = yes ] || die "$1 is not up to date and $here is not writable for $(id -un)"; }
current() { [ "$(cat "$1/.stamp" 2>/dev/null)" = "$2" ]; }

install_npm() {
  local want; want=$(stamp_of package.json package-lock.json)
  if current node_modules "$want"; then say "node_modules is up to date"; return; fi
  may_install node_modules
  say "installing node_modules (npm ci)"
  rm -f node_modules/.stamp
  npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error >/dev/null \
    || die "npm ci failed (see above)"
  mkdir -p node_modules/.cache              # the memory server keeps its file there
  echo "$want" > node_modules/.stamp
}

install_venv() {                            # FOLDER REQUIREMENTS
  local want; want=$(stamp_of "$2")
  if current "$1" "$want" && "$1/bin/python" -c "$new_enough" 2>/dev/null; then say "$1 is up to date"; return; fi
  may_install "$1"
  say "installing $1 from $2 ($("$python" --version))"
  rm -rf "$1"
  "$python" -m venv "$1" || die "$python could not make the virtual environment $1"
  "$1/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps -r "$2" \
    || die "pip could not install $2 (see above)"
  "$1/bin/python" -m pip --disable-pip-version-check check >/dev/null \
    || die "$2 is not a closed set; run $1/bin/pip check"
  echo "$want" > "$1/.stamp"
}

install_uv() {                              # uv, and in its cache the environment that uvx makes for one server
  install_venv venv-uv requirements-uv.txt
  local want; want=$(stamp_of requirements.txt requirements-uv.txt)
  if current uv-cache "$want"; then say "uv-cache is up to date"; return; fi
  may_install uv-cache
  say "installing mcp-server-time with uvx"
  rm -rf uv-cache
  # As the tests do, but that these may not use a network.
  UV_CACHE_DIR=$here/uv-cache UV_CONSTRAINT=$here/requirements.txt UV_PYTHON=$python UV_PYTHON_DOWNLOADS=never \
    venv-uv/bin/uvx --quiet mcp-server-time --help >/dev/null || die "uvx could not start mcp-server-time (see above)"
  echo "$want" > uv-cache/.stamp
}

install_npm
install_venv venv requirements.txt
install_venv venv-sqlite requirements-sqlite.txt
install_venv venv-numpy requirements-numpy.txt
install_uv
say "ready"
