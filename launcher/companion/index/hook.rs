//! Asks the hook what the engine would reuse for a prompt.

use std::sync::Arc;
use std::time::Duration;

use contextpilot_client::Control;
use contextpilot_client::control::Like;
use contextpilot_index::Question;
use tokio::sync::Semaphore;

/// Whoever asks for an order waits so long for the hook at most. It answers in a fraction of a
/// millisecond, or is in trouble.
const PATIENCE: Duration = Duration::from_millis(200);

/// Questions at a time. Beyond, the index's own estimate is the answer.
const AT_A_TIME: usize = 8;

/// The hook, to be asked.
#[derive(Clone)]
pub(super) struct Hook {
    control: Control,
    places: Arc<Semaphore>,
}

impl Hook {
    pub(super) fn new(control: Control) -> Self {
        Self {
            control,
            places: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }

    /// The tokens that would be reused. `None`: it does not say, or not in time.
    pub(super) async fn ask(&self, question: &Question) -> Option<u64> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let tokens = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let like = Like {
            id: question.id.clone(),
            common: tokens(question.common),
            tokens: tokens(question.tokens),
        };
        let control = self.control.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let found = control.matching_like(&like, PATIENCE);
            drop(place);
            found
        });
        let found = asked.await.ok()?.ok()?;
        // Not cached any more, or a hook that does not know the question.
        (found.tokens > 0).then_some(found.reused)
    }
}
