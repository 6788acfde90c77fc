//! What the control endpoint says of a program without requests.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use contextpilot_client::Control;
use contextpilot_testbed::{or_return, until};

use crate::program::{Program, Step, hooked};

/// Tokens after each prompt that are evaluated.
const GENERATED: u64 = 7;

/// Two contexts side by side: each has its own slots, accounts and figures, also while both evaluate.
#[test]
fn each_prompt_of_each_context_has_an_account_and_its_figures_are_the_engines() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    for stored in [false, true] {
        let socket = program.folder().join("control.sock");
        let listen = format!("unix:{}", socket.display());
        let variables = hooked(store.path());
        let variables = variables.iter().copied();
        let variables = variables.filter(|(name, _)| stored || !name.contains("STORE"));
        let listen = ("CONTEXTPILOT_LISTEN", listen.as_str());
        // As states that are large. The functions for that are in another library than the engine's.
        let straight = ("CONTEXTPILOT_FAULT", "straight:1");
        let variables: Vec<_> = variables.chain([listen, straight]).collect();
        let mut command = program.command("wait", &variables);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let steps = lines.map(|line| serde_json::from_str::<Step>(&line.unwrap()).unwrap());
        let steps: Vec<Step> = steps.take_while(|step| step.name != "waiting").collect();
        let of = |context: &str| -> Vec<&Step> {
            let steps = steps.iter();
            steps
                .filter(|step| step.name.starts_with(context))
                .collect()
        };
        let contexts = [of("each"), of("other")];
        assert_eq!(contexts.each_ref().map(Vec::len), [7, 7]);

        let control = Control::new(listen.1).unwrap();
        let accounts = until("all prompts are told", || {
            let latest = control.latest(16).unwrap().requests;
            (latest.len() == 14).then_some(latest)
        });
        for (context, steps) in contexts.iter().enumerate() {
            let of_context = |slot: i32| slot / 1000 == context as i32;
            let accounts = accounts.iter().rev();
            let accounts: Vec<_> = accounts.filter(|one| of_context(one.slot)).collect();
            assert_eq!(accounts.len(), steps.len());
            for (account, step) in accounts.iter().zip(steps) {
                let told = account.evaluation.evaluated + GENERATED;
                // To learn what states look like, the store evaluates the first two tokens once more.
                let more = u64::from(step.evaluated) - told;
                let first = stored && step.name.ends_with(" 0");
                let most = if first { 2 } else { 0 };
                assert!(more <= most, "{}: {told} {step:?}", step.name);
                // What the store has loaded is not lost.
                let evaluation = &account.evaluation;
                let lost = evaluation.lost.as_ref().map_or(0, |lost| lost.tokens);
                assert_eq!(lost > 0, evaluation.causes.evicted > 0, "{evaluation:?}");
                assert_eq!(lost > 0, evaluation.lost.is_some(), "{evaluation:?}");
                assert!(lost <= evaluation.causes.evicted, "{evaluation:?}");
                if context == 0 {
                    assert_eq!(
                        account.evaluation.from.store > 1000,
                        stored && ["each 2", "each again"].contains(&&*step.name)
                    );
                }
            }
        }
        // Nothing says that an answer is over.
        let stats = until("no slot is at work", || {
            let stats = control.stats().unwrap();
            stats.slots.iter().all(|slot| !slot.busy).then_some(stats)
        });
        let slots: Vec<_> = stats
            .slots
            .iter()
            .map(|slot| (slot.slot, slot.context))
            .collect();
        assert_eq!(slots, [(0, Some(0)), (1000, Some(1)), (1001, Some(1))]);
        assert_eq!(stats.slots[0].tokens, 1500 + 7 + 100 + 7);
        assert_eq!((stats.slots[1].tokens, stats.slots[2].tokens), (307, 207));
        assert_eq!((stats.requests.seen, stats.requests.finished), (14, 11));
        assert_eq!(stats.store.is_some(), stored);
        if let Some(store) = stats.store.filter(|_| cfg!(debug_assertions)) {
            let straight = store.direct_loads.min(store.partial_saves);
            assert!(straight > 0, "{store:?}");
        }
        for (context, steps) in stats.contexts.iter().zip(&contexts) {
            assert_eq!(context.reuse.prompts, 7);
            let evaluated: u64 = steps.iter().map(|step| u64::from(step.evaluated)).sum();
            let more = evaluated - context.reuse.evaluated - 7 * GENERATED;
            assert!(more <= 2, "{context:?} {evaluated}");
        }
        let capacities = stats
            .contexts
            .iter()
            .map(|one| (one.sequences, one.capacity));
        let capacities: Vec<_> = capacities.collect();
        assert_eq!(capacities, [(Some(1), Some(4096)), (Some(2), Some(4096))]);
        let metrics = control.metrics().unwrap();
        let name = "contextpilot_llama_context_prompts_total";
        assert_eq!(metrics.value(name, &[("context", "1")]), Some(7.0));

        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
        assert!(!socket.exists(), "the socket is left behind");
    }
}
