//! What encoders have made has a share of the budget.

use contextpilot_kv_store::{Fingerprint, Store, media};

const KV: Fingerprint = Fingerprint([1; 16]);
const ROWS: Fingerprint = Fingerprint([2; 16]);
/// A chunk of 100 tokens, or of an image's rows, takes so many bytes.
const COST: u64 = 8192;
const BYTES: usize = 50;

fn image(nth: u8) -> Vec<i32> {
    media::encoding(&[nth; 32], 100).unwrap()
}

fn prompt(nth: i32) -> Vec<i32> {
    (0..100).map(|token| 100 * nth + token).collect()
}

fn keep(store: &mut Store, of: &Fingerprint, tokens: &[i32]) {
    for chunk in store.missing(of, tokens, BYTES) {
        assert_eq!(chunk.cost(), COST);
        store.insert(chunk).unwrap();
    }
}

fn images_in(store: &Store, all: u8) -> Vec<u8> {
    let is_there = |nth: &u8| store.find(&ROWS, &image(*nth)).tokens() == 100;
    (0..all).filter(is_there).collect()
}

#[test]
fn images_stay_whatever_text_comes_while_they_take_no_more_than_an_eighth() {
    let mut store = Store::new(80 * COST);
    (0..10).for_each(|nth| keep(&mut store, &ROWS, &image(nth)));
    assert_eq!(store.encoding_bytes(), 10 * COST);
    (0..500).for_each(|nth| keep(&mut store, &KV, &prompt(nth)));
    assert_eq!(images_in(&store, 10), (0..10).collect::<Vec<_>>());
    assert_eq!(store.bytes(), 80 * COST);
    // Of more of them, what was used longest ago leaves, be it text or an image.
    let seen = store.find(&ROWS, &image(0));
    store.used(seen.pieces());
    keep(&mut store, &ROWS, &image(10));
    let left: Vec<u8> = [0].into_iter().chain(2..11).collect();
    assert_eq!(images_in(&store, 11), left);
    (500..600).for_each(|nth| keep(&mut store, &KV, &prompt(nth)));
    assert_eq!(images_in(&store, 11), left);
    assert_eq!(store.encoding_bytes(), 10 * COST);
}

#[test]
fn where_there_is_no_text_images_have_all_the_room() {
    let mut store = Store::new(80 * COST);
    (0..200).for_each(|nth| keep(&mut store, &ROWS, &image(nth)));
    assert_eq!(images_in(&store, 200), (120..200).collect::<Vec<_>>());
    // Text takes it back, but for the share.
    (0..200).for_each(|nth| keep(&mut store, &KV, &prompt(nth)));
    assert_eq!(images_in(&store, 200), (190..200).collect::<Vec<_>>());
    // A budget that has become smaller is kept.
    store.set_limit(8 * COST, [], 0);
    assert_eq!((store.bytes(), store.encoding_bytes()), (8 * COST, COST));
    store.set_limit(0, [], 0);
    assert_eq!((store.bytes(), store.encoding_bytes()), (0, 0));
}

#[test]
fn an_image_of_several_chunks_counts_whole() {
    let mut store = Store::new(1 << 30);
    let rows = media::encoding(&[3; 32], 600).unwrap();
    for chunk in store.missing(&ROWS, &rows, BYTES) {
        store.insert(chunk).unwrap();
    }
    assert_eq!((store.chunks(), store.encoding_bytes()), (3, store.bytes()));
    let first = store.find(&ROWS, &rows).pieces()[0].name;
    assert_eq!(store.remove(&first).len(), 3);
    assert_eq!(store.encoding_bytes(), 0);
    // A prompt that begins with an image is none.
    let run = media::run(&[3; 32], 600).unwrap();
    for chunk in store.missing(&KV, &run, BYTES) {
        store.insert(chunk).unwrap();
    }
    assert_eq!(store.encoding_bytes(), 0);
}
