//! What would have kept tokens that were evicted.

use contextpilot_client::control::{ChosenBy, Evaluation, Lost, Reason, Through};

use super::super::server::Server;
use crate::companion::show::bytes;

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
    match lost.through {
        Some(Through::Erase) => {
            return Some("do not erase slots: the server makes room in them itself".to_owned());
        }
        Some(Through::Restore) => {
            return Some("do not restore into a slot that is in use: leave it to the server, or name another slot".to_owned());
        }
        Some(Through::NoRoom) => {
            return Some("give the slots a larger context (-c): they share it, and together they had no room in it".to_owned());
        }
        Some(Through::Other) | None => {}
    }
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
        Reason::AdaptersChanged if server.keeps_idle_slots() => {
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
        // It was taken for a prompt that shares much with it. Whether another --slot-prompt-similarity would help all requests
        // together, only a replay tells.
        let several = server.slots().is_none_or(|slots| slots > 1);
        let helps = several && server.keeps_idle_slots();
        return helps.then(|| "name a slot (id_slot) for each conversation".to_owned());
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
