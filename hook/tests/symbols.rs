//! The library defines nothing that another object could be bound to.
#![cfg(target_os = "linux")]

mod support;

use std::process::Command;

/// What was exported would stand in front of every program that inherits the preload: one that
/// brings an engine of its own (a Python with llama-cpp-python) would call it, with nothing behind.
#[test]
fn nothing_is_exported() {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(support::hook_library())
        .output()
        .expect("binutils are there where a linker is");
    assert!(output.status.success(), "{output:?}");
    let listing = String::from_utf8(output.stdout).expect("symbols are ASCII");
    assert_eq!(listing, "");
}

/// The test above would say the same of a library that `nm` cannot read.
#[test]
fn what_the_library_needs_is_listed() {
    let output = Command::new("nm")
        .args(["--dynamic", "--undefined-only", "--format=posix"])
        .arg(support::hook_library())
        .output()
        .expect("binutils are there where a linker is");
    let listing = String::from_utf8(output.stdout).expect("symbols are ASCII");
    assert!(listing.contains("dl_iterate_phdr"), "{listing}");
}
