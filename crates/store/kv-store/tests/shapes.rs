//! States of contexts that cannot go back: dense rows, and a tail that the engine also gives alone.

mod engine;

use contextpilot_kv_store::{LayoutError, Shape};
use engine::Engine;

const PREFIX: usize = 8;
const TOKENS: usize = 5;
/// Whatever they are.
const ALL: &[i32] = &[7; TOKENS];

/// What a state of `TOKENS` tokens ends with: a tail of `size` bytes.
fn tail(size: usize) -> Vec<u8> {
    (0..size).map(|n| (n % 251) as u8).collect()
}

fn dense(sequence: i32) -> Vec<u8> {
    Engine::dense(2, 8).state(sequence, &(0..TOKENS).collect::<Vec<_>>())
}

fn states(sequence: i32, tail: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let whole = dense(sequence);
    let partial = [&whole[..PREFIX], tail].concat();
    ([&whole, tail].concat(), partial)
}

#[test]
fn a_state_is_divided_into_its_dense_rows_and_its_tail() {
    let tail = tail(40);
    let (whole, partial) = states(3, &tail);
    let shape = Shape::prove(&whole, &partial).expect("the partial state is the end of the whole");
    assert!(shape.dense().is_some());
    let (rows, rest) = shape
        .divide(&whole, partial.len(), ALL)
        .expect("it has this shape");
    assert_eq!(rows.expect("there are rows").tokens(), TOKENS);
    assert_eq!(rest, tail);
    assert_eq!(shape.tail_of(&partial), Some(&tail[..]));
    assert_eq!(shape.state_size(TOKENS, tail.len()), whole.len());
    let mut begun = Vec::new();
    shape.begin(3, &mut begun);
    assert_eq!(begun, whole[..PREFIX]);

    // Other tokens than it holds, another beginning of the tail, a state that is too short.
    assert!(
        shape
            .divide(&whole, partial.len(), &[7; TOKENS + 1])
            .is_none()
    );
    let mut other = whole.clone();
    other[dense(3).len()] ^= 1;
    assert!(shape.divide(&other, partial.len(), ALL).is_none());
    assert!(shape.divide(&tail, partial.len(), ALL).is_none());
}

#[test]
fn a_recurrent_state_is_all_tail() {
    let tail = tail(40);
    let partial = [&dense(0)[..PREFIX], &tail].concat();
    let shape = Shape::prove(&partial, &partial).expect("there may be no rows");
    assert_eq!((shape.dense(), shape.bytes_per_token()), (None, 0));
    let divided = shape.divide(&partial, partial.len(), ALL);
    assert!(matches!(divided, Some((None, rest)) if rest == tail));
    let longer = [&partial[..PREFIX], &[0; 4], &tail].concat();
    assert!(shape.divide(&longer, partial.len(), ALL).is_none());
}

#[test]
fn what_is_not_the_end_of_a_state_proves_nothing() {
    let (whole, partial) = states(0, &tail(40));
    // Of another sequence, another tail, none that the engine gives.
    let (_, elsewhere) = states(1, &tail(40));
    let mut differs = partial.clone();
    *differs.last_mut().expect("it is not empty") ^= 1;
    for partial in [elsewhere, differs] {
        let proven = Shape::prove(&whole, &partial).map(|_| ());
        assert_eq!(proven, Err(LayoutError::Differs));
    }
    for short in [&partial[..PREFIX - 1], &partial[..PREFIX + 3]] {
        assert!(Shape::prove(&whole, short).is_err());
    }
}

#[test]
fn the_digest_says_what_is_the_same_in_every_state() {
    let digest = |row: usize, tail: &[u8]| {
        let rows = Engine::dense(2, row).state(0, &(0..TOKENS).collect::<Vec<_>>());
        let partial = [&rows[..PREFIX], tail].concat();
        let shape = Shape::prove(&[&rows, tail].concat(), &partial);
        shape.expect("it is understood").digest()
    };
    let same = digest(8, &tail(40));
    assert_eq!(same, digest(8, &tail(60)));
    assert_ne!(same, digest(16, &tail(40)));
    assert_ne!(same, digest(8, &[7; 40]));
}
