# shellcheck shell=bash
# Tries the packages of target/packages/out, each in a place that has nothing of this machine. Needs
# $repository, $packages, $version, say and die.

# check [WHAT...]: those that can be tried here, and says which cannot.
check() {
    local what results=() result=0
    [ $# -gt 0 ] || set -- tarball deb wheel aarch64
    [[ -f $packages/out/SHA256SUMS ]] || die "there is nothing to check: scripts/package first"
    (cd -- "$packages/out" && sha256sum --check --quiet SHA256SUMS)
    for what; do
        say "Checking: $what"
        local code begin=$SECONDS
        # Not as a part of a condition: there set -e would count for nothing.
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

# Prints how long it took from the package to the demo's last line; BEGIN is in nanoseconds, for any shell.
took='echo "from the package to the last line of the demo: $((($(date +%s%N) - begin) / 1000000)) ms"'

not_run() {
    printf 'not run: %s\n' "$*" >&2
    exit 77
}

# root_of SUITE PACKAGE...: prints a folder with a small Debian, made once, from this machine's mirror.
root_of() {
    local suite=$1 root=$packages/roots/$1 source
    shift
    if [[ ! -e $root/etc/made ]]; then
        command -v mmdebstrap >/dev/null || not_run "mmdebstrap is missing: apt-get install mmdebstrap"
        [[ $(id -u) == 0 ]] || not_run "a root folder is made, and entered, by root only"
        # shellcheck source=scripts/lib/debian.sh
        . "$repository/scripts/lib/debian.sh"
        source=$(archives | sort -u | sed -n 1p | cut -d $'\002' -f 1)
        [[ -n $source ]] || not_run "no Debian archive in this machine's apt sources"
        rm -rf -- "$root"
        mkdir -p -- "${root%/*}"
        # A mirror may be some weeks behind.
        mmdebstrap --quiet --mode=root --variant=essential --aptopt='Acquire::Check-Valid-Until "false"' \
            --include="$(IFS=, && echo "apt,$*")" \
            "$suite" "$root" "deb $source $suite main" >&2 || not_run "Debian $suite is not to be had (see above)"
        touch -- "$root/etc/made"
    fi
    printf '%s\n' "$root"
}

# in_root ROOT MODE SCRIPT: runs it in a copy of ROOT that is gone afterwards. The packages are in
# /packages, the llama-server that tests use where it is on this machine. MODE ro: the Debian package is
# there, and nothing can be written but /tmp, from which nothing can be executed. Loopback is all the
# network there is.
in_root() {
    local server
    server=$("$repository/scripts/llama-server")
    unshare --mount --pid --net --fork -- bash -euc '
        root=$1 mode=$2 packages=$3 server=$4 script=$5
        ip link set lo up
        base=$packages/mounted
        mkdir -p -- "$base"
        mount -t tmpfs none "$base"
        mkdir -- "$base"/{upper,work,root}
        mount -t overlay overlay -o "lowerdir=$root,upperdir=$base/upper,workdir=$base/work" "$base/root"
        cd -- "$base/root"
        mkdir -p "./packages" "./${server%/*}" ./dev/shm
        mount --bind "$packages/out" ./packages
        [[ $server == /usr/* ]] || mount --bind "${server%/*}" "./${server%/*}"
        mount -t proc proc ./proc
        mount -t tmpfs none ./dev
        for device in null zero random urandom; do
            : >"./dev/$device"
            mount --bind "/dev/$device" "./dev/$device"
        done
        mkdir ./dev/shm
        mount -t tmpfs -o mode=1777 none ./dev/shm
        mount -t tmpfs -o mode=1777,noexec none ./tmp
        if [[ $mode == ro ]]; then
            dpkg-deb -x ./packages/contextpilot-llama-server_*_amd64.deb .
            mount -o remount,ro .
        fi
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 SERVER="$server" chroot . /bin/sh -euc "$script"
    ' in_root "$1" "$2" "$packages" "$server" "$3"
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
        root=$(root_of "$suite" "$([[ $suite != sid ]] || echo llama.cpp-tools,systemd)") || return
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
    root=$(root_of sid llama.cpp-tools systemd)
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
        echo "contextpilot 0.5.0 is not to be had: not tried beside it" >&2
    fi
    pip uninstall --yes contextpilot-llama-server
    [[ -z $(find "$venv/one" -name '*contextpilot*') ]] && echo "nothing is left"
}

check_aarch64() {
    local folder
    [[ -e $packages/aarch64/stage ]] || not_run "not built: scripts/package aarch64"
    # shellcheck source=scripts/lib/cross.sh
    . "$repository/scripts/lib/cross.sh"
    give_up() { not_run "$*"; }
    cross_folder
    export QEMU=$cross/root/usr/bin/qemu-aarch64 QEMU_LD_PREFIX=$cross/arm64 QEMU_CPU=neoverse-n1
    export LLAMA_SERVER_BIN=$cross/arm64/usr/bin/llama-server
    folder=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf -- '$folder'" EXIT
    tar -x -z -f "$packages/out/contextpilot-llama-server-$version-aarch64-linux.tar.gz" -C "$folder" --strip-components=1
    # It works with limits, as there is no index: exit code 1.
    { "$repository/scripts/lib/emulated" "$folder/bin/contextpilot-llama" doctor || true; } |
        sed -n '/linked/p; /hook  /p; /^Next/p'
    "$repository/scripts/lib/emulated" "$folder/bin/contextpilot-llama" demo | tail -n 1
}
