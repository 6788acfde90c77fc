# shellcheck shell=bash
# Makes packages of release builds. Needs $repository, $packages, say and die.

version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$repository/Cargo.toml")
# The time of all files is that of the commit, so that the same source makes the same packages.
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$repository" log -1 --format=%ct)}

# shellcheck source=packaging/publisher
. "$repository/packaging/publisher"

# pack MACHINE: makes all packages for it, from $packages/MACHINE/{bin,lib}.
pack() {
    local machine=$1 stage=$packages/$1/stage
    say "Packages for $machine"
    stage "$machine" "$stage"
    tarball "$machine" "$stage"
    deb "$machine" "$stage"
    wheel "$machine" "$stage"
}

# stage MACHINE FOLDER: fills FOLDER with what packages have below /usr, and the tarball below its folder.
stage() {
    local machine=$1 stage=$2 doc=$2/share/doc/contextpilot-llama-server built=$packages/$1 tool
    local completions=$2/share/bash-completion/completions
    rm -rf -- "$stage"
    mkdir -p -- "$stage"/{bin,lib/contextpilot-llama-server} "$doc" "$completions" \
        "$stage"/share/{zsh/site-functions,fish/vendor_completions.d,man/man1}
    cp -- "$built"/bin/* "$stage/bin/"
    install -m 644 -- "$built"/lib/*.so "$stage/lib/contextpilot-llama-server/"
    tool=$(runnable "$machine")
    "$tool" man "$stage/share/man/man1"
    "$tool" completions bash >"$completions/contextpilot-llama"
    "$tool" completions zsh >"$stage/share/zsh/site-functions/_contextpilot-llama"
    "$tool" completions fish >"$stage/share/fish/vendor_completions.d/contextpilot-llama.fish"
    cp -- "$repository"/{README.md,CHANGELOG.md,LICENSE} "$doc/"
    (cd -- "$repository" && python3 packaging/bill.py "$machine-unknown-linux-gnu" "$epoch" \
        "$packages/out/contextpilot-llama-server-$version-$machine.cdx.json" "$doc/third-party-licenses.txt")
    chmod -R u=rwX,go=rX -- "$stage"
}

# runnable MACHINE: prints a companion that runs here, to write the manual pages: that of MACHINE, else the
# one for this machine, which has the same text.
runnable() {
    local one
    for one in "$1" "$(uname -m)"; do
        if "$packages/$one/bin/contextpilot-llama" --version &>/dev/null; then
            printf '%s\n' "$packages/$one/bin/contextpilot-llama"
            return
        fi
    done
    die "the pages of the manual need programs that run here: scripts/package $(uname -m) first"
}

tarball() {
    local name=contextpilot-llama-server-$version-$1-linux
    tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=ustar \
        --transform="s,^\.,$name," -C "$2" -cf - . | gzip --no-name --best >"$packages/out/$name.tar.gz"
}

wheel() {
    python3 "$repository/packaging/wheel.py" "$2" "$version" "manylinux_2_17_$1.manylinux2014_$1" \
        "$epoch" "$repository/README.md" "$packages/out" >/dev/null
}

deb() {
    local root=$packages/$1/deb doc=$packages/$1/deb/usr/share/doc/contextpilot-llama-server
    local debian=$repository/packaging/debian architecture script
    case $1 in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    esac
    rm -rf -- "$root"
    mkdir -p -- "$root"/{DEBIAN,etc/default,usr/lib/systemd/system}
    cp -r -- "$2"/* "$root/usr/"
    install -m 644 -- "$repository/packaging/default" "$root/etc/default/contextpilot-llama-server"
    install -m 644 -- "$repository/packaging/contextpilot-llama-server@.service" "$root/usr/lib/systemd/system/"
    # Paths and names as Debian wants them.
    mkdir -p -- "$root/usr/share/zsh/vendor-completions"
    mv -- "$root"/usr/share/zsh/site-functions/* "$root/usr/share/zsh/vendor-completions/"
    rmdir -- "$root/usr/share/zsh/site-functions"
    install -m 644 -- "$debian/copyright" "$doc/copyright"
    rm -- "$doc/LICENSE"
    mv -- "$doc/CHANGELOG.md" "$doc/NEWS.md"
    printf '%s (%s) unstable; urgency=medium\n\n  * See NEWS.md.gz.\n\n -- %s  %s\n' contextpilot-llama-server \
        "$version" "$MAINTAINER" "$(date -u -R -d "@$epoch")" >"$doc/changelog"
    gzip --no-name --best -- "$doc"/{changelog,NEWS.md,third-party-licenses.txt} "$root"/usr/share/man/man1/*.1
    chmod 644 -- "$doc"/*

    printf '/etc/default/contextpilot-llama-server\n' >"$root/DEBIAN/conffiles"
    for script in prerm postinst postrm; do
        install -m 755 -- "$debian/$script" "$root/DEBIAN/"
    done
    (cd -- "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    sed -e "s/@VERSION@/$version/" -e "s|@MAINTAINER@|$MAINTAINER|" -e "s|@HOMEPAGE@|$HOMEPAGE|" \
        -e "s/@ARCHITECTURE@/$architecture/" \
        -e "s/@SIZE@/$(du -k -s --apparent-size "$root/usr" | cut -f 1)/" "$debian/control" >"$root/DEBIAN/control"
    SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zxz --build "$root" \
        "$packages/out/contextpilot-llama-server_${version}_$architecture.deb" >/dev/null
}

# again MACHINE: checks that the same source in another folder makes the same bytes.
again() {
    local machine=$1 copy different=0 file
    [[ -d $packages/$machine/stage ]] || die "nothing to compare with: scripts/package $machine first"
    [[ -z $(git -C "$repository" status --porcelain) ]] ||
        die "commit first: what is compared is the last commit's source"
    copy=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf -- '$copy'" EXIT
    git -C "$repository" archive HEAD | tar -x -C "$copy"
    mkdir -p -- "$copy/target/packages"
    ln -s "$packages/$ZIG_PACKAGE" "$copy/target/packages/"
    # The program for this machine writes the manual pages if that of MACHINE does not run here.
    [[ $machine == "$(uname -m)" ]] || ln -s "$packages/$(uname -m)" "$copy/target/packages/"
    SOURCE_DATE_EPOCH=$epoch "$copy/scripts/package" "$machine"
    for file in "$copy"/target/packages/out/contextpilot*; do
        if cmp -- "$file" "$packages/out/${file##*/}"; then
            printf 'the same: %s  %s\n' "$(sha256sum <"$file" | cut -c 1-16)" "${file##*/}"
        else
            different=1
        fi
    done
    return "$different"
}
