//! Contexts with sliding windows: whether they keep every position is the program's choice, and what a load brings is
//! never less than the program would have had.

use contextpilot_testbed::{Arch, or_return};

use crate::program::Program;

/// Tokens that come again are evaluated with others then, and rounding differs. An evaluation on rows that are not there is
/// off by 0.2 and more.
const ROUNDING: f64 = 0.05;

/// What a load leaves to the engine: the eight tokens of the answer but the last, the new ones of the prompt, and one for each
/// batch.
const FEW: u32 = 40;

#[test]
fn a_program_that_goes_back_behind_what_was_loaded_is_answered_as_without_a_store() {
    let program = or_return!(Program::with(Arch::Gemma2));
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("back");
    for life in 0..3 {
        let run = program.run_stored("back", store.path());
        run.must_answer_within(&plain, ROUNDING);
        // A cache that keeps every position has no store, and a small one of several sequences, each of which is said once.
        for (ours, theirs) in run.steps.iter().zip(&plain.steps) {
            let is_loaded = ours.name.starts_with("small");
            assert!(is_loaded || ours.evaluated == theirs.evaluated, "{run:?}");
        }
        for advice in ["swa_full=False", "kv_unified=False"] {
            let said = run.stderr.matches(advice).count();
            assert_eq!(said, 1, "{advice}: {run:?}");
        }
        // The other one has.
        for name in ["small again", "small first again", "small second again"] {
            assert!(run.step(name).evaluated <= FEW, "{life} {name}\n{run:?}");
        }
        assert!(plain.step("small again").evaluated > 600);
    }
}

#[test]
fn an_evaluation_that_the_program_stops_ends_as_without_a_store() {
    for arch in [Arch::Gemma2, Arch::Llama, Arch::Mamba, Arch::Jamba] {
        let program = or_return!(Program::with(arch));
        let store = tempfile::tempdir().unwrap();
        let plain = program.run("stops");
        assert_eq!(plain.step("stopped 0").rest["result"], 2, "{plain:?}");
        let run = program.run_stored("stops", store.path());
        run.must_answer_within(&plain, ROUNDING);
        for nth in 0..3 {
            let [ours, theirs] =
                [&run, &plain].map(|run| run.step(&format!("stopped {nth}")).rest.clone());
            // Before the first prompt, the store looks at the states of two tokens, which calls the callback, too. The
            // fourth prompt is loaded, and nothing of it is left to be stopped.
            let parts = |last: i64| (last + 1) / 64;
            assert_eq!(ours["result"], theirs["result"], "{arch} {nth}");
            assert_eq!(
                (ours["last"] + 1) % 64,
                (theirs["last"] + 1) % 64,
                "{arch} {nth}"
            );
            let fewer = parts(theirs["last"]) - parts(ours["last"]);
            assert!(
                fewer == 0 || nth == 0 && fewer == 1,
                "{arch} {nth}: {ours:?} {theirs:?}"
            );
        }
    }
}
