use contextpilot_server_flags::{Generation, ServerFlags};

use super::*;
use crate::Origin;

fn identity(index: &str) -> Identity {
    let flags = ServerFlags::read([], |_| None, Generation::Late2026);
    Identity::of(index, &flags, &Origin::default())
}

fn memory() -> &'static [AtomicU64] {
    let words: Vec<_> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    words.leak()
}

fn recent(words: &'static [AtomicU64]) -> Recent {
    Recent::new(words, &identity("http://index")).unwrap()
}

/// The bytes of the file, as the next start reads them.
fn bytes(words: &[AtomicU64]) -> Vec<u8> {
    let words = words.iter().map(|word| word.load(Ordering::Relaxed));
    words.flat_map(u64::to_le_bytes).collect()
}

fn left(words: &[AtomicU64]) -> Vec<Arc<str>> {
    read(&bytes(words), &identity("http://index"))
}

#[test]
fn ids_that_are_not_released_are_read_in_the_order_of_their_numbers() {
    let words = memory();
    let recent = recent(words);
    assert_eq!(left(words), []);
    let longest = "x".repeat(MAX_BYTES);
    for (number, id) in [(1, "req-a"), (SLOTS as u64, "ä"), (2, longest.as_str())] {
        assert!(!recent.holds(number));
        recent.note(number, id);
        assert!(recent.holds(number));
    }
    assert_eq!(left(words), ["req-a".into(), longest.into(), "ä".into()]);
    recent.release(2);
    assert!(!recent.holds(2));
    assert_eq!(left(words), ["req-a".into(), "ä".into()]);
    // This id is shorter than the one that was in the slot before.
    recent.note(2, "b");
    assert_eq!(left(words), ["req-a".into(), "b".into(), "ä".into()]);
}

#[test]
fn a_request_a_whole_ring_later_takes_over_the_slot() {
    let words = memory();
    let recent = recent(words);
    let later = 5 + SLOTS as u64;
    recent.note(5, "first");
    assert!(!recent.holds(later));
    recent.note(later, "second");
    assert!(!recent.holds(5) && recent.holds(later));
    recent.release(5);
    assert!(recent.holds(later));
    assert_eq!(left(words), ["second".into()]);
    assert!(!Recent::is_far(5, 6) && Recent::is_far(5, later - 1));
}

#[test]
fn ids_that_are_empty_or_too_long_are_not_kept() {
    let words = memory();
    let recent = recent(words);
    let long = "x".repeat(MAX_BYTES + 1);
    for (number, id) in [(1, ""), (2, long.as_str()), (0, "zero")] {
        recent.note(number, id);
        assert!(!recent.holds(number), "{id}");
    }
    assert!(bytes(words).iter().all(|&byte| byte == 0));
    assert!(Recent::new(&words[1..], &identity("http://index")).is_none());
}

/// A kill in the middle of a store may leave any mixture of bits.
#[test]
fn slots_that_are_damaged_or_of_another_instance_are_not_read() {
    let words = memory();
    recent(words).note(3, "req-a");
    let whole = bytes(words);
    assert_eq!(read(&whole, &identity("http://other")), []);
    let slot = 3 * SLOT_WORDS * 8;
    for bit in 0..(HEAD_WORDS * 8 + "req-a".len()) * 8 {
        let mut flipped = whole.clone();
        flipped[slot + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(read(&flipped, &identity("http://index")), [], "bit {bit}");
    }
    for cut in [0, slot, slot + SLOT_WORDS * 8 - 1] {
        assert_eq!(read(&whole[..cut], &identity("http://index")), []);
    }
    for byte in [1, 0x7f, 0xff] {
        assert_eq!(read(&vec![byte; BYTES], &identity("http://index")), []);
    }
}

/// Threads whose numbers are a whole ring apart share a slot: one of their ids is kept, or none.
#[test]
fn threads_that_share_a_slot_never_mix_their_ids() {
    let words = memory();
    let recent = recent(words);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                for n in 0..20_000 {
                    let number = 1 + n % 8 + thread * SLOTS as u64;
                    recent.note(
                        number,
                        &format!("req-{number}-{}", "x".repeat(n as usize % 60)),
                    );
                    recent.release(number.wrapping_sub(3));
                }
            });
        }
        for _ in 0..200 {
            for id in left(&words[..9 * SLOT_WORDS]) {
                let (name, tail) = id.rsplit_once('-').unwrap();
                let number: u64 = name["req-".len()..].parse().unwrap();
                assert!((1..=8).contains(&(number % SLOTS as u64)), "{id}");
                assert!(tail.bytes().all(|byte| byte == b'x'), "{id}");
            }
        }
    });
}
