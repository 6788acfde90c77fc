//! Asks a server's hook how much of a request's prompt the prefix store has loaded, for the usage in its answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use contextpilot_client::control::{Change, CountedAnswers, RequestState, Stats};
use contextpilot_client::{Control, Error, Update};
use contextpilot_proxy::{Account, Asked, Form, LONGEST_COUNTED, Response};
use tokio::sync::Semaphore;

/// Accounts that are asked for at a time. Beyond, an answer keeps the engine's figures.
const AT_A_TIME: usize = 64;

/// The waits before each query, in milliseconds. The hook has the account when the answer begins, but its thread gets the
/// processors last.
const WAITS: [u64; 8] = [0, 2, 5, 20, 100, 500, 1_500, 3_000];
/// Queries for a request of which the hook has not heard, or has no account.
const IN_DOUBT: usize = 4;

/// The time between two attempts to reach the hook.
const AGAIN: Duration = Duration::from_millis(500);

/// For a proxy: asks for accounts, where the server has not counted itself what was loaded.
#[derive(Clone)]
pub(super) struct Accounts {
    places: Arc<Semaphore>,
    hook: Arc<Mutex<HookState>>,
}

/// What is known of the hook.
#[derive(Default)]
struct HookState {
    /// `None`: it is not known where it is.
    control: Option<Control>,
    /// The server has a prefix store.
    loads: bool,
    /// In which answers the server itself counts what was loaded as cached.
    counted: CountedAnswers,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(AT_A_TIME)),
            hook: Arc::default(),
        }
    }
}

impl Accounts {
    /// Those of one hook, which a thread follows from now on.
    pub(super) fn following(control: Control) -> Self {
        let accounts = Self::default();
        accounts.found(&control);
        let _ = accounts.look(&control);
        let follows = accounts.clone();
        thread::spawn(move || {
            loop {
                let _ = follows.follow(&control);
                follows.ended();
                thread::sleep(AGAIN);
            }
        });
        accounts
    }

    /// Until the stream of events ends, and with it the server.
    fn follow(&self, control: &Control) -> Result<(), Error> {
        let mut events = control.events(None)?;
        self.look(control)?;
        let mut cached = 0_u64;
        for update in &mut events {
            match update? {
                Update::Event(event) => {
                    cached += u64::from(matches!(event.change, Change::Cached { .. }));
                    if matches!(event.change, Change::Cached { .. }) && cached.is_power_of_two() {
                        self.look(control)?;
                    }
                }
                // Another process.
                Update::Missed(missed) if missed.missed.is_none() => return Ok(()),
                Update::Missed(_) => {}
            }
        }
        Ok(())
    }

    fn look(&self, control: &Control) -> Result<(), Error> {
        self.seen(&control.stats()?);
        Ok(())
    }

    fn hook(&self) -> MutexGuard<'_, HookState> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, this one is asked.
    pub(super) fn found(&self, control: &Control) {
        self.hook().control = Some(control.clone());
    }

    /// What the hook says of itself now.
    pub(super) fn seen(&self, stats: &Stats) {
        let mut hook = self.hook();
        hook.loads = stats.store.is_some();
        hook.counted = stats
            .store
            .as_ref()
            .map_or_else(CountedAnswers::default, |store| store.counted);
    }

    /// The server has ended. The next process may have other settings.
    pub(super) fn ended(&self) {
        self.hook().counted = CountedAnswers::default();
    }

    /// The account of a request whose answer has begun. `None` if the hook does not have it soon.
    async fn account(self, control: Control, id: String) -> Option<Account> {
        let _place = self.places.try_acquire_owned().ok()?;
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

impl HookState {
    /// Whether the server itself counts in such an answer what the prefix store has loaded as cached.
    fn has_counted(&self, answer: &Response) -> bool {
        let counted = self.counted;
        Form::from_headers(answer).is_none_or(|form| match form {
            Form::Whole(length) => counted.whole && length <= LONGEST_COUNTED,
            Form::Streamed => counted.streamed,
        })
    }
}

impl contextpilot_proxy::Accounts for Accounts {
    fn are_needed(&self) -> bool {
        self.hook().loads
    }

    fn new_id(&self) -> String {
        super::index::ids::new()
    }

    fn ask(&self, id: String, answer: &Response) -> Option<Asked> {
        let hook = self.hook();
        let control = hook.control.clone().filter(|_| hook.loads)?;
        let is_needed = !hook.has_counted(answer);
        is_needed.then(|| Box::pin(self.clone().account(control, id)) as Asked)
    }
}
