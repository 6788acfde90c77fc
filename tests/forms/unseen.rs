//! Servers whose own functions cannot be hooked. There the hook ties requests to slots by their
//! prompts.

use contextpilot_testbed::{Index, Unseen, or_return, unseen_server};

use crate::support::hooked;
use crate::{assert_exact, lines, server};

#[test]
fn with_the_servers_own_functions_hidden_reports_are_exact() {
    let program = or_return!(unseen_server(Unseen::Nameless).unwrap());
    let index = Index::start().unwrap();
    let mut server = hooked(&server().program(program), &index);
    assert_exact(&mut server, &index);
    let said = lines(&server);
    let told = "requests tied by their prompts (";
    assert!(said.iter().any(|line| line.contains(told)), "{said:?}");
}
