//! Builds the hook library, for the launcher to carry inside it.
//!
//! `cargo build`, `test`, `check` and `clippy` of the root package all run this;
//! nothing tells a build script which of them it is. So that the latter stay
//! quick, the library is built in the profile of the outer build (`cargo
//! install` means release), in a target folder that persists: only the first
//! build takes long, and one without changes to the hook a fraction of a second.
//!
//! `CONTEXTPILOT_BUILD_HOOK_LIB=<file>` takes a library that was built before,
//! for packagers and for CI.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

const READY_MADE: &str = "CONTEXTPILOT_BUILD_HOOK_LIB";

/// Divided by 0x1f.
const RUSTFLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";

fn main() {
    println!("cargo::rerun-if-env-changed={READY_MADE}");
    let out = PathBuf::from(variable("OUT_DIR"));
    let library = match env::var_os(READY_MADE).filter(|path| !path.is_empty()) {
        Some(path) => ready_made(Path::new(&path)),
        None => build(&out.join("hook")),
    };

    let content = fs::read(&library)
        .unwrap_or_else(|e| panic!("the hook library {} cannot be read: {e}", library.display()));
    let hash = Sha256::digest(&content);
    // Half of the hash: a name, not a proof. Every use compares the bytes.
    let hash: String = hash[..16].iter().map(|b| format!("{b:02x}")).collect();
    let name = format!("libcontextpilot_llama_hook-{hash}.{}", extension());
    let embedded = out.join("embedded-hook");
    if let Err(e) = fs::write(&embedded, content) {
        panic!("{} cannot be written: {e}", embedded.display());
    }
    println!(
        "cargo::rustc-env=CONTEXTPILOT_EMBEDDED_HOOK={}",
        embedded.display()
    );
    println!("cargo::rustc-env=CONTEXTPILOT_EMBEDDED_HOOK_NAME={name}");
}

fn ready_made(path: &Path) -> PathBuf {
    println!("cargo::rerun-if-changed={}", path.display());
    if !path.is_absolute() {
        panic!("{READY_MADE} is {path:?}: give an absolute path");
    }
    path.to_owned()
}

/// Runs another cargo, as one cannot make a cdylib for the target a dependency.
fn build(target_folder: &Path) -> PathBuf {
    for input in ["build.rs", "Cargo.toml", "Cargo.lock", "hook", "crates"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let target = variable("TARGET");
    let release = variable("PROFILE") == "release";

    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args([
            "build",
            "--package",
            "contextpilot-hook",
            "--lib",
            "--locked",
        ])
        .arg("--manifest-path")
        .arg(root.join("Cargo.toml"))
        // A folder of its own: the outer cargo holds a lock on the usual one
        // until we are done.
        .arg("--target-dir")
        .arg(target_folder)
        .env("CARGO_BUILD_BUILD_DIR", target_folder)
        // Always named, so that the result's place does not depend on whether
        // the configuration names one.
        .args(["--target", &target])
        // What this prints is read by the outer cargo.
        .stdout(Stdio::null());
    if release {
        cargo.arg("--release").env(RUSTFLAGS, flags(&root));
    } else {
        // Tens of megabytes of debug information are no use in a file that is
        // compared byte by byte at every start.
        cargo
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("CARGO_PROFILE_DEV_STRIP", "symbols");
    }
    // Left as they are: the jobserver (CARGO_MAKEFLAGS), compiler caches
    // (RUSTC_WRAPPER), the encoded flags of the outer build, --offline's and
    // other settings in CARGO_NET_*, toolchain and home.
    for disturbing in [
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET_DIR",
        "CARGO_BUILD_TARGET",
        // Clippy's: the library is to be compiled, not looked at.
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
    ] {
        cargo.env_remove(disturbing);
    }

    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("building the hook library failed ({status}): see above"),
        Err(e) => panic!("cargo cannot be run to build the hook library: {e}"),
    }
    let library = format!("libcontextpilot_llama_hook.{}", extension());
    target_folder
        .join(target)
        .join(if release { "release" } else { "debug" })
        .join(library)
}

/// The outer build's flags, and two that make the library smaller. (`scripts/lib/release.sh` has the
/// same.) With frame pointers, unwind tables are shorter by 78 KB. Panics name source files: by where
/// they are in the source, which is also the same on every machine.
fn flags(root: &Path) -> String {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")));
    let mut flags: Vec<String> = Vec::new();
    flags.extend(env::var(RUSTFLAGS).ok().filter(|outer| !outer.is_empty()));
    flags.push("-Cforce-frame-pointers=yes".to_owned());
    let places = [(Some(root), "/source"), (home.as_deref(), "/cargo")];
    for (place, name) in places {
        if let Some(place) = place {
            flags.push(format!("--remap-path-prefix={}={name}", place.display()));
        }
    }
    flags.join("\x1f")
}

fn extension() -> &'static str {
    if variable("CARGO_CFG_TARGET_OS") == "macos" {
        "dylib"
    } else {
        "so"
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: build.rs is for cargo to run"))
}
