//! What comes to the server, and what it waits for.

use contextpilot_traffic::TrafficRequest;

/// When a request comes, microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Since the recording began.
    At(u64),
    /// When all that it waits for is over.
    After(Vec<Wait>),
}

/// A job that is waited for until it is finished, and how long after that something comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) job: usize,
    pub(crate) pause: u64,
    /// The client does not think, so it is later if other answers end with its own: [`Haste`](super::Haste).
    pub(crate) is_quick: bool,
    /// A session begins, and with the job another one ended, as the n-th of all: the client begins it whose session ends as
    /// the n-th, [`Job::ends_session`].
    pub(crate) is_of_any: bool,
}

/// A request, and those that share its prompt (`n`).
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Index in the recording.
    pub(crate) request: usize,
    pub(crate) children: Vec<usize>,
    /// When it came into the server's queue.
    pub(crate) arrival: Arrival,
    /// How long the server's thread took to take it on, microseconds.
    pub(crate) delay: u64,
    /// A session ends with it, and its client may begin another: how many had ended like this before, in the recording.
    pub(crate) ends_session: Option<usize>,
}

impl Job {
    /// The indices of all its requests: they share a prompt.
    pub(crate) fn requests(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::once(self.request).chain(self.children.iter().copied())
    }
}

/// What comes to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Coming {
    /// A job, by its number.
    Job(usize),
    /// The change of a slot, by its index in the recording.
    Change(usize),
}

/// When a job was answered.
pub(super) fn ended(job: &Job, requests: &[TrafficRequest]) -> u64 {
    let ends = job.requests().map(|nth| requests[nth].record.ended);
    ends.max().unwrap_or(0)
}
