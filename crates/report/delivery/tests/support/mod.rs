//! What every test needs: senders, what they say, and how to wait for them.
#![allow(dead_code, reason = "each test file uses its part of it")]

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_delivery::{Config, LogSink, Sender, Stats};
use contextpilot_testbed::{Index, Post};

/// Far beyond what anything here takes: only a failing test waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An index on loopback. It accepts everything, unless reported otherwise.
pub(crate) fn start_index() -> Index {
    Index::start().expect("a port on loopback")
}

/// All posts, once there are so many.
pub(crate) fn wait_for_posts<At>(index: &Index<At>, count: usize) -> Vec<Post> {
    let mut posts = Vec::new();
    let enough = |arrived: &[Post]| {
        posts = arrived.to_vec();
        posts.len() >= count
    };
    let enough = index.wait_posts(enough, PATIENCE);
    assert!(enough, "waited in vain for {count} posts: {posts:?}");
    posts
}

/// Every id that was reported with success, in order, once there are so many.
pub(crate) fn wait_for_reported<At>(index: &Index<At>, count: usize) -> Vec<String> {
    let mut reported = Vec::new();
    let enough = |posts: &[Post]| {
        let accepted = posts.iter().filter(|post| post.accepted);
        reported = accepted.flat_map(|post| post.ids.clone()).collect();
        reported.len() >= count
    };
    let enough = index.wait_posts(enough, PATIENCE);
    assert!(enough, "waited in vain for {count} ids: {reported:?}");
    reported
}

/// The lines a sender has said.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn sink(&self) -> LogSink {
        let log = self.clone();
        Arc::new(move |line| log.0.lock().expect("plain pushes").push(line.to_owned()))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().expect("plain pushes").clone()
    }
}

/// A sender to that URL with short pauses, and what it says.
pub(crate) fn sender_to(url: &str) -> (Sender, Log) {
    sender_with(url, |_| {})
}

pub(crate) fn sender_with(url: &str, adjust: impl FnOnce(&mut Config)) -> (Sender, Log) {
    let log = Log::default();
    let mut config = Config::new(url, log.sink());
    config.retry.cap = Duration::from_millis(100);
    adjust(&mut config);
    (Sender::start(config, || {}).expect("a sender"), log)
}

/// Waits until the sender's numbers are as wanted.
pub(crate) fn wait_for(sender: &Sender, what: &str, until: impl Fn(&Stats) -> bool) -> Stats {
    let end = Instant::now() + PATIENCE;
    loop {
        let stats = sender.stats();
        if until(&stats) {
            return stats;
        }
        assert!(Instant::now() < end, "waited in vain: {what}; {stats:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until it has said so many lines.
pub(crate) fn wait_for_lines(sender: &Sender, log: &Log, count: usize) {
    wait_for(sender, "lines", |_| log.lines().len() >= count);
}

pub(crate) fn ids(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("req-{n:012x}")).collect()
}

pub(crate) fn evict(sender: &Sender, ids: &[String]) {
    sender.evict_all(ids.iter().map(|id| Arc::from(id.as_str())));
}
