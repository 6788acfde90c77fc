//! A bounded queue with many senders and one receiver. It never makes a sender wait, and its
//! memory grows and shrinks with the number of values in it.
//!
//! Places are numbered from 0 on, and numbers are never reused. A sender takes a place by moving the
//! tail. The receiver empties the places in order, and then moves the head. Places lie in *segments*,
//! which are found through a table. The first sender that finds no segment for its place creates one.
//! The receiver removes a segment from the table after emptying its last place, and keeps a few for
//! later: a queue whose receiver keeps up, or comes back soon, allocates nothing.
//!
//! **Why not crossbeam's.** Its bounded queue numbers all places when it is made, so an idle one
//! of 65,536 places of 64 bytes is 4 MiB of used memory. In its unbounded queue, senders wait for
//! the sender that allocates the next block, even if that one is not running.
//!
//! **Tests.** `scripts/sanitize queue` tries every interleaving of a few senders and a receiver
//! (`hook/model`). `scripts/sanitize threads` watches many of them for data races.

use std::mem::MaybeUninit;
use std::ptr;

use sync::{Arc, AtomicBool, AtomicPtr, AtomicUsize, Ordering, UnsafeCell};

/// Places of a segment, which is 16 KiB large where a place is 64 bytes. A power of two.
const PLACES: usize = if cfg!(loom) { 2 } else { 256 };

/// Segments that are kept for later. They hold the events of 25 ms, for a server that evaluates some
/// 40 batches in a millisecond.
const SPARES: usize = if cfg!(loom) { 1 } else { 8 };

/// A queue with room for so many values.
pub(crate) fn queue<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    // One segment more than can be filled: see `Shared::segment`.
    let segments = (capacity.div_ceil(PLACES) + 1).next_power_of_two();
    let shared = Arc::new(Shared {
        tail: OwnLines(AtomicUsize::new(0)),
        head: OwnLines(AtomicUsize::new(0)),
        capacity: AtomicUsize::new(capacity),
        table: (0..segments)
            .map(|_| AtomicPtr::new(ptr::null_mut()))
            .collect(),
        spares: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
    });
    let receiver = Receiver {
        shared: Arc::clone(&shared),
        head: 0,
    };
    (Sender(shared), receiver)
}

/// The senders' end. May be shared.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// The receiver's end.
pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The next place to empty.
    head: usize,
}

struct Shared<T> {
    /// The next place to fill.
    tail: OwnLines<AtomicUsize>,
    /// The places before this one are empty, and no segment before its own is in the table.
    head: OwnLines<AtomicUsize>,
    /// Zero after the receiver was dropped.
    capacity: AtomicUsize,
    /// The segments of the places between head and tail. A segment is at its number modulo
    /// the table's length, which is a power of two.
    table: Box<[AtomicPtr<Segment<T>>]>,
    /// Segments that are not in use, with empty places; or null.
    spares: [AtomicPtr<Segment<T>>; SPARES],
}

/// Keeps a value on cache lines of its own, so that writing it does not slow down users of its
/// neighbours. Processors fetch lines in pairs.
#[repr(align(128))]
struct OwnLines<T>(T);

struct Segment<T>([Place<T>; PLACES]);

struct Place<T> {
    /// The place holds a value.
    full: AtomicBool,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: values are handed from thread to thread and never shared. A place's value is written by
// the one sender that took the place, before it sets `full`. It is read by the one receiver, after
// that has seen `full`.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: see above; the pointers belong to the queue.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Sender<T> {
    /// Sends a value, unless `most` values wait already or the queue is full. Does not wait
    /// for other threads: a sender that is stopped between two steps does not stop other senders.
    ///
    /// # Errors
    /// Returns the value if there is no room for it, or the receiver was dropped.
    #[inline]
    pub(crate) fn send(&self, value: T, most: usize) -> Result<(), T> {
        match self.take_place(most) {
            Some(place) => {
                self.fill(place, value);
                Ok(())
            }
            None => Err(value),
        }
    }

    /// As [`send`](Self::send), of a value that is made where it is put, and not moved there. False if there is no room.
    /// (In the model it would be the same as `send`.)
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn send_made(&self, most: usize, parts: impl FnOnce() -> T) -> bool {
        // What stands between taking a place and filling it must not panic, or the receiver would wait for ever: this
        // only puts together what its caller has.
        match self.take_place(most) {
            Some(place) => {
                self.fill(place, parts());
                true
            }
            None => false,
        }
    }

    /// Takes a place, which the caller fills at once.
    #[inline(always)]
    fn take_place(&self, most: usize) -> Option<usize> {
        let shared = &*self.0;
        let most = most.min(shared.capacity.load(Ordering::Relaxed));
        loop {
            // Load the head first, so that it is not after the tail. Acquire: what the receiver did to
            // the table before it moved the head is visible below.
            let head = shared.head.0.load(Ordering::Acquire);
            let tail = shared.tail.0.load(Ordering::Relaxed);
            if tail.wrapping_sub(head) >= most {
                if shared.head.0.load(Ordering::Relaxed) == head {
                    return None;
                }
                // The receiver has moved on in the meantime.
                continue;
            }
            // SeqCst: a sender takes a place and then looks whether the receiver rests. The
            // receiver announces its rest and then looks at the tail. At least one sees the other.
            let taken = shared.tail.0.compare_exchange_weak(
                tail,
                tail.wrapping_add(1),
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                return Some(tail);
            }
        }
    }

    /// Fills a place that the caller has taken.
    #[inline(always)]
    fn fill(&self, place: usize, value: T) {
        let shared = &*self.0;
        let segment = shared.segment(place);
        // SAFETY: a segment stays until all its places were filled, and this place was not.
        let place = unsafe { &(*segment).0[place % PLACES] };
        // SAFETY: until the place is full, only this sender uses it.
        place
            .value
            .with_mut(|to| unsafe { to.cast::<T>().write(value) });
        place.full.store(true, Ordering::Release);
    }
}

impl<T> Shared<T> {
    /// The segment of a place that the caller has taken.
    ///
    /// The table cannot hold an older segment at this index: that would be one table length before.
    /// The caller has seen a head that is less than `capacity` before its place. Since the table
    /// is longer than `capacity` by at least a segment, that head is after the older segment's end.
    #[inline]
    fn segment(&self, place: usize) -> *mut Segment<T> {
        let entry = self.entry(place);
        let segment = entry.load(Ordering::Acquire);
        if segment.is_null() {
            self.put_segment(entry)
        } else {
            segment
        }
    }

    #[inline]
    fn entry(&self, place: usize) -> &AtomicPtr<Segment<T>> {
        &self.table[(place / PLACES) & (self.table.len() - 1)]
    }

    #[cold]
    fn put_segment(&self, entry: &AtomicPtr<Segment<T>>) -> *mut Segment<T> {
        let mut spares = self.spares.iter().filter_map(take_from);
        let ours = spares.next().unwrap_or_else(Segment::new);
        let put =
            entry.compare_exchange(ptr::null_mut(), ours, Ordering::AcqRel, Ordering::Acquire);
        match put {
            Ok(_) => ours,
            Err(theirs) => {
                self.keep(ours);
                theirs
            }
        }
    }

    /// Keeps an empty segment that no thread uses any more for later, or frees it.
    fn keep(&self, segment: *mut Segment<T>) {
        let put = |spare: &AtomicPtr<Segment<T>>| {
            let null = ptr::null_mut();
            let put = spare.compare_exchange(null, segment, Ordering::AcqRel, Ordering::Relaxed);
            put.is_ok()
        };
        if !self.spares.iter().any(put) {
            // SAFETY: made by `Segment::new`, and no other code has a pointer to it.
            drop(unsafe { Box::from_raw(segment) });
        }
    }
}

/// Takes the spare segment, if there is one. It belongs to the caller alone then.
fn take_from<T>(spare: &AtomicPtr<Segment<T>>) -> Option<*mut Segment<T>> {
    let segment = spare.swap(ptr::null_mut(), Ordering::AcqRel);
    (!segment.is_null()).then_some(segment)
}

impl<T> Segment<T> {
    fn new() -> *mut Self {
        let mut segment = Box::<Self>::new_uninit();
        let places = segment.as_mut_ptr().cast::<Place<T>>();
        for nth in 0..PLACES {
            // SAFETY: a segment is so many places.
            let place = unsafe { places.add(nth) };
            let empty = Place {
                full: AtomicBool::new(false),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            };
            // SAFETY: within what was allocated.
            unsafe { place.write(empty) };
        }
        Box::into_raw(segment).cast()
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest value; `None` if the queue is empty.
    ///
    /// Waits if a sender has taken the place and not filled it yet.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let shared = &*self.shared;
        let entry = shared.entry(self.head);
        let segment = awaited(|| {
            let segment = entry.load(Ordering::Acquire);
            (!segment.is_null()).then_some(segment)
        });
        // SAFETY: only the receiver removes segments from the table.
        let place = unsafe { &(*segment).0[self.head % PLACES] };
        awaited(|| place.full.load(Ordering::Acquire).then_some(()));
        // SAFETY: the place was filled, and is emptied only here.
        let value = place
            .value
            .with_mut(|from| unsafe { from.cast::<T>().read() });
        place.full.store(false, Ordering::Relaxed);
        self.head = self.head.wrapping_add(1);
        if self.head % PLACES == 0 {
            entry.store(ptr::null_mut(), Ordering::Relaxed);
            // All senders have filled their places in this segment, and do not touch it again.
            shared.keep(segment);
        }
        shared.head.0.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Whether all values that senders have begun to send were received.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.tail.0.load(Ordering::SeqCst) == self.head
    }
}

/// Waits for something that a sender is about to provide.
fn awaited<R>(look: impl Fn() -> Option<R>) -> R {
    let mut looks = 0_u32;
    loop {
        if let Some(found) = look() {
            return found;
        }
        // This takes nanoseconds, unless the sender was stopped.
        looks += 1;
        if looks < 64 && !cfg!(loom) {
            std::hint::spin_loop();
        } else {
            sync::yield_now();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.capacity.store(0, Ordering::Relaxed);
        while self.take().is_some() {}
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let all = self.table.iter().chain(&self.spares);
        for segment in all.map(|segment| segment.load(Ordering::Relaxed)) {
            if segment.is_null() {
                continue;
            }
            // SAFETY: made by `Segment::new`, and all other users are gone.
            let segment = unsafe { Box::from_raw(segment) };
            // Drop values that were sent while the receiver was dropped.
            for place in &segment.0 {
                if place.full.load(Ordering::Relaxed) {
                    // SAFETY: the place was filled and not emptied.
                    let value = |from: *mut MaybeUninit<T>| unsafe { from.cast::<T>().read() };
                    drop(place.value.with_mut(value));
                }
            }
        }
    }
}

#[cfg(not(loom))]
mod sync {
    pub(super) use std::sync::Arc;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
    pub(super) use std::thread::yield_now;

    /// Has the interface of loom's `UnsafeCell`.
    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(super) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
            work(self.0.get())
        }
    }
}

#[cfg(loom)]
mod sync {
    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::Arc;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
    pub(super) use loom::thread::yield_now;
}

#[cfg(all(test, not(loom)))]
mod tests;
