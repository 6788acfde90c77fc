# shellcheck shell=bash
# A Python environment below target/, made once. Needs $repository.

say() { printf '[ContextPilot] %s\n' "$*" >&2; }

# give_up CODE TEXT, one line: what happened and what to do.
give_up() {
    say "$2"
    exit "$1"
}

# environment NAME WHAT MODULE LINE...: makes the environment target/NAME for WHAT, if it is not there, and
# prints the path of its Python. Each LINE is the arguments of one call of pip install. MODULE is imported
# as a check.
#
#   exit code 77   there is no Python to make it with: skip what needs it
#   exit code 69   there is one, but the packages could not be had
environment() {
    local name=$1 what=$2 module=$3
    shift 3
    home=$repository/target/$name
    made_for="$home $*"
    done_already

    command -v python3 >/dev/null ||
        give_up 77 "no python3 here, so $what cannot run; install Python 3.10 or newer (Debian: python3 and python3-venv)"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        give_up 77 "$(python3 --version 2>&1) is too old for $what; install Python 3.10 or newer"
    command -v flock >/dev/null ||
        give_up 77 "flock is missing, so two test runs could spoil each other's target/$name; install util-linux"

    mkdir -p -- "$repository/target"
    exec 9>"$repository/target/$name.lock"
    flock -n 9 || {
        say "another run is preparing target/$name; waiting for it"
        flock 9
    }
    done_already

    # Leftovers of runs that were killed: we hold the lock, so nobody uses them.
    rm -rf -- "$repository/target/$name".tmp.*
    work=$(mktemp -d -- "$repository/target/$name.tmp.XXXXXX")
    trap 'rm -rf -- "$work"' EXIT
    chmod 755 -- "$work"
    local python=$work/venv/bin/python pip line

    # Debian splits what fills an environment with pip into python3-venv, and pip
    # itself into python3-pip: one of the two is enough.
    if python3 -m venv -- "$work/venv" >"$work/log" 2>&1; then
        pip=("$python" -m pip)
    else
        rm -rf -- "$work/venv"
        if python3 -m venv --without-pip -- "$work/venv" >"$work/log" 2>&1 &&
            python3 -m pip --python "$python" --version >"$work/log" 2>&1; then
            pip=(python3 -m pip --python "$python")
        else
            give_up 77 "python3 cannot make a virtual environment ($(tail -n 1 "$work/log")); install its venv module and pip (Debian: python3-venv)"
        fi
    fi

    say "fetching $what into target/$name (once; nothing is installed elsewhere)"
    for line in "$@"; do
        # Wheels only: to build them here would take longer than any test.
        # The lock is not for children that outlive us.
        # shellcheck disable=SC2086
        "${pip[@]}" --disable-pip-version-check install --quiet --only-binary :all: $line >"$work/log" 2>&1 9>&- ||
            give_up 69 "pip could not install what $what needs ($(grep -m 1 '^ERROR' "$work/log" || tail -n 1 "$work/log")); see that pip can reach its package index"
    done
    "$python" -c "import $module" >"$work/log" 2>&1 ||
        give_up 69 "$what was installed and does not start ($(tail -n 1 "$work/log")); its packages have changed, see ${BASH_SOURCE[-1]}"

    # An environment may be moved: its python finds it by its own path. (Its other commands may
    # not, but nothing here uses them.)
    printf '%s\n' "$made_for" >"$work/venv/.made-for"
    rm -rf -- "$home"
    mv -- "$work/venv" "$home"
    printf '%s\n' "$home/bin/python"
    # Before a shell that reads this script again leaves.
    rm -rf -- "$work"
}

# Prints the path of the Python and exits, if the environment is complete, was made for this folder and
# these packages, and the Python that it was made from still runs.
done_already() {
    if [[ $(cat -- "$home/.made-for" 2>/dev/null) == "$made_for" ]] && "$home/bin/python" -c '' 2>/dev/null; then
        printf '%s\n' "$home/bin/python"
        exit
    fi
}
