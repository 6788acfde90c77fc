# shellcheck shell=bash
# Debian packages from the machine's own mirror, downloaded and not installed. Needs $work (a
# folder), $architecture, $work/apt for itself, and give_up (says why, and exits).

# Prints the Debian archives among the machine's apt sources, one "uri \002 trusted \002 signed-by" a line
# (not tabs: read would run empty fields together). An archive is recognised by the main component of a
# plain release (security and update archives have no sid). A key that is written into the source itself
# has several lines, which are joined by \001.
archives() {
    local list="" parts="" codename="" file
    eval "$(apt-config shell list Dir::Etc::sourcelist/f parts Dir::Etc::sourceparts/d)"
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release 2>/dev/null && printf '%s' "${VERSION_CODENAME:-}")
    for file in "$list" "${parts%/}"/*.list; do
        [[ -r $file ]] || continue
        awk -v codename="$codename" '
            function plain(suite) { return suite == codename || suite ~ /^(stable|oldstable|testing|unstable|sid)$/ }
            { sub(/#.*/, "") }
            $1 == "deb" {
                signed = trusted = ""
                if (match($0, /\[[^]]*\]/)) {
                    count = split(substr($0, RSTART + 1, RLENGTH - 2), options, " ")
                    $0 = substr($0, 1, RSTART - 1) " " substr($0, RSTART + RLENGTH)
                    for (i = 1; i <= count; i++) {
                        if (options[i] ~ /^signed-by=/) signed = substr(options[i], 11)
                        if (options[i] ~ /^trusted=/) trusted = substr(options[i], 9)
                    }
                    gsub(/,/, " ", signed)
                }
                for (i = 4; i <= NF; i++)
                    if (plain($3) && $i == "main") print $2 "\002" trusted "\002" signed
            }' "$file"
    done
    for file in "${parts%/}"/*.sources; do
        [[ -r $file ]] || continue
        awk -v codename="$codename" '
            function plain(suite) { return suite == codename || suite ~ /^(stable|oldstable|testing|unstable|sid)$/ }
            function has(words, word,    i, list, count) {
                count = split(words, list, " ")
                for (i = 1; i <= count; i++) if (word == "" ? plain(list[i]) : list[i] == word) return 1
                return 0
            }
            function stanza(    i, count, uris) {
                if (has(field["types"], "deb") && has(field["suites"], "") && has(field["components"], "main") &&
                    field["enabled"] !~ /^(no|false|0)$/) {
                    count = split(field["uris"], uris, " ")
                    for (i = 1; i <= count; i++) print uris[i] "\002" field["trusted"] "\002" field["signed-by"]
                }
                delete field
            }
            /^#/ { next }
            /^[ \t]*$/ { stanza(); next }
            /^[ \t]/ { field[name] = field[name] (name == "signed-by" ? "\001" : "") $0; next }
            {
                name = tolower(substr($0, 1, index($0, ":") - 1))
                value = substr($0, index($0, ":") + 1)
                gsub(/^[ \t]+|[ \t]+$/, "", value)
                field[name] = value
            }
            END { stanza() }' "$file"
    done
}

# $1 = suite, the rest = packages. Leaves the packages and all that they depend
# on as .deb files in $work/apt/archives, using the sources in $work/apt/parts.
download() {
    local suite=$1 uri trusted signed
    shift
    rm -rf -- "$work/apt"
    mkdir -p -- "$work"/apt/{parts,lists/partial,archives/partial,state}
    : >"$work/apt/state/status" # nothing is installed, so everything is needed
    archives | sort -u | while IFS=$'\002' read -r uri trusted signed; do
        printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: %s\nTargets: Packages\n' \
            "$uri" "$suite" "$architecture"
        [[ -z $trusted ]] || printf 'Trusted: %s\n' "$trusted"
        [[ -z $signed ]] || printf 'Signed-By: %s\n' "${signed//$'\001'/$'\n'}"
        printf '\n'
    done >"$work/apt/parts/debian.sources"
    [[ -s $work/apt/parts/debian.sources ]] ||
        give_up "no Debian archive in this machine's apt sources to fetch packages from"
    # Read after the machine's own configuration, whose proxies, certificates
    # and credentials stay in force. The clean-up commands of the machine are
    # for its own cache. Only root could hand the download to another user,
    # who might not be able to enter this folder.
    cat >"$work/apt/apt.conf" <<CONF
#clear APT::Update;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
#clear APT::Architectures;
APT::Architecture "$architecture";
APT::Architectures "$architecture";
APT::Default-Release "";
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
APT::Sandbox::User "$(id -un)";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$work/apt/parts";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$work/apt/state";
Dir::State::lists "$work/apt/lists";
Dir::State::status "$work/apt/state/status";
Dir::Cache "$work/apt";
Dir::Cache::archives "$work/apt/archives";
Dir::Log "$work/apt";
CONF
    apt-get -qq -c "$work/apt/apt.conf" update >&2 &&
        apt-get -qq -c "$work/apt/apt.conf" --download-only install "$@" >&2
}
