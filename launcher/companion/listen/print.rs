use std::io::{self, Write};
use std::process::exit;
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use crate::companion::show::{Moment, Visible, cannot_print};
use crate::say::say;

/// Writes evictions to standard output, one line each, whole POSTs at a time.
pub(super) struct Printer {
    json: bool,
    /// The lines of one POST stay together.
    turn: Mutex<()>,
}

impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self {
            json,
            turn: Mutex::new(()),
        }
    }

    /// Prints evicted ids. If standard output cannot be written, ends the process:
    /// without a message if the reader has gone, as `head` does.
    pub(super) fn evicted(&self, ids: &[String]) {
        let now = Moment::now();
        let mut lines = String::new();
        for id in ids {
            if self.json {
                let line = json!({"time": now.full(), "request_id": id});
                lines.push_str(&line.to_string());
            } else {
                lines.push_str(&format!("{}  evicted  {}", now.of_day(), Visible(id)));
            }
            lines.push('\n');
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stdout = io::stdout();
        let written = stdout
            .write_all(lines.as_bytes())
            .and_then(|()| stdout.flush());
        match written {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => exit(0),
            Err(e) => {
                say(cannot_print(&e));
                exit(1);
            }
        }
    }
}
