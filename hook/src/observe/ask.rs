//! Questions to the worker thread, which alone knows the ledger.

use std::time::{Duration, Instant};

use contextpilot_control::{Latest, Match, MatchRequest, RequestState, Stats};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::bounds::QUESTIONS;
use crate::channel;
use crate::worker;

/// How long an answer may take. The worker answers between two events.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is woken meanwhile: it may be about to fall asleep when it is asked.
const NUDGE: Duration = Duration::from_millis(5);

/// A question, with the place for its answer.
pub(crate) enum Question {
    Stats(Sender<Box<Stats>>),
    Request(String, Sender<RequestState>),
    Latest(usize, Sender<Latest>),
    /// `None`: nobody keeps accounts.
    Match(MatchRequest, Sender<Option<Match>>),
    Metrics(Sender<String>),
    Reset(Sender<u64>),
}

/// Asks.
#[derive(Clone)]
pub(crate) struct Asker(Sender<Question>);

/// The worker did not answer in time, or has ended.
pub(crate) struct NoAnswer;

/// Both ends.
pub(crate) fn questions() -> (Asker, Receiver<Question>) {
    let (sender, receiver) = bounded(QUESTIONS);
    (Asker(sender), receiver)
}

impl Asker {
    pub(crate) fn ask<T>(
        &self,
        question: impl FnOnce(Sender<T>) -> Question,
    ) -> Result<T, NoAnswer> {
        let deadline = Instant::now() + PATIENCE;
        let (sender, answer) = bounded(1);
        self.0.try_send(question(sender)).map_err(|_| NoAnswer)?;
        loop {
            channel::get().nudge();
            match answer.recv_timeout(NUDGE) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(NoAnswer),
                Err(RecvTimeoutError::Timeout)
                    if worker::has_ended() || Instant::now() >= deadline =>
                {
                    return Err(NoAnswer);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}
