//! Requests that name a LoRA adapter: what the indexer believes for the adapter's name, and what the
//! engine reuses for such a request.
//!
//! A server does not show under which adapters a slot worked last. So the truth is `cache_n` when the
//! request is sent to each slot of a server that was brought to the same state.

use contextpilot_testbed::{Error, Request, Result, try_until};
use serde_json::{Value, json};

use crate::cases::Case;
use crate::indexer::{BLOCK, Indexer};
use crate::publisher::{NAMES, Publisher};
use crate::traces::{plain_prompts, tokenize};

/// The kinds of requests that a router can be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Requests that name no adapters.
    Plain,
    /// Those that name one, at scale 1.
    Named(&'static str),
    /// Requests with other adapters or scales, for which there is no name.
    Nameless,
}

impl Asked {
    pub(crate) fn of(request: &Request) -> Self {
        let Some(named) = request.body()["lora"].as_array() else {
            return Self::Plain;
        };
        let scaled = named.iter().filter(|one| one["scale"] != 0.0);
        let scaled: Vec<&Value> = scaled.collect();
        let number = match scaled[..] {
            [one] if one["scale"] == 1.0 => one["id"].as_u64(),
            _ => None,
        };
        let name = number.and_then(|number| NAMES.get(usize::try_from(number).ok()?));
        name.map_or(Self::Nameless, |name| Self::Named(name))
    }
}

/// Compares belief and truth for each prompt of a trace and each adapter. Returns the number of
/// comparisons, and in how many of them the indexer believed in at least one block.
pub(crate) fn compare(case: &Case, publisher: &Publisher, indexer: &Indexer) -> Result<[usize; 2]> {
    let mut prompts: Vec<&Value> = Vec::new();
    for request in plain_prompts(case) {
        let prompt = &request.body()["prompt"];
        if !prompts.contains(&prompt) {
            prompts.push(prompt);
        }
    }
    let slots = publisher.server.slots()?;
    let (mut compared, mut believed) = (0, 0);
    // Each comparison starts a server for each slot, so this is limited to few slots.
    if slots > 2 {
        return Ok([0, 0]);
    }
    for prompt in prompts {
        let tokens = tokenize(&publisher.server, prompt)?;
        for (id, name) in NAMES.iter().enumerate().take(case.server.adapters()) {
            let believes = || indexer.believes_for(Some(name), publisher.events, &tokens);
            let belief = believes()?;
            if belief.any != belief.device {
                return Err(Error::new(format!(
                    "{belief:?}: nothing is said of host memory"
                )));
            }
            let activated = case.name.starts_with("activated") && id < 2;
            if activated {
                match belief.device {
                    0 => continue,
                    _ => return Err(Error::new(format!("{belief:?} for {name}"))),
                }
            }
            let request = Request::completion(prompt.clone());
            let request = request.with("lora", json!([{"id": id, "scale": 1.0}]));
            let Some(found) = found(case, &request, slots)? else {
                // The prompt is too long for a slot.
                continue;
            };
            let found = found / BLOCK;
            // Prompts in host memory are not published for adapters, so the indexer may believe less.
            let exact = !case.server.has_host_cache();
            let mut belief = 0;
            let agree = try_until("the indexer believes it", || {
                // The last token of a prompt is always evaluated.
                belief = believes()?.device.min((tokens.len() - 1) / BLOCK);
                let right = belief == found || belief < found && !exact;
                Ok(right.then_some(()))
            });
            if agree.is_err() {
                return Err(Error::new(format!(
                    "for {name}, it believes in {belief} blocks of {} tokens, the engine takes \
                     {found} from its cache",
                    tokens.len()
                )));
            }
            compared += 1;
            believed += usize::from(belief > 0);
        }
    }
    Ok([compared, believed])
}

/// How many tokens the engine reuses for a request after the trace, in the slot that has most. `None`
/// if it refuses the request.
fn found(case: &Case, request: &Request, slots: u32) -> Result<Option<usize>> {
    let mut most = 0;
    for slot in 0..slots {
        let replayed = case.server.plain().spawn()?;
        case.trace.run(&replayed)?;
        match replayed.complete(&request.clone().slot(slot)) {
            Ok(found) => most = most.max(found.cache_n),
            Err(error) if error.to_string().contains("exceed_context_size") => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(most))
}
