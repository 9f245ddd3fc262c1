#!/usr/bin/env bash
# Fetch Debian unstable's llama.cpp server into DIR/root without touching the system (no root needed).
# usage: get.sh DIR          needs: Debian or a relative of it (apt-get, dpkg-deb, Debian's archive keyring)
# The packages are downloaded with a private apt state and unpacked beside their own libc; nothing is installed.
set -euo pipefail

die() { echo "get.sh: $*" >&2; exit 1; }
[ $# = 1 ] || die "usage: get.sh DIR"
for tool in apt-get dpkg dpkg-deb; do
  command -v "$tool" >/dev/null || die "$tool is missing; the engine comes as Debian packages"
done
arch=$(dpkg --print-architecture)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
done_mark=$dir/root/.complete
if [ -e "$done_mark" ]; then echo "engine: already there, $(cat "$done_mark")"; exit 0; fi

keyring=
for k in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
  if [ -r "$k" ]; then keyring=$k; break; fi
done
[ -n "$keyring" ] || die "Debian's archive keyring is missing (package debian-archive-keyring)"

# The machine's own Debian mirror when it has one, so that a local mirror or proxy is respected.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m1 -E '/debian/?$' || true)}
mirror=${mirror:-http://deb.debian.org/debian}

tmp=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp"/etc/{apt.conf.d,preferences.d} "$tmp"/state/lists/partial "$tmp"/cache/archives/partial "$tmp"/root
: > "$tmp/state/status"                       # "nothing is installed": apt then fetches every dependency
echo "deb [signed-by=$keyring] $mirror sid main" > "$tmp/etc/sources.list"
# How this machine reaches and judges its mirror stays as its owner set it: proxy, certificates, age of the lists.
apt-config dump | grep -E '^Acquire::(https?|Check-)' > "$tmp/apt.conf" || true
cat >> "$tmp/apt.conf" <<CONF
Dir::Etc "$tmp/etc";
Dir::Etc::Parts "$tmp/etc/apt.conf.d";
Dir::State "$tmp/state";
Dir::State::status "$tmp/state/status";
Dir::Cache "$tmp/cache";
Dir::Log "$tmp/state";
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
Acquire::Languages "none";
Acquire::Retries "3";
CONF
if [ "$(id -u)" = 0 ]; then echo 'APT::Sandbox::User "root";' >> "$tmp/apt.conf"; fi

export APT_CONFIG=$tmp/apt.conf
echo "engine: reading the package lists of $mirror sid"
apt-get -qq -o APT::Update::Error-Mode=any update || die "the package lists could not be read from $mirror"
echo "engine: downloading llama.cpp-tools and what it needs"
apt-get -qq -y --download-only --no-install-recommends install llama.cpp-tools || die "the download failed"
version=
for deb in "$tmp"/cache/archives/*.deb; do
  dpkg-deb --extract "$deb" "$tmp/root"
  if [ "$(dpkg-deb -f "$deb" Package)" = llama.cpp-tools ]; then version=$(dpkg-deb -f "$deb" Version); fi
done
find "$tmp/root" -name llama-server -type f | grep -q . || die "the packages hold no llama-server"
echo "llama.cpp-tools $version ($arch)" > "$tmp/root/.complete"
if [ ! -e "$done_mark" ]; then               # another get.sh may have been faster
  rm -rf "$dir/root"
  mv -T "$tmp/root" "$dir/root"
fi
echo "engine: $(cat "$done_mark"), $(du -sh "$dir/root" | cut -f1)"
