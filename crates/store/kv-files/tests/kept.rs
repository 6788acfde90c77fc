//! What is written down of prompts that are to be kept.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use contextpilot_kv_files::Folder;
use contextpilot_kv_store::{MOST_KEPT, Name};

#[test]
fn what_was_written_down_is_read_and_nothing_else() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("store");
    let folder = Folder::open(&path).unwrap();
    assert_eq!(folder.kept(), []);
    let (tea, sea) = (Name([1; 16]), Name([2; 16]));
    folder.keep(&tea, 7).unwrap();
    folder.keep(&sea, u64::MAX).unwrap();
    folder.keep(&tea, 9).unwrap();
    let inner = path.join("v1/kept");
    // What others may have put there, or a process that has died left.
    fs::write(inner.join(format!("{tea}.77")), "5").unwrap();
    fs::write(inner.join("x"), "5").unwrap();
    fs::write(inner.join(Name([3; 16]).to_string()), "soon").unwrap();
    fs::write(inner.join(Name([4; 16]).to_string()), "").unwrap();
    fs::create_dir(inner.join(Name([5; 16]).to_string())).unwrap();
    symlink("x", inner.join(Name([6; 16]).to_string())).unwrap();
    let mut kept = folder.kept();
    kept.sort_unstable();
    assert_eq!(kept, [(tea, 9), (sea, u64::MAX)]);
    let mode = fs::metadata(inner.join(tea.to_string()))
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    folder.release(&tea);
    folder.release(&tea);
    assert_eq!(folder.kept(), [(sea, u64::MAX)]);
    // Another process reads it, and its chunks are as many as before.
    let again = Folder::open(&path).unwrap();
    assert_eq!(again.kept(), [(sea, u64::MAX)]);
    let mut headers = again.headers().unwrap();
    assert_eq!((headers.by_ref().count(), headers.foreign), (0, 0));
}

#[test]
fn however_many_files_there_are_so_many_are_read() {
    let parent = tempfile::tempdir().unwrap();
    let folder = Folder::open(&parent.path().join("store")).unwrap();
    for nth in 0..MOST_KEPT as u128 + 9 {
        folder.keep(&Name(nth.to_le_bytes()), 1).unwrap();
    }
    assert_eq!(folder.kept().len(), MOST_KEPT);
}
