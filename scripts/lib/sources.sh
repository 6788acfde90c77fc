# shellcheck shell=bash
# llama.cpp's server tests and chat templates, from the sources of PyPI's llama-cpp-python. Needs $repository.

# shellcheck source=scripts/lib/venv.sh
. "$repository/scripts/lib/venv.sh"

package=llama-cpp-python==0.3.36
sum=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

# sources_python: prints the path of a Python with what the sources are fetched and their tests run with.
sources_python() {
    environment server-tests-venv "what llama.cpp's server tests need (60 MB)" pytest \
        "pytest==9.2.0 pytest-timeout==2.4.0 requests==2.34.2 openai==3.57.0 filelock==4.3.1 scikit-build-core==1.1.2 cmake==4.4.5"
}

# sources PYTHON: fetches them into target/server-tests/sources, if they are not there.
sources() {
    local python=$1 home=$repository/target/server-tests work
    [[ ! -e $home/sources ]] || return 0
    mkdir -p -- "$home"
    rm -rf -- "$home"/tmp.*
    work=$(mktemp -d -- "$home/tmp.XXXXXX")
    say "fetching llama.cpp's server tests and templates into target/server-tests (77 MB, once)"
    # pip asks cmake for the package's metadata, and compiles nothing.
    "$python" -m pip --disable-pip-version-check download --quiet --no-deps --no-build-isolation --no-binary :all: \
        --dest "$work" "$package" >"$work/log" 2>&1 ||
        give_up 69 "pip could not fetch $package ($(grep -m 1 '^ERROR' "$work/log" || tail -n 1 "$work/log")); see that pip can reach its package index"
    sha256sum --check --status <<<"$sum  $(echo "$work"/*.tar.gz)" ||
        give_up 69 "$package has other sources than it had; look at them, and correct the checksum in scripts/lib/sources.sh"
    mkdir -- "$work/sources"
    tar -xzf "$work"/*.tar.gz -C "$work/sources" --strip-components 3 --wildcards \
        '*/vendor/llama.cpp/tools/server/tests/*' '*/vendor/llama.cpp/models/templates/*'
    mv -- "$work/sources" "$home/sources"
    rm -rf -- "$work"
}
