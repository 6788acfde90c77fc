//! Follows the hook's stream of events, so that the index knows what is cached.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use contextpilot_client::control::{Change, Memory, Place, Reason, RequestState, RequestsQuery};
use contextpilot_client::{Control, Error, Update};
use contextpilot_index::Truth;

use super::hook::Hook;
use super::shared::SharedIndex;
use crate::companion::connect::hook_says;
use crate::say::say;

/// The time between two attempts to reach the hook.
const AGAIN: Duration = Duration::from_millis(500);

/// How often to ask the hook again for an answered request that it does not know, and
/// the time between. It may learn of a request a moment after the client has its answer.
const DOUBTS: usize = 10;
const DOUBT: Duration = Duration::from_millis(100);

/// Finds the hook of the server, which may be another one after a restart. `None`: not yet.
pub(super) type FindHook = Box<dyn FnMut() -> Option<Control> + Send>;

/// A thread that follows the hook that `find` returns.
pub(super) fn start(mut find: FindHook, asked: Hook, shared: SharedIndex) {
    thread::spawn(move || {
        let mut watch = Watch {
            asked,
            shared,
            reported: None,
            met: false,
            epoch: None,
        };
        loop {
            if let Some(control) = find() {
                watch.follow_to_the_end(&control);
            }
            thread::sleep(AGAIN);
        }
    });
}

/// The index, and what is known of the hook that it follows.
struct Watch {
    asked: Hook,
    shared: SharedIndex,
    /// What was said last of its absence.
    reported: Option<String>,
    /// There was one.
    met: bool,
    /// The epoch of the last one.
    epoch: Option<String>,
}

impl Watch {
    fn follow_to_the_end(&mut self, control: &Control) {
        self.asked.found(control);
        let ended = self.follow(control);
        self.asked.usage.ended();
        // Cached requests may still be cached. From now on the index guesses.
        self.shared.set_truth(Truth::Guess);
        let why = match ended {
            Ok(()) => format!("The stream of {} has ended", control.address()),
            // While a server loads its model, the hook may not answer yet.
            Err(Error::Unreachable { .. }) if !self.met => {
                format!("Waiting for the hook at {}", control.address())
            }
            Err(error) => hook_says(control, &error),
        };
        if self.reported.as_ref() != Some(&why) {
            say(format_args!(
                "{why}; until it answers, the index guesses what is cached"
            ));
            self.reported = Some(why);
        }
    }

    /// Until the stream ends.
    fn follow(&mut self, control: &Control) -> Result<(), Error> {
        // The stream has what happens from here on. Ask for everything before.
        let mut events = control.events(None)?;
        let taken_for_cached = {
            let ids = self.shared.wait().cached_ids().into_iter().collect();
            self.shared.set_truth(Truth::Learning);
            ids
        };
        self.ask(control, &taken_for_cached)?;
        self.shared.set_truth(Truth::Engine);
        say(format_args!(
            "The hook at {} says what is cached",
            control.address()
        ));
        (self.reported, self.met) = (None, true);
        let mut cached = 0_u64;
        for update in &mut events {
            match update? {
                Update::Event(event) => {
                    apply_change(&self.shared, &event.change);
                    cached += u64::from(matches!(event.change, Change::Cached { .. }));
                    // The server keeps checkpoints only after a prompt of some length.
                    if matches!(event.change, Change::Cached { .. }) && cached.is_power_of_two() {
                        self.look_at_server(control)?;
                    }
                }
                Update::Missed(missed) => {
                    if missed.missed.is_none() {
                        // Another process, with an empty cache.
                        return Ok(());
                    }
                    self.ask(control, &HashSet::new())?;
                }
            }
        }
        Ok(())
    }

    /// Asks for the state of each request. A request that was answered or is `taken_for_cached`, but that the
    /// hook does not know, is gone: the server is another process, or has forgotten it.
    fn ask(&mut self, control: &Control, taken_for_cached: &HashSet<String>) -> Result<(), Error> {
        let is_new = self.look_at_server(control)?;
        let shared = &self.shared;
        let mut ids = shared.wait().ids();
        for _ in 0..DOUBTS {
            ids = ask_for(control, shared, taken_for_cached, ids)?;
            if ids.is_empty() {
                return Ok(());
            }
            thread::sleep(DOUBT);
        }
        let mut index = shared.wait();
        ids.iter().for_each(|id| {
            if is_new {
                index.left_with_process(id)
            } else {
                index.evicted(id)
            }
        });
        Ok(())
    }

    /// If the model keeps checkpoints, adds a warning to every order that it is worth little. If the server has a prefix
    /// store, and loads as much of a prompt as is there, what leaves the engine is kept. Whether it is another process than
    /// the last time.
    fn look_at_server(&mut self, control: &Control) -> Result<bool, Error> {
        let stats = control.stats()?;
        let checkpoints = stats.host.checkpoints > 0;
        let memory = stats.flags.as_ref().map(|flags| flags.memory);
        let has_store = stats.store.is_some() && memory.unwrap_or_default() == Memory::Full;
        self.asked.set_store(has_store);
        self.asked.usage.seen(&stats);
        let mut index = self.shared.wait();
        index.warn(checkpoints.then(|| WARNING.to_owned()));
        index.set_store(has_store);
        let is_new = self.epoch.as_ref() != Some(&stats.epoch);
        if is_new {
            index.other_process();
            self.epoch = Some(stats.epoch);
        }
        Ok(is_new)
    }
}

fn apply_change(shared: &SharedIndex, change: &Change) {
    match change {
        Change::Cached { id, tokens, .. } => shared.wait().cached(id, u64::from(*tokens)),
        Change::Evicted { id, reason, .. } => match reason {
            Reason::NeverCached => shared.wait().evicted(id),
            _ => shared.wait().left_engine(id),
        },
        Change::MovedToHost { ids, tokens, .. } => {
            shared.wait().moved_to_host(ids, u64::from(*tokens));
        }
        Change::Restored { ids, .. } => shared.wait().restored(ids),
        Change::Other => {}
    }
}

/// Asks for the state of these requests. Returns those that are in doubt.
fn ask_for(
    control: &Control,
    shared: &SharedIndex,
    taken_for_cached: &HashSet<String>,
    ids: Vec<String>,
) -> Result<Vec<String>, Error> {
    let mut doubtful = Vec::new();
    for some in ids.chunks(RequestsQuery::MOST) {
        for state in states(control, some)? {
            doubtful.extend(learn(shared, taken_for_cached, state));
        }
    }
    Ok(doubtful)
}

/// The states of at most [`RequestsQuery::MOST`] requests.
fn states(control: &Control, ids: &[String]) -> Result<Vec<RequestState>, Error> {
    match control.requests(ids) {
        // A hook of before this query.
        Err(Error::Refused { status: 404, .. }) => {
            ids.iter().map(|id| control.request(id)).collect()
        }
        answer => answer,
    }
}

/// Takes over the state of a request. Returns its id if it is in doubt.
fn learn(
    shared: &SharedIndex,
    taken_for_cached: &HashSet<String>,
    state: RequestState,
) -> Option<String> {
    match state {
        RequestState::Cached {
            id, tokens, places, ..
        } => {
            let mut index = shared.wait();
            index.cached(&id, u64::from(tokens));
            let in_slot = |place: &Place| matches!(place, Place::Slot { .. });
            if !places.iter().any(in_slot) {
                index.moved_to_host(&[id], u64::from(tokens));
            }
        }
        RequestState::Evicted { id, tokens, .. } => match tokens {
            Some(_) => shared.wait().left_engine(&id),
            None => shared.wait().evicted(&id),
        },
        RequestState::Unknown { id, .. } => {
            // Otherwise the request was not sent yet.
            if taken_for_cached.contains(&id) || shared.wait().is_answered(&id) {
                return Some(id);
            }
        }
        RequestState::Awaited { .. } | RequestState::Numbered { .. } => {}
    }
    None
}

const WARNING: &str = "the model keeps context checkpoints, so it has sliding-window or recurrent \
                       layers: a shared beginning is reused only up to a checkpoint, and an order \
                       is worth little";
