//! What would have saved evaluation, and how much of it.
//!
//! Each piece of advice is for one cause of evaluated tokens. It is given only where it would have saved
//! enough, and where the server's flags and state let it help. What may cost other requests more than it saves this one
//! (`--slot-prompt-similarity`) is left to `advise`, which replays them all. The tokens are those that this prompt
//! would have reused. The time is at the rate at which this prompt was evaluated.

use contextpilot_client::control::{Diverged, DivergedText, Evaluation, Stats};
use serde::Serialize;

use super::server::Server;
use crate::companion::show::{count, duration};

mod evicted;

/// The least tokens that are worth a piece of advice.
const TOKENS: u64 = 64;
/// The same where an answer comes back otherwise, which it does with each turn.
const OF_ANSWERS: u64 = 16;
/// The least share of the evaluated tokens: a twentieth.
const SHARE: u64 = 20;
/// The least time, seconds, unless `--worth` says otherwise.
pub(super) const SECONDS: f64 = 0.1;
/// From so many on, tokens in another order are no coincidence.
const REORDERED: u64 = 16;
/// Prompts that share fewer tokens are two prompts, if more differ: what they share is the template's.
const SHARED: u64 = 32;
/// From so many on, tokens at a difference are text of their own, and not the joint of two parts that
/// were exchanged.
const UNMATCHED: u64 = 4;
/// The chunk for which tokens count as movable, and so the one to advise.
const CHUNK: u32 = 64;

/// Said wherever chunks would be moved.
pub(in crate::companion) const MOVES: &str = "answers may change, as what is moved was evaluated behind something else, and \
                                              the prefix store keeps nothing of it";

/// What would have saved some of the evaluated tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Advice {
    /// Tokens that would not have been evaluated.
    pub(super) tokens: u64,
    /// The time that this would have saved. `None`: the evaluation was not timed.
    pub(super) seconds: Option<f64>,
    /// What to do.
    pub(super) text: String,
}

/// What would have saved `worth` seconds or more, the largest gain first. `stats`: of the server, as it is now.
pub(super) fn advice(evaluation: &Evaluation, stats: Option<&Stats>, worth: f64) -> Vec<Advice> {
    let Evaluation {
        evaluated, causes, ..
    } = evaluation;
    let server = Server::new(stats);
    let elsewhere = &causes.elsewhere;
    let all = [
        evaluation.diverged.as_ref().and_then(|diverged| {
            // Tokens in a busy slot could not have been reused either.
            let may_help = elsewhere.busy == 0 && diverged.repeated > 0;
            // What both have in front of the difference would have been found with it.
            let tokens = diverged.at.saturating_add(diverged.repeated).saturating_sub(evaluation.reused);
            Some((tokens, change(diverged)?)).filter(|_| may_help)
        }),
        evicted::advice(evaluation, &server),
        Some((
            elsewhere.pinned,
            "leave out id_slot: the server looks for the beginning in all slots, and in the host cache"
                .to_owned(),
        )),
        Some((
            elsewhere.busy,
            "wait for the answer before the next prompt of a conversation is sent: a busy slot lends \
             nothing"
                .to_owned(),
        )),
        Some((
            elsewhere.least_recently_used,
            "set --slot-prompt-similarity above 0, for example 0.1: with 0, slots are chosen by age alone"
                .to_owned(),
        )),
        // What lies between two checkpoints of a recurrent state is not reached by more of them.
        server.keeps_a_window().then(|| (causes.no_way_back, checkpoints(&server))),
        Some((causes.uncached, uncached(&server).to_owned())),
        server.may_move_chunks().then(|| {
            let text = format!(
                "start the server with --cache-reuse {CHUNK} (off now): the same tokens stood further on \
                 in the slot ({MOVES})"
            );
            (causes.moved, text)
        }),
        server.keeps_idle_slots().then(|| {
            let text = "name a slot (id_slot) for each set of LoRA adapters: a slot keeps tokens for one set";
            (causes.adapter, text.to_owned())
        }),
    ];
    let most = evaluated.saturating_sub(causes.last_token);
    let answers = evaluation
        .diverged
        .as_ref()
        .is_some_and(|diverged| diverged.answer);
    let mut all: Vec<Advice> = all
        .into_iter()
        .flatten()
        .map(|(tokens, text)| {
            let tokens = tokens.min(most);
            let seconds = evaluation.seconds;
            Advice {
                tokens,
                seconds: seconds.map(|all| all * tokens as f64 / (*evaluated).max(1) as f64),
                text,
            }
        })
        .filter(|advice| {
            let least = if answers { OF_ANSWERS } else { TOKENS };
            let enough =
                advice.tokens >= least && advice.tokens.saturating_mul(SHARE) >= *evaluated;
            enough && advice.seconds.is_none_or(|seconds| seconds >= worth)
        })
        .collect();
    all.sort_by_key(|advice| std::cmp::Reverse(advice.tokens));
    all
}

impl Advice {
    /// `would have saved 1,010 tokens, 3.1 s: …`
    pub(super) fn line(&self) -> String {
        let time = match self.seconds {
            Some(seconds) => format!(", {}", duration(seconds)),
            None => String::new(),
        };
        format!(
            "would have saved {} tokens{time}: {}",
            count(self.tokens),
            self.text
        )
    }
}

/// What differs between a prompt and an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Differs {
    Text,
    /// The answer to the earlier prompt comes back otherwise than it was generated.
    Answer,
    /// There is other media.
    Media,
    /// It is another prompt altogether.
    Prompt,
    /// What follows was sent before, in another order.
    Order,
    Both,
}

impl Differs {
    pub(super) fn of(diverged: &Diverged) -> Self {
        if diverged.media {
            return Self::Media;
        }
        if diverged.answer {
            return Self::Answer;
        }
        if diverged.at < SHARED && diverged.differing > SHARED && diverged.unmatched > SHARED {
            return Self::Prompt;
        }
        match diverged.reordered >= REORDERED {
            false => Self::Text,
            true if diverged.unmatched < UNMATCHED => Self::Order,
            true => Self::Both,
        }
    }
}

/// Whether the text at a difference is the same, as far as it is known.
pub(super) fn same_text(text: &DivergedText) -> bool {
    let (old, new) = (&text.old, &text.new);
    !old.is_empty() && !new.is_empty() && (old.starts_with(&**new) || new.starts_with(&**old))
}

fn uncached(server: &Server) -> &'static str {
    match server.flags().is_some_and(|flags| flags.no_cache_prompt) {
        true => "start the server without --no-cache-prompt, or send \"cache_prompt\": true",
        false => "leave out \"cache_prompt\": false (embeddings and reranking never use the cache)",
    }
}

fn change(diverged: &Diverged) -> Option<String> {
    let last = "put what changes (a date, an id) behind what stays the same";
    let order = "in the same order each time (a list of tools, the keys of a JSON object)";
    let same = diverged.text.as_ref().is_some_and(same_text);
    Some(match Differs::of(diverged) {
        Differs::Prompt => return None,
        Differs::Media => "send media as the same file each time".to_owned(),
        Differs::Answer if same => {
            "start the server with CONTEXTPILOT_KEEP_TOKENS=1: the answer comes back in other tokens".to_owned()
        }
        Differs::Answer => "send answers back as they were generated: with their reasoning, if the chat \
                            template keeps it (contextpilot-llama template says); for the same text in other \
                            tokens, start the server with CONTEXTPILOT_KEEP_TOKENS=1"
            .to_owned(),
        Differs::Text => last.to_owned(),
        Differs::Order => format!("send what follows token {} {order}", count(diverged.at)),
        Differs::Both => format!("{last}, and send that {order}"),
    })
}

fn checkpoints(server: &Server) -> String {
    let (number, step) = match server.flags() {
        Some(flags) => (
            format!(" (at most {} now)", flags.ctx_checkpoints),
            format!(" ({} now)", flags.checkpoint_min_step),
        ),
        None => Default::default(),
    };
    format!(
        "raise --ctx-checkpoints{number}, or lower --checkpoint-min-step{step}, or use --swa-full"
    )
}

#[cfg(test)]
mod tests;
