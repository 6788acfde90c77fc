//! A request that takes more than a moment.
//!
//! It is done in pieces. Those that need the state are short, however large the request is, so that
//! other requests can have the state in between. What takes long needs no state.

use crate::deduplicate::Deduplication;
use crate::evict::Eviction;
use crate::piece::{Next, Piece, REQUEST};
use crate::question::{Found, Question};
use crate::reorder::Reordering;
use crate::status::Listing;
use crate::{Index, IndexAnswer};

/// A request that is being answered.
#[derive(Debug)]
pub struct Work(Job);

#[derive(Debug)]
enum Job {
    Reorder(Box<Reordering>),
    Deduplicate(Box<Deduplication>),
    Evict(Box<Eviction>),
    List(Listing),
}

impl From<Reordering> for Work {
    fn from(job: Reordering) -> Self {
        Self(Job::Reorder(Box::new(job)))
    }
}

impl From<Deduplication> for Work {
    fn from(job: Deduplication) -> Self {
        Self(Job::Deduplicate(Box::new(job)))
    }
}

impl From<Eviction> for Work {
    fn from(job: Eviction) -> Self {
        Self(Job::Evict(Box::new(job)))
    }
}

impl From<Listing> for Work {
    fn from(job: Listing) -> Self {
        Self(Job::List(job))
    }
}

impl Work {
    /// What is next.
    #[must_use]
    pub fn next(&self) -> Next {
        match &self.0 {
            Job::Reorder(job) => job.next(),
            Job::Deduplicate(job) => job.next(),
            Job::Evict(job) => job.next(),
            Job::List(job) => job.next(),
        }
    }

    /// Does a piece that needs no state.
    pub fn compute(&mut self) {
        if let Job::Reorder(job) = &mut self.0 {
            job.order();
        }
    }

    /// Whether all of it takes less than a millisecond.
    #[must_use]
    pub fn is_small(&self) -> bool {
        match &self.0 {
            Job::Reorder(job) => job.is_small(),
            Job::Deduplicate(job) => job.is_small(),
            Job::Evict(job) => job.is_small(),
            Job::List(_) => false,
        }
    }

    /// Whether it orders many contexts, which may take seconds.
    #[must_use]
    pub fn is_batch(&self) -> bool {
        match &self.0 {
            Job::Reorder(job) => job.reorder.contexts.len() > 1,
            Job::Deduplicate(_) | Job::Evict(_) | Job::List(_) => false,
        }
    }

    /// A query whose answer makes the forecast more exact ([`Index::answered`]). Only for a single context,
    /// while the hook reports what is cached. With a prefix store another query may follow.
    #[must_use]
    pub fn question(&self) -> Option<&Question> {
        match &self.0 {
            Job::Reorder(job) => job.question.as_ref(),
            _ => None,
        }
    }

    /// The answer, once all is done.
    #[must_use]
    pub fn answer(self) -> IndexAnswer {
        match self.0 {
            Job::Reorder(job) => job.answer(),
            Job::Deduplicate(job) => job.answer(),
            Job::Evict(job) => job.answer(),
            Job::List(job) => job.answer(),
        }
    }
}

impl Index {
    /// Does a piece that needs the state. `new_id` draws unique ids for requests: `req-` and 12 hex digits.
    pub fn proceed(&mut self, work: &mut Work, new_id: &mut dyn FnMut() -> String) {
        let mut piece = Piece::default();
        match &mut work.0 {
            Job::Reorder(job) => self.reorder_some(job, &mut piece, new_id),
            Job::Deduplicate(job) => self.deduplicate_some(job, &mut piece, new_id),
            Job::Evict(job) => self.evict_some(job, &mut piece),
            Job::List(job) => self.list_some(job, &mut piece),
        }
    }

    /// The engine's hook has answered [`Work::question`].
    pub fn answered(&mut self, work: &mut Work, found: Found) {
        if let Job::Reorder(job) = &mut work.0 {
            self.hook_answered(job, found);
        }
    }

    /// Forgets requests of a call that is refused.
    pub(crate) fn undo_some(&mut self, ids: &mut Vec<String>, piece: &mut Piece) {
        while !piece.is_full() {
            let Some(id) = ids.pop() else {
                return;
            };
            let blocks = self.end_turn(&id);
            let forgotten = self.forget(&id);
            piece.done(REQUEST + blocks + forgotten.map_or(0, |request| request.blocks.len()));
        }
    }
}
