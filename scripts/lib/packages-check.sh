# shellcheck shell=bash
# Tries the packages of target/packages/out, each in a clean system without files of this machine. Needs
# $repository, $packages, $version, say and die.

# check [WHAT...]: tries what can be tried here, and says what cannot.
check() {
    local what results=() result=0
    [ $# -gt 0 ] || set -- tarball deb service insert container wheel aarch64
    [[ -f $packages/out/SHA256SUMS ]] || die "there is nothing to check: scripts/package first"
    (cd -- "$packages/out" && sha256sum --check --quiet SHA256SUMS)
    for what; do
        say "Checking: $what"
        local code begin=$SECONDS
        # Not in a condition: set -e would have no effect there.
        set +e
        (set -e; "check_$what")
        code=$?
        set -e
        case $code in
        0) results+=("$what: passed, $((SECONDS - begin)) s") ;;
        77) results+=("$what: NOT RUN, see above") ;;
        *) results+=("$what: FAILED ($code)") result=1 ;;
        esac
    done
    printf '%s\n' "${results[@]}"
    return "$result"
}

# A command for any shell. Prints how long it took from the package to the demo's last line; $begin is in
# nanoseconds.
took='echo "from the package to the last line of the demo: $((($(date +%s%N) - begin) / 1000000)) ms"'

not_run() {
    printf 'not run: %s\n' "$*" >&2
    exit 77
}

# root_of NAME SUITE PACKAGE...: prints a folder with a small Debian, made once, from this machine's mirror.
# The root NAME arm64 is for that architecture, emulated.
root_of() {
    local suite=$2 root=$packages/roots/$1 source making=(mmdebstrap)
    [[ $1 != arm64 ]] || making=("$repository/scripts/lib/emulated" mmdebstrap --skip=check/qemu,chroot/mount/proc,chroot/mount/sys --architectures=arm64)
    shift 2
    if [[ ! -e $root/etc/made ]]; then
        command -v mmdebstrap >/dev/null || not_run "mmdebstrap is missing: apt-get install mmdebstrap"
        [[ $(id -u) == 0 ]] || not_run "only root can make and enter a root folder"
        # shellcheck source=scripts/lib/debian.sh
        . "$repository/scripts/lib/debian.sh"
        source=$(archives | sort -u | sed -n 1p | cut -d $'\002' -f 1)
        [[ -n $source ]] || not_run "no Debian archive in this machine's apt sources"
        rm -rf -- "$root"
        mkdir -p -- "${root%/*}"
        # A mirror may be out of date by some weeks.
        "${making[@]}" --quiet --mode=root --variant=essential --aptopt='Acquire::Check-Valid-Until "false"' \
            --include="$(IFS=, && echo "apt,$*")" \
            "$suite" "$root" "deb $source $suite main" >&2 || not_run "Debian $suite could not be fetched (see above)"
        touch -- "$root/etc/made"
    fi
    printf '%s\n' "$root"
}

# Debian sid with what the service needs.
root_of_sid() { root_of sid sid llama.cpp-tools systemd dbus mount curl; }

# in_root ROOT MODE SCRIPT: see scripts/lib/in-root.
in_root() {
    local server
    server=$("$repository/scripts/llama-server")
    entered "$1" "$2" "$server" "$3"
}

# entered ROOT MODE SERVER SCRIPT: the same, with another server.
entered() {
    unshare --mount --pid --net --fork -- "$repository/scripts/lib/in-root" "$1" "$2" "$packages" "$3" "$4"
}

check_tarball() {
    local script suite root
    script='
        begin=$(date +%s%N)
        mkdir -p /opt
        tar -x -z -f /packages/contextpilot-llama-server-*-x86_64-linux.tar.gz -C /opt
        cd /opt/contextpilot-llama-server-*-x86_64-linux
        LLAMA_SERVER_BIN=$SERVER bin/contextpilot-llama demo | tail -n 1
        '"$took"'
        LLAMA_SERVER_BIN=$SERVER HOME=/root bin/contextpilot-llama doctor | sed -n "/hook  /p; /^Next/p"
        test "$(bin/contextpilot-llama hook-path)" = "$(echo "$PWD"/lib/contextpilot-llama-server/*.so)"'
    for suite in oldoldstable oldstable sid; do
        say "in Debian $suite"
        if [[ $suite == sid ]]; then root=$(root_of_sid); else root=$(root_of "$suite" "$suite"); fi
        in_root "$root" rw "$script" | tee "$packages/checked"
        grep -q '4 of 6 requests fell out, 0 reports were wrong' "$packages/checked"
    done
}

check_deb() {
    local root list
    if command -v lintian >/dev/null; then
        lintian --allow-root --fail-on error,warning \
            "$packages"/out/contextpilot-llama-server_*_amd64.deb
    else
        echo "lintian is missing: not run" >&2
    fi
    root=$(root_of_sid)
    list='find / -xdev -not \( -path "/var/lib/dpkg/*" -o -path "/var/lib/apt/*" -o -path "/var/cache/*" -o -path "/var/log/*" -o -path "/run/*" \) | sort'
    say "installed, used by nobody, purged"
    in_root "$root" rw "
        $list >/tmp/before
        begin=\$(date +%s%N)
        dpkg -i /packages/contextpilot-llama-server_*_amd64.deb
        test \"\$(contextpilot-llama hook-path)\" = \"\$(echo /usr/lib/contextpilot-llama-server/*.so)\"
        setpriv --reuid=nobody --regid=nogroup --clear-groups contextpilot-llama demo >/tmp/demo
        tail -n 1 /tmp/demo
        $took
        grep -q '0 reports were wrong' /tmp/demo
        grep -q ' (hook /usr/lib/contextpilot-llama-server/' /tmp/demo
        systemd-analyze verify --man=no /usr/lib/systemd/system/contextpilot-llama-server@.service
        systemd-analyze security --offline=true --threshold=30 --no-pager \
            /usr/lib/systemd/system/contextpilot-llama-server@.service | tail -n 1
        # As the service starts it.
        echo 'LLAMA_SERVER_ARGS=--version' >/etc/default/contextpilot-llama-server.test
        sh -c '. /etc/default/contextpilot-llama-server.test; exec contextpilot-llama-server \$LLAMA_SERVER_ARGS' 2>&1 | head -n 1
        rm /etc/default/contextpilot-llama-server.test
        dpkg --purge contextpilot-llama-server
        $list >/tmp/after
        diff /tmp/before /tmp/after && echo 'nothing is left'"
    say "a root that cannot be written to, no home"
    in_root "$root" ro "
        ! touch /root/probe 2>/dev/null
        setpriv --reuid=nobody --regid=nogroup --clear-groups contextpilot-llama demo | tail -n 1 | tee /tmp/demo
        grep -q '0 reports were wrong' /tmp/demo"
}

check_wheel() {
    local venv wheel server demo begin
    venv=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf -- '$venv'" EXIT
    server=$("$repository/scripts/llama-server")
    wheel=$(echo "$packages/out/contextpilot_llama_server-$version-py3-none-"*"_$(uname -m).whl")
    begin=$(date +%s%N)
    python3 -m venv -- "$venv/one" || not_run "python3 cannot make a virtual environment"
    pip() { "$venv/one/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
    pip install --no-index "$wheel"
    demo=(env -i PATH="$venv/one/bin:/usr/bin:/bin" LLAMA_SERVER_BIN="$server" contextpilot-llama demo)
    "${demo[@]}" | tail -n 1
    eval "$took"
    "$venv/one/bin/contextpilot-llama" hook-path | grep -F "$venv/one/lib/contextpilot-llama-server/"
    which_command() { head -c 2 "$venv/one/bin/contextpilot-llama-server" | grep -q '#!' && echo Python || echo ours; }

    say "Beside the package contextpilot, whose command has the same name"
    if pip install --no-deps contextpilot==0.5.0; then
        echo "installed after ours, the command is: $(which_command)"
        # It works with limits: exit code 1.
        { "$venv/one/bin/contextpilot-llama" doctor "$server" || true; } | grep '^limit  launcher'
        pip install --no-index --force-reinstall --no-deps "$wheel"
        echo "ours installed again, the command is: $(which_command)"
        [[ $(which_command) == ours ]]
        "${demo[@]}" | tail -n 1
        pip uninstall --yes contextpilot
        [[ -e $venv/one/bin/contextpilot-llama-server ]] &&
            echo "contextpilot removed, the command is: $(which_command)" ||
            echo "contextpilot removed, and the command with it"
    else
        echo "contextpilot 0.5.0 could not be fetched: not tried beside it" >&2
    fi
    pip uninstall --yes contextpilot-llama-server
    [[ -z $(find "$venv/one" -name '*contextpilot*') ]] && echo "nothing is left"
}

check_aarch64() {
    [[ -e $packages/aarch64/stage ]] || not_run "not built: scripts/package aarch64"
    # shellcheck source=scripts/lib/cross.sh
    . "$repository/scripts/lib/cross.sh"
    give_up() { not_run "$*"; }
    cross_folder
    export QEMU=$cross/root/usr/bin/qemu-aarch64 QEMU_CPU=neoverse-n1
    check_aarch64_tarball
    check_aarch64_packages
}

check_aarch64_tarball() (
    local folder
    export QEMU_LD_PREFIX=$cross/arm64 LLAMA_SERVER_BIN=$cross/arm64/usr/bin/llama-server
    say "the tarball, with the machine's own libraries for arm64"
    folder=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf -- '$folder'" EXIT
    tar -x -z -f "$packages/out/contextpilot-llama-server-$version-aarch64-linux.tar.gz" -C "$folder" --strip-components=1
    # It works with limits, as there is no index: exit code 1.
    { "$repository/scripts/lib/emulated" "$folder/bin/contextpilot-llama" doctor || true; } |
        sed -n '/linked/p; /hook  /p; /^Next/p'
    "$repository/scripts/lib/emulated" "$folder/bin/contextpilot-llama" demo | tail -n 1
)

# The Debian package, installed by an emulated system's own dpkg; and the wheel, which this machine's pip
# unpacks for that one (into a folder, where pip leaves out lib, so the hook is the one that the launcher carries).
check_aarch64_packages() {
    local root
    root=$(root_of arm64 sid llama.cpp-tools)
    rm -rf -- "$packages/more/wheel"
    python3 -m pip --disable-pip-version-check --quiet install --no-index --only-binary=:all: \
        --platform manylinux2014_aarch64 --target "$packages/more/wheel" \
        "$packages/out/contextpilot_llama_server-$version-py3-none-"*_aarch64.whl
    say "the Debian package and the wheel, in Debian sid for arm64"
    # Another program cannot call a function of this shell, so the text of the function is passed on.
    # shellcheck disable=SC2016
    "$repository/scripts/lib/emulated" bash -euc \
        "$(declare -f entered)"'; repository=$1 packages=$2; entered "$3" rw "$4" "$5"' \
        entered "$repository" "$packages" "$root" /usr/bin/llama-server '
        export QEMU_CPU=neoverse-n1
        dpkg --print-architecture
        begin=$(date +%s%N)
        dpkg -i /packages/contextpilot-llama-server_*_arm64.deb
        contextpilot-llama demo >/tmp/demo
        tail -n 1 /tmp/demo
        '"$took"'
        grep -q " 0 reports were wrong" /tmp/demo
        grep -q " (hook /usr/lib/contextpilot-llama-server/" /tmp/demo
        dpkg --purge contextpilot-llama-server
        echo the wheel
        /more/wheel/bin/contextpilot-llama demo >/tmp/demo
        tail -n 1 /tmp/demo
        grep -q " 0 reports were wrong" /tmp/demo'
}
