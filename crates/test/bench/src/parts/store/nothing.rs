//! What the store costs where it can bring nothing: every prompt is new, and is stored.

use std::path::PathBuf;

use contextpilot_testbed::{Arch, Model, Request, Result, Server, Spec};

use super::super::serving::{ask, prompt};
use super::stored::Stored;
use crate::lab::{Lab, failed};
use crate::page::{Aim, Page};
use crate::sample::{Comparison, Verdict, order};

/// The first token, against a server without a store.
const AIM: f64 = 1.03;

/// Prompts for a model.
struct Load {
    name: String,
    model: Model,
    tokens: usize,
    rounds: usize,
}

/// Models that can go back to any position.
pub(super) fn dense(lab: &Lab, page: &mut Page) -> Result<()> {
    let load = |name: &str, spec, rounds| Load {
        name: name.to_owned(),
        model: Model::of(&spec),
        tokens: 200,
        rounds,
    };
    let tiny = Spec::new(Arch::Llama);
    measure(load("the tiny model", tiny, lab.rounds(300, 2)), lab, page)?;
    if lab.quick {
        return Ok(());
    }
    measure(load("a model of 85 MB", larger(Arch::Llama), 40), lab, page)
}

/// Sliding windows, whose batches are evaluated in parts. `also`: models to try besides a random one.
pub(super) fn windowed(also: &[PathBuf], lab: &Lab, page: &mut Page) -> Result<()> {
    let spec = if lab.quick {
        Spec::new(Arch::Gemma2)
    } else {
        larger(Arch::Gemma2)
    };
    let random = Load {
        name: "a random model with sliding windows".to_owned(),
        model: Model::of(&spec),
        tokens: lab.rounds(1_500, 200),
        rounds: lab.rounds(12, 2),
    };
    let also = also.iter().map(|path| Load {
        name: path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into(),
        model: Model::file(path.clone(), Arch::Gemma2),
        tokens: 1_500,
        rounds: lab.rounds(12, 2),
    });
    for load in std::iter::once(random).chain(also) {
        measure(load, lab, page)?;
    }
    Ok(())
}

fn larger(arch: Arch) -> Spec {
    Spec {
        layers: 8,
        width: 512,
        ..Spec::new(arch)
    }
}

/// The time to the first token of prompts that have nothing in common.
fn measure(load: Load, lab: &Lab, page: &mut Page) -> Result<()> {
    let Load {
        name,
        model,
        tokens,
        rounds,
    } = load;
    let plain = Server::builder().model(&model).bare_slots(2);
    let folder = tempfile::tempdir_in(lab.scratch(""))?;
    let stored = Stored::start(lab, &plain, folder.path())?;
    let others = [
        lab.launched(&plain).observed().spawn()?,
        lab.launched(&plain).observed().spawn()?,
    ];
    let servers = [&others[0], &others[1], &stored.server];
    let mut first = Comparison::new(&[
        "no store",
        "no store, again",
        "a store with nothing to gain",
    ]);
    for round in 0..rounds {
        for side in order(round, servers.len()) {
            let request = Request::completion(prompt(round, tokens))
                .predict(8)
                .streamed();
            first.add(side, ask(servers[side], &request)?[0]);
        }
    }
    if stored.figures()?.saves == 0 && rounds > 4 {
        return Err(failed("nothing was stored"));
    }
    page.say(format!(
        "**Nothing to gain**: prompts of {tokens} tokens that have nothing in common, {name}. Each is stored\n\
         when the next but one takes its slot. Time to the first token:"
    ));
    page.say(first.table("ms"));
    let ratio = first.ratio(2);
    page.aim(
        &format!("The first token with a store and nothing to gain, {name}"),
        &format!("at most {AIM}"),
        &ratio.show(3),
        match first.verdict(2) {
            _ if ratio.middle <= AIM => Aim::Met,
            Verdict::Noise => Aim::Noise,
            _ => Aim::Missed,
        },
    );
    Ok(())
}
