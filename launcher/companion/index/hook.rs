//! Asks the hook what the engine would reuse for a prompt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contextpilot_client::Control;
use contextpilot_client::control::Like;
use contextpilot_index::Question;
use tokio::sync::Semaphore;

/// How long an order waits for the hook at most. The hook answers in a fraction of a
/// millisecond if it works.
const PATIENCE: Duration = Duration::from_millis(200);

/// Queries at a time. Beyond, the index uses its own estimate.
const AT_A_TIME: usize = 8;

/// Queries to the hook.
#[derive(Clone)]
pub(super) struct Hook {
    /// `None`: it is not known.
    control: Arc<Mutex<Option<Control>>>,
    places: Arc<Semaphore>,
}

impl Default for Hook {
    fn default() -> Self {
        Self {
            control: Arc::default(),
            places: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }
}

impl Hook {
    /// From now on, this one is asked.
    pub(super) fn found(&self, control: &Control) {
        *self.control() = Some(control.clone());
    }

    fn control(&self) -> MutexGuard<'_, Option<Control>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tokens that would be reused. `None` if the hook does not answer in time.
    pub(super) async fn ask(&self, question: &Question) -> Option<u64> {
        let control = self.control().clone()?;
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let tokens = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let like = Like {
            id: question.id.clone(),
            common: tokens(question.common),
            tokens: tokens(question.tokens),
        };
        let asked = tokio::task::spawn_blocking(move || {
            let found = control.matching_like(&like, PATIENCE);
            drop(place);
            found
        });
        let found = asked.await.ok()?.ok()?;
        // 0: no longer cached, or an older hook that does not know this query.
        (found.tokens > 0).then_some(found.reused)
    }
}
