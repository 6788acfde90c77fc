//! Damage to the store's files, and disks that refuse, cost time only.

use std::fs;

use contextpilot_testbed::{Arch, Model, until};

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
    let figures = stored.figures();
    assert!(figures.lost && !figures.ready, "{figures:?}");
    let todo = "; correct CONTEXTPILOT_STORE";
    assert!(figures.problem.is_some_and(|why| why.ends_with(todo)));
    assert_eq!(chunk_files(&open), [""; 0].map(std::path::PathBuf::from));
    let said = stored.server.stderr();
    assert_eq!(
        said.matches("] There is no prefix store: ").count(),
        1,
        "{said}"
    );
    let mut lines = said.lines();
    let line = lines.find(|line| line.contains("There is no prefix store: "));
    assert!(line.is_some_and(|line| line.ends_with(todo)), "{said}");
    assert!(said.contains("] Active: "), "{said}");
    assert!(!said.contains("with a prefix store"), "{said}");
}

#[test]
fn if_settings_are_strict_a_server_without_the_folder_that_they_name_ends_before_it_loads() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .env("LLAMA_SERVER_BIN", contextpilot_testbed::llama_server())
        .arg("-m")
        .arg(Model::tiny(Arch::Llama).path())
        .args(["--port", "0"])
        .env("CONTEXTPILOT_STRICT", "1")
        .env("CONTEXTPILOT_STORE", &file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let line = said.lines().find(|line| line.contains("] Inactive: "));
    let line = line.unwrap_or_default();
    assert!(
        line.contains("There is no prefix store: ")
            && line.ends_with("The server ends here, as CONTEXTPILOT_STRICT is set"),
        "{said}"
    );
}

/// The folder is looked at every two seconds, whether anything is written or not.
#[test]
fn a_problem_is_the_present_one_and_clears_when_it_is_over() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let inner = folder.path().join("v1");
    let mut stored = Stored::start(&one_slot(), folder.path());
    stored.ask(&tokens(1, 600));
    assert_eq!(stored.figures().problem, None);
    let mode = |mode| fs::set_permissions(&inner, fs::Permissions::from_mode(mode)).unwrap();
    let says = |what: &str, stored: &Stored| {
        until(what, || {
            let problem = stored.figures().problem;
            problem.filter(|problem| problem.contains(what)).map(drop)
        });
    };
    // What is there is another folder.
    let aside = folder.path().join("aside");
    fs::rename(&inner, &aside).unwrap();
    says("No such file", &stored);
    fs::create_dir(&inner).unwrap();
    mode(0o777);
    says("not private", &stored);
    mode(0o700);
    until("the problem is over", || {
        stored.figures().problem.is_none().then_some(())
    });
}

/// What others may have put there is not taken for what we stored.
#[test]
fn a_folder_that_is_opened_to_others_is_not_used_until_it_is_closed_again() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let inner = folder.path().join("v1");
    let mode = |mode| fs::set_permissions(&inner, fs::Permissions::from_mode(mode)).unwrap();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let (first, _) = stored.ask(&tokens(1, 600));
    stored.ask(&tokens(2, 600));
    until("it is written", || {
        (chunk_files(folder.path()).len() >= 4).then_some(())
    });
    mode(0o777);
    until("others may write to it", || {
        let problem = stored.figures().problem;
        problem.filter(|problem| problem.contains("everybody may write to it, mode 0777"))
    });
    let before = chunk_files(folder.path());
    let (again, account) = stored.ask(&tokens(1, 600));
    assert_eq!((account.from.store, account.evaluated), (0, 600));
    assert_eq!(again.content, first.content);
    stored.ask(&tokens(3, 600));
    stored.ask(&tokens(4, 100));
    mode(0o700);
    until("the problem is over", || {
        stored.figures().problem.is_none().then_some(())
    });
    // Nothing was lost, and nothing was written.
    let after = chunk_files(folder.path());
    assert!(before.iter().all(|file| after.contains(file)), "{after:?}");
    let (again, account) = stored.ask(&tokens(1, 600));
    assert!(account.from.store > 500, "{account:?}");
    assert_eq!(again.content, first.content);
}

/// A process may write files up to a size, and no chunk has room in that: as on a full disk.
#[test]
fn what_could_not_be_written_is_not_counted_as_stored() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let limit = |bytes: Option<u64>| {
        let limits = rustix::process::Rlimit {
            current: bytes,
            maximum: None,
        };
        let process = rustix::process::Pid::from_raw(stored.server.pid() as i32);
        rustix::process::prlimit(process, rustix::process::Resource::Fsize, limits).unwrap()
    };
    limit(Some(4096));
    stored.ask(&tokens(1, 600));
    // What the slot has is copied out, and nothing is evaluated afterwards.
    let erase = "/slots/0?action=erase";
    let erased = stored.server.post(erase, &serde_json::json!({})).unwrap();
    assert_eq!(erased.status, 200);
    until("nothing of it counts", || {
        let figures = stored.figures();
        (figures.lost_chunks > 0 && figures.chunks == 0).then_some(())
    });
    // Each figure is read by itself.
    let figures = stored.figures();
    assert_eq!((figures.bytes, figures.saved_tokens), (0, 0), "{figures:?}");
    assert!(
        figures
            .problem
            .is_some_and(|why| why.contains("cannot be written"))
    );
    assert!(chunk_files(folder.path()).is_empty());
}
