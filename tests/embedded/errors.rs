//! Errors inside the hook, made on demand: wherever one comes, the program goes on as without the hook.
#![cfg(debug_assertions)] // A release build has no errors on demand.

use contextpilot_testbed::{Arch, or_return};

use crate::program::{Program, Run, hooked};

/// Tokens of an answer are evaluated with others when they come again, and rounding differs, by processor too (0.021 was
/// seen): cells have 11 bits, which for logits of 100 is this. Other tokens would make 0.2.
const ROUNDING: f64 = 0.05;

const STOPPED: &str = "Stopped after an internal error";

/// A run of the program in which the prefix store makes these errors.
fn faulty(program: &Program, what: &str, fault: &str, more: &[(&str, &str)]) -> Run {
    let store = tempfile::tempdir().unwrap();
    let mut variables = hooked(store.path()).to_vec();
    variables.push(("CONTEXTPILOT_FAULT", fault));
    variables.extend(more);
    program.run_with(what, &variables)
}

/// The first look at what is known of a context at which an error comes, and how many looks lie between two of them. A
/// program looks some two thousand times.
const FIRST: usize = 7;
const STEP: usize = 193;

fn all_errors_are_survived(arch: Arch, bounded: &str) {
    let program = or_return!(Program::with(arch));
    let more = [("BOUNDED", bounded)];
    let plain = program.run_with("errors", &more);
    let mut reached = 0;
    for (nth, look) in (FIRST..).step_by(STEP).enumerate() {
        let mut ended = true;
        // With states that are put together, and with such as go past memory.
        let states = ["", "straight:1,"][nth % 2];
        for kind in ["record", "recorded"] {
            let run = faulty(&program, "errors", &format!("{states}{kind}:{look}"), &more);
            run.must_answer_within(&plain, ROUNDING);
            let said = run.stderr.contains(STOPPED);
            ended &= !said;
            reached += usize::from(said);
        }
        if ended {
            break;
        }
    }
    assert!(reached > 10, "{reached}");
}

#[test]
fn wherever_an_error_comes_a_program_is_answered_as_without_the_hook() {
    all_errors_are_survived(Arch::Llama, "");
}

#[test]
fn wherever_an_error_comes_a_model_that_cannot_go_back_answers_as_without_the_hook() {
    all_errors_are_survived(Arch::Jamba, "1");
}

#[test]
fn wherever_an_error_comes_a_model_with_sliding_windows_answers_as_without_the_hook() {
    all_errors_are_survived(Arch::Gemma2, "1");
}

/// Each context is put right by the thread that uses it, when that is done with what it does.
#[test]
fn an_error_on_one_thread_leaves_alone_what_another_one_evaluates() {
    let program = or_return!(Program::find());
    let broken = program.folder().join("broken");
    let fault = format!("broken:{}", broken.display());
    let plain = program.run("apart");
    let broken = broken.to_str().unwrap();
    let run = faulty(&program, "apart", &fault, &[("BROKEN", broken)]);
    run.must_answer_within(&plain, ROUNDING);
    assert!(run.stderr.contains(STOPPED), "{run:?}");
}
