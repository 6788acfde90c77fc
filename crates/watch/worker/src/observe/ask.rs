//! Queries to the worker thread, because only it has the ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use contextpilot_admission::Work;
use contextpilot_control::{
    ControlEndpoint, Evaluated, Match, MatchRequest, RequestState, Stats, Tree,
};
use contextpilot_observer::Difference;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::bounds::{QUESTIONS, WORK_OF_ALL, WORK_OF_EACH};
use crate::commands::Commands;

/// How long an answer may take. The worker answers between two events.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the worker is woken meanwhile: it may be about to rest when the query is sent.
const NUDGE: Duration = Duration::from_millis(5);

/// A query, with the channel for its answer.
pub(crate) enum Question {
    Stats(Sender<Box<Stats>>),
    Request(String, Sender<(RequestState, Quoted)>),
    Requests(Vec<String>, Sender<Vec<RequestState>>),
    Latest(usize, Sender<Vec<(Evaluated, Quoted)>>),
    /// The answer is `None` if accounts are turned off.
    Match(MatchRequest, Sender<Option<Match>>),
    Tree(usize, Sender<Tree>),
    /// The answer is `None` if recent requests are not kept.
    Recent(Sender<Option<Vec<u8>>>),
    Metrics(Sender<String>),
    Reset(Sender<u64>),
}

/// Sends queries.
#[derive(Clone)]
pub(crate) struct Asker {
    questions: Sender<Question>,
    commands: Commands,
    pub(crate) clients: Arc<Clients>,
}

/// The worker's end.
pub(crate) struct Questions {
    receiver: Receiver<Question>,
    pub(crate) clients: Arc<Clients>,
}

/// All clients of the endpoint together.
pub(crate) struct Clients {
    /// What they cause, on the worker's thread and on those of their connections.
    pub(crate) work: Arc<Work>,
    refused: AtomicU64,
}

impl Clients {
    /// A connection or a request was refused, for what it is and not for what it asks for.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a query that got no answer in time as refused. Not at the end of the process: then the worker answers no more.
    fn note<T>(&self, answer: &Result<T, NoAnswer>, ended: bool) {
        if answer.is_err() && !ended {
            self.refuse();
        }
    }

    pub(crate) fn figures(&self) -> ControlEndpoint {
        ControlEndpoint {
            refused: self.refused.load(Ordering::Relaxed),
            work_us: u64::try_from(self.work.spent().as_micros()).unwrap_or(u64::MAX),
        }
    }
}

/// The tokens around a divergence, if text is to be shown.
pub(crate) type Quoted = Option<Difference>;

/// The worker did not answer in time, or has ended.
pub(crate) struct NoAnswer;

/// Creates both ends.
pub(crate) fn questions(commands: Commands) -> (Asker, Questions) {
    let (questions, receiver) = bounded(QUESTIONS);
    let clients = Arc::new(Clients {
        work: Work::new(WORK_OF_EACH, WORK_OF_ALL),
        refused: AtomicU64::new(0),
    });
    let asker = Asker {
        questions,
        commands,
        clients: Arc::clone(&clients),
    };
    (asker, Questions { receiver, clients })
}

impl Questions {
    pub(crate) fn next(&self) -> Option<Question> {
        self.receiver.try_recv().ok()
    }
}

impl Asker {
    pub(crate) fn ask<T>(
        &self,
        question: impl FnOnce(Sender<T>) -> Question,
    ) -> Result<T, NoAnswer> {
        let answer = self.answered(question);
        self.clients.note(&answer, self.commands.have_ended());
        answer
    }

    fn answered<T>(&self, question: impl FnOnce(Sender<T>) -> Question) -> Result<T, NoAnswer> {
        let deadline = Instant::now() + PATIENCE;
        let (sender, answer) = bounded(1);
        let asked = self.questions.try_send(question(sender));
        asked.map_err(|_| NoAnswer)?;
        loop {
            self.commands.nudge();
            match answer.recv_timeout(NUDGE) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(NoAnswer),
                Err(RecvTimeoutError::Timeout)
                    if self.commands.have_ended() || Instant::now() >= deadline =>
                {
                    return Err(NoAnswer);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_without_an_answer_count_as_refused() {
        let clients = Clients {
            work: Work::new(WORK_OF_EACH, WORK_OF_ALL),
            refused: AtomicU64::new(0),
        };
        clients.note(&Ok(()), false);
        clients.note(&Err::<(), _>(NoAnswer), true);
        assert_eq!(clients.figures().refused, 0);
        clients.note(&Err::<(), _>(NoAnswer), false);
        assert_eq!(clients.figures().refused, 1);
    }
}
