//! Shared by the tests with a prefix store.

use contextpilot_client::Control;
use contextpilot_testbed::until;

/// Waits until the store is in use.
pub(crate) fn await_store(control: &Control) {
    until("the store is in use", || {
        let store = control.stats().ok()?.store?;
        (store.ready || store.problem.is_some()).then_some(())
    });
}
