//! Whatever bytes are said to be the state of a sequence: they are refused, or they are understood to
//! the last byte, and are the same after they were taken apart and put together.
#![no_main]

use std::ops::Range;

use contextpilot_kv_store::{Composer, LayoutError, SequenceState, WantedBytes, prove};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(state) = SequenceState::read(input) else {
        return;
    };
    let layout = state.layout();
    assert_eq!(layout.state_size(state.tokens()), input.len());
    let mut rows = Vec::new();
    match state.indexes() {
        Some(all) => {
            assert_eq!(all.len(), state.tokens());
            for index in all.clone() {
                assert!(state.extract(index..index + 1, &mut rows));
            }
            assert_eq!(rows.len(), layout.bytes_per_token() * all.len());
            assert!(!state.extract(all.start..all.end + 1, &mut rows));
            // Tokens that share a position: what is put together needs to be told which.
            if all.start == 0 && !state.is_whole() {
                return;
            }
            assert_eq!(prove(input).as_ref(), Ok(layout));
            is_the_same_with_what_was_left_out(&state, &all);
            is_of_another_sequence(&state, &all, input);
            has_the_rows_that_are_wanted(&state, &all, input);
        }
        None => {
            assert!(!state.extract(0..1, &mut rows));
            assert_eq!(prove(input), Err(LayoutError::Positions));
        }
    }
});

fn rows(state: &SequenceState<'_>, range: Range<usize>) -> Vec<u8> {
    let mut rows = Vec::new();
    assert!(state.extract(range, &mut rows));
    rows
}

/// The state of a sequence with all of these rows; `None`: there can be no such state.
fn composed(state: &SequenceState<'_>, all: &Range<usize>, sequence: i32) -> Option<Vec<u8>> {
    let (tokens, mut buffer) = (all.len(), Vec::new());
    let mut composer = Composer::new(state.layout(), sequence, all.clone(), &mut buffer).ok()?;
    composer
        .put(all.start, &rows(state, all.clone()), tokens, 0, tokens)
        .expect("all of its rows");
    composer.finish().expect("it is complete");
    Some(buffer)
}

/// What is left out of a state is what its chunks have: filled in, the state is the same.
fn is_the_same_with_what_was_left_out(state: &SequenceState<'_>, all: &Range<usize>) {
    let tokens = all.len();
    let put = composed(state, all, state.sequence()).expect("there is such a state");

    let mut other = vec![0; put.len()];
    let layout = state.layout();
    let mut composer = Composer::within(layout, state.sequence(), all.clone(), &mut other)
        .expect("there is such a state");
    // The first token alone, half of the others, the rest.
    let half = (tokens - 1) / 2;
    let (mut at, mut missing) = (all.start, Vec::new());
    for count in [1, half, tokens - 1 - half] {
        let rows = rows(state, at..at + count);
        let words = &rows[..composer.words_size(count)];
        let Ok(gaps) = composer.leave_out(at, words, count) else {
            assert!(!layout.keeps_rows_together());
            return;
        };
        missing.extend(gaps.map(|gap| (gap, rows[gap.from..gap.from + gap.bytes].to_vec())));
        at += count;
    }
    composer.finish().expect("it is complete");
    for (gap, rows) in missing {
        other[gap.at..gap.at + gap.bytes].copy_from_slice(&rows);
    }
    assert_eq!(other, put);
}

/// What is readdressed is the state that is composed for the other sequence.
fn is_of_another_sequence(state: &SequenceState<'_>, all: &Range<usize>, input: &[u8]) {
    // Else its cells are in another order.
    if composed(state, all, state.sequence()).as_deref() != Some(input) {
        return;
    }
    // Magic number and sequence, in newer states.
    let magic = 0xaf14_3cd8_u32.to_le_bytes();
    let prefix = if input.starts_with(&magic) { 8 } else { 0 };
    for other in [0, 1, state.sequence().saturating_add(1)] {
        let mut copy = input.to_vec();
        if prefix > 0 {
            copy[4..8].copy_from_slice(&other.to_le_bytes());
        }
        let done = state.layout().readdress(&mut copy[prefix..], other);
        assert_eq!(done.then_some(copy), composed(state, all, other));
    }
}

/// What is left out of a state is not of the positions that are wanted, and nothing else is lost.
fn has_the_rows_that_are_wanted(state: &SequenceState<'_>, all: &Range<usize>, input: &[u8]) {
    for from in [all.start, all.start + all.len() / 2, all.end - 1] {
        let Some(wanted) = WantedBytes::new(state.layout(), state.sequence(), input, from) else {
            continue;
        };
        let mut copy = vec![0; input.len()];
        let mut rest = 0..input.len();
        while let Some(part) = wanted.next(rest.clone()) {
            copy[part.clone()].copy_from_slice(&input[part.clone()]);
            rest.start = part.end;
        }
        let lacking = SequenceState::read(&copy)
            .expect("as before")
            .with_rows_from(from);
        assert_eq!(lacking.layout(), state.layout());
        assert_eq!(rows(&lacking, from..all.end), rows(state, from..all.end));
    }
}
