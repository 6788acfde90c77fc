# shellcheck shell=bash
# Packages from npm in a folder below target/, made once. Needs $repository, and scripts/lib/venv.sh.

# npm_packages NAME WHAT TOOLS PACKAGE...: makes the folder target/NAME with these packages below its node_modules, if it is not
# there, and sets $home to its path. WHAT is fetched, with its size. TOOLS is what it takes besides flock: "node npm".
#
#   exit code 77   there is no node or npm to make it with: skip what needs it
#   exit code 69   there are, but the packages could not be had
npm_packages() {
    local name=$1 what=$2 tools=$3 tool
    shift 3
    home=$repository/target/$name
    for tool in $tools flock; do
        command -v "$tool" >/dev/null ||
            give_up 77 "no $tool here for $what; install node 20 or newer with npm (Debian: nodejs and npm)"
    done
    mkdir -p -- "$home"
    exec 9>"$home.lock"
    flock 9
    if [[ $(cat -- "$home/.made-for" 2>/dev/null) != "$*" ]]; then
        say "fetching $what into target/$name (once; nothing is installed elsewhere)"
        rm -rf -- "$home/node_modules"
        npm install --silent --ignore-scripts --no-audit --no-fund --prefix "$home" "$@" >&2 9>&- ||
            give_up 69 "npm could not fetch $* (the messages above say why)"
        printf '%s\n' "$*" >"$home/.made-for"
    fi
}
