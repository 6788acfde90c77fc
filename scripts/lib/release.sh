# shellcheck shell=bash
# Release builds for Linux that run with glibc 2.17 and later, the same bytes on every machine: one
# version of Rust, zig (from PyPI) for C code and for linking, no path of this machine in the result. Needs
# $repository, say and die; sets $packages (a folder).

GLIBC=2.17
ZIG_PACKAGE=ziglang==0.17.1
packages=$repository/target/packages

# Sets $ZIG, and fetches zig if it is not there.
zig_here() {
    local home=$packages/$ZIG_PACKAGE
    export ZIG=$home/ziglang/zig
    [[ -x $ZIG ]] && return
    say "Fetching $ZIG_PACKAGE from PyPI (100 MB, once)"
    rm -rf -- "$home.tmp"
    python3 -m pip --disable-pip-version-check install --quiet --no-deps --target "$home.tmp" "$ZIG_PACKAGE" >&2 ||
        die "$ZIG_PACKAGE could not be fetched (see above); that needs python3 with pip"
    mv -- "$home.tmp" "$home"
}

# gcc_stand_in MACHINE: makes a library with the symbols of libgcc_s.so.1, for the linker. Prints its path.
gcc_stand_in() {
    local folder=$packages/gcc_s/$1
    mkdir -p -- "$folder"
    sed -n 's/^ *\(_Unwind_[A-Za-z]*\);$/\1/p' "$repository/packaging/gcc_s.map" |
        while read -r name; do
            printf '.globl %s\n.type %s, %%function\n%s: .byte 0\n' "$name" "$name" "$name"
        done >"$folder/names.s"
    "$ZIG" cc -target "$1-linux-gnu.$GLIBC" -shared -nostdlib -Wl,-soname,libgcc_s.so.1 \
        -Wl,--version-script="$repository/packaging/gcc_s.map" "$folder/names.s" -o "$folder/libgcc_s.so.1"
    printf '%s\n' "$folder/libgcc_s.so.1"
}

# Chooses the Rust for MACHINE: rustup's if it has the target, else Debian's. Sets $CARGO.
rust_for() {
    local triple=$1-unknown-linux-gnu
    CARGO=cargo
    [[ -d $(rustc --print target-libdir --target "$triple" 2>/dev/null) ]] && return
    # shellcheck source=scripts/lib/cross.sh
    . "$repository/scripts/lib/cross.sh"
    give_up() { die "$*"; }
    cross_folder
    CARGO=$cross/root/usr/bin/cargo
    export RUSTC=$cross/root/usr/bin/rustc
}

# release MACHINE FOLDER: builds both commands and the hook library into FOLDER/target, and copies
# them to FOLDER/bin and FOLDER/lib.
release() (
    local machine=$1 folder=$2 triple=$1-unknown-linux-gnu tool variable hook
    local home=${CARGO_HOME:-$HOME/.cargo} separator=$'\x1f'
    zig_here
    export ZIG_TARGET=$machine-linux-gnu.$GLIBC GCC_S
    export ZIG_GLOBAL_CACHE_DIR=$packages/zig-cache ZIG_LOCAL_CACHE_DIR=$packages/zig-cache
    GCC_S=$(gcc_stand_in "$machine")
    rust_for "$machine"
    mkdir -p -- "$folder"/{bin,lib}
    for tool in cc ar; do
        printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$ZIG" "$tool" >"$folder/zig-$tool"
        chmod 755 -- "$folder/zig-$tool"
    done
    variable=${triple//-/_}
    export "CC_$variable=$folder/zig-cc" "AR_$variable=$folder/zig-ar" CRATE_CC_NO_DEFAULTS=1
    local paths="-ffile-prefix-map=$repository=/source -ffile-prefix-map=$home=/cargo"
    export "CFLAGS_$variable=-target $ZIG_TARGET -Oz -fPIC -g0 -fno-sanitize=all $paths"
    export "CARGO_TARGET_${variable^^}_LINKER=$repository/scripts/lib/linux-linker"
    # The messages of panics contain paths of source files: relative to the source, not to this machine.
    export CARGO_ENCODED_RUSTFLAGS="--remap-path-prefix=$repository=/source"
    CARGO_ENCODED_RUSTFLAGS+="$separator--remap-path-prefix=$home=/cargo"
    CARGO_ENCODED_RUSTFLAGS+="$separator--remap-path-prefix=$folder=/build"
    # As in build.rs: the unwind tables are shorter.
    CARGO_ENCODED_RUSTFLAGS+="$separator-Cforce-frame-pointers=yes"
    export CARGO_TARGET_DIR=$folder/target CARGO_INCREMENTAL=0
    unset CARGO_BUILD_TARGET CARGO_BUILD_TARGET_DIR RUSTFLAGS

    say "The hook library for $machine, glibc $GLIBC"
    (cd -- "$repository" && "$CARGO" build --release --locked --target "$triple" --package contextpilot-hook --lib)
    hook=$CARGO_TARGET_DIR/$triple/release/libcontextpilot_llama_hook.so
    say "The commands for $machine"
    (cd -- "$repository" && CONTEXTPILOT_BUILD_HOOK_LIB=$hook "$CARGO" build --release --locked --target "$triple" --bins)
    cp -- "$CARGO_TARGET_DIR/$triple/release"/contextpilot-llama{,-server} "$folder/bin/"
    # As build.rs names it.
    cp -- "$hook" "$folder/lib/libcontextpilot_llama_hook-$(sha256sum "$hook" | cut -c 1-32).so"
)

# runs_with_old_glibc FILE...: checks that the files need nothing newer than glibc 2.17 (2012).
runs_with_old_glibc() {
    local file newest library
    for file; do
        newest=$(readelf --version-info --wide -- "$file" | grep -o 'GLIBC_[0-9.]*' | cut -d _ -f 2 | sort -V | tail -n 1)
        [[ $(printf '%s\n' "$newest" "$GLIBC" | sort -V | tail -n 1) == "$GLIBC" ]] ||
            die "${file##*/} asks for glibc $newest, which is newer than $GLIBC"
        readelf --dynamic --wide -- "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
            while read -r library; do
                case $library in
                    libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | libutil.so.1 | libgcc_s.so.1 | ld-linux-*) ;;
                    *) die "${file##*/} needs $library, which not every system has" ;;
                esac
            done
        printf '%-70s glibc %s, %s bytes\n' "${file##*/}" "$newest" "$(stat -c %s -- "$file")"
    done
}
