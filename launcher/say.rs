use std::fmt::Display;
use std::io::{self, Write};

/// Tells people something, as one line on stderr.
///
/// Not `eprintln!`, which panics when stderr cannot be written to: that nobody
/// can be told is no reason not to start the server. One write, so that lines of
/// several processes do not mix.
pub(crate) fn say(message: impl Display) {
    let line = format!("[ContextPilot] {message}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}
