//! The program that the hook starts beside a server, to report what it held as soon as it was killed.

use std::path::PathBuf;

use contextpilot_settings::{Settings, Watcher, env};

use crate::say::say;
use crate::{beside, sys};

/// Where it is, absolute.
///
/// # Errors
/// It is not there. The text says what to do.
pub(crate) fn find() -> Result<PathBuf, String> {
    let found = beside::find(beside::COMPANION)?;
    std::path::absolute(found).map_err(|error| error.to_string())
}

/// Replaces `auto` in this process's environment by the path: the hook is in another program, and cannot know it.
pub(crate) fn name(settings: &Settings) {
    if settings.watcher != Some(Watcher::Auto) {
        return;
    }
    match find() {
        Ok(path) => sys::set_env(env::WATCHER, path.as_os_str()),
        Err(why) => say(format_args!("{} does nothing: {why}", env::WATCHER)),
    }
}
