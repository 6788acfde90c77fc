use std::ptr;

use super::*;

fn batch(address: usize) -> Pointer {
    ptr::without_provenance_mut(address)
}

/// Tests share the table, so each uses addresses of its own.
fn shadow<R>(address: usize, work: impl FnOnce(&mut Shadow) -> R) -> Option<R> {
    // SAFETY: no other test uses this address.
    unsafe { with(batch(address), work) }
}

fn entry(sequence: i32, position: i32, token: i32, output: bool) -> Entry {
    Entry {
        sequence,
        position,
        token,
        output,
    }
}

#[test]
fn the_copy_has_the_entries_that_were_added_to_the_batch() {
    let mut shadow = Shadow::new();
    shadow.add(0, 3, 100);
    shadow.set_position(0, 7);
    shadow.add(1, 3, 101);
    shadow.set_position(1, 8);
    shadow.set_output(1, true);
    shadow.add(-1, 3, 102);
    let expected = [entry(3, 7, 100, false), entry(3, 8, 101, true)];
    assert_eq!(shadow.entries().as_deref(), Some(&expected[..]));
    assert!(shadow.entries().is_some(), "reading does not empty it");
    shadow.clear();
    assert_eq!(shadow.entries(), Some(Vec::new().into()));
}

#[test]
fn only_the_next_entry_is_added_in_place_and_only_where_there_is_room() {
    let mut shadow = Shadow::new();
    assert!(!shadow.add_if_it_fits(0, 3, 100), "no room");
    shadow.add(0, 3, 100);
    assert!(shadow.entries.capacity() > 1);
    for index in [-2, -1, 0, 2, i32::MAX, i32::MIN] {
        assert!(!shadow.add_if_it_fits(index, 3, 101), "{index}");
    }
    assert!(shadow.add_if_it_fits(1, 3, 101));
    let expected = [entry(3, -1, 100, false), entry(3, -1, 101, false)];
    assert_eq!(shadow.entries().as_deref(), Some(&expected[..]));
    shadow.set_position(-1, 7);
    assert_eq!(shadow.entries(), None, "it has no such entry");
}

#[test]
fn a_position_is_set_in_place_only_of_an_entry_that_is_there() {
    let mut shadow = Shadow::new();
    shadow.add(0, 3, 100);
    for index in [-2, -1, 1, i32::MAX, i32::MIN] {
        assert!(!shadow.set_position_if_there(index, 7), "{index}");
    }
    assert!(shadow.set_position_if_there(0, 7));
    let entries = shadow.entries();
    assert_eq!(entries.as_deref(), Some(&[entry(3, 7, 100, false)][..]));
}

#[test]
fn the_batch_that_was_found_last_is_reached_at_once_and_no_other_one() {
    let (ours, unknown) = (0x7_1000, 0x7_2000);
    // SAFETY: no other test uses these addresses, here and below.
    let reached =
        |address| unsafe { with_last(batch(address), |shadow| shadow.add_if_it_fits(1, 0, 101)) };
    // SAFETY: see above.
    unsafe { begin(batch(ours)) };
    shadow(ours, |shadow| shadow.add(0, 0, 100));
    assert!(!reached(unknown) && !reached(0));
    // Other tests find batches of their own meanwhile.
    let mut tries = 0..1000;
    assert!(tries.any(|_| {
        shadow(ours, |_| ());
        reached(ours)
    }));
    let entries = shadow(ours, |shadow| shadow.entries()).flatten();
    assert_eq!(entries.map(|entries| entries.len()), Some(2));
    // SAFETY: see above.
    unsafe { end(batch(ours)) };
    assert!(!reached(ours));
}

#[test]
fn an_entry_of_several_sequences_is_listed_for_each() {
    let mut shadow = Shadow::new();
    for (index, token) in [100, 101].into_iter().enumerate() {
        shadow.add(index as i32, 0, token);
        shadow.set_position(index as i32, index as i32);
    }
    for (index, sequence) in [(1, 2), (0, 1), (0, 1), (0, 0)] {
        shadow.add_sequence(index, sequence);
    }
    let expected = [
        entry(0, 0, 100, false),
        entry(1, 0, 100, false),
        entry(0, 1, 101, false),
        entry(2, 1, 101, false),
    ];
    assert_eq!(shadow.entries().as_deref(), Some(&expected[..]));
}

#[test]
fn after_a_call_that_is_not_understood_the_content_is_unknown() {
    let mut refused = Shadow::new();
    refused.add(-2, 0, -5);
    assert_eq!(refused.entries(), None, "the engine kept half an entry");

    let mut skipped = Shadow::new();
    skipped.add(4, 0, 1);
    assert_eq!(skipped.entries(), None);

    let mut outside = Shadow::new();
    outside.set_position(0, 1);
    assert_eq!(outside.entries(), None);
    outside.clear();
    assert!(outside.entries().is_some());
}

#[test]
fn rows_of_embeddings_with_equal_content_become_equal_tokens() {
    let rows: Vec<Vec<f32>> = (0..3).map(|i| vec![i as f32; 37]).collect();
    let of = |row: &Vec<f32>| Embeddings {
        data: row.as_ptr(),
        rows: 1,
        columns: row.len(),
    };
    let mut shadow = Shadow::new();
    for (index, row) in [&rows[0], &rows[1], &rows[0]].into_iter().enumerate() {
        // SAFETY: the row is alive.
        unsafe { shadow.add_row(index as i32, 0, of(row)) };
    }
    shadow.add(3, 0, 42);
    shadow.add_without_token(4, 0);
    // SAFETY: the row is alive.
    unsafe { shadow.set_row(3, of(&rows[2])) };
    // SAFETY: the row is alive.
    unsafe { shadow.set_row(4, of(&rows[1])) };
    let tokens: Vec<i32> = shadow
        .entries()
        .expect("complete")
        .iter()
        .map(|e| e.token)
        .collect();
    assert_eq!(tokens[0], tokens[2]);
    assert_eq!(tokens[1], tokens[4]);
    assert_ne!(tokens[0], tokens[1]);
    assert_eq!(tokens[3], 42, "a token stays what it is");
    assert!([0, 1, 2, 4].iter().all(|&i| tokens[i] < -1));
}

#[test]
fn changing_any_byte_of_a_row_changes_its_hash() {
    for len in [1, 15, 16, 17, 31, 32, 33, 64, 100] {
        let plain = vec![7_u8; len];
        for at in 0..len {
            let mut changed = plain.clone();
            changed[at] ^= 1;
            assert_ne!(hash(&plain), hash(&changed), "byte {at} of {len}");
        }
        assert_ne!(hash(&plain), hash(&vec![7; len + 1]));
    }
}

#[test]
fn places_of_freed_batches_are_used_again() {
    const BASE: usize = 0x1_0000;
    // More batches than there are places, one after the other.
    for round in 0..3 * MOST {
        let address = BASE + round * 16;
        // SAFETY: no other test uses these addresses.
        unsafe { begin(batch(address)) };
        shadow(address, |s| s.add(0, 1, 2)).expect("there is room");
        // SAFETY: as above.
        unsafe { end(batch(address)) };
        assert!(shadow(address, |_| ()).is_none());
    }
    // SAFETY: as above.
    unsafe { begin(batch(BASE)) };
    assert_eq!(shadow(BASE, |s| s.entries()), Some(Some(Vec::new().into())));
    // If an address comes back without having been freed, it is a new, empty batch.
    shadow(BASE, |s| s.add(0, 1, 2));
    // SAFETY: as above.
    unsafe { begin(batch(BASE)) };
    assert_eq!(shadow(BASE, |s| s.entries()), Some(Some(Vec::new().into())));
    // SAFETY: as above.
    unsafe { end(batch(BASE)) };
}

#[test]
fn rows_of_named_media_become_tokens_of_the_name() {
    let rows = |bytes: [u8; 2]| bytes.map(|byte| media(&[byte; 64]));
    let named = |name: &str, bytes| {
        let _named = Named::begin(name.as_bytes());
        rows(bytes)
    };
    let nameless = rows([1, 2]);
    let first = named("first", [1, 2]);
    assert_eq!(
        first,
        named("first", [3, 4]),
        "the name counts, not the row"
    );
    assert_eq!(first[0], first[1], "every row stands for the whole");
    assert!(first.iter().all(|token| *token < 0 && *token != NO_TOKEN));
    let second = named("second", [1, 2]);
    assert!(!first.iter().any(|token| second.contains(token)));
    assert_eq!(nameless, rows([1, 2]), "the name ends with its span");
}
