//! Asking `/slots` what has become of the slots: as the Python package's `LlamaCppSlotWatcher`
//! (contextpilot 0.5.0, `standalone_hook.py`) does it, and as well as the answer would allow.
//!
//! That watcher is told which request went to which slot. Every half second it looks at the
//! fields `state` and `n_past` of each slot, and reports a slot's request when `n_past` has
//! become 0 while the slot is idle. llama-server sends neither field any more; what is missing
//! counts as 0 there, so that nothing is ever reported.
//!
//! What a watcher could do with today's answer: notice that a slot's `id_task` is another one
//! than when the request was there. That the slot has been taken by another request does not say
//! that the earlier prompt is gone, though: the later may contain it, or host memory have it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Connection, Index, Result, Server};
use serde_json::{Value, json};

/// Of the package's watcher.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);

/// What a watcher knows of a slot.
#[derive(Default)]
struct Slot {
    request: Option<String>,
    /// As the package has it.
    past: i64,
    /// The task that was there when the request was.
    task: i64,
}

/// Both watchers, looking at the same answers.
#[derive(Default)]
pub(super) struct Watcher {
    slots: BTreeMap<i64, Slot>,
    /// As of the last look.
    tasks: BTreeMap<i64, i64>,
    /// What the package's watcher reports.
    pub(super) faithful: BTreeSet<String>,
    /// What a watcher of `id_task` would report.
    pub(super) by_task: BTreeSet<String>,
}

impl Watcher {
    /// One look. Returns what the watcher of tasks has to say.
    pub(super) fn look(&mut self, server: &Server) -> Result<Vec<String>> {
        let slots = server.get("/slots")?.json()?;
        let mut news = Vec::new();
        for answer in slots.as_array().into_iter().flatten() {
            let number = |name: &str| answer.get(name).and_then(Value::as_i64);
            let Some(id) = number("id") else { continue };
            let slot = self.slots.entry(id).or_default();
            let (state, past) = (number("state").unwrap_or(0), number("n_past").unwrap_or(0));
            if slot.past > 0 && past == 0 && state == 0 {
                self.faithful.extend(slot.request.take());
            }
            slot.past = past;
            let task = number("id_task").unwrap_or(-1);
            self.tasks.insert(id, task);
            if slot.task != task {
                news.extend(slot.request.take());
            }
            slot.task = task;
        }
        self.by_task.extend(news.iter().cloned());
        Ok(news)
    }

    /// A request has been at this slot. Looks first.
    pub(super) fn register_at(&mut self, server: &Server, slot: i64, request: &str) -> Result<()> {
        self.look(server)?;
        self.slots.entry(slot).or_default().request = Some(request.to_owned());
        Ok(())
    }

    /// A request has been at whatever slots have a new task since the last look, of which it is
    /// told as the package's proxy would: by the slot's number. Looks first.
    pub(super) fn register(&mut self, server: &Server, request: Option<&str>) -> Result<Vec<i64>> {
        let before = self.tasks.clone();
        self.look(server)?;
        let changed = |(id, task): (&i64, &i64)| (before.get(id) != Some(task)).then_some(*id);
        let slots: Vec<i64> = self.tasks.iter().filter_map(changed).collect();
        for id in &slots {
            self.slots.entry(*id).or_default().request = request.map(str::to_owned);
        }
        Ok(slots)
    }
}

/// Looks every half second until told to stop, and tells the index what the watcher of tasks says.
pub(super) fn poll(
    server: &Server,
    index: &Index,
    watcher: &Mutex<Watcher>,
    stop: &AtomicBool,
) -> Result<()> {
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let gone = watcher
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .look(server)?;
        if !gone.is_empty() {
            let body = json!({ "request_ids": gone }).to_string();
            let mut connection = Connection::open(index.address())?;
            connection.exchange("POST", "/evict", body.as_bytes())?;
        }
        next += INTERVAL;
        while Instant::now() < next && !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}
