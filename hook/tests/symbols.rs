//! The library exports what the table declares, and nothing else.
#![cfg(target_os = "linux")]

mod support;

use std::collections::BTreeSet;
use std::process::Command;

#[allow(dead_code, reason = "only the names matter here")]
#[path = "../src/table.rs"]
#[macro_use]
mod table;

macro_rules! names {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        &[$(stringify!($name)),*]
    };
}

#[test]
fn exported_symbols_are_those_of_the_table() {
    let declared: &[&str] = for_each_interposed!(names);
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(support::hook_library())
        .output()
        .expect("binutils are there where a linker is");
    assert!(output.status.success(), "{output:?}");
    let listing = String::from_utf8(output.stdout).expect("symbols are ASCII");
    let exported: BTreeSet<&str> = listing
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let declared: BTreeSet<&str> = declared.iter().copied().collect();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(exported, declared);
    // An export of these would break other programs: see the table.
    let redirected: &[&str] = for_each_redirected!(names);
    assert!(!redirected.is_empty());
    assert!(redirected.iter().all(|name| !exported.contains(name)));
}
