//! What the control endpoint says of a program without requests.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use contextpilot_client::Control;
use contextpilot_testbed::until;

use crate::program::{Program, Step, hooked};

/// Tokens after each prompt that are evaluated.
const GENERATED: u64 = 7;

#[test]
fn each_prompt_has_an_account_and_its_figures_are_the_engines() {
    let Some(program) = Program::find() else {
        return;
    };
    let store = tempfile::tempdir().unwrap();
    for stored in [false, true] {
        let socket = program.folder().join("control.sock");
        let listen = format!("unix:{}", socket.display());
        let variables = hooked(store.path());
        let variables = variables.iter().copied();
        let variables = variables.filter(|(name, _)| stored || !name.contains("STORE"));
        let listen = ("CONTEXTPILOT_LISTEN", listen.as_str());
        let variables: Vec<_> = variables.chain([listen]).collect();
        let mut command = program.command("wait", &variables);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let steps = lines.map(|line| serde_json::from_str::<Step>(&line.unwrap()).unwrap());
        let steps: Vec<Step> = steps.take_while(|step| step.name != "waiting").collect();
        let steps: Vec<&Step> = steps
            .iter()
            .filter(|step| step.name.starts_with("each"))
            .collect();
        assert_eq!(steps.len(), 5);

        let control = Control::new(listen.1).unwrap();
        let accounts = until("all prompts are told", || {
            let latest = control.latest(16).unwrap().requests;
            (latest.len() == steps.len()).then_some(latest)
        });
        for (account, step) in accounts.iter().rev().zip(&steps) {
            let told = account.evaluation.evaluated + GENERATED;
            // To learn what states look like, the store evaluates the first two tokens once more.
            let more = u64::from(step.evaluated) - told;
            let most = if stored && step.name == "each 0" {
                2
            } else {
                0
            };
            assert!(more <= most, "{}: {told} {step:?}", step.name);
            assert_eq!(
                account.evaluation.from.store > 1000,
                stored && step.name == "each 2"
            );
        }
        let stats = control.stats().unwrap();
        assert_eq!(stats.slots[0].tokens, 1500 + 7 + 100 + 7);
        assert_eq!((stats.requests.seen, stats.requests.finished), (5, 4));
        assert_eq!(stats.store.is_some(), stored);

        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
        assert!(!socket.exists(), "the socket is left behind");
    }
}
