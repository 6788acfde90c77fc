//! The stream of changes, from the worker to the readers of `GET /events`.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contextpilot_control::{EventId, Missed, ResidencyEvent, name};
use contextpilot_http_server::Follow;
use contextpilot_observer::Ring;

/// After so long without an event a reader gets a comment, so that each side notices if the other is
/// gone.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How many events are sent in one piece.
const AT_ONCE: usize = 256;

/// The last changes. A lock is held only while a few events are moved.
pub(crate) struct Stream {
    epoch: String,
    ring: Mutex<Ring>,
    changed: Condvar,
}

impl Stream {
    pub(crate) fn new(epoch: String) -> Self {
        Self {
            epoch,
            ring: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, events: Vec<ResidencyEvent>) {
        if events.is_empty() {
            return;
        }
        let mut ring = self.lock();
        events.into_iter().for_each(|event| ring.push(event));
        drop(ring);
        self.changed.notify_all();
    }
}

/// A reader of the stream.
pub(crate) struct Reader {
    stream: Arc<Stream>,
    /// The number of the last event that it has.
    read: u64,
    /// What to send before the next event.
    first: Option<String>,
    sent: Instant,
}

impl Reader {
    /// Begins with the next event, or after the event `last`.
    pub(crate) fn new(stream: &Arc<Stream>, last: Option<EventId>) -> Self {
        let mut first = format!(": epoch {}\nretry: 2000\n\n", stream.epoch);
        let read = match last {
            None => stream.lock().last(),
            Some(id) if id.epoch == stream.epoch => id.sequence,
            Some(_) => {
                first.push_str(&missed(&stream.epoch, None));
                0
            }
        };
        Self {
            stream: Arc::clone(stream),
            read,
            first: Some(first),
            sent: Instant::now(),
        }
    }

    /// The text to send now.
    fn news(&mut self, ring: &Ring) -> String {
        let mut text = String::new();
        // The number was never used: another process had the same epoch, or the client sent nonsense.
        self.read = self.read.min(ring.last());
        let since = ring.since(self.read, AT_ONCE);
        if since.missed > 0 {
            self.read += since.missed;
            text.push_str(&missed(&self.stream.epoch, Some(since.missed)));
        }
        for event in since.events {
            self.read = event.sequence;
            text.push_str(&message(&event));
        }
        text
    }
}

impl Follow for Reader {
    fn next(&mut self, longest: Duration) -> Option<Vec<u8>> {
        if let Some(first) = self.first.take() {
            return Some(first.into_bytes());
        }
        let stream = Arc::clone(&self.stream);
        let mut ring = stream.lock();
        let mut text = self.news(&ring);
        if text.is_empty() {
            let waited = stream.changed.wait_timeout(ring, longest);
            ring = waited.unwrap_or_else(PoisonError::into_inner).0;
            text = self.news(&ring);
        }
        drop(ring);
        if text.is_empty() && self.sent.elapsed() >= KEEP_ALIVE {
            text.push_str(": keep-alive\n\n");
        }
        if !text.is_empty() {
            self.sent = Instant::now();
        }
        Some(text.into_bytes())
    }
}

fn message(event: &ResidencyEvent) -> String {
    // JSON escapes line ends, so the text has none.
    let data = serde_json::to_string(event).unwrap_or_default();
    let (name, id) = (name::RESIDENCY, event.id());
    format!("event: {name}\nid: {id}\ndata: {data}\n\n")
}

fn missed(epoch: &str, missed: Option<u64>) -> String {
    let data = Missed {
        epoch: epoch.to_owned(),
        missed,
    };
    let data = serde_json::to_string(&data).unwrap_or_default();
    format!("event: {}\ndata: {data}\n\n", name::MISSED)
}
