//! `demo`: shows which request is in which slot, which is evicted from the KV cache, and when
//! the eviction arrives at an index.

use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use clap::Args;
use contextpilot_client::{Completion, Prompt};

use super::show::{counted, print};
use crate::error::Error;
use crate::server;
use crate::variables::of_process;

mod index;
pub(super) mod obtain;
pub(super) mod running;

use index::EvictPost;
use running::{Running, SLOTS};

/// How long to wait for a further eviction. It is posted while the new prompt is still being evaluated, so it
/// has already arrived, if there is one.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long to wait for the eviction that a prompt must cause, on a busy machine.
const EXPECTED: Duration = Duration::from_secs(5);

/// In two slots, each prompt evicts the one before the last.
const QUESTIONS: [(&str, &str); 6] = [
    (
        "req-tea",
        "Tea is picked in spring, on slopes that face the morning sun. When is it picked?",
    ),
    (
        "req-sea",
        "The sea is salt because rivers carry minerals and only water leaves. Why is it salt?",
    ),
    (
        "req-owl",
        "Owls turn their heads and not their eyes, which cannot move. What do owls turn?",
    ),
    (
        "req-sea2",
        "The sea is salt because rivers carry minerals and only water leaves. Why is it blue?",
    ),
    (
        "req-ash",
        "Ash trees leaf out late, and some of them not before the end of May. When do they?",
    ),
    (
        "req-elm",
        "Elms were common along roads until a beetle brought a fungus. What brought it?",
    ),
];

/// Show evictions arrive, on your own llama-server with a tiny model
///
/// Starts the llama-server that contextpilot-llama-server would start, with two slots and a model of
/// half a megabyte that it writes itself. Sends six prompts, and shows which of them are evicted from the KV
/// cache and when each eviction arrives at an index. Then asks the engine whether that was true. Takes some
/// seconds and leaves no files. Exit 1: a report was wrong, or could not be shown.
#[derive(Args)]
#[command(after_help = "Example:
  LLAMA_SERVER_BIN=/opt/llama.cpp/llama-server contextpilot-llama demo")]
pub(super) struct DemoOptions {}

pub(super) fn run(_: &DemoOptions) -> Result<(), String> {
    let server = server::find(of_process).map_err(|error| match error {
        Error::NotFound => format!(
            "There is no llama-server on PATH: {}",
            obtain::then("contextpilot-llama demo")
        ),
        error => error.to_string(),
    })?;
    let (url, posts) = index::start().map_err(|e| format!("No index can be played: {e}"))?;
    line(format!(
        "An index listens at {url}. Two slots, no host prompt cache, a tiny model:\n\
         two prompts fit, the third must push one out.\n"
    ))?;
    let mut running = Running::start(&server.path, &url)?;
    let (said, hook) = running.said();
    for said in said {
        line(said)?;
    }
    hook.runs()?;
    line(String::new())?;

    let mut gone = BTreeSet::new();
    for (nth, (id, prompt)) in QUESTIONS.into_iter().enumerate() {
        let sent = Instant::now();
        let answer = running.ask(&Prompt::new(prompt).id(id))?;
        line(format!(
            "{id:<9} slot {}   {}   {:>5.1} ms",
            answer.slot.map_or("?".to_owned(), |slot| slot.to_string()),
            from_the_cache(&answer),
            sent.elapsed().as_secs_f64() * 1e3
        ))?;
        let patience = if nth < SLOTS { PATIENCE } else { EXPECTED };
        for EvictPost { ids, at } in received(&posts, patience) {
            let after = at.saturating_duration_since(sent).as_secs_f64() * 1e3;
            for evicted in ids {
                line(format!(
                    "          ⤷ {evicted} fell out: POST /evict arrived {after:.1} ms after {id} \
                     was sent"
                ))?;
                gone.insert(evicted);
            }
        }
    }
    judge(&mut running, &gone)
}

/// Asks the engine itself whether the reports are true.
fn judge(running: &mut Running, gone: &BTreeSet<String>) -> Result<(), String> {
    line(
        "\nIs that true? Ask the engine itself, by sending the prompts again to its slots:".into(),
    )?;
    // Begin with the requests that were not reported, the latest first: they are still in their slots,
    // and sending them again changes nothing else.
    let cached = QUESTIONS.iter().rev().filter(|(id, _)| !gone.contains(*id));
    let lost = QUESTIONS.iter().filter(|(id, _)| gone.contains(*id));
    let mut wrong = 0;
    let mut sent_again: Vec<&(&str, &str)> = Vec::new();
    for question @ (id, prompt) in cached.chain(lost) {
        let answer = running.ask(&Prompt::new(*prompt).predict(1))?;
        let is_there = answer.timings.cached + 1 >= answer.prompt_tokens;
        let was_reported = gone.contains(*id);
        let verdict = match (was_reported, is_there) {
            (true, false) => "true, it was gone",
            (false, true) => "true, it is cached",
            _ => "NOT TRUE",
        };
        wrong += usize::from(was_reported == is_there);
        let report = if was_reported {
            "reported gone"
        } else {
            "not reported"
        };
        // A prompt that was sent again just before may begin alike, and has brought that back.
        let alike = sent_again
            .iter()
            .find(|(_, other)| begin_alike(prompt, other));
        let why = match alike.filter(|_| was_reported && !is_there) {
            Some((other, _)) => format!(" ({other} brought its beginning back)"),
            None => String::new(),
        };
        let cache = from_the_cache(&answer);
        line(format!("{id:<9} {report:<14} {cache}   {verdict}{why}"))?;
        sent_again.push(question);
    }
    let (known, count) = (QUESTIONS.len(), gone.len());
    let were = if wrong == 1 { "was" } else { "were" };
    line(format!(
        "\n{count} of {known} requests fell out, {} {were} wrong.",
        counted(wrong as u64, "report")
    ))?;
    if count == 0 || wrong > 0 {
        for said in running.said_since() {
            line(said)?;
        }
        return Err(
            "The hook did not tell the truth; please report this with the lines above, and with \
             what contextpilot-llama doctor says"
                .to_owned(),
        );
    }
    Ok(())
}

/// Whether more than the first word is the same.
fn begin_alike(a: &str, b: &str) -> bool {
    a.split(' ').zip(b.split(' ')).take(2).all(|(a, b)| a == b)
}

fn from_the_cache(answer: &Completion) -> String {
    format!(
        "{:>3} of {:>3} prompt tokens from the cache",
        answer.timings.cached, answer.prompt_tokens
    )
}

/// The evictions that arrive until none arrives for a while. `patience`: how long to wait for the first.
fn received(posts: &Receiver<EvictPost>, mut patience: Duration) -> Vec<EvictPost> {
    let next = || {
        let post = posts.recv_timeout(patience).ok();
        patience = PATIENCE;
        post
    };
    std::iter::from_fn(next).collect()
}

fn line(text: String) -> Result<(), String> {
    print(&format!("{text}\n"))
}
