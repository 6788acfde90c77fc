//! Asks the hook what the engine would reuse for a prompt, and what it did not evaluate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contextpilot_client::Control;
use contextpilot_client::control::{Evaluation, KeptBeginning, Like};
use contextpilot_index::{Found, Question};
use tokio::sync::Semaphore;

use crate::companion::accounts::Accounts;

/// How long an order waits for the hook at most, for all of its questions. The hook answers in a fraction of a
/// millisecond if it works.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// Queries at a time. Beyond, the index uses its own estimate.
const AT_A_TIME: usize = 8;

/// The waits before each query for an account, in milliseconds. The hook may learn of an evaluation a moment after the client has the
/// answer, and seconds after if the processors are busy, which its thread gets last.
const ACCOUNT: [u64; 8] = [0, 5, 20, 100, 500, 2_000, 4_000, 8_000];

/// Accounts that are waited for at a time. Beyond, a forecast is not compared.
const ACCOUNTS: usize = 64;

/// Queries to the hook.
#[derive(Clone)]
pub(super) struct Hook {
    /// `None`: it is not known.
    control: Arc<Mutex<Option<Control>>>,
    places: Arc<Semaphore>,
    accounts: Arc<Semaphore>,
    /// For the usage in answers.
    pub(super) usage: Accounts,
    /// The server has a prefix store, which loads as much of a prompt as it has.
    store: Arc<AtomicBool>,
}

impl Default for Hook {
    fn default() -> Self {
        Self {
            control: Arc::default(),
            places: Arc::new(Semaphore::new(AT_A_TIME)),
            accounts: Arc::new(Semaphore::new(ACCOUNTS)),
            usage: Accounts::default(),
            store: Arc::default(),
        }
    }
}

impl Hook {
    /// From now on, this one is asked.
    pub(super) fn found(&self, control: &Control) {
        *self.control() = Some(control.clone());
        self.usage.found(control);
    }

    fn control(&self) -> MutexGuard<'_, Option<Control>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_store(&self, there: bool) {
        self.store.store(there, Ordering::Relaxed);
    }

    /// Whether the server has a prefix store: then not all that it says to evaluate is evaluated.
    pub(super) fn has_store(&self) -> bool {
        self.store.load(Ordering::Relaxed)
    }

    /// `None` if the hook does not answer until then.
    pub(super) async fn ask(&self, question: &Question, until: Instant) -> Option<Found> {
        let left = until.saturating_duration_since(Instant::now());
        let control = self.control().clone().filter(|_| !left.is_zero())?;
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let tokens = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let like = Like {
            id: question.id.clone(),
            common: tokens(question.common),
            tokens: tokens(question.tokens),
        };
        let asked = tokio::task::spawn_blocking(move || {
            let found = control.matching_like(&like, left);
            drop(place);
            found
        });
        let found = asked.await.ok()?.ok()?;
        Some(Found {
            tokens: found.tokens,
            reused: found.reused,
            // Of a store that the index does not count, nothing is expected.
            loaded: found.loaded.filter(|_| self.has_store()),
            kept: found.kept.map(kept),
        })
    }

    /// The account of a request whose answer has just ended, and what the prefix store keeps of its prompt. `None` if the hook
    /// does not have it soon.
    pub(super) async fn account(&self, id: &str) -> Option<(Evaluation, Option<(u64, u64)>)> {
        let control = self.control().clone()?;
        let _place = Arc::clone(&self.accounts).try_acquire_owned().ok()?;
        for wait in ACCOUNT {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let (control, id) = (control.clone(), id.to_owned());
            let asked = tokio::task::spawn_blocking(move || control.request(&id));
            let state = asked.await.ok()?.ok()?;
            if let Some(evaluation) = state.evaluation() {
                return Some((evaluation.clone(), state.kept().map(kept)));
            }
        }
        None
    }
}

/// How many tokens, and until when.
fn kept(beginning: KeptBeginning) -> (u64, u64) {
    (beginning.tokens, beginning.until.unix_ms())
}
