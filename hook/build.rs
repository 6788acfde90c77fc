//! On macOS a name that no library of the link defines has to be allowed, one by one: those of the
//! table are looked for when the hook is loaded.
//!
//! Elsewhere a linker that can make one function of those that are equal is told to, which makes the library smaller.

#![allow(clippy::disallowed_macros, reason = "cargo reads what this prints")]
#![allow(clippy::disallowed_methods, reason = "this is no library")]

use std::env::var;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

#[path = "src/attach/table.rs"]
#[macro_use]
#[allow(dead_code, unused_macros, reason = "only the names are needed")]
mod table;

macro_rules! names {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident $arguments:tt $(-> $result:ty)?; )*) => {
        [$(stringify!($name)),*]
    };
}

/// lld and gold know it, and the linker of GNU does not.
const FOLD: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo::rerun-if-changed=src/attach/table.rs");
    let is = |name: &str, value: &str| var(name).is_ok_and(|is| is == value);
    if is("CARGO_CFG_TARGET_OS", "macos") {
        for name in for_each_interposed!(names) {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-U,_{name}");
        }
    } else if is("PROFILE", "release") && links_with(FOLD) == Some(true) {
        println!("cargo::rustc-cdylib-link-arg={FOLD}");
    }
}

/// Whether a library that is nearly empty can be linked with this argument.
fn links_with(argument: &str) -> Option<bool> {
    const EMPTY: &[u8] =
        b"#![no_std] #[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }";
    let mut rustc = Command::new(var("RUSTC").ok()?);
    let flags = var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    if let Ok(linker) = var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc
        .args(["--crate-name", "empty", "--crate-type", "cdylib"])
        .args(["--target", &var("TARGET").ok()?, "-Cpanic=abort"])
        .arg(format!("-Clink-arg={argument}"))
        .arg("-o")
        .arg(Path::new(&var("OUT_DIR").ok()?).join("empty"))
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::null());
    let mut running = rustc.spawn().ok()?;
    running.stdin.take()?.write_all(EMPTY).ok()?;
    Some(running.wait().ok()?.success())
}
