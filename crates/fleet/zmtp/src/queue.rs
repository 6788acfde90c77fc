//! The bounded queue of messages for one subscriber. Adding to it never waits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::listener::lock;

/// Bytes of replies that may wait. A peer that reads at all is sent a few dozen at a time.
pub(crate) const REPLIES: usize = 4096;
/// What a message that waits takes besides its bytes.
const ENTRY: usize = 64;

/// The publishing thread fills it, and the subscriber's thread empties it.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    filled: Condvar,
    /// Bytes that may wait.
    most: usize,
    /// Bytes that wait for all subscribers together.
    all: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Inner {
    subscriptions: Vec<Box<[u8]>>,
    /// Answers to the peer itself.
    replies: Vec<u8>,
    waiting: VecDeque<Arc<[u8]>>,
    /// Bytes of `waiting`, and of the message that is being written.
    bytes: usize,
    closed: bool,
}

/// What happened to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It waits.
    Queued,
    /// There was no room.
    Dropped,
    /// It was not subscribed to.
    Unwanted,
}

/// What is written next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// Answers to the peer itself.
    Replies(Vec<u8>),
    /// A message.
    Message(Arc<[u8]>),
}

impl Queue {
    /// `all`: counts the bytes of all queues.
    pub(crate) fn new(most: usize, all: Arc<AtomicUsize>) -> Self {
        Self {
            inner: Mutex::default(),
            filled: Condvar::new(),
            most,
            all,
        }
    }

    /// Adds a message, if the peer has subscribed to it. An empty queue has room for any message.
    pub(crate) fn publish(&self, topic: &[u8], message: &Arc<[u8]>) -> Put {
        let mut inner = lock(&self.inner);
        let mut prefixes = inner.subscriptions.iter();
        if !prefixes.any(|prefix| topic.starts_with(prefix)) {
            return Put::Unwanted;
        }
        let size = size(message);
        if inner.closed || (inner.bytes > 0 && inner.bytes + size > self.most) {
            return Put::Dropped;
        }
        inner.bytes += size;
        self.all.fetch_add(size, Ordering::Relaxed);
        inner.waiting.push_back(Arc::clone(message));
        self.filled.notify_one();
        Put::Queued
    }

    /// Adds an answer to the peer itself, before all messages. False if there is no room.
    pub(crate) fn reply(&self, bytes: &[u8]) -> bool {
        let mut inner = lock(&self.inner);
        if inner.replies.len() + bytes.len() > REPLIES {
            return false;
        }
        inner.replies.extend_from_slice(bytes);
        self.filled.notify_one();
        true
    }

    /// Messages with this prefix are wanted. Returns whether it is the first prefix.
    pub(crate) fn subscribe(&self, prefix: Vec<u8>) -> bool {
        let mut inner = lock(&self.inner);
        inner.subscriptions.push(prefix.into());
        inner.subscriptions.len() == 1
    }

    /// They no longer are. Returns whether it was the last prefix.
    pub(crate) fn cancel(&self, prefix: &[u8]) -> bool {
        let mut inner = lock(&self.inner);
        let before = inner.subscriptions.len();
        inner.subscriptions.retain(|known| **known != *prefix);
        before > 0 && inner.subscriptions.is_empty()
    }

    /// Bytes of messages that wait; none once it is closed.
    pub(crate) fn bytes(&self) -> usize {
        let inner = lock(&self.inner);
        if inner.closed { 0 } else { inner.bytes }
    }

    /// Waits for what is to be written next. `None`: the queue was closed. `sent`: the message that was
    /// taken before.
    pub(crate) fn take(&self, sent: Option<&Arc<[u8]>>) -> Option<Outgoing> {
        let mut inner = lock(&self.inner);
        if let Some(sent) = sent {
            inner.bytes -= size(sent);
            self.all.fetch_sub(size(sent), Ordering::Relaxed);
        }
        loop {
            if inner.closed {
                return None;
            }
            if !inner.replies.is_empty() {
                return Some(Outgoing::Replies(std::mem::take(&mut inner.replies)));
            }
            if let Some(message) = inner.waiting.pop_front() {
                return Some(Outgoing::Message(message));
            }
            let woken = self.filled.wait(inner);
            inner = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Ends [`Queue::take`], and frees what waits.
    pub(crate) fn close(&self) {
        let mut inner = lock(&self.inner);
        inner.closed = true;
        let waiting = std::mem::take(&mut inner.waiting);
        let bytes: usize = waiting.iter().map(size).sum();
        inner.bytes -= bytes;
        self.all.fetch_sub(bytes, Ordering::Relaxed);
        self.filled.notify_one();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // A message that was being written.
        self.all
            .fetch_sub(lock(&self.inner).bytes, Ordering::Relaxed);
    }
}

fn size(message: &Arc<[u8]>) -> usize {
    message.len() + ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscribed(most: usize) -> Queue {
        let queue = Queue::new(most, Arc::default());
        assert!(queue.subscribe(b"kv".to_vec()));
        queue
    }

    fn message(size: usize) -> Arc<[u8]> {
        vec![0; size - ENTRY].into()
    }

    #[test]
    fn a_message_that_does_not_fit_is_dropped() {
        let queue = subscribed(1000);
        let six = message(600);
        assert_eq!(queue.publish(b"other", &six), Put::Unwanted);
        assert_eq!(queue.publish(b"kv", &six), Put::Queued);
        assert_eq!(queue.publish(b"kv", &six), Put::Dropped);
        // A message counts until it is written.
        assert_eq!(queue.take(None), Some(Outgoing::Message(six.clone())));
        assert_eq!(queue.publish(b"kv", &six), Put::Dropped);
        assert_eq!(queue.publish(b"kv", &message(400)), Put::Queued);
        assert_eq!(
            (queue.bytes(), queue.all.load(Ordering::Relaxed)),
            (1000, 1000)
        );
        assert!(queue.take(Some(&six)).is_some());
        queue.close();
        assert_eq!(queue.take(Some(&message(400))), None);
        assert_eq!(queue.all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn replies_come_first_together_and_in_order_and_are_few() {
        let queue = subscribed(1000);
        queue.publish(b"kv", &message(100));
        assert!(queue.reply(b"one") && queue.reply(b"two"));
        assert_eq!(
            queue.take(None),
            Some(Outgoing::Replies(b"onetwo".to_vec()))
        );
        assert!(queue.reply(&[0; REPLIES]));
        assert!(!queue.reply(&[0]));
    }

    #[test]
    fn an_empty_queue_accepts_any_message() {
        let queue = subscribed(100);
        let snapshot: Arc<[u8]> = vec![0; 1000].into();
        assert_eq!(queue.publish(b"kv", &snapshot), Put::Queued);
        assert_eq!(queue.publish(b"kv", &message(ENTRY + 1)), Put::Dropped);
    }

    #[test]
    fn what_waits_is_freed_with_its_queue() {
        let queue = subscribed(1000);
        let all = Arc::clone(&queue.all);
        for _ in 0..5 {
            queue.publish(b"kv", &message(100));
        }
        assert_eq!(all.load(Ordering::Relaxed), 500);
        let Some(Outgoing::Message(_)) = queue.take(None) else {
            panic!("five wait");
        };
        queue.close();
        assert_eq!(all.load(Ordering::Relaxed), 100, "one is being written");
        drop(queue);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_prefix_that_is_cancelled_is_unwanted() {
        let queue = subscribed(1000);
        assert!(!queue.subscribe(b"".to_vec()));
        assert!(!queue.cancel(b"kv"));
        assert_eq!(queue.publish(b"kv", &message(100)), Put::Queued);
        assert!(queue.cancel(b"") && !queue.cancel(b""));
        assert_eq!(queue.publish(b"kv", &message(100)), Put::Unwanted);
    }

    #[test]
    fn a_closed_queue_takes_no_message() {
        let queue = subscribed(1000);
        queue.close();
        assert_eq!(queue.publish(b"kv", &message(100)), Put::Dropped);
        assert_eq!((queue.bytes(), queue.all.load(Ordering::Relaxed)), (0, 0));
    }
}
