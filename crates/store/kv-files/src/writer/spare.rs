//! Memory for states: used again, and made ready before it is wanted.
//!
//! The first copy into fresh memory takes five to eight times as long as the copy itself, for the system has to find and
//! clear each page. The thread that computes makes the copy. So the writer's thread makes memory ready ahead: as much as
//! [`expect`](Spares::expect) says, page by page and with rests. It keeps the memory of what it has written, too.
//!
//! A small state does not take the memory that is ready for a large one. Its own is kept beside it, once it was written.
//!
//! What is ready is let go when nothing was expected or taken for [`IDLE`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

/// Memory that is kept to be used again, bytes; or one buffer of any size, or two of the size that is expected.
const SPARE: u64 = 64 << 20;
/// Less is not made ready: the allocator has it, as a rule.
const LEAST: u64 = 1 << 20;
/// So many bytes are made ready at a time.
const STEP: usize = 256 << 10;
/// How many buffers are looked at for one that is large enough.
const LOOKED_AT: usize = 16;
/// So many smaller than [`LARGE`] are kept at most. Four large ones have room beside them, and all are looked at. A chunk's
/// own rows come back too, which are not taken: without this bound those of a model with small states would be kept to the last.
const FEW: usize = LOOKED_AT - 4;
/// A buffer of this size or more is for states of at least a quarter of it.
const LARGE: u64 = 16 << 20;
/// Smaller ones than those are kept beside it, bytes.
const SMALL: u64 = 32 << 20;
/// How long unwanted memory is kept.
pub(super) const IDLE: Duration = Duration::from_secs(60);

/// The buffers that are ready, for the writer's thread and for those who want one. No thread waits for another.
#[derive(Clone, Debug)]
pub(super) struct Spares {
    give: Sender<Vec<u8>>,
    take: Receiver<Vec<u8>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The size of all buffers, bytes.
    bytes: AtomicU64,
    /// And of those among them that are smaller than [`LARGE`].
    small: AtomicU64,
    /// The size of the largest state that may soon be copied, bytes, or somewhat more.
    expected: AtomicU64,
    /// The size of those that were taken and did not come back, bytes. From when memory was let go last; some never come
    /// back, and some were never taken.
    lent: AtomicU64,
    /// Memory was expected or taken since the thread looked last.
    in_use: AtomicBool,
}

impl Spares {
    pub(super) fn new() -> Self {
        let (give, take) = unbounded();
        Self {
            give,
            take,
            shared: Arc::default(),
        }
    }

    /// Whether states of this size are expected already, or are too small for that. What is expected stays so.
    pub(super) fn expects(&self, bytes: u64) -> bool {
        self.shared.in_use.store(true, Ordering::Relaxed);
        bytes < LEAST || bytes <= self.shared.expected.load(Ordering::Relaxed)
    }

    /// A state of this size may soon be copied. Whether that is more than was expected so far.
    pub(super) fn expect(&self, bytes: u64) -> bool {
        if self.expects(bytes) {
            return false;
        }
        // A prompt grows. An eighth at a time is enough.
        let step = (bytes / 8).next_power_of_two();
        let bytes = bytes.checked_next_multiple_of(step).unwrap_or(bytes);
        self.shared.expected.fetch_max(bytes, Ordering::Relaxed) < bytes
    }

    /// The smallest buffer that has room for so many bytes, else the largest; but none that is far too large, for a large
    /// state may come before this one is written. What it holds is of no use.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        self.shared.in_use.store(true, Ordering::Relaxed);
        let most = (LARGE as usize).max(bytes.saturating_mul(4));
        let buffer = self.find(bytes, most);
        let size = buffer.capacity() as u64;
        self.shared.lent.fetch_add(size, Ordering::Relaxed);
        buffer
    }

    fn find(&self, bytes: usize, most: usize) -> Vec<u8> {
        let rank = |buffer: &Vec<u8>| match buffer.capacity() {
            room if room >= most => (false, 0),
            room if room >= bytes => (true, usize::MAX - room),
            room => (false, room),
        };
        let mut best = Vec::new();
        for _ in 0..self.take.len().min(LOOKED_AT) {
            let Ok(mut other) = self.take.try_recv() else {
                break;
            };
            if rank(&other) > rank(&best) {
                std::mem::swap(&mut best, &mut other);
            }
            if other.capacity() > 0 {
                let _ = self.give.send(other);
            }
        }
        self.shared.remove(&best);
        best
    }

    /// The thread keeps the memory of rows that are written, or does not. `most`: bytes that all buffers may have.
    pub(super) fn keep(&self, buffer: Vec<u8>, most: u64) {
        let size = buffer.capacity() as u64;
        let lent = self.shared.lent.load(Ordering::Relaxed);
        self.shared
            .lent
            .fetch_sub(size.min(lent), Ordering::Relaxed);
        let kept = self.shared.bytes.load(Ordering::Relaxed);
        let expected = self.shared.expected.load(Ordering::Relaxed);
        let room = SPARE.max(2 * expected).min(most);
        let small = self.shared.small.load(Ordering::Relaxed);
        let fits = if 2 * size >= expected {
            let kept = if size < LARGE {
                kept
            } else {
                kept - small.min(kept)
            };
            size > 0 && (kept == 0 || kept + size <= room)
        } else {
            let fits = small + size <= SMALL && kept + size <= most;
            (LEAST..LARGE).contains(&size) && fits
        };
        if fits && (size >= LARGE || self.take.len() < FEW) {
            self.put(buffer);
        }
    }

    /// The thread makes a buffer ready of the size that is expected, if there is none, and if all that it made ready has
    /// at most so many bytes with it. Calls `rest` after each piece, and stops there when it says so.
    pub(super) fn make_ready(&self, most: u64, mut rest: impl FnMut() -> bool) {
        let expected = self.shared.expected.load(Ordering::Relaxed);
        let lent = self.shared.lent.load(Ordering::Relaxed);
        if expected == 0 || expected.saturating_add(lent) > most {
            return;
        }
        let Ok(size) = usize::try_from(expected) else {
            return;
        };
        let mut buffer = self.find(size, usize::MAX);
        if 2 * buffer.capacity() < size {
            let small = std::mem::take(&mut buffer);
            if small.capacity() > 0 {
                self.put(small);
            }
        }
        if buffer.capacity() < size {
            // Its pages stay, and what is there is of no use: nothing is copied where the system can move pages.
            let there = buffer.capacity();
            buffer.resize(there, 0);
            if buffer.try_reserve_exact(size - there).is_ok() {
                while buffer.len() < size {
                    let next = size.min(buffer.len() + STEP);
                    buffer.resize(next, 0);
                    if !rest() {
                        break;
                    }
                }
            }
        }
        if buffer.capacity() > 0 {
            self.put(buffer);
        }
    }

    /// The thread lets all go if nothing was wanted since the last call. Whether there may be something left.
    pub(super) fn look_for_idle(&self) -> bool {
        if self.shared.in_use.swap(false, Ordering::Relaxed) {
            return true;
        }
        self.shared.expected.store(0, Ordering::Relaxed);
        self.shared.lent.store(0, Ordering::Relaxed);
        for buffer in self.take.try_iter() {
            self.shared.remove(&buffer);
        }
        false
    }

    fn put(&self, buffer: Vec<u8>) {
        let size = buffer.capacity() as u64;
        self.shared.bytes.fetch_add(size, Ordering::Relaxed);
        if size < LARGE {
            self.shared.small.fetch_add(size, Ordering::Relaxed);
        }
        let _ = self.give.send(buffer);
    }
}

impl Shared {
    /// A buffer is not among those that are ready any more.
    fn remove(&self, buffer: &Vec<u8>) {
        let size = buffer.capacity() as u64;
        self.bytes.fetch_sub(size, Ordering::Relaxed);
        if size < LARGE {
            self.small.fetch_sub(size, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn ready(spares: &Spares) {
        spares.make_ready(u64::MAX, || true);
    }

    #[test]
    fn the_smallest_that_is_large_enough_is_taken_else_the_largest() {
        let spares = Spares::new();
        for size in [30, 10, 20] {
            spares.keep(Vec::with_capacity(size), u64::MAX);
        }
        let sizes = [15, 15, 15, 15].map(|size| spares.take(size).capacity());
        assert_eq!(sizes, [20, 30, 10, 0]);
    }

    #[test]
    fn what_is_expected_is_ready_once() {
        let spares = Spares::new();
        ready(&spares);
        assert_eq!(spares.take(1).capacity(), 0);
        assert!(spares.expect(10 * MIB as u64));
        assert!(!spares.expect(9 * MIB as u64));
        for _ in 0..3 {
            ready(&spares);
        }
        let spare = spares.take(10 * MIB);
        assert!(
            (10 * MIB..13 * MIB).contains(&spare.capacity()),
            "{}",
            spare.capacity()
        );
        assert_eq!(spare.len(), spare.capacity(), "each page was written to");
        assert_eq!(spares.take(1).capacity(), 0);
        // With the one that is away there would be too much.
        spares.make_ready(19 * MIB as u64, || true);
        assert_eq!(spares.take(1).capacity(), 0);
        spares.keep(spare, u64::MAX);
        assert!(spares.take(10 * MIB).capacity() >= 10 * MIB);
    }

    #[test]
    fn a_buffer_grows_with_what_is_expected() {
        let spares = Spares::new();
        spares.expect(6 * MIB as u64);
        ready(&spares);
        spares.expect(9 * MIB as u64);
        // Another thread waits for this one: it stops.
        let mut pieces = 0;
        spares.make_ready(u64::MAX, || {
            pieces += 1;
            pieces < 3
        });
        assert_eq!(pieces, 3);
        assert_eq!(spares.shared.bytes.load(Ordering::Relaxed), 10 * MIB as u64);
        assert_eq!(spares.take(9 * MIB).len(), 6 * MIB + 3 * STEP);
    }

    #[test]
    fn a_small_state_leaves_what_is_ready_for_a_large_one() {
        let spares = Spares::new();
        spares.expect(100 * MIB as u64);
        ready(&spares);
        assert_eq!(spares.take(5 * MIB).capacity(), 0);
        // Its own memory is kept beside that, and is not what grows.
        spares.keep(Vec::with_capacity(5 * MIB), u64::MAX);
        ready(&spares);
        assert_eq!(spares.take(4 * MIB).capacity(), 5 * MIB);
        assert!(spares.take(30 * MIB).capacity() >= 100 * MIB);
        spares.keep(Vec::with_capacity(5 * MIB), u64::MAX);
        ready(&spares);
        assert!(spares.take(100 * MIB).capacity() >= 100 * MIB);
        assert_eq!(spares.take(4 * MIB).capacity(), 5 * MIB);
    }

    #[test]
    fn of_small_ones_few_are_kept_and_a_large_one_is_found_beside_them() {
        let spares = Spares::new();
        for _ in 0..100 {
            spares.keep(Vec::with_capacity(100_000), u64::MAX);
        }
        let kept = spares.shared.bytes.load(Ordering::Relaxed);
        assert_eq!(kept, FEW as u64 * 100_000);
        spares.expect(20 * MIB as u64);
        ready(&spares);
        assert!(spares.take(20 * MIB).capacity() >= 20 * MIB);
    }

    #[test]
    fn what_nobody_wants_is_let_go_and_what_is_too_small_is_not_kept() {
        let spares = Spares::new();
        spares.expect(10 * MIB as u64);
        ready(&spares);
        spares.keep(Vec::with_capacity(2 * MIB), u64::MAX);
        assert!(spares.look_for_idle());
        // A token is evaluated: a state is expected, though not a larger one.
        assert!(!spares.expect(3 * MIB as u64));
        assert!(spares.look_for_idle());
        assert!(spares.shared.bytes.load(Ordering::Relaxed) > 0);
        assert!(!spares.look_for_idle());
        assert_eq!(spares.shared.bytes.load(Ordering::Relaxed), 0);
        assert!(spares.take.is_empty());
        // It begins anew.
        assert!(spares.expect(3 * MIB as u64));
        ready(&spares);
        assert!(spares.take(1).capacity() >= 3 * MIB);
    }
}
