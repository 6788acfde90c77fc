# shellcheck shell=bash
# Builds test programs and runs them side by side. Cargo runs one after another. Most of them wait for a
# server, a process or a clock, so half of two cores would be idle.

# How many test programs run at a time. Not one for each core: a program runs its own tests side by side,
# too.
lanes=${TEST_LANES:-3}
[[ $lanes =~ ^[1-9][0-9]*$ ]] || die "TEST_LANES is \"$lanes\": give how many test programs run at a time"

# build_tests FILE CARGO-ARGUMENTS...: writes a line for each test program that cargo has for these
# arguments: FOLDER, TARGET and EXECUTABLE, divided by tabs.
build_tests() {
    local file=$1 built understood
    shift
    cargo test --workspace --locked --no-run --message-format=json-render-diagnostics "$@" \
        >"$file.json" || die "the tests do not build"
    sed -n '/"reason":"compiler-artifact"/s/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"target":{[^}]*"name":"\([^"]*\)".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1\t\2\t\3/p' \
        "$file.json" | sort -u >"$file"
    # Counts the programs in a second way, so that none is left out.
    built=$(grep -o '"executable":"[^"]*/deps/[^"]*"' "$file.json" | sort -u | wc -l)
    understood=$(wc -l <"$file")
    [ "$built" -gt 0 ] && [ "$built" -eq "$understood" ] ||
        die "cargo built $built test programs, $understood were understood: see $file.json"
}

# select_tests FILE NAME...: the lines of FILE for these, in this order. A NAME is FOLDER/TARGET, as
# the summary prints it.
select_tests() {
    local file=$1 name
    shift
    for name; do
        awk -F '\t' -v name="$name" -v root="$PWD" '
            { folder = substr($1, length(root) + 2) }
            (folder == "" ? $2 : folder "/" $2) == name { print; found = 1 }
            END { exit !found }' "$file" || die "there is no test program $name"
    done
}

# Ends the test programs that still run.
end_tests() {
    local group
    for group in $(jobs -p); do kill -- "-$group" 2>/dev/null || true; done
}
trap end_tests EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run_tests LANES FILE: runs the programs of FILE, LANES at a time, in its order, each in its folder, as
# cargo does. The rest of a program's line has its arguments, divided by tabs. The output of a program is
# printed as a whole when the program has ended. Returns 1 if one failed; $failed has their names.
failed=()
run_tests() {
    local lanes=$1 file=$2 folder target program arguments name kept ran=0 busy=0
    kept=$(mktemp -d)
    while IFS=$'\t' read -r folder target program arguments; do
        if [ "$busy" -eq "$lanes" ]; then
            wait -n || true # The exit code is in a file.
            busy=$((busy - 1))
        fi
        name=${folder#"$PWD"}/$target
        # In a process group of its own: otherwise it, and what it starts, would ignore SIGINT.
        set -m
        run_test "$kept" "${name#/}" "$folder" "$program" "$arguments" </dev/null &
        set +m
        busy=$((busy + 1)) ran=$((ran + 1))
    done <"$file"
    wait
    local ended=0 code
    for code in "$kept"/*.code; do
        [ -e "$code" ] || continue
        ended=$((ended + 1))
        name=$(sed -n 2p "$code")
        count_tests "$(sed -n 1p "$code")" "$name" "${code%.code}"
        [ "$(sed -n 1p "$code")" -eq 0 ] || failed+=("$name")
    done
    rm -r "$kept"
    [ "$ended" -eq "$ran" ] || die "$ran test programs were started, but only $ended have an exit code"
    [ "${#failed[@]}" -eq 0 ]
}

# count_tests CODE NAME FILE: adds the tests of a program to the counts below, by its exit code and its
# output. To the harness, a test that said it cannot run here (skip() in crates/test/testbed) has passed. A
# program that fails without a failed test counts as one.
passed_tests=0 failed_tests=0 skipped_tests=()
count_tests() {
    local code=$1 name=$2 file=$3 good bad line
    read -r good bad < <(awk '
        /^test result: / { good += $4; bad += $6 }
        /^[0-9]+ passed, [0-9]+ failed/ { good += $1; bad += $3 }
        /^skipped: / && !seen[$2]++ { good-- }
        END { print good + 0, bad + 0 }' "$file")
    [ "$code" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    passed_tests=$((passed_tests + good)) failed_tests=$((failed_tests + bad))
    while read -r line; do
        skipped_tests+=("$name: $line")
    done < <(sed -nE 's/^skipped( case)?: //p' "$file")
}

# Prints the counts, and why tests were skipped.
counted() {
    say "$passed_tests passed, $failed_tests failed, ${#skipped_tests[@]} skipped"
    [ ${#skipped_tests[@]} -eq 0 ] || printf 'skipped: %s\n' "${skipped_tests[@]}" >&2
}

# Runs one test program, in the background.
run_test() {
    local kept=$1 name=$2 folder=$3 program=$4 code=0 begun=$EPOCHREALTIME file took arguments
    IFS=$'\t' read -ra arguments <<<"$5"
    file=$kept/${name//\//-}
    (cd "$folder" && exec "$program" "${arguments[@]}") >"$file" 2>&1 || code=$?
    took=$(((${EPOCHREALTIME/./} - ${begun/./}) / 100000))
    {
        # One at a time, so that no output is within another.
        flock 9
        printf '\n-- %s: exit %d after %d.%d s\n' "$name" "$code" $((took / 10)) $((took % 10))
        cat "$file"
    } 9>"$kept/lock"
    printf '%s\n%s\n' "$code" "$name" >"$file.code"
}
