//! Command lines, folders and endpoints whose values are absurd.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::support::{companion, good, json, nowhere};

/// A command line that is refused as such.
#[track_caller]
fn is_refused(arguments: &[&str]) {
    let output = companion(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
}

#[test]
fn a_time_that_no_clock_can_say_is_refused() {
    let (most, at) = (u64::MAX.to_string(), nowhere());
    is_refused(&["slots", "erase", "0", "--wait", &most, "--server", &at]);
    let picture = ["top", "--picture", "x.svg", "--control", &at];
    is_refused(&[&picture[..], &["--watch", &most]].concat());
}
