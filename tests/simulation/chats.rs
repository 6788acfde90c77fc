//! Chats in which a client sends a model its own answers again: continued, without their oldest turns,
//! with a changed message, and branched.
//!
//! Models repeat themselves. So the same stretch of tokens stands in several places, in an answer and in
//! later prompts, and where it stood first says nothing about where the slot has it.

use std::fmt::Write as _;

use contextpilot_simulate::{LEAST_GAIN, Setting, advise};
use contextpilot_testbed::{Arch, Error, Model, Result, Server, real_model};

use crate::client::{Client, Sampling, phrases};
use crate::page;
use crate::prompts::text;
use crate::recorded::record_with;

/// How far the simulated share of reused tokens may be off.
const TOLERANCE: f64 = 0.002;

/// The flags of a server that records a chat.
#[derive(Clone, Copy)]
struct Flags {
    /// `None`: the default, four that share their context.
    parallel: Option<&'static str>,
    /// Not `--cache-ram 0`.
    host_cache: bool,
    cache_reuse: &'static str,
}

impl Flags {
    fn all(chunks: &'static [&'static str]) -> impl Iterator<Item = Self> {
        [Some("1"), None].into_iter().flat_map(move |parallel| {
            [true, false].into_iter().flat_map(move |host_cache| {
                chunks.iter().map(move |cache_reuse| Self {
                    parallel,
                    host_cache,
                    cache_reuse,
                })
            })
        })
    }

    fn arguments(self) -> Vec<&'static str> {
        let mut all = vec!["-c", "8192", "--cache-reuse", self.cache_reuse];
        all.extend(self.parallel.iter().flat_map(|slots| ["--parallel", slots]));
        if !self.host_cache {
            all.extend(["--cache-ram", "0"]);
        }
        all
    }
}

/// A chat, by the engine and by the simulation of its recording at the recorded flags.
struct Compared {
    prompts: usize,
    /// Prompts of which the simulation says the same, to the token.
    exact: usize,
    /// Tokens that were evaluated.
    evaluated: [u64; 2],
    /// The shares of reused tokens.
    shares: [f64; 2],
    differences: String,
    /// The flags that would have helped, and the share of reused tokens with them.
    advice: Option<(String, f64)>,
}

fn compare(
    model: &Model,
    flags: Flags,
    client: impl FnOnce(&Server) -> Client<'_>,
) -> Result<Compared> {
    let server = Server::builder().model(model).args(flags.arguments());
    let mut figures = Vec::new();
    let traffic = record_with(&server, |server| {
        let mut client = client(server);
        client.chat()?;
        figures = client.figures;
        Ok(())
    })?;
    let setting = Setting::recorded(&traffic);
    let setting = setting.ok_or_else(|| Error::new("the recording says nothing of the server"))?;
    let advice = advise(&traffic, &setting);
    let point = advice.replayed;
    let mut differences = String::new();
    let mut exact = 0;
    let simulated = point.outcomes.iter();
    let simulated = simulated.map(|outcome| outcome.map(|o| (o.reused, o.evaluated)));
    for (nth, (engine, simulated)) in figures.iter().zip(simulated).enumerate() {
        if simulated == Some(*engine) {
            exact += 1
        } else {
            let _ = write!(
                differences,
                "\n  {nth}: engine {engine:?}, simulated {simulated:?}"
            );
        }
    }
    let sum = |of: fn(&(u32, u32)) -> u32| figures.iter().map(|one| u64::from(of(one))).sum();
    let (reused, evaluated): (u64, u64) = (sum(|one| one.0), sum(|one| one.1));
    let share = reused as f64 / (reused + evaluated) as f64;
    let last = advice.changes.last();
    Ok(Compared {
        prompts: figures.len(),
        exact,
        evaluated: [evaluated, point.evaluated_tokens],
        shares: [share, point.reused_share()],
        differences,
        advice: last.map(|change| (change.flags.join(" "), change.point.reused_share())),
    })
}

const GREEDY: f64 = 0.0;
const SAMPLED: f64 = 0.8;

/// The tiny model.
pub(super) fn tiny() -> Result<String> {
    let model = Model::tiny(Arch::Llama);
    let (mut chats, mut prompts) = (0, 0);
    for temperature in [GREEDY, SAMPLED] {
        for flags in Flags::all(&["0", "32"]) {
            let compared = compare(&model, flags, |server| {
                let sayings = (0..20).map(|nth| text(nth, 40));
                let sampling = Sampling {
                    temperature,
                    tokens: 150,
                    grammar: Some(phrases()),
                };
                Client::new(server, &text(99, 60), sayings, sampling)
            })?;
            let would_help = flags.parallel.is_some() && flags.cache_reuse == "0";
            let advised = |(flags, _): &(String, f64)| flags.contains("--cache-reuse");
            let is_advised = compared.advice.as_ref().is_some_and(advised);
            if compared.exact < compared.prompts || would_help && !is_advised {
                return Err(Error::new(format!(
                    "temperature {temperature}, {}: advice {:?}{}",
                    flags.arguments().join(" "),
                    compared.advice,
                    compared.differences
                )));
            }
            chats += 1;
            prompts += compared.prompts;
        }
    }
    Ok(format!("{chats} chats of {prompts} prompts"))
}

/// Whether neither `--cache-reuse` nor something as good was advised where it helps. `with`: the chat
/// with it. Its answers may be others, so the shares are compared roughly.
fn lacks_advice(without: &Compared, with: &Compared) -> bool {
    let promised = without
        .advice
        .as_ref()
        .map_or(without.shares[0], |(_, share)| *share);
    with.shares[0] > promised + 2.0 * LEAST_GAIN
}

/// So long that a prompt without its oldest turn is similar enough to the slot that has it, by the default
/// of `--slot-prompt-similarity`.
const SYSTEM: &str = "You are a helpful assistant who knows a lot about food and drink: where they come \
    from, how they are grown, traded, prepared and served, and what they were called in other times and \
    places. Answer in whole sentences. If you are asked for a list, give each entry a line of its own. If \
    you are asked for a table, make one with a row for each kind and a column for each property. Do not \
    make up names, dates or numbers that you do not know; say that you do not know them. Do not repeat the \
    question. If a question has nothing to do with food or drink, say so in one sentence, and offer to \
    talk about tea, coffee, chocolate, wine, beer, bread, cheese or spices instead.";
const SAYINGS: [&str; 11] = [
    "Tell me about the history of tea in China.",
    "And how did it come to Europe?",
    "List the kinds of tea that there are today, and where each of them is grown.",
    "How should green tea be made?",
    "What is the difference between green and black tea?",
    "Is tea good for my health? List the reasons.",
    "Which of these kinds has the most caffeine?",
    "And how about coffee?",
    "Make a table of all of them, please.",
    "Wait, how did it come to India?",
    "Now make a summary of all that we said.",
];

/// A real model. Prints a line for each chat. Returns the rows for docs/simulate.md, and how many chats
/// were off; `None` if there is no Python to fetch the model with.
pub(super) fn real() -> Result<Option<(String, usize)>> {
    let Some(model) = real_model("chats with a real model")? else {
        return Ok(None);
    };
    let mut rows = String::new();
    let mut missed = 0;
    for (name, temperature) in [("greedy", GREEDY), ("sampled", SAMPLED)] {
        let mut without = None;
        for flags in Flags::all(&["0", "32", "256"]) {
            let compared = compare(&model, flags, |server| {
                let sayings = SAYINGS.into_iter().map(str::to_owned);
                let sampling = Sampling {
                    temperature,
                    tokens: 100,
                    grammar: None,
                };
                Client::new(server, SYSTEM, sayings, sampling)
            })?;
            let off = compared.shares[1] - compared.shares[0];
            let advice = compared.advice.as_ref();
            let advised = advice.map_or("nothing".to_owned(), |(flags, share)| {
                format!("`{flags}`: {:.1} %", 100.0 * share)
            });
            let unadvised = without
                .as_ref()
                .is_some_and(|without| lacks_advice(without, &compared));
            let bad = off.abs() > TOLERANCE || unadvised;
            missed += usize::from(bad);
            let row = format!(
                "| {name} | {} | {} | {} | {} | {} | {:.1} | {} of {} | {advised} |",
                flags.parallel.unwrap_or("default"),
                if flags.host_cache { "default" } else { "0" },
                flags.cache_reuse,
                compared.evaluated[0],
                compared.evaluated[1],
                100.0 * compared.shares[0],
                compared.exact,
                compared.prompts,
            );
            let more = format!(" {:+.1}{}", 100.0 * off, compared.differences);
            page::add_row(&mut rows, &row, bad, &more);
            if flags.cache_reuse == "0" {
                without = Some(compared);
            }
        }
    }
    Ok(Some((rows, missed)))
}
