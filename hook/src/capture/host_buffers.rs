//! A set of addresses: the host buffers that hold a saved sequence.
//!
//! This is looked up at *every* release of memory in the process, on any thread, even in the first and
//! last moments of a thread. So it has no lock, no allocation and no thread-local. Two filters come
//! first: a comparison, if the size is known, and a counter in a table that
//! stays in the first-level cache. The table behind the filters is exact: each address is in it once,
//! and the one release that finds it removes it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::attach::claims::Seen;
use crate::base::bounds::{BUFFER_BUCKETS as BUCKETS, BUFFER_KINDS};

/// Eight addresses: a cache line.
#[repr(align(64))]
struct Bucket([AtomicUsize; 8]);

#[allow(clippy::declare_interior_mutable_const)]
const EMPTY: Bucket = {
    const NONE: AtomicUsize = AtomicUsize::new(0);
    Bucket([NONE; 8])
};
/// Zero pages, which take no memory until they are used.
static TABLE: [Bucket; BUCKETS] = [EMPTY; BUCKETS];

/// Counts the buffers of each kind of address (a hash). For most releases the count is zero.
static KINDS: [AtomicU32; BUFFER_KINDS] = {
    #[allow(clippy::declare_interior_mutable_const)]
    const NONE: AtomicU32 = AtomicU32::new(0);
    [NONE; BUFFER_KINDS]
};

/// The size of the smallest buffer that was ever saved to, in bytes.
static SMALLEST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Whether a release of this many bytes may be a release of a saved sequence.
#[inline]
pub(crate) fn may_matter(size: usize) -> bool {
    // Relaxed, here and below: a thread that releases a buffer got it from the thread that saved to
    // it, and that hand-over orders our accesses as well.
    size >= SMALLEST.load(Ordering::Relaxed)
}

/// Whether a release of this address may be a release of a saved sequence.
#[inline]
pub(crate) fn may_be(address: usize) -> bool {
    kind(address).load(Ordering::Relaxed) != 0
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A checkpoint. The server may write the next one over it.
    Checkpoint,
    /// A whole sequence, in memory that was allocated for it.
    Whole,
}

/// The lowest bit of a stored address: it is a whole sequence. Addresses are multiples of 16.
const WHOLE: usize = 1;

/// Releases are not seen, so no buffer is kept in the set.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// The memory of a whole sequence was allocated again, but its release was not seen.
static REUSED: AtomicBool = AtomicBool::new(false);
/// A release of a buffer was seen.
static FREED: AtomicBool = AtomicBool::new(false);
/// Bytes of all whole sequences that were saved.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// A sequence was saved to this buffer. False if there is no room in the set: its release would not be
/// noticed.
pub(crate) fn insert(address: usize, size: usize, content: Content) -> bool {
    if REFUSED.load(Ordering::SeqCst) {
        return false;
    }
    SMALLEST.fetch_min(size, Ordering::Relaxed);
    let mut value = address;
    if content == Content::Whole {
        value |= WHOLE;
        BYTES.fetch_add(size as u64, Ordering::Relaxed);
    }
    if let Some(slot) = slots(address).find(|slot| holds(slot, address)) {
        let before = slot.swap(value, Ordering::Relaxed);
        if before & value & WHOLE != 0 {
            REUSED.store(true, Ordering::Relaxed);
        }
        return true;
    }
    let inserted = slots(address).any(|slot| {
        slot.compare_exchange(0, value, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    });
    if inserted {
        kind(address).fetch_add(1, Ordering::Relaxed);
    }
    // Either `refuse` finds the address, or we see here that it ran.
    if inserted && REFUSED.load(Ordering::SeqCst) {
        remove(address);
        return false;
    }
    inserted
}

/// Removes a buffer. True if it was in the set.
pub(crate) fn remove(address: usize) -> bool {
    let removed = address != 0
        && slots(address).any(|slot| {
            let value = slot.load(Ordering::Relaxed);
            value & !WHOLE == address
                && slot
                    .compare_exchange(value, 0, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
        });
    if removed {
        kind(address).fetch_sub(1, Ordering::Relaxed);
    }
    removed
}

/// Removes a buffer that is being released. True if it was in the set.
pub(crate) fn release(address: usize) -> bool {
    let removed = remove(address);
    if removed && !FREED.load(Ordering::Relaxed) {
        FREED.store(true, Ordering::Relaxed);
    }
    removed
}

/// From now on no buffer is kept. Returns those that were in the set.
pub(crate) fn refuse() -> Vec<usize> {
    REFUSED.store(true, Ordering::SeqCst);
    let all = TABLE.iter().flat_map(|bucket| &bucket.0);
    let held = all.map(|slot| slot.load(Ordering::SeqCst) & !WHOLE);
    held.filter(|address| *address != 0 && remove(*address))
        .collect()
}

/// The evidence for the claim about the host prompt cache: what was seen of whole sequences.
pub(crate) fn seen() -> Seen {
    Seen {
        reused: REUSED.load(Ordering::Relaxed),
        bytes: BYTES.load(Ordering::Relaxed),
        any_freed: FREED.load(Ordering::Relaxed),
    }
}

fn holds(slot: &AtomicUsize, address: usize) -> bool {
    slot.load(Ordering::Relaxed) & !WHOLE == address
}

#[inline]
fn kind(address: usize) -> &'static AtomicU32 {
    &KINDS[(mixed(address) >> (u64::BITS - KINDS.len().trailing_zeros())) as usize]
}

/// The places where an address may be: two buckets. With two choices, no bucket fills up long before
/// the table does.
fn slots(address: usize) -> impl Iterator<Item = &'static AtomicUsize> {
    const BITS: u32 = BUCKETS.trailing_zeros();
    let mixed = mixed(address);
    let first = (mixed >> (u64::BITS - BITS)) as usize;
    let second = (mixed >> (u64::BITS - 2 * BITS)) as usize % BUCKETS;
    TABLE[first].0.iter().chain(&TABLE[second].0)
}

#[inline]
fn mixed(address: usize) -> u64 {
    // Addresses of allocations are multiples of 16.
    ((address as u64) >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A single test, because there is one table for the process.
    #[test]
    fn an_address_is_in_the_set_until_it_is_removed() {
        assert!(!may_matter(usize::MAX - 1));
        let addresses: Vec<usize> = (1..=30_000_usize)
            .map(|i| 0x7f00_0000_0000 + i * 4112)
            .collect();
        assert!(!addresses.iter().any(|&address| may_be(address)));
        for &address in &addresses {
            let kept = insert(address, 1000, Content::Checkpoint);
            assert!(kept, "room for half of what it can take");
            assert!(insert(address, 1000, Content::Whole));
        }
        assert!(may_matter(1000) && !may_matter(999));
        assert!(!remove(0));
        for &address in &addresses {
            assert!(may_be(address));
            assert!(!remove(address + 16));
            assert!(remove(address));
            assert!(!remove(address), "it stood there once");
        }
        assert!(!addresses.iter().any(|&address| may_be(address)));

        // Two whole sequences at one address: the first was released, and we did not see it.
        assert!(!seen().reused);
        let address = addresses[0];
        assert!(insert(address, 1000, Content::Whole));
        assert!(!seen().reused);
        assert!(insert(address, 1000, Content::Whole));
        assert!(seen().reused);
        assert!(!seen().any_freed);
        assert!(release(address) && seen().any_freed);

        assert!(insert(addresses[1], 1000, Content::Checkpoint));
        assert!(insert(addresses[2], 1000, Content::Whole));
        let mut swept = refuse();
        swept.sort_unstable();
        assert_eq!(swept, addresses[1..3]);
        assert!(!insert(addresses[1], 1000, Content::Checkpoint));
        assert!(!addresses.iter().any(|&address| may_be(address)));
    }
}
