//! `where`: where a request's prompt is, or what became of it.

use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use contextpilot_client::Control;
use contextpilot_client::control::{
    Evaluated, Reason, RequestName, RequestState, Stats, Timestamp,
};

use super::connect::{ControlAt, hook_says, request};
use super::show::{Moment, Visible, count, counted, print, print_as, span};
use super::under_way;
use super::why::unknown;
use super::words::{self, NEVER_CACHED, NO_PROMPT, evicted, place};

/// Say where a request's prompt is cached, or when and why it was evicted
///
/// Exit code: 0 all of them are cached, 1 some are not.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama where req-1 req-2 && echo both are cached")]
pub(super) struct WhereOptions {
    /// Ids, as in rid or request_id of the requests, or numbers as in lists: '#17'. Without any: the
    /// last request
    ids: Vec<String>,
    #[command(flatten)]
    control: ControlAt,
    /// Print JSON, one object a line, as GET /requests/{id} answers
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &WhereOptions) -> Result<ExitCode, String> {
    let control = options.control.client()?;
    let mut all = true;
    let ids = if options.ids.is_empty() {
        let stats = control.stats().map_err(|e| hook_says(&control, &e))?;
        let last = last(&control, &stats)?;
        if last.is_empty() && !options.json {
            print(&format!("{}\n", under_way::nothing_yet(&stats, NO_PROMPT)))?;
        }
        last
    } else {
        options.ids.clone()
    };
    for id in &ids {
        let (id, state) = &request(&control, id)?;
        all &= is_cached(state);
        if let (RequestState::Awaited { .. } | RequestState::Unknown { .. }, false) =
            (state, options.json)
            && let Ok(stats) = control.stats()
            && let Some(prompt) = under_way::prompt_of(&stats, id)
        {
            print(&format!("{}\n", under_way::line(prompt)))?;
            continue;
        }
        print_as(options.json, state, || {
            text(state, SystemTime::now().into()) + &about(state)
        })?;
    }
    Ok(ExitCode::from(u8::from(!all)))
}

/// The request whose prompt was evaluated last, or is being evaluated now; empty: there is none.
fn last(control: &Control, stats: &Stats) -> Result<Vec<String>, String> {
    let evaluating: Vec<String> = under_way::prompts(stats)
        .filter_map(|(_, prompt)| match (&prompt.id, prompt.number) {
            (Some(id), _) => Some(id.clone()),
            (None, 0) => None,
            (None, number) => Some(RequestName::Number(number).to_string()),
        })
        .collect();
    if !evaluating.is_empty() {
        return Ok(evaluating);
    }
    let latest = control.latest(1).map_err(|e| hook_says(control, &e))?;
    let name = |evaluated: &Evaluated| match &evaluated.id {
        Some(id) => id.clone(),
        None => RequestName::Number(evaluated.number).to_string(),
    };
    Ok(latest.requests.iter().map(name).collect())
}

/// Whether nothing but the last token of its (last) prompt would be evaluated again.
fn is_cached(state: &RequestState) -> bool {
    match state {
        RequestState::Cached { .. } => true,
        RequestState::Numbered {
            cached_tokens: Some(cached),
            tokens,
            evaluation,
            ..
        } => u64::from(*cached) + 1 >= tokens.unwrap_or(evaluation.prompt_tokens),
        _ => false,
    }
}

fn text(state: &RequestState, now: Timestamp) -> String {
    let id = Visible(state.id());
    let ago = |time: &Timestamp| {
        let moment = Moment::from(*time).of_day();
        format!("{} ago, at {moment}", span(now.since(*time)))
    };
    match state {
        RequestState::Awaited { since, .. } => {
            format!("{id}  awaited  received {}\n", ago(since))
        }
        RequestState::Cached {
            places,
            tokens,
            since,
            ..
        } => {
            let places: Vec<String> = places.iter().map(place).collect();
            let tokens = counted((*tokens).into(), "token");
            let (places, since) = (places.join(" and "), ago(since));
            format!("{id}  cached  {places}, {tokens}, since {since}\n")
        }
        RequestState::Evicted {
            at,
            reason: Reason::NeverCached,
            ..
        } => format!("{id}  {NEVER_CACHED}; {}\n", ago(at)),
        RequestState::Evicted {
            at,
            reason,
            from,
            by,
            tokens,
            ..
        } => {
            let tokens = match tokens {
                Some(tokens) => format!(", {}", counted((*tokens).into(), "token")),
                None => String::new(),
            };
            let why = evicted(*reason, by.as_deref(), from);
            format!("{id}  evicted  {why}{tokens}; {}\n", ago(at))
        }
        RequestState::Numbered {
            at,
            slot,
            prompts,
            tokens,
            cached_tokens,
            evaluation,
            ..
        } => {
            let word = if is_cached(state) {
                "cached"
            } else {
                "not cached"
            };
            let whole = evaluation.prompt_tokens;
            let now = match cached_tokens {
                Some(cached) => {
                    let cached = count((*cached).into());
                    let tokens = counted(tokens.unwrap_or(whole), "token");
                    let of_last = match prompts {
                        0 | 1 => String::new(),
                        2.. => format!(" of the last of its {} prompts", count((*prompts).into())),
                    };
                    format!("{cached} of {tokens}{of_last} could be reused now")
                }
                None => format!("{}, no longer remembered", counted(whole, "token")),
            };
            format!(
                "{id}  {word}  {now}; evaluated in slot {slot}, {}\n",
                ago(at)
            )
        }
        RequestState::Unknown { hint, .. } => unknown(state.id(), hint),
    }
}

/// What the request is about, if that is known, as a line of its own.
fn about(state: &RequestState) -> String {
    let title = state
        .evaluation()
        .and_then(|evaluation| evaluation.title.as_ref());
    title.map_or(String::new(), |title| {
        format!("    {}\n", words::title(title))
    })
}

#[cfg(test)]
mod tests {
    use contextpilot_client::control::{Evaluation, Place};

    use super::*;

    #[test]
    fn each_state_is_printed_as_a_sentence() {
        let [then, now] = [1_000, 62_000].map(Timestamp::from_unix_ms);
        let id = "a".to_owned();
        let cached = RequestState::Cached {
            id: id.clone(),
            places: vec![Place::Slot { slot: 1 }, Place::Host],
            tokens: 1234,
            since: then,
            kept: None,
            evaluation: None,
        };
        let text = |state| text(&state, now);
        let start = "a  cached  in slot 1 and in the host cache, 1,234 tokens, since 1 min 1 s ago";
        let cached = text(cached);
        assert!(cached.starts_with(start), "{cached}");
        let evicted = RequestState::Evicted {
            id,
            at: then,
            reason: Reason::DroppedFromHost,
            from: Place::Host,
            by: Some("b".to_owned()),
            tokens: Some(5),
            cached_tokens: None,
            kept: None,
            evaluation: None,
        };
        let start = "a  evicted  dropped from host by b; it was in the host cache, 5 tokens; ";
        let evicted = text(evicted);
        assert!(evicted.starts_with(start), "{evicted}");
    }

    #[test]
    fn of_several_prompts_the_last_is_spoken_of() {
        let evaluation = |prompt_tokens| {
            Box::new(Evaluation {
                prompt_tokens,
                ..Evaluation::default()
            })
        };
        let numbered = |prompts, cached, whole| RequestState::Numbered {
            id: "#3".to_owned(),
            at: Timestamp::from_unix_ms(1_000),
            slot: 0,
            prompts,
            tokens: Some(20),
            cached_tokens: Some(cached),
            evaluation: evaluation(whole),
        };
        let text = |state| text(&state, Timestamp::from_unix_ms(3_000));
        let one = text(numbered(1, 19, 20));
        let start = "#3  cached  19 of 20 tokens could be reused now; evaluated in slot 0, 2 s ago";
        assert!(one.starts_with(start), "{one}");
        let last = text(numbered(3, 4, 90));
        let start =
            "#3  not cached  4 of 20 tokens of the last of its 3 prompts could be reused now; ";
        assert!(last.starts_with(start), "{last}");
    }

    #[test]
    fn a_refused_request_was_no_eviction_and_in_no_place() {
        let refused = RequestState::Evicted {
            id: "a".to_owned(),
            at: Timestamp::from_unix_ms(1_000),
            reason: Reason::NeverCached,
            from: Place::Nowhere,
            by: None,
            tokens: None,
            cached_tokens: None,
            kept: None,
            evaluation: None,
        };
        let text = text(&refused, Timestamp::from_unix_ms(3_000));
        let start = "a  never cached: it was refused, or its client left before the prompt was \
                     evaluated; 2 s ago, at ";
        assert!(text.starts_with(start), "{text}");
    }
}
