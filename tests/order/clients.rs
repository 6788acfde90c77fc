//! What clients for Python and JavaScript read in the usage of answers, over a restart of the server with a prefix store.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use contextpilot_testbed::{script, skip};

use crate::store::await_store;
use crate::support::{Index, control, watched};
use crate::usage::{account, one_slot, restarted, socket};

#[test]
fn clients_for_javascript_read_what_was_not_evaluated() {
    let packages = match script("node-clients", &[]) {
        Ok(packages) => packages,
        Err(why) => return skip(why.why_skipped()),
    };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/order/client.mjs");
    for by in [By::Server, By::Index] {
        let mut command = Command::new("node");
        command.args([program, &packages]);
        ten_turns(command, by);
    }
}

#[test]
fn clients_for_python_read_what_was_not_evaluated() {
    let python = match script("python-clients", &[]) {
        Ok(python) => python,
        Err(why) => return skip(why.why_skipped()),
    };
    for by in [By::Server, By::Index] {
        let mut command = Command::new(&python);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/order/usage.py"));
        ten_turns(command, by);
    }
}

/// What puts the figures in answers right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The server, which clients ask without a proxy.
    Server,
    /// The index in front of a server that does not.
    Index,
}

/// `client` gets the address to ask, and has its conversations there.
fn ten_turns(mut client: Command, by: By) {
    let folder = tempfile::tempdir().unwrap();
    let setting = if by == By::Server { "1" } else { "0" };
    let builder = one_slot(folder.path()).env("CONTEXTPILOT_STORE_USAGE", setting);
    let socket = socket(folder.path());
    let mut server = watched(&builder, &socket);
    let hook = control(&socket);
    await_store(&hook);
    let index = Index::told(server.address(), &socket);
    let address = match by {
        By::Server => server.address(),
        By::Index => index.address,
    };
    client.arg(format!("http://{address}"));
    client.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let mut asks = client.stdin.take().unwrap();
    let mut answers = BufReader::new(client.stdout.take().unwrap()).lines();
    let mut loaded = 0;
    for turn in 0..10 {
        if turn == 5 {
            server = restarted(server, &builder, &socket, &index);
        }
        writeln!(asks, "turn-{turn}").unwrap();
        let line = answers.next().expect("an answer").unwrap();
        let read: Vec<(String, u64, u64)> = serde_json::from_str(&line).unwrap();
        assert_eq!(read.len(), 6, "{line}");
        for (id, cached, evaluated) in read {
            let account = account(&hook, &id);
            let right = (account.reused, account.evaluated);
            assert_eq!((cached, evaluated), right, "{by:?}: {id}: {account:?}");
            loaded += account.from.store;
        }
    }
    assert!(loaded > 5_000, "{loaded} tokens were loaded");
    drop(asks);
    assert!(client.wait().unwrap().success());
}
