use std::fmt::Display;
use std::io::{self, Write};

/// Prints one line on stderr.
///
/// Not `eprintln!`, which panics when stderr cannot be written: the server must
/// start all the same. One write, so that lines of several processes do not mix.
pub(crate) fn say(message: impl Display) {
    let line = format!("[ContextPilot] {message}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}
