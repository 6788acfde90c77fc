//! The host buffers that hold a saved sequence, by address.
//!
//! Asked at *every* release of memory in the process, by any thread, in its first and last
//! moments too: so one comparison first where the size is known, then a counter in a table that
//! stays in the first-level cache, and no lock, no allocation, no thread-local. What lies behind
//! them is exact: each address stands there once, and is taken out by the one release that finds
//! it.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Eight addresses: a cache line.
#[repr(align(64))]
struct Bucket([AtomicUsize; 8]);

/// Room for 65,536 buffers in all, in memory that is only touched where it is used.
const BUCKETS: usize = 8192;

#[allow(clippy::declare_interior_mutable_const)]
const EMPTY: Bucket = {
    const NONE: AtomicUsize = AtomicUsize::new(0);
    Bucket([NONE; 8])
};
static TABLE: [Bucket; BUCKETS] = [EMPTY; BUCKETS];

/// How many buffers there are of each of so many kinds of address: most releases find none of
/// theirs.
static KINDS: [AtomicU32; 2048] = {
    #[allow(clippy::declare_interior_mutable_const)]
    const NONE: AtomicU32 = AtomicU32::new(0);
    [NONE; 2048]
};

/// No buffer smaller than this was ever saved to, bytes.
static SMALLEST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Whether a release of this many bytes may be one of interest.
#[inline]
pub(crate) fn may_matter(size: usize) -> bool {
    // Relaxed is enough here and below: whoever releases a buffer has it from whoever saved to
    // it, and that hand-over orders our notes as well.
    size >= SMALLEST.load(Ordering::Relaxed)
}

/// Whether a release of this address may be one of interest.
#[inline]
pub(crate) fn may_be(address: usize) -> bool {
    kind(address).load(Ordering::Relaxed) != 0
}

/// A sequence was saved to this buffer. False if there is no room to remember it.
pub(crate) fn insert(address: usize, size: usize) -> bool {
    SMALLEST.fetch_min(size, Ordering::Relaxed);
    if slots(address).any(|slot| slot.load(Ordering::Relaxed) == address) {
        return true;
    }
    let inserted = slots(address).any(|slot| {
        slot.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    });
    if inserted {
        kind(address).fetch_add(1, Ordering::Relaxed);
    }
    inserted
}

/// Forgets a buffer. True if it was one.
pub(crate) fn remove(address: usize) -> bool {
    let removed = address != 0
        && slots(address).any(|slot| {
            slot.load(Ordering::Relaxed) == address
                && slot
                    .compare_exchange(address, 0, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        });
    if removed {
        kind(address).fetch_sub(1, Ordering::Relaxed);
    }
    removed
}

#[inline]
fn kind(address: usize) -> &'static AtomicU32 {
    &KINDS[(mixed(address) >> (u64::BITS - KINDS.len().trailing_zeros())) as usize]
}

/// The slots where an address may be, in two buckets: with a choice, none fills up before the
/// table does.
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

    // One test: the table is the process's.
    #[test]
    fn an_address_is_found_until_it_is_removed_once() {
        assert!(!may_matter(usize::MAX - 1));
        let addresses: Vec<usize> = (1..=30_000_usize)
            .map(|i| 0x7f00_0000_0000 + i * 4112)
            .collect();
        assert!(!addresses.iter().any(|&address| may_be(address)));
        for &address in &addresses {
            assert!(insert(address, 1000), "room for half of what it can take");
            assert!(insert(address, 1000));
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
    }
}
