# shellcheck shell=bash
# What the scripts share: telling people what happens, and getting what is missing.

say() { printf '\n== %s\n' "$*" >&2; }
die() { printf '[ContextPilot] %s\n' "$*" >&2; exit 1; }

# need COMMAND WHAT PACKAGE: has the command, or gets it from Debian's PACKAGE.
need() {
    command -v "$1" >/dev/null 2>&1 && return
    [ -n "$3" ] || die "$1 is missing: install $2 and try again."
    command -v apt-get >/dev/null 2>&1 || die "$1 is missing: install $2 (Debian calls the package $3) and try again."
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || die "$1 is missing. As root: apt-get install $3"
        as_root=(sudo)
    fi
    say "$1 is missing: installing Debian's package $3"
    "${as_root[@]}" apt-get install -y --no-install-recommends "$3" >&2 \
        || { "${as_root[@]}" apt-get update >&2 && "${as_root[@]}" apt-get install -y --no-install-recommends "$3" >&2; } \
        || die "$3 could not be installed. As root: apt-get install $3"
}
