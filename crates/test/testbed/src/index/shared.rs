//! What the index and the threads of its connections share.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{Behaviour, Post};
use crate::stream::Plain;

#[derive(Default)]
pub(super) struct State {
    pub(super) posts: Vec<Post>,
    /// The behaviours for the next posts, one each. After these, `always` counts.
    pub(super) script: VecDeque<Behaviour>,
    pub(super) always: Option<Behaviour>,
    pub(super) connections: Vec<Plain>,
    /// Grows when the behaviour changes, which ends [`Behaviour::Hang`].
    pub(super) changes: usize,
    /// Grows when the posts that hang are released.
    pub(super) releases: usize,
    pub(super) closed: bool,
}

impl State {
    /// The ids of all accepted posts, in order, with repetitions.
    pub(super) fn reports(&self) -> impl Iterator<Item = &String> {
        let accepted = self.posts.iter().filter(|post| post.accepted);
        accepted.flat_map(|post| &post.ids)
    }
}

#[derive(Default)]
pub(super) struct IndexShared {
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl IndexShared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // The list of posts is still correct after a panic elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a post to those that arrived, waits while it hangs, and says how to answer it.
    pub(super) fn take(&self, mut post: Post) -> Behaviour {
        let mut state = self.state();
        let scripted = state.script.pop_front();
        let behaviour = scripted.or_else(|| state.always.clone());
        let evicts = post.evicts();
        let behaviour = behaviour.unwrap_or(Behaviour::Accept).towards(evicts);
        let released = Behaviour::Accept.towards(evicts);
        post.accepted = evicts.is_some() && behaviour.accepts();
        let number = state.posts.len();
        state.posts.push(post);
        self.changed.notify_all();
        if behaviour != Behaviour::Hang {
            return behaviour;
        }
        let (changes, releases) = (state.changes, state.releases);
        let hangs = |state: &mut State| {
            !state.closed && (state.changes, state.releases) == (changes, releases)
        };
        let waited = self.changed.wait_while(state, hangs);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed || state.releases == releases {
            return Behaviour::Close;
        }
        state.posts[number].accepted = released.accepts();
        self.changed.notify_all();
        released
    }
}
