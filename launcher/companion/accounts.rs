//! Asks a server's hook how much of a request's prompt the prefix store has loaded, for the usage in its answer.

use std::sync::Arc;
use std::time::Duration;

use contextpilot_client::Control;
use contextpilot_client::control::RequestState;
use contextpilot_proxy::{Account, Asked};
use tokio::sync::Semaphore;

/// Accounts that are asked for at a time. Beyond, an answer keeps the engine's figures.
const AT_A_TIME: usize = 64;

/// The waits before each query, in milliseconds. The hook has the account when the answer begins, but its thread gets the
/// processors last.
const WAITS: [u64; 8] = [0, 2, 5, 20, 100, 500, 1_500, 3_000];
/// Queries for a request of which the hook has not heard, or has no account.
const IN_DOUBT: usize = 4;

/// Queries for accounts.
#[derive(Clone)]
pub(super) struct Accounts(Arc<Semaphore>);

impl Default for Accounts {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_A_TIME)))
    }
}

impl Accounts {
    /// The account of a request whose answer has begun. `None` if the hook does not have it soon.
    pub(super) async fn of(self, control: Control, id: String) -> Option<Account> {
        let _place = self.0.try_acquire_owned().ok()?;
        for (times, wait) in WAITS.into_iter().enumerate() {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let (control, id) = (control.clone(), id.clone());
            let asked = tokio::task::spawn_blocking(move || control.request(&id));
            let state = asked.await.ok()?.ok()?;
            if let Some(account) = state.evaluation() {
                return Some(Account {
                    reused: account.reused,
                    evaluated: account.evaluated,
                    loaded: account.from.store,
                });
            }
            if times >= IN_DOUBT && !matches!(state, RequestState::Awaited { .. }) {
                return None;
            }
        }
        None
    }
}

/// For a proxy that looks at one hook.
pub(super) struct OfHook {
    control: Control,
    accounts: Accounts,
}

impl OfHook {
    pub(super) fn new(control: Control) -> Self {
        let accounts = Accounts::default();
        Self { control, accounts }
    }
}

impl contextpilot_proxy::Accounts for OfHook {
    fn new_id(&self) -> String {
        super::index::ids::new()
    }

    fn of(&self, id: String) -> Option<Asked> {
        Some(Box::pin(self.accounts.clone().of(self.control.clone(), id)))
    }
}
