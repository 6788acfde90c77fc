//! The stream of changes: from the worker to whoever reads.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contextpilot_control::{EventId, Missed, ResidencyEvent, name};
use contextpilot_http_server::Follow;
use contextpilot_observer::Ring;

/// After this silence a reader gets a comment, so that either side notices when the other is
/// gone.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Events that are sent in one piece.
const AT_ONCE: usize = 256;

/// The last changes. The worker holds the lock for as long as a few events take to be moved.
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

/// A reader.
pub(crate) struct Reader {
    stream: Arc<Stream>,
    /// The last event that it has, by number.
    read: u64,
    /// What it gets before the next event.
    first: Option<String>,
    sent: Instant,
}

impl Reader {
    /// From now on, or after the event that it names.
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

    /// What there is to say now.
    fn news(&mut self, ring: &Ring) -> String {
        let mut text = String::new();
        // A number that was never given: another process had the same epoch, or nonsense.
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
    // What is serialised has no line ends: JSON escapes them.
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
