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

#[test]
fn a_folder_whose_name_is_no_text_is_shown() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent
        .path()
        .join(OsString::from_vec(b"n\xff\xfen".to_vec()));
    std::fs::create_dir(&folder).unwrap();
    let of = |arguments: &[&str]| {
        let mut command = companion(&["store", "--folder"]);
        command.arg(&folder).args(arguments).output().unwrap()
    };
    let printed = of(&["path"]).stdout;
    assert_eq!(printed, [folder.as_os_str().as_bytes(), b"\n"].concat());
    let shown = json(&good(&of(&["path", "--json"])))["folder"].to_string();
    assert!(shown.contains("n\u{fffd}\u{fffd}n"), "{shown}");
    // The folder is empty, so this may be an error. But it says so.
    let listed = of(&["--json"]);
    let said = String::from_utf8_lossy(&listed.stderr);
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn what_is_no_number_of_seconds_is_refused() {
    for worth in ["nan", "inf", "-1", "soon"] {
        is_refused(&["why", &format!("--worth={worth}")]);
    }
}
