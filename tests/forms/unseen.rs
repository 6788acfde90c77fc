//! Servers whose own functions cannot be hooked: requests are tied by their prompts.

use contextpilot_testbed::{Index, Unseen, unseen_server};

use crate::support::hooked;
use crate::{assert_exact, lines, server};

#[track_caller]
fn assert_tied_by_prompts(why: Unseen) {
    let Some(program) = unseen_server(why).unwrap() else {
        return;
    };
    let index = Index::start().unwrap();
    let mut server = hooked(&server().program(program), &index);
    assert_exact(&mut server, &index);
    let said = lines(&server);
    let told = "requests tied by their prompts; without slot assignment: infill is not tracked";
    assert!(said.iter().any(|line| line.contains(told)), "{said:?}");
}

#[test]
fn names_that_are_hidden() {
    assert_tied_by_prompts(Unseen::Hidden);
}

/// They are there for all to see, yet nothing is heard of their calls.
#[test]
fn a_library_that_prefers_its_own_functions() {
    assert_tied_by_prompts(Unseen::Symbolic);
}
