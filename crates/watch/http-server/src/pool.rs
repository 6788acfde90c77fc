//! A thread for each connection, up to a limit.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use contextpilot_admission::{Pace, STACK};

use crate::{Listener, Response, Stream};

/// Counts the connections that are open.
#[derive(Debug)]
pub struct Pool {
    open: Arc<AtomicUsize>,
    most: usize,
    pace: Option<Pace>,
}

/// The right to one connection, returned on drop.
#[derive(Debug)]
struct Permit(Arc<AtomicUsize>);

impl Pool {
    /// A pool for at most this many connections at a time.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            open: Arc::default(),
            most,
            pace: None,
        }
    }

    /// Accepts connections no faster than this, those that are turned away included.
    #[must_use]
    pub fn paced(mut self, pace: Pace) -> Self {
        self.pace = Some(pace);
        self
    }

    /// Takes a permit. Also returns how many connections are then open. `None`: there are as many as there may be.
    fn take(&self) -> Option<(Permit, usize)> {
        // Only one thread takes permits, so there is no race.
        if self.open.load(Ordering::Acquire) >= self.most {
            return None;
        }
        let before = self.open.fetch_add(1, Ordering::AcqRel);
        Some((Permit(Arc::clone(&self.open)), before + 1))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Accepts connections and passes each to `work` on a separate thread, as long as the process
/// lives. `work` also gets how many connections were open then, this one included. A connection over
/// the limit gets the answer `full`, and is closed. `say` gets error messages.
///
/// The threads inherit the signal mask of this one.
pub fn accept_for_ever(
    listener: &Listener,
    mut pool: Pool,
    full: impl Fn() -> Response,
    say: impl Fn(std::fmt::Arguments<'_>),
    work: impl Fn(&Stream, usize) + Clone + Send + 'static,
) -> ! {
    // For instance no free file descriptors. Report this once, until `accept` works again.
    let mut failing = false;
    loop {
        match listener.accept() {
            Ok(stream) => {
                failing = false;
                if let Some(pace) = &mut pool.pace {
                    pace.keep();
                }
                let Some((place, open)) = pool.take() else {
                    turn_away(&stream, &full());
                    continue;
                };
                let work = work.clone();
                let thread = std::thread::Builder::new()
                    .name("connection".into())
                    .stack_size(STACK);
                let spawned = thread.spawn(move || {
                    let _place = place;
                    work(&stream, open);
                });
                if let Err(e) = spawned {
                    say(format_args!(
                        "A connection was dropped, no thread could be started ({e})"
                    ));
                }
            }
            Err(e) if is_the_peers_fault(&e) => {}
            Err(e) => {
                if !std::mem::replace(&mut failing, true) {
                    say(format_args!(
                        "A connection could not be accepted ({e}); trying again"
                    ));
                }
                // Wait: the cause does not go away at once.
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }
}

/// Answers without a thread, and so without waiting: a few hundred bytes fit in the socket's buffer.
fn turn_away(stream: &Stream, full: &Response) {
    if stream.set_timeouts(Duration::from_millis(10)).is_ok() {
        let mut bytes = full.head(false);
        if let crate::Body::Whole(body) = &full.body {
            bytes.extend_from_slice(body);
        }
        let _ = (&mut &*stream).write_all(&bytes);
    }
}

fn is_the_peers_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}
