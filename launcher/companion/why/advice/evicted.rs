//! What would have kept tokens that were evicted.

use contextpilot_client::control::{ChosenBy, Evaluation, Lost, Reason};

use super::super::server::Server;
use crate::companion::show::bytes;
use crate::companion::words;

/// Beyond this share, a prompt goes on with a conversation, and the slot is to be chosen for it.
const GOES_ON: f64 = 0.9;

/// The tokens that were lost for the main reason, and what would have kept them.
pub(super) fn advice(evaluation: &Evaluation, server: &Server) -> Option<(u64, String)> {
    let lost = evaluation.lost.as_ref()?;
    let tokens = match lost.tokens {
        // An older hook does not say.
        0 => evaluation.causes.evicted,
        tokens => tokens,
    };
    Some((tokens, keep(lost, tokens, server)?))
}

fn keep(lost: &Lost, tokens: u64, server: &Server) -> Option<String> {
    match lost.reason {
        Reason::Overwritten => overwritten(lost, tokens, server),
        Reason::DroppedFromHost => dropped(tokens, server),
        Reason::ContextFreed => {
            Some("leave out --sleep-idle-seconds, or raise it: the model was unloaded".to_owned())
        }
        Reason::Shifted if server.shifts_contexts() => Some(
            "give the slots a larger context (-c): this one was full, and its middle was cut out"
                .to_owned(),
        ),
        Reason::AdaptersChanged => {
            Some("name a slot (id_slot) for each set of LoRA adapters".to_owned())
        }
        _ => None,
    }
}

/// The server saves a slot's content to the host cache before it gives the slot to another prompt, unless
/// that prompt keeps half of it or more.
fn overwritten(lost: &Lost, tokens: u64, server: &Server) -> Option<String> {
    let kept_half = lost.kept.is_some_and(|kept| kept >= 0.5);
    let by_age = lost
        .chosen_by
        .is_none_or(|by| by == ChosenBy::LeastRecentlyUsed);
    if kept_half && !by_age {
        return own_slot(lost, server);
    }
    if server.has_host_cache() {
        return server.exceeds_host_cache(tokens).then(|| larger(server));
    }
    let slots = by_age.then(|| {
        let now = server.slots().map(|slots| format!(", {slots} now"));
        format!("more slots (--parallel{})", now.unwrap_or_default())
    });
    let host = server
        .can_have_host_cache()
        .then(|| "a host prompt cache (--cache-ram, off now)".to_owned());
    let all: Vec<String> = slots.into_iter().chain(host).collect();
    (!all.is_empty()).then(|| format!("give the server {}", all.join(" or ")))
}

/// The slot was taken for a prompt that shares much with it.
fn own_slot(lost: &Lost, server: &Server) -> Option<String> {
    let several = server.slots().is_none_or(|slots| slots > 1);
    let own = several.then(|| "name a slot (id_slot) for each conversation".to_owned());
    let share = lost.similarity.filter(|share| *share < GOES_ON);
    let share = share.filter(|_| lost.chosen_by == Some(ChosenBy::Similarity));
    let Some(share) = share.filter(|_| several || server.has_host_cache()) else {
        return own;
    };
    let now = server.similarity();
    let now = now.map_or(String::new(), |now| format!(" ({now} now)"));
    let share = (share * 100.0).floor() / 100.0 + 0.01;
    let set = format!("set --slot-prompt-similarity to {share:.2}{now}");
    let or = own.map_or(String::new(), |own| format!(", or {own}"));
    let by = lost.by.as_ref();
    let by = by.map_or("another prompt".to_owned(), words::request);
    Some(format!(
        "{set}{or}: {by} took the slot, as it shares a long beginning"
    ))
}

/// The host cache dropped an entry.
fn dropped(tokens: u64, server: &Server) -> Option<String> {
    let host = server.host()?;
    match host.limit_bytes {
        // Without a limit of bytes, there is one of tokens.
        None if host.limit_from == "unlimited" => Some(
            "give --cache-ram a size: without one, the host cache holds only as many tokens as the \
             context"
                .to_owned(),
        ),
        Some(limit) if host.bytes * 2 >= limit || server.exceeds_host_cache(tokens) => {
            Some(larger(server))
        }
        _ => None,
    }
}

fn larger(server: &Server) -> String {
    let host = server.host();
    let now = host.and_then(|host| Some((host.bytes, host.limit_bytes?)));
    let now = now.map_or(String::new(), |(used, limit)| {
        format!(" ({} of {} used now)", bytes(used), bytes(limit))
    });
    format!("raise --cache-ram{now}")
}
