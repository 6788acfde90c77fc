# shellcheck shell=bash
# Checks that need a booted system: the service under systemd, containers under podman. Needs
# packages-check.sh.

# booted ROOT SCRIPT: runs SCRIPT under the systemd of ROOT, and prints its output.
booted() {
    local server code=0 cgroups mine
    cgroups=$(findmnt --noheadings --output TARGET --types cgroup2 | head -n 1)
    [[ -n $cgroups ]] || not_run "this system has no control groups of version 2"
    server=$("$repository/scripts/llama-server")
    rm -rf -- "$packages/containers"
    mkdir -p -- "$packages/containers"
    : >"$packages/booted"
    # A control group of its own, in which systemd finds nothing of this machine.
    mine=$cgroups/contextpilot-packages.$$
    mkdir -- "$mine"
    bash -euc 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' booted "$mine" \
        unshare --mount --pid --net --uts --ipc --cgroup --fork -- \
        "$repository/scripts/lib/in-root" "$1" boot "$packages" "$server" "$2" || code=$?
    find "$mine" -depth -type d -exec rmdir -- {} +
    rm -rf -- "$packages/containers"
    cat -- "$packages/booted"
    return "$code"
}

# Makes a model for the server: random numbers, some hundred kilobytes.
tiny_model() {
    mkdir -p -- "$packages/more"
    (cd -- "$repository" && cargo run --quiet --locked --package contextpilot-tiny-model -- "$packages/more/tiny.gguf") ||
        die "the tiny model cannot be made (see above)"
}

# three_prompts NAME: sends three prompts to the server, each of which overwrites the one before.
# shellcheck disable=SC2016
three_prompts='three_prompts() {
    for one in tea sea owl; do
        curl --silent --fail --output /dev/null http://127.0.0.1:8080/v1/completions -d \
            "{\"prompt\": \"Say all that you know about $one.\", \"max_tokens\": 4, \"rid\": \"$1-$one\"}"
    done
}'

# until_seen COMMAND PATTERN: waits, for a quarter of a minute at most, for a line of what the command prints.
until_seen='until_seen() {
    for _ in $(seq 150); do
        if sh -c "$1" 2>&1 | grep -E -a -q -- "$2"; then return; fi
        sleep 0.1
    done
    echo "never seen: $2" >&2
    sh -c "$1" >&2
    return 1
}'

# The service, started, used, killed, stopped and purged.
check_service() {
    local root
    tiny_model
    root=$(root_of_sid)
    say "the Debian package's service under systemd"
    booted "$root" "
        $until_seen
        $three_prompts
        export service=contextpilot-llama-server@small
        index='journalctl --no-pager --output=cat --unit=index'
        find / -xdev -path /var/lib/dpkg -prune -o -path /var/log -prune -o -path /var/cache/ldconfig -prune -o -print | sort >/run/before
        dpkg -i /packages/contextpilot-llama-server_*_amd64.deb
        cat >/etc/default/contextpilot-llama-server.small <<END
LLAMA_ARG_MODEL=/more/tiny.gguf
LLAMA_ARG_PORT=8080
LLAMA_SERVER_ARGS=--parallel 2 --cache-ram 0 --no-kv-unified --ctx-size 4096 --threads 1
CONTEXTPILOT_INDEX_URL=http://127.0.0.1:8765
CONTEXTPILOT_LISTEN=127.0.0.1:8890
CONTEXTPILOT_STORE=/var/lib/contextpilot-llama-server/small/store
END
        systemctl --version | head -n 1
        systemd-run --quiet --unit=index contextpilot-llama listen --port 8765
        until_seen \"\$index\" Listening
        systemctl start \$service
        until_seen 'curl --silent http://127.0.0.1:8080/health' '\"ok\"'
        until_seen 'curl --silent http://127.0.0.1:8890/stats' '\"mode\":\"reporting\"'
        process=\$(systemctl show --property=MainPID --value \$service)
        grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' /proc/\$process/status
        grep -q -E '^CapEff:.0+\$' /proc/\$process/status
        ! grep -q -E '^Uid:.0' /proc/\$process/status
        grep -o -m 1 '/usr/lib/contextpilot-llama-server/.*' /proc/\$process/maps
        three_prompts req
        until_seen \"\$index\" 'evicted +req-tea'
        # It is in the journal some tenths of a second later. A crash before that loses it (docs/delivery.md).
        until_seen 'cat /var/lib/private/contextpilot-llama-server/small/contextpilot-llama/*.journal' req-owl
        systemctl kill --signal=KILL \$service
        echo 'killed'
        # systemd starts it again. It reports the ids that the killed process left in the journal.
        until_seen 'systemctl show --property=NRestarts --value \$service' 1
        until_seen \"\$index\" 'evicted +req-owl'
        until_seen 'curl --silent http://127.0.0.1:8080/health' '\"ok\"'
        three_prompts again
        until_seen \"\$index\" 'evicted +again-tea'
        systemctl stop \$service
        echo 'stopped'
        systemctl show --property=Result --property=ExecMainStatus \$service
        test \"\$(systemctl show --property=Result --value \$service)\" = success
        until_seen \"\$index\" 'evicted +again-owl'
        \$index
        for one in req again; do
            for name in tea sea owl; do \$index | grep -q \"evicted *\$one-\$name\"; done
        done
        # The store is a folder of the instance's own user, and what it has is loaded after a restart.
        ls -ld /var/lib/private/contextpilot-llama-server/small/store
        systemctl start \$service
        until_seen 'curl --silent http://127.0.0.1:8080/health' '\"ok\"'
        until_seen 'curl --silent http://127.0.0.1:8890/stats' '\"ready\":true'
        three_prompts stored
        until_seen 'curl --silent http://127.0.0.1:8890/stats' '\"loads\":[1-9]'
        contextpilot-llama stats --control 127.0.0.1:8890 | grep '^store '
        systemctl stop \$service
        systemctl clean --what=state \$service
        test ! -e /var/lib/private/contextpilot-llama-server/small
        systemctl start \$service
        until_seen 'curl --silent http://127.0.0.1:8080/health' '\"ok\"'
        systemctl stop index
        dpkg --purge contextpilot-llama-server
        test \"\$(systemctl is-active \$service)\" = inactive
        rm /etc/default/contextpilot-llama-server.small
        find / -xdev -path /var/lib/dpkg -prune -o -path /var/log -prune -o -path /var/cache/ldconfig -prune -o -print | sort >/run/after
        diff /run/before /run/after
        echo 'nothing is left'"
}

# A service that starts a llama-server, as Ollama's does: with the hook after `insert`, and as it was after `--undo`.
check_insert() {
    local root
    tiny_model
    root=$(root_of_sid)
    say "insert --into a service, under systemd"
    booted "$root" "
        $until_seen
        $three_prompts
        index='journalctl --no-pager --output=cat --unit=index'
        dpkg -i /packages/contextpilot-llama-server_*_amd64.deb
        echo 'u ollama - - /usr/share/ollama' | systemd-sysusers -
        install -d -o ollama /usr/share/ollama
        flags='--parallel 2 --cache-ram 0 --no-kv-unified --ctx-size 4096 --threads 1'
        cat >/etc/systemd/system/ollama.service <<END
[Service]
User=ollama
ExecStart=/bin/sh -c '/usr/bin/llama-server -m /more/tiny.gguf --port 8080 \$flags; sleep infinity'
Environment=\"PATH=/usr/bin:/bin\"
END
        restart() {
            systemctl daemon-reload
            systemctl restart ollama
            until_seen 'curl --silent http://127.0.0.1:8080/health' '\"ok\"'
        }
        server() { ls -l /proc/[0-9]*/exe 2>/dev/null | sed -n 's|.* /proc/\([0-9]*\)/exe -> .*/llama-server\$|\1|p'; }
        hooked() { grep -l contextpilot_llama_hook /proc/\$(server)/maps; }
        systemctl --version | head -n 1
        systemd-run --quiet --unit=index contextpilot-llama listen --port 8765
        until_seen \"\$index\" Listening
        restart
        if hooked; then false; fi
        find / -xdev -path /var/log -prune -o -print | sort >/run/before
        export CONTEXTPILOT_INDEX_URL=http://127.0.0.1:8765 CONTEXTPILOT_LISTEN=127.0.0.1:8890 CONTEXTPILOT_WATCHER=auto
        contextpilot-llama insert --into ollama
        contextpilot-llama insert --into ollama | grep 'has it already'
        contextpilot-llama doctor | grep 'contextpilot.conf'
        systemd-analyze verify --man=no ollama.service
        restart
        hooked
        until_seen 'curl --silent http://127.0.0.1:8890/stats' '\"mode\":\"reporting\"'
        three_prompts req
        until_seen \"\$index\" 'evicted +req-tea'
        until_seen 'cat /usr/share/ollama/.local/state/contextpilot-llama/*.journal' req-owl
        # Its parent lives, and no other llama-server runs when it is told what this one held.
        kill -KILL \$(server)
        until_seen \"\$index\" 'evicted +req-owl'
        \$index
        test \"\$(systemctl is-active ollama)\" = active
        test -z \"\$(server)\"
        contextpilot-llama insert --into ollama --undo
        contextpilot-llama insert --into ollama --undo | grep 'nothing to undo'
        restart
        if hooked; then false; fi
        rm -rf /usr/share/ollama/.local
        find / -xdev -path /var/log -prune -o -print | sort >/run/after
        diff /run/before /run/after
        echo 'nothing is left'"
}

# The container, by podman, alone and with its index by compose.
check_container() {
    local root
    tiny_model
    root_of_sid >/dev/null
    root=$(root_of podman sid podman podman-compose crun netavark aardvark-dns nftables dbus systemd mount curl)
    cp -- "$repository"/packaging/{Containerfile,compose.yaml} "$packages/more/"
    say "the container image, by podman"
    booted "$root" "
        $until_seen
        trap 'podman rm --all --force --time 1 >/dev/null' EXIT
        # Limits must not exceed those of this machine.
        limit() { sed -n \"s/^Max \$1  *[0-9a-z]*  *\\([0-9]*\\) .*/\\1:\\1/p\" /proc/self/limits; }
        mkdir -p /etc/containers
        {
            echo '[containers]'
            grep -q pids /sys/fs/cgroup/cgroup.controllers || echo 'pids_limit = 0'
            echo \"default_ulimits = [\\\"nofile=\$(limit 'open files')\\\", \\\"nproc=\$(limit processes)\\\"]\"
        } >/etc/containers/containers.conf
        podman --version
        tar -C /base -c . | podman import --change ENV=PATH=/usr/sbin:/usr/bin:/sbin:/bin - base 2>/dev/null
        podman build --quiet --network=none --build-arg BASE=localhost/base \
            --file /more/Containerfile --tag contextpilot-llama-server /packages
        run='podman run --rm --read-only --cap-drop ALL --security-opt no-new-privileges'
        begin=\$(date +%s%N)
        \$run --entrypoint contextpilot-llama contextpilot-llama-server demo | tee /run/demo | tail -n 1
        $took
        grep -q ' 0 reports were wrong' /run/demo
        grep -q ' (hook /usr/lib/contextpilot-llama-server/' /run/demo
        # A store in the volume: the next container loads what this one has kept.
        for life in first second; do
            \$run --detach --name kept -v llama-state:/state -v /more:/models:ro -e CONTEXTPILOT_STORE=/state/store \
                contextpilot-llama-server -m /models/tiny.gguf --port 8080 --parallel 1 --cache-ram 0 --ctx-size 2048
            until_seen 'podman exec kept curl --silent http://127.0.0.1:8080/health' '\"ok\"'
            until_seen 'podman exec kept contextpilot-llama stats --json' '\"ready\":true'
            for one in tea sea tea; do
                podman exec kept curl --silent --fail --output /dev/null http://127.0.0.1:8080/v1/completions \
                    -d \"{\\\"prompt\\\": \\\"Say all that you know about \$one.\\\", \\\"max_tokens\\\": 4}\"
            done
            podman exec kept contextpilot-llama stats | grep '^store '
            podman stop kept
        done | tee /run/kept
        podman rm --all --force >/dev/null
        grep -q '^store .* [1-9][0-9]* tokens loaded' /run/kept
        cd /more
        export MODELS=/more MODEL=tiny.gguf
        timeout 120 podman-compose --file compose.yaml up --detach
        until_seen 'podman ps --format \"{{.Names}} {{.Status}}\"' '_server_1 Up .*healthy'
        podman ps --format '{{.Names}} {{.Status}}'
        # The index answers from outside. It has no documents yet.
        until_seen 'curl --silent http://127.0.0.1:8765/health' not_ready
        until_seen 'curl --silent http://127.0.0.1:8765/v1/completions -d \"{\\\"prompt\\\": \\\"tea\\\", \\\"max_tokens\\\": 4, \\\"rid\\\": \\\"req-tea\\\"}\"' '\"text\"'
        until_seen 'podman exec more_server_1 /usr/bin/contextpilot-llama stats' '^requests .*[1-9][0-9]* with an id'
        podman inspect more_server_1 --format 'read-only: {{.HostConfig.ReadonlyRootfs}}, capabilities: {{.EffectiveCaps}}'
        timeout 120 podman-compose --file compose.yaml stop
        # Both ended when asked to, and were not killed (137).
        podman inspect more_server_1 more_index_1 --format '{{.Name}}: exit code {{.State.ExitCode}}'
        ! podman inspect more_server_1 more_index_1 --format '{{.State.ExitCode}}' | grep -q 137"
}
