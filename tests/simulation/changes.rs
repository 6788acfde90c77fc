//! Slots that are erased, saved, restored, or chosen for requests that are then refused. Later prompts
//! show what is left in the slots.

use contextpilot_simulate::{Setting, simulate};
use contextpilot_testbed::{Arch, Builder, Error, Model, ProjectorKind, Request, Result, Server};
use contextpilot_testbed::{Step, Trace};
use serde_json::json;

use crate::cases::Case;
use crate::prompts::text;
use crate::recorded::{SIGTERM, record_with};

fn ask(trace: Trace, prompt: impl Into<serde_json::Value>) -> Trace {
    trace.ask(Request::completion(prompt))
}

fn ask_in(trace: Trace, slot: u32, prompt: impl Into<serde_json::Value>) -> Trace {
    trace.ask(Request::completion(prompt).slot(slot))
}

fn save(trace: Trace, slot: u32, file: &str) -> Trace {
    trace.then(Step::Save(slot, file.to_owned()))
}

fn restore(trace: Trace, slot: u32, file: &str) -> Trace {
    trace.then(Step::Restore(slot, file.to_owned()))
}

fn of(arch: Arch) -> Builder {
    Server::builder().model(&Model::tiny(arch))
}

fn bare(arch: Arch) -> Builder {
    of(arch).bare_slots(2).args(["-c", "2048"])
}

fn moving() -> Builder {
    of(Arch::Llama).args(["-np", "1", "-c", "2048", "--cache-reuse", "16"])
}

/// The default flags of late 2026. Older servers have one slot by default.
fn shared(arch: Arch) -> Builder {
    of(arch).args(["--parallel", "4", "--kv-unified"])
}

/// A host prompt cache, and slots with separate caches.
fn with_host(arch: Arch) -> Builder {
    of(arch).args(["-c", "2048", "--parallel", "2"])
}

/// One slot is erased, the other one keeps its prompt. Later both are erased.
fn erased() -> Trace {
    let (p, q) = (text(1, 90), text(2, 90));
    let trace = ask_in(ask_in(Trace::new(), 0, &*p), 1, &*q);
    let trace = ask(trace.then(Step::Erase(0)), format!("{p}{}", text(3, 20)));
    let trace = ask(trace, format!("{q}{}", text(4, 20)));
    let trace = trace.then(Step::Erase(0)).then(Step::Erase(1));
    ask(ask(trace, p), q)
}

/// Documents of which the first is left out each time: with a projector the others stay where they are, also in prompts of text
/// alone, and are evaluated.
fn documents() -> Trace {
    (0..4).fold(Trace::new(), |trace, nth| {
        let rest: String = (nth..nth + 4).map(|nth| text(200 + nth, 60)).collect();
        ask(trace, format!("{}{rest}", text(1, 40)))
    })
}

/// A saved prompt is restored into another slot, and continued there.
fn restored() -> Trace {
    let (p, q) = (text(1, 120), text(2, 90));
    let longer = format!("{p}{}", text(3, 40));
    let trace = save(ask_in(Trace::new(), 0, &*p), 0, "p");
    let trace = ask_in(ask_in(trace, 1, &*q), 0, text(5, 70));
    // Restore over another prompt.
    let trace = ask(restore(trace, 1, "p"), &*longer);
    // Restore over a longer form of the same prompt, twice.
    let trace = restore(save(trace, 1, "longer"), 1, "p");
    let trace = ask_in(trace, 1, format!("{p}{}", text(6, 30)));
    let trace = restore(restore(trace, 0, "longer"), 1, "longer");
    let trace = ask(
        trace.then(Step::Erase(0)),
        format!("{longer}{}", text(7, 10)),
    );
    ask(ask(trace, q), p)
}

/// Many prompts that share little, with restores between them. The restores decide which slot is chosen,
/// and what is in the host cache.
fn among_others() -> Trace {
    let longer = |seed, turn: usize| text(seed, 60 * turn);
    let mut trace = save(ask_in(Trace::new(), 0, longer(1, 1)), 0, "one");
    for turn in 1..4 {
        for seed in 2..5 {
            trace = ask(trace, longer(seed, turn));
        }
        trace = restore(trace, turn as u32 % 2, "one");
        trace = ask(trace, longer(1, turn + 1));
        trace = trace.then(Step::Erase((turn as u32 + 1) % 2));
    }
    ask(ask(trace, longer(2, 4)), longer(3, 4))
}

/// Lets the server refuse prompts that are too long. Older servers cut them by default.
fn refuses(server: Builder) -> Builder {
    server.args(["--no-context-shift"])
}

/// Requests whose prompts are too long. The server refuses them after it has chosen a slot.
fn refused() -> Trace {
    let long = |seed| text(seed, 3000);
    let mut trace = ask(ask(Trace::new(), text(1, 100)), text(2, 100));
    trace = ask(ask(trace, long(9)), text(3, 100));
    trace = ask(ask(trace, text(2, 130)), text(1, 130));
    // A refused prompt that continues the prompt in a slot, then one that continues a host entry.
    trace = ask(trace, format!("{}{}", text(1, 130), long(8)));
    trace = ask(ask(trace, text(4, 100)), text(5, 100));
    trace = ask(trace, format!("{}{}", text(2, 130), long(7)));
    trace = trace.ask(Request::completion(long(6)).slot(1));
    (1..6).fold(trace, |trace, seed| ask(trace, text(seed, 140)))
}

pub(super) fn cases() -> Vec<Case> {
    let (llama, gemma, mamba) = (Arch::Llama, Arch::Gemma2, Arch::Mamba);
    vec![
        Case::new("slots: erased", bare(llama), erased()),
        Case::new("slots: erased, host cache", with_host(llama), erased()),
        Case::new("slots: erased, shared context", shared(llama), erased()),
        Case::new("slots: erased, sliding window", bare(gemma), erased()),
        Case::new("slots: erased, recurrent", bare(mamba), erased()),
        Case::new("slots: restored", bare(llama), restored()),
        Case::new("slots: restored, host cache", with_host(llama), restored()),
        Case::new("slots: restored, shared context", shared(llama), restored()),
        Case::new("slots: restored, sliding window", bare(gemma), restored()),
        Case::new("slots: restored, recurrent", bare(mamba), restored()),
        Case::new("slots: among others", bare(llama), among_others()),
        Case::new(
            "slots: among others, host cache",
            with_host(llama),
            among_others(),
        ),
        Case::new(
            "slots: among others, sliding window, host cache",
            with_host(gemma),
            among_others(),
        ),
        Case::new("moved chunks: documents", moving(), documents()),
        Case::new(
            "moved chunks: documents, with a projector",
            moving().projector(ProjectorKind::Llava),
            documents(),
        ),
        Case::new("slots: refused", refuses(bare(llama)), refused()),
        Case::new(
            "slots: refused, host cache",
            refuses(with_host(llama)),
            refused(),
        ),
        Case::new(
            "slots: refused, shared context",
            refuses(shared(llama).args(["-c", "1024"])),
            refused(),
        ),
    ]
}

/// A slot is restored from a file of another process. The recording does not have these tokens.
pub(super) fn unseen() -> Result<String> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_string_lossy().into_owned();
    let builder = bare(Arch::Llama).args(["--slot-save-path", &*path]);
    let mut first = builder.spawn()?;
    let trace = save(ask_in(Trace::new(), 0, text(1, 200)), 0, "secret-name");
    trace.run(&first)?;
    first.stop(SIGTERM)?;

    let trace = restore(Trace::new(), 1, "secret-name");
    let trace = ask(ask_in(trace, 0, text(2, 100)), text(1, 230));
    let (said, reused) = answers(&builder, |server| {
        let outcomes = trace.run(server)?;
        let all = outcomes.iter().flat_map(|outcome| &outcome.completions);
        Ok(all.map(|completion| completion.cache_n as u32).collect())
    })?;
    if reused.last().is_some_and(|&reused| reused >= 200) {
        Ok(said)
    } else {
        Err(Error::new(said))
    }
}

/// Embeddings between the questions of a conversation. Since 0.7.0 the server empties their slots.
pub(super) fn embedded() -> Result<String> {
    let builder = with_host(Arch::Llama).args(["--embeddings", "--pooling", "last"]);
    let (p, q) = (text(1, 90), text(2, 90));
    let longer = format!("{p}{}", text(6, 30));
    let steps: [(bool, &str); 9] = [
        (false, &p),
        (true, &text(3, 90)),
        (false, &text(3, 120)),
        (false, &q),
        (true, &text(4, 60)),
        (true, &text(5, 60)),
        (false, &longer),
        (false, &text(5, 90)),
        (false, &q),
    ];
    let (said, _) = answers(&builder, |server| {
        let mut reused = Vec::new();
        for (is_embedding, text) in steps {
            if is_embedding {
                server.post("/v1/embeddings", &json!({"input": text}))?;
            } else {
                let answer = server.complete(&Request::completion(text))?;
                reused.push(answer.cache_n as u32);
            }
        }
        Ok(reused)
    })?;
    Ok(said)
}

/// How many tokens of each prompt the engine has reused, if that is simulated.
fn answers(
    builder: &Builder,
    ask: impl FnOnce(&Server) -> Result<Vec<u32>>,
) -> Result<(String, Vec<u32>)> {
    let mut engine = Vec::new();
    let traffic = record_with(builder, |server| {
        engine = ask(server)?;
        Ok(())
    })?;
    let setting = Setting::recorded(&traffic);
    let setting = setting.ok_or_else(|| Error::new("the recording says nothing of the server"))?;
    let point = simulate(&traffic, &setting);
    let simulated = traffic.requests.iter().zip(&point.outcomes);
    let simulated = simulated.filter(|(request, _)| !request.record.embedding);
    let simulated: Vec<u32> = simulated
        .filter_map(|(_, outcome)| Some(outcome.as_ref()?.reused))
        .collect();
    let said = format!("engine {engine:?}, simulated {simulated:?}");
    if engine == simulated {
        Ok((said, engine))
    } else {
        Err(Error::new(said))
    }
}
