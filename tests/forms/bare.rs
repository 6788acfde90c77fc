//! A system in which no folder can be written.

use contextpilot_testbed::{Index, Request};

use crate::support::hooked;
use crate::{assert_told, lines, server};

/// In a read-only container there is no folder for the journal.
#[test]
fn without_a_folder_for_the_journal_everything_else_works() {
    let index = Index::start().unwrap();
    // No user can create folders in /proc, not even root.
    let read_only = server().env("XDG_STATE_HOME", "/proc/contextpilot");
    let server = hooked(&read_only, &index);
    for id in ["req-a", "req-b"] {
        let prompt = format!("{id} begins like no other");
        let request = Request::completion(prompt).id(id).slot(0);
        server.complete(&request).unwrap();
    }
    assert_told(&server, &index, &["req-a"]);
    let said = lines(&server);
    let about = said
        .iter()
        .filter(|line| line.contains("/proc/contextpilot"));
    assert_eq!(about.count(), 1, "{said:?}");
}
