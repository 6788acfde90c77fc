//! The library exports nothing.
#![cfg(target_os = "linux")]

mod support;

use std::process::Command;

/// Every program that inherits the preload would bind to an exported function. A program with its own
/// engine (a Python with llama-cpp-python) would call it, and there would be no original.
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

/// The test above would also pass for a library that `nm` cannot read. This one would not.
#[test]
fn nm_lists_the_functions_that_the_library_imports() {
    let output = Command::new("nm")
        .args(["--dynamic", "--undefined-only", "--format=posix"])
        .arg(support::hook_library())
        .output()
        .expect("binutils are there where a linker is");
    let listing = String::from_utf8(output.stdout).expect("symbols are ASCII");
    assert!(listing.contains("dl_iterate_phdr"), "{listing}");
}

/// A library that is preloaded puts those that it needs in front of the server's own, but for what the program itself needs:
/// each symbol of a start is then looked for there, too. One logarithm, and the variables of threads, cost 0.87 million
/// instructions together.
#[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
#[test]
fn it_needs_no_library_that_a_server_does_not_need_itself() {
    let output = Command::new("readelf")
        .args(["--dynamic", "--wide"])
        .arg(support::hook_library())
        .output()
        .expect("binutils are there where a linker is");
    let listing = String::from_utf8(output.stdout).expect("symbols are ASCII");
    let needed: Vec<_> = listing
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .collect();
    let is_usual = |line: &&str| {
        ["[libc.so.", "[libgcc_s.so."]
            .iter()
            .any(|name| line.contains(name))
    };
    let unusual: Vec<_> = needed.iter().filter(|line| !is_usual(line)).collect();
    assert!(needed.len() > unusual.len(), "{listing}");
    assert!(unusual.is_empty(), "{unusual:?}");
}
