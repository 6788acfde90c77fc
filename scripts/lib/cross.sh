# shellcheck shell=bash
# Compilers for other machines, and an emulator, in target/cross: Debian testing's Rust, its standard
# library for arm64 and as source, a C compiler for arm64, and qemu. Nothing is installed. Needs
# $repository and give_up (says why, and exits); sets $cross.

# Fetches all of it once: some 400 MB, which take 2.5 GB.
cross_folder() {
    cross=$repository/target/cross
    [[ $(cat -- "$cross/.made-for" 2>/dev/null) == "$cross" ]] && return
    [[ $(dpkg --print-architecture 2>/dev/null) == amd64 ]] ||
        give_up "this is for Debian on x86-64, whose packages it takes"
    mkdir -p -- "$repository/target"
    exec 8>"$repository/target/cross.lock"
    flock 8
    [[ $(cat -- "$cross/.made-for" 2>/dev/null) == "$cross" ]] && return
    rm -rf -- "$repository"/target/cross.tmp.*
    work=$(mktemp -d -- "$repository/target/cross.tmp.XXXXXX")
    trap 'rm -rf -- "$work"' EXIT
    # shellcheck source=scripts/lib/debian.sh
    . "$repository/scripts/lib/debian.sh"

    say "fetching Debian's Rust and more into target/cross (some 400 MB, once; nothing is installed)"
    fetch_into root amd64 testing '*' cargo rustc rust-src patchelf qemu-user \
        g++-aarch64-linux-gnu
    # The same version as rustc: testing has one version for all architectures.
    fetch_into root arm64 testing 'libstd-rust-*' libstd-rust-dev
    fetch_into arm64 arm64 sid '*' llama.cpp-tools
    ln -s usr/lib "$work/arm64/lib"
    relocate
    printf '%s\n' "$cross" >"$work/.made-for"
    rm -rf -- "$work/apt" "$cross"
    trap - EXIT
    chmod 755 -- "$work"
    mv -- "$work" "$cross"
}

# fetch_into FOLDER ARCHITECTURE SUITE PATTERN PACKAGE...: fetches the packages and what they depend on,
# and unpacks those whose file names match PATTERN into FOLDER.
fetch_into() {
    local folder=$1 suite=$3 which=$4 package
    architecture=$2
    shift 4
    download "$suite" "$@" ||
        give_up "not to be had from this machine's Debian mirror: $* (the messages above say why)"
    # shellcheck disable=SC2086
    for package in "$work"/apt/archives/$which.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work" --one-top-level="$folder"
    done
}

# The programs need a newer C library than the machine may have. It was fetched with them: has each
# program use it.
relocate() {
    local libraries=usr/lib/x86_64-linux-gnu loader=usr/lib64/ld-linux-x86-64.so.2 file
    cp -- "$work/root/usr/bin/patchelf" "$work/patchelf"
    local patch=("$work/root/$loader" --library-path "$work/root/$libraries" "$work/patchelf")
    for file in "$work"/root/usr/bin/* "$work"/root/usr/libexec/gcc-cross/*/*/*; do
        [[ -f $file && ! -L $file ]] && "${patch[@]}" --print-interpreter "$file" &>/dev/null || continue
        case ${file##*/} in
            # Large and at a fixed address: patchelf breaks these.
            cc1* | lto1)
                mv -- "$file" "$file.elf"
                printf '#!/bin/sh\nexec %s --library-path %s %s.elf "$@"\n' "$cross/root/$loader" \
                    "$cross/root/$libraries" "$cross${file#"$work"}" >"$file"
                chmod 755 -- "$file"
                ;;
            *)
                "${patch[@]}" --set-interpreter "$cross/root/$loader" \
                    --force-rpath --set-rpath "$cross/root/$libraries" "$file"
                ;;
        esac
    done
    for file in "$work/root/$libraries"/{libLLVM.so.*,librustc_driver-*.so}; do
        "${patch[@]}" --force-rpath --set-rpath "\$ORIGIN" "$file"
    done
}
