//! Damage to the store's files, and disks that refuse, cost time only.

use std::fs;

use contextpilot_testbed::until;

use super::{Stored, chunk_files, folder, one_slot, tokens};

/// A store with one prompt of 600 tokens, and the answer to it.
fn filled(folder: &std::path::Path) -> String {
    let mut stored = Stored::start(&one_slot(), folder);
    let (answer, _) = stored.ask(&tokens(1, 600));
    stored.ask(&tokens(2, 50));
    stored.end();
    answer.content
}

#[test]
fn a_damaged_chunk_is_not_used_and_leaves_the_store() {
    let folder = folder();
    let expected = filled(folder.path());
    let largest = chunk_files(folder.path())
        .into_iter()
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    let end = bytes.len();
    bytes[end - 1000] ^= 1;
    fs::write(&largest, bytes).unwrap();

    let mut stored = Stored::start(&one_slot(), folder.path());
    let (answer, account) = stored.ask(&tokens(1, 600));
    assert_eq!(answer.content, expected);
    assert!(account.from.store < 599, "{account:?}");
    assert_eq!(account.from.store + account.evaluated, 600);
    let problem = stored.figures().problem;
    assert!(problem.is_some_and(|problem| problem.contains("read")));
}

#[test]
fn a_store_that_disappears_while_the_server_runs_harms_nothing() {
    let folder = folder();
    let at = folder.path().join("store");
    fs::create_dir(&at).unwrap();
    let mut stored = Stored::start(&one_slot(), &at);
    let (first, _) = stored.ask(&tokens(1, 600));
    stored.ask(&tokens(2, 600));
    // The writer may put another file into the folder meanwhile.
    until("the folder is gone", || fs::remove_dir_all(&at).ok());
    let (again, account) = stored.ask(&tokens(1, 600));
    assert_eq!(again.content, first.content);
    assert_eq!(account.reused + account.evaluated, 600);
    let (_, account) = stored.ask(&tokens(2, 600));
    assert_eq!(account.reused + account.evaluated, 600);
}

#[test]
fn a_folder_that_others_may_write_to_is_refused_in_one_line_and_the_server_runs() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let mut stored = Stored::start(&one_slot(), &open);
    let (_, account) = stored.ask(&tokens(1, 100));
    assert_eq!(account.evaluated, 100);
    assert!(stored.figures().problem.is_some());
    assert_eq!(chunk_files(&open), [""; 0].map(std::path::PathBuf::from));
}
