//! The lists of flags on which KV depends, and on which it does not, against the server's own help.

use contextpilot_server_flags::is_listed;

use crate::help::Help;

/// A flag that is on no list costs hits: a server with it has chunks of its own.
#[test]
fn every_flag_of_the_server_is_on_a_list_with_all_of_its_names_and_its_variable() {
    let mut lacking = Vec::new();
    for (names, said) in Help::of_server().entries() {
        let variable = said
            .split("(env: ")
            .nth(1)
            .and_then(|rest| rest.split(')').next());
        let variable = variable.filter(|name| name.starts_with("LLAMA_ARG_"));
        if !names.iter().all(|name| is_listed(name, variable)) {
            lacking.push(format!("{names:?} {}", variable.unwrap_or_default()));
        }
    }
    // Of other servers it is only of interest.
    match std::env::var_os("LLAMA_SERVER_BIN") {
        None => assert_eq!(lacking, [""; 0], "server-flags/src/kv.rs"),
        Some(_) => eprintln!("not on a list: {lacking:#?}"),
    }
}
