//! A llama-server in which the hook does nothing.

use std::fmt::Display;

use contextpilot_settings::{env, flag, table};

use super::{environment, log};

/// Says why this server runs without the hook. With `CONTEXTPILOT_STRICT=1` the server ends: it has not
/// loaded a model yet.
pub(crate) fn stay_inactive(why: impl Display) {
    // A wrong value was meant to turn it on, too.
    if !flag(environment::variable, &table::STRICT).unwrap_or(true) {
        log::line(format_args!("Inactive: {why}"));
        return;
    }
    let strict = env::STRICT;
    log::line(format_args!(
        "Inactive: {why}. The server ends here, as {strict} is set"
    ));
    // SAFETY: runs nothing of the server's, whose threads may be at work.
    unsafe { libc::_exit(EXIT_STRICT) }
}

/// The exit status, the same as the launcher's.
const EXIT_STRICT: i32 = 3;
