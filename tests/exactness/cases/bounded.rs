//! Sliding windows and recurrent models, where checkpoints move: through host memory, through slot files.

use super::{Case, ask, text};
use contextpilot_testbed::{Arch, Builder, Model, Request, Server, Step, Trace};

pub(super) fn cases() -> Vec<Case> {
    [through_host(), ends(), restored(), whole(), nine_tenths()]
        .into_iter()
        .flatten()
        .collect()
}

fn of(arch: Arch) -> Builder {
    Server::builder().model(&Model::tiny(arch))
}

/// Another prompt, after which a conversation is in host memory.
fn other(trace: Trace, seed: u64) -> Trace {
    trace.ask(Request::completion(text(seed, 300)))
}

/// A conversation that goes through host memory before each turn, until it has more checkpoints than a
/// slot may have.
fn through_host() -> Vec<Case> {
    let turns = |turns: usize| {
        (1..=turns).fold(Trace::new(), |trace, turn| {
            ask(
                other(trace, 100 + turn as u64),
                turn,
                text(3, 80 + 20 * turn),
            )
        })
    };
    let case = |name, arch, count| {
        Case::new(name, of(arch).args(["-c", "4096"]), turns(count))
            .host_cache()
            .gone_at_least(3)
    };
    vec![
        case(
            "sliding window: many turns, host prompt cache",
            Arch::Gemma2,
            24,
        ),
        case("recurrent: many turns, host prompt cache", Arch::Mamba, 34),
    ]
}

/// The ends of windows and of checkpoints, in one slot.
fn ends() -> Vec<Case> {
    let server = |checkpoints: &str| {
        of(Arch::Gemma2)
            .args(["--parallel", "1", "-c", "1024", "--cache-ram", "8"])
            .args(["--ctx-checkpoints", checkpoints])
    };
    // Of the prompt the host entry has neither the window nor a checkpoint.
    let long = Request::completion(text(1, 200))
        .id("req-long")
        .predict(200);
    let long = other(Trace::new().ask(long), 2);
    // The second prompt goes on where the first ends, and makes a checkpoint there.
    let brief = |id: &str, length| Request::completion(text(3, length)).id(id).predict(1);
    let first = other(Trace::new().ask(brief("req-1", 150)), 10);
    let second = other(first.ask(brief("req-2", 200)), 11);
    let again = second.clone().ask(brief("req-3", 150));
    vec![
        Case::new(
            "sliding window: a long answer goes to the host prompt cache",
            server("0"),
            long,
        )
        .host_cache()
        .gone_at_least(1),
        Case::new(
            "sliding window: a checkpoint at the end of a prompt",
            server("2"),
            second,
        )
        .host_cache(),
        Case::new(
            "sliding window: back to a checkpoint at the end of a prompt",
            server("2"),
            again,
        )
        .host_cache()
        .gone_at_least(1),
    ]
}

/// Slot files have the window at the end and, since 0.7.0, the checkpoints.
fn restored() -> Vec<Case> {
    let case = |name, arch, checkpoints: &str| {
        let server = of(arch).bare_slots(1);
        let server = server.args(["-c", "1024", "--ctx-checkpoints", checkpoints]);
        let trace = ask(ask(Trace::new(), 1, text(3, 150)), 2, text(3, 200));
        let trace = trace.then(Step::Save(0, "conversation".to_owned()));
        let trace = trace.then(Step::Restore(0, "conversation".to_owned()));
        Case::new(name, server, trace)
    };
    let (window, recurrent) = (Arch::Gemma2, Arch::Mamba);
    vec![
        case("sliding window: a slot is restored", window, "8"),
        case(
            "sliding window: a slot is restored without checkpoints",
            window,
            "0",
        )
        .gone_at_least(1),
        case("recurrent: a slot is restored", recurrent, "8"),
        case(
            "recurrent: a slot is restored without checkpoints",
            recurrent,
            "0",
        )
        .gone_at_least(1),
    ]
}

/// Windows that keep every position. Saved states have only the window at their ends, and there are no checkpoints.
fn whole() -> Vec<Case> {
    let server = |flags: &[&str]| of(Arch::Gemma2).args(["--swa-full"]).args(flags);
    let one = || server(&["--parallel", "1", "-c", "2048", "--cache-ram", "8"]);
    let brief = |trace: Trace, id: &str, prompt: String| {
        trace.ask(Request::completion(prompt).id(id.to_owned()).predict(1))
    };
    // In its slot a prompt is left at any place. In host memory, only within the window at its end.
    let branch = |common: usize| text(3, 400)[..common].to_owned() + &text(40, 30);
    let back = brief(Trace::new(), "req-trunk", text(3, 400));
    let back = brief(back, "req-slot", branch(100));
    let back = brief(back, "req-again", text(3, 400));
    let back = brief(other(back, 10), "req-far", branch(100));
    let back = brief(other(back, 11), "req-whole", text(3, 400));
    let back = brief(other(back, 12), "req-near", branch(380));
    let back = brief(back, "req-on", branch(380) + &text(50, 40));
    let back = brief(back, "req-end", branch(20));
    let long = Request::completion(text(1, 200))
        .id("req-long")
        .predict(200);
    let files = server(&["-c", "2048"]).bare_slots(1);
    let restored = ask(ask(Trace::new(), 1, text(3, 100)), 2, text(3, 300));
    let restored = restored.then(Step::Save(0, "conversation".to_owned()));
    let restored = restored.then(Step::Restore(0, "conversation".to_owned()));
    let after = brief(restored.clone(), "req-3", text(3, 150));
    vec![
        Case::new(
            "whole windows: back to any place, host prompt cache",
            one(),
            back,
        )
        .host_cache()
        .prompts_return(),
        Case::new(
            "whole windows: a long answer goes to the host prompt cache",
            one(),
            other(Trace::new().ask(long), 2),
        )
        .host_cache()
        .gone_at_least(1),
        Case::new("whole windows: a slot is restored", files.clone(), restored).gone_at_least(1),
        Case::new(
            "whole windows: back in a slot that was restored",
            files,
            after,
        ),
    ]
}

/// Prompts of which a slot or host entry holds nine tenths, and not the rest.
fn nine_tenths() -> Vec<Case> {
    let one = |arch| of(arch).bare_slots(1).args(["-c", "2048"]);
    let host = |arch| of(arch).args(["-c", "4096"]);
    let document = text(7, 605);
    let end = |seed, length| format!("{document}{}", text(seed, length));
    let questions = || ask(ask(Trace::new(), "sea", end(8, 5)), "wolf", end(9, 8));
    let told = ask(questions(), "end", document.clone());
    // Each has less in common with the last one than the one before.
    let parting = || {
        let commons = [600, 570, 550, 546, 545, 544, 500].into_iter();
        let trace = commons.fold(Trace::new(), |trace, common| {
            let prompt = document[..common].to_owned() + &text(common as u64, 605 - common);
            ask(trace, common, prompt)
        });
        ask(trace, "all", document.clone())
    };
    let brief = |trace: Trace, id: &str, length| {
        let prompt = Request::completion(text(5, length)).id(id.to_owned());
        trace.ask(prompt.predict(0))
    };
    let again = |longer| {
        let trace = brief(Trace::new(), "req-1", 933);
        let trace = brief(trace, "req-2", longer);
        brief(trace, "req-3", 933)
    };
    let mut cases = Vec::new();
    for (arch, names) in [
        (
            Arch::Gemma2,
            [
                "sliding window: questions about a document",
                "sliding window: prompts that part after nine tenths, and before",
                "sliding window: the same, host prompt cache",
                "sliding window: the first nine tenths again",
                "sliding window: less than the first nine tenths again",
            ],
        ),
        (
            Arch::Mamba,
            [
                "recurrent: questions about a document",
                "recurrent: prompts that part after nine tenths, and before",
                "recurrent: the same, host prompt cache",
                "recurrent: the first nine tenths again",
                "recurrent: less than the first nine tenths again",
            ],
        ),
    ] {
        cases.extend([
            Case::new(names[0], one(arch), told.clone()).prompts_return(),
            Case::new(names[1], one(arch), parting())
                .gone_at_least(1)
                .prompts_return(),
            Case::new(names[2], host(arch), parting())
                .host_cache()
                .prompts_return(),
            Case::new(names[3], one(arch), again(1028)),
            Case::new(names[4], one(arch), again(1050)).gone_at_least(1),
        ]);
    }
    cases
}
