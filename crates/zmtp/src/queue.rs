//! The bounded queue of messages for one subscriber. Adding to it never waits.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use crate::listener::lock;
use crate::session::Subscriptions;

/// The publishing thread fills it, and the subscriber's thread empties it.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    filled: Condvar,
    /// Bytes that may wait.
    most: usize,
}

#[derive(Debug, Default)]
struct Inner {
    subscriptions: Subscriptions,
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

impl Queue {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            inner: Mutex::default(),
            filled: Condvar::new(),
            most,
        }
    }

    /// Adds a message, if the peer has subscribed to it. An empty queue has room for any message.
    pub(crate) fn publish(&self, topic: &[u8], message: &Arc<[u8]>) -> Put {
        let mut inner = lock(&self.inner);
        if !inner.subscriptions.want(topic) {
            return Put::Unwanted;
        }
        if inner.bytes > 0 && inner.bytes + message.len() > self.most {
            return Put::Dropped;
        }
        inner.bytes += message.len();
        inner.waiting.push_back(Arc::clone(message));
        self.filled.notify_one();
        Put::Queued
    }

    /// Adds an answer to the peer itself, before all messages. False if there is no room.
    pub(crate) fn reply(&self, bytes: Vec<u8>) -> bool {
        let mut inner = lock(&self.inner);
        if inner.bytes > 0 && inner.bytes + bytes.len() > self.most {
            return false;
        }
        inner.bytes += bytes.len();
        inner.waiting.push_front(bytes.into());
        self.filled.notify_one();
        true
    }

    pub(crate) fn subscribe(&self, subscriptions: Subscriptions) {
        lock(&self.inner).subscriptions = subscriptions;
    }

    /// Whether anything is subscribed to.
    pub(crate) fn is_subscribed(&self) -> bool {
        !lock(&self.inner).subscriptions.is_empty()
    }

    /// Whether something was not written yet.
    pub(crate) fn waits(&self) -> bool {
        lock(&self.inner).bytes > 0
    }

    /// Waits for the next message. `None`: the queue was closed. `sent`: the bytes of the message that
    /// was taken before.
    pub(crate) fn take(&self, sent: usize) -> Option<Arc<[u8]>> {
        let mut inner = lock(&self.inner);
        inner.bytes -= sent;
        loop {
            if inner.closed {
                return None;
            }
            if let Some(message) = inner.waiting.pop_front() {
                return Some(message);
            }
            let woken = self.filled.wait(inner);
            inner = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Ends [`Queue::take`].
    pub(crate) fn close(&self) {
        lock(&self.inner).closed = true;
        self.filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Role, Session};

    fn subscribed(most: usize) -> Queue {
        let mut session = Session::new(Role::Publisher);
        let ready = crate::frame::command(b"READY", b"\x0bSocket-Type\0\0\0\x03SUB");
        let subscription = crate::encode(&[b"\x01kv"]);
        let bytes = [&Session::greeting()[..], &ready, &subscription].concat();
        session.feed(&bytes, &mut Vec::new()).expect("all is well");
        let queue = Queue::new(most);
        queue.subscribe(session.subscriptions().clone());
        queue
    }

    #[test]
    fn a_message_that_does_not_fit_is_dropped() {
        let queue = subscribed(100);
        let message: Arc<[u8]> = vec![0; 60].into();
        assert_eq!(queue.publish(b"other", &message), Put::Unwanted);
        assert_eq!(queue.publish(b"kv", &message), Put::Queued);
        assert_eq!(queue.publish(b"kv", &message), Put::Dropped);
        assert!(queue.reply(vec![0; 40]));
        assert!(!queue.reply(vec![0]));
        assert_eq!(queue.take(0).map(|bytes| bytes.len()), Some(40));
        // A message counts until it is written.
        assert!(!queue.reply(vec![0]));
        assert_eq!(queue.take(40).map(|bytes| bytes.len()), Some(60));
        assert_eq!(queue.publish(b"kv", &vec![0; 40].into()), Put::Queued);
        queue.close();
        assert_eq!(queue.take(60), None);
    }

    #[test]
    fn an_empty_queue_accepts_any_message() {
        let queue = subscribed(100);
        let snapshot: Arc<[u8]> = vec![0; 1000].into();
        assert_eq!(queue.publish(b"kv", &snapshot), Put::Queued);
        assert_eq!(queue.publish(b"kv", &vec![0].into()), Put::Dropped);
    }
}
