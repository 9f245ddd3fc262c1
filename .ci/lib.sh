# What both lanes of the check share: their steps, what they find on a machine, and the count of processes at the end.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/.."

began=$SECONDS
# Names the next step, with the minutes since the start.
step() { printf '\n== %s  [%d min]\n' "$*" $(((SECONDS - began) / 60)); }
skip() { echo "$* cannot be had here: skipped"; }

# Nothing is built twice with a small change between: what makes that fast takes as much disk as the build itself.
export CARGO_INCREMENTAL=0

# A process that somebody else started is not ours: the teardown is judged by what is new at the end.
owned() { grep -lsz '^TOOLCRIB_OWNER=' /proc/[0-9]*/environ 2>/dev/null | sort || true; }
owned_before=$(owned)

no_process_left() {
  step "no process left"
  local left process
  left=$(comm -13 <(echo "$owned_before") <(owned))
  for process in $left; do echo "left over: $process $(tr '\0' ' ' <"${process%environ}cmdline")" >&2; done
  [ -z "$left" ] && echo "none"
}

# Whatever is listed here counts as met: its tests fail where it is missing, instead of being skipped (docs/testing.md).
export TOOLCRIB_TEST_REQUIRE=public_servers,numpy,uv,export_readers,npm_registry,python3,git

get_browser() {
  command -v chromium && return
  [ "$(id -u)" = 0 ] && command -v apt-get && apt-get -qq update &&
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core
}

get_promtool() {
  command -v promtool && return
  # Of the package only this program: it would start a server.
  mkdir -p target/promtool && (cd target/promtool && command -v apt-get && apt-get -qq update &&
    apt-get -qq download prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool) &&
    PATH=$PWD/target/promtool/usr/bin:$PATH
}

# Servers, programs and readers that tests talk to.
install_for_tests() {
  bash tests/servers/install.sh
  bash tests/exports/install.sh
  if get_browser >/dev/null 2>&1; then TOOLCRIB_TEST_REQUIRE+=,chromium; else skip "chromium"; fi
  if get_promtool >/dev/null 2>&1; then TOOLCRIB_TEST_REQUIRE+=,promtool; else skip "promtool"; fi
}

# A machine that was too busy for a moment is no defect: a test that fails is run once more, and told as FLAKY.
nextest() { NEXTEST_RETRIES=1 cargo nextest run --locked "$@"; }
