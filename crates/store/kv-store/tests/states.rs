//! States of all known kinds are understood, taken apart and put together.

mod engine;

use std::collections::BTreeSet;

use contextpilot_kv_store::{
    ComposeError, Composer, Facts, LayoutError, NameError, Origin, Refused, SequenceState,
    WantedBytes, media, prove,
};
use engine::{Engine, engines};

fn rows(state: &SequenceState<'_>, range: std::ops::Range<usize>) -> Vec<u8> {
    let mut rows = Vec::new();
    assert!(state.extract(range, &mut rows));
    rows
}

#[test]
fn every_kind_of_state_is_read_and_proven() {
    for engine in engines() {
        for tokens in [1, 2, 3, 9, 300] {
            for sequence in [0, 3] {
                let positions: Vec<usize> = (0..tokens).collect();
                let bytes = engine.state(sequence, &positions);
                let state = SequenceState::read(&bytes).expect("it is understood");
                let layout = state.layout();
                assert_eq!(state.tokens(), tokens);
                let told = if engine.owners { sequence } else { 0 };
                assert_eq!(state.sequence(), told);
                assert_eq!(state.indexes(), Some(0..tokens));
                assert!(state.is_whole());
                assert_eq!(layout.state_size(tokens), bytes.len(), "{engine:?}");
                assert_eq!(layout.bytes_per_token(), engine.chunk(0..1).len());
                assert_eq!(prove(&bytes).as_ref(), Ok(layout), "{engine:?}");
            }
        }
    }
}

#[test]
fn extracted_rows_are_those_of_the_positions() {
    for engine in engines() {
        let bytes = engine.state(0, &(0..20).collect::<Vec<_>>());
        let state = SequenceState::read(&bytes).expect("it is understood");
        for range in [0..20, 0..1, 19..20, 3..11, 5..5] {
            assert_eq!(
                rows(&state, range.clone()),
                engine.chunk(range),
                "{engine:?}"
            );
        }
    }
}

/// What [`SequenceState::extract`] takes from a state, a slice takes from a chunk; also with a layout that was written down.
#[test]
fn a_part_of_a_chunk_is_what_the_state_has_of_it() {
    for engine in engines() {
        let bytes = engine.state(0, &(0..20).collect::<Vec<_>>());
        let state = SequenceState::read(&bytes).expect("it is understood");
        let layout = Some(state.layout().clone());
        let origin = Origin::new(String::new(), &Facts::default(), layout);
        let again = Origin::decode(&origin.encode()).and_then(|origin| origin.layout);
        let layout = again.expect("it is read");
        assert_eq!(layout.digest(), state.layout().digest());
        let chunk = engine.chunk(4..20);
        for (skip, take) in [(0, 16), (0, 1), (3, 5), (15, 1), (7, 0)] {
            let mut part = vec![9];
            assert!(layout.slice(&chunk, 16, (skip, take), &mut part));
            assert_eq!(part[1..], engine.chunk(4 + skip..4 + skip + take));
        }
        let mut part = Vec::new();
        assert!(!layout.slice(&chunk, 16, (10, 7), &mut part));
        assert!(!layout.slice(&chunk, 15, (0, 1), &mut part));
        assert!(!layout.slice(&chunk, 16, (usize::MAX, 2), &mut part));
        assert!(part.is_empty());
    }
}

#[test]
fn rows_are_appended() {
    let engine = Engine::dense(2, 4);
    let bytes = engine.state(0, &[0, 1, 2]);
    let state = SequenceState::read(&bytes).expect("it is understood");
    let mut rows = vec![1, 2, 3];
    assert!(state.extract(1..3, &mut rows));
    assert_eq!(rows[..3], [1, 2, 3]);
    assert_eq!(rows[3..], engine.chunk(1..3));
}

/// Whatever the positions are, a state is read in one way only.
#[test]
fn a_state_without_streams_is_taken_for_no_other() {
    let old = engines().into_iter().filter(|engine| engine.streams == 0);
    for engine in old {
        for first in 0..6 {
            for count in 1..8 {
                let forwards: Vec<usize> = (first..first + count).collect();
                let backwards: Vec<usize> = forwards.iter().rev().copied().collect();
                for positions in [forwards, backwards] {
                    let bytes = engine.state(0, &positions);
                    let layout = prove(&bytes).expect("it is proven");
                    assert_eq!(layout.state_size(count), bytes.len());
                    let rows = rows(&SequenceState::read(&bytes).unwrap(), first..first + count);
                    assert_eq!(rows, engine.chunk(first..first + count));
                }
            }
        }
    }
}

/// In a cache that all slots share, cells are where there was room.
#[test]
fn cells_in_any_order_have_the_rows_of_their_positions() {
    let orders: [&[usize]; 4] = [
        &[4, 5, 6, 7, 0, 1, 2, 3],
        &[7, 6, 5, 4, 3, 2, 1, 0],
        &[0, 1, 6, 7, 2, 3, 4, 5],
        &[0, 2, 4, 6, 1, 3, 5, 7],
    ];
    for engine in engines() {
        let sorted = engine.state(0, &(0..8).collect::<Vec<_>>());
        for order in orders {
            let bytes = engine.state(0, order);
            let state = SequenceState::read(&bytes).expect("it is understood");
            assert!(state.is_whole());
            for range in [0..8, 1..7, 3..5, 6..8] {
                assert_eq!(rows(&state, range.clone()), engine.chunk(range));
            }
            let layout = prove(&bytes).expect("it is proven");
            let mut buffer = Vec::new();
            let mut composer = Composer::new(&layout, 0, 0..8, &mut buffer).expect("it can be");
            composer
                .put(0, &engine.chunk(0..8), 8, 0, 8)
                .expect("it fits");
            assert_eq!(composer.finish(), Ok(&sorted[..]));
        }
    }
}

#[test]
fn a_state_is_composed_of_parts_of_chunks() {
    for engine in engines() {
        for sequence in [0, 2] {
            let positions: Vec<usize> = (0..30).collect();
            let bytes = engine.state(sequence, &positions);
            let layout = SequenceState::read(&bytes)
                .expect("understood")
                .layout()
                .clone();
            // What was there before must not shine through.
            let mut buffer = vec![0xaa; bytes.len() + 100];
            let mut composer =
                Composer::new(&layout, sequence, 0..30, &mut buffer).expect("it can be");
            for (from, to, skip, take) in [(0, 12, 0, 10), (5, 17, 5, 3), (13, 29, 0, 16)] {
                let rows = engine.chunk(from..to);
                composer
                    .put(from + skip, &rows, to - from, skip, take)
                    .expect("it fits");
            }
            assert_eq!(composer.next(), 29);
            composer
                .put(29, &engine.chunk(29..30), 1, 0, 1)
                .expect("it fits");
            assert_eq!(composer.finish(), Ok(&bytes[..]), "{engine:?}");
        }
    }
}

#[test]
fn whole_chunks_are_left_out_where_their_rows_are_together() {
    let mut left_out = 0;
    for engine in engines() {
        let positions: Vec<usize> = (0..30).collect();
        let bytes = engine.state(0, &positions);
        let layout = SequenceState::read(&bytes)
            .expect("understood")
            .layout()
            .clone();
        let mut memory = vec![0; bytes.len()];
        let mut composer = Composer::within(&layout, 0, 0..30, &mut memory).expect("it can be");
        let mut gaps = Vec::new();
        let mut rows_of = Vec::new();
        for (nth, count) in [5, 7, 1, 16, 1].into_iter().enumerate() {
            let at = composer.next();
            let rows = engine.chunk(at..at + count);
            let words = &rows[..composer.words_size(count)];
            if layout.keeps_rows_together() && nth % 3 < 2 {
                let mut refused = |at, words: &_, count| {
                    let left_out = composer.leave_out(at, words, count);
                    assert!(left_out.is_err(), "{at}, {count}");
                };
                refused(at + 1, words, count);
                refused(at, &[words, &[0; 4]].concat(), count);
                refused(at, words, 31 - at);
                refused(at, words, usize::MAX);
                let of_it = composer.leave_out(at, words, count).expect("it fits");
                gaps.extend(of_it.map(|gap| (nth, gap)));
                left_out += 1;
            } else {
                if !layout.keeps_rows_together() {
                    assert!(composer.leave_out(at, words, count).is_err());
                }
                composer.put(at, &rows, count, 0, count).expect("it fits");
            }
            rows_of.push(rows);
        }
        composer.finish().expect("all is there or left out");
        for (nth, gap) in gaps {
            assert!(
                memory[gap.at..gap.at + gap.bytes]
                    .iter()
                    .all(|byte| *byte == 0)
            );
            // In parts, as they are read: the last row by itself.
            let but_last = gap.bytes - gap.unit;
            for part in [gap.part(0, but_last), gap.part(but_last, gap.unit)] {
                let rows = &rows_of[nth][part.from..part.from + part.bytes];
                memory[part.at..part.at + part.bytes].copy_from_slice(rows);
            }
        }
        assert_eq!(memory, bytes, "{engine:?}");
    }
    assert!(left_out > 0);
}

/// As the engine writes it, in calls for parts of rows, of which only what is wanted is copied.
#[test]
fn rows_that_are_not_wanted_are_left_out() {
    // In order; from another slot's cells on, and round; scattered.
    let orders: [Vec<usize>; 3] = [
        (0..30).collect(),
        (20..30).chain(0..20).collect(),
        (0..30).rev().step_by(2).chain((0..30).step_by(2)).collect(),
    ];
    for engine in engines() {
        for positions in &orders {
            let bytes = engine.state(2, positions);
            let state = SequenceState::read(&bytes).expect("understood");
            let layout = state.layout();
            for from in [0, 1, 17, 20, 29, 30, 31] {
                let mut copy = vec![0; bytes.len()];
                let wanted = WantedBytes::new(layout, 2, &bytes, from).expect("all is there");
                let (mut at, mut copied) = (0, 0);
                for end in (0..bytes.len()).step_by(13).chain([bytes.len()]) {
                    let mut rest = at..end;
                    while let Some(part) = wanted.next(rest.clone()) {
                        assert!(rest.start <= part.start && part.end <= end && !part.is_empty());
                        copy[part.clone()].copy_from_slice(&bytes[part.clone()]);
                        copied += part.len();
                        rest.start = part.end;
                    }
                    at = end;
                }
                let rows = layout.bytes_per_token() - layout.words_size(1);
                assert_eq!(
                    copied,
                    bytes.len() - from.min(30) * rows,
                    "{engine:?} {from}"
                );
                let lacking = SequenceState::read(&copy)
                    .expect("understood")
                    .with_rows_from(from);
                assert_eq!((lacking.layout(), lacking.tokens()), (layout, 30));
                assert_eq!(lacking.has_all_rows(), from == 0);
                let mut out = Vec::new();
                if from < 30 {
                    assert!(lacking.extract(from..30, &mut out));
                    assert_eq!(out, engine.chunk(from..30));
                }
                if from > 0 {
                    assert!(!lacking.extract(from - 1..30, &mut out));
                    assert!(lacking.slices(0..1).is_none());
                }
            }
        }
    }
}

#[test]
fn what_is_wanted_is_known_only_of_a_state_with_all_of_its_cells() {
    let engine = Engine::dense(2, 4);
    let bytes = engine.state(0, &[0, 1, 2]);
    let layout = SequenceState::read(&bytes)
        .expect("understood")
        .layout()
        .clone();
    // Magic number, sequence, streams, and the count.
    let cells = 16 + 3 * 12;
    for begun in 0..bytes.len() {
        let is_known = WantedBytes::new(&layout, 0, &bytes[..begun], 1).is_some();
        assert_eq!(is_known, begun >= cells, "{begun}");
    }
    assert!(WantedBytes::new(&layout, -1, &bytes, 1).is_none());
}

#[test]
fn memory_must_have_the_size_of_the_state() {
    let engine = Engine::dense(2, 4);
    let bytes = engine.state(0, &[0, 1, 2]);
    let layout = SequenceState::read(&bytes)
        .expect("understood")
        .layout()
        .clone();
    for size in [0, bytes.len() - 1, bytes.len() + 1] {
        let mut memory = vec![0; size];
        assert!(Composer::within(&layout, 0, 0..3, &mut memory).is_err());
    }
}

/// A part of a sequence: what a spare sequence holds.
#[test]
fn positions_may_begin_anywhere() {
    let engine = Engine::dense(2, 4);
    let bytes = engine.state(0, &[50, 51, 52]);
    let state = SequenceState::read(&bytes).expect("it is understood");
    assert_eq!(state.indexes(), Some(50..53));
    assert!(!state.is_whole());
    assert_eq!(rows(&state, 51..53), engine.chunk(51..53));
    let mut buffer = Vec::new();
    let mut composer = Composer::new(state.layout(), 0, 50..53, &mut buffer).expect("it can be");
    composer
        .put(50, &engine.chunk(50..53), 3, 0, 3)
        .expect("it fits");
    assert_eq!(composer.finish(), Ok(&bytes[..]));
    assert!(prove(&bytes).is_ok());
}

#[test]
fn missing_and_repeated_positions_are_seen() {
    let engine = Engine::dense(2, 4);
    for positions in [
        &[0, 2][..],
        &[0, 0],
        &[0, 1, 1, 2],
        &[1, 0, 3],
        &[0, 1, 2, 1],
    ] {
        let bytes = engine.state(0, positions);
        let state = SequenceState::read(&bytes).expect("it is understood");
        assert_eq!(state.indexes(), None, "{positions:?}");
        assert!(!state.is_whole());
        let mut rows = vec![1];
        assert!(!state.extract(0..1, &mut rows));
        assert_eq!(rows, [1]);
        assert_eq!(prove(&bytes), Err(LayoutError::Positions));
    }
    let bytes = engine.state(0, &[0, 1, 2]);
    let state = SequenceState::read(&bytes).expect("it is understood");
    assert!(!state.extract(2..4, &mut Vec::new()));
}

#[test]
fn states_of_other_kinds_are_refused() {
    let engine = Engine::dense(2, 4);
    let bytes = engine.state(0, &[0, 1, 2]);
    let refused = |bytes: &[u8]| {
        SequenceState::read(bytes)
            .map(|_| ())
            .expect_err("not understood")
    };
    for engine in engines() {
        assert_eq!(refused(&engine.state(0, &[])), LayoutError::Empty);
    }
    assert_eq!(refused(&[]), LayoutError::Short);
    // A second part, as of a sliding window, which begins after the magic.
    for engine in engines() {
        let bytes = engine.state(0, &[0, 1, 2]);
        let mut two = bytes.clone();
        two.extend(&bytes[if engine.magic { 8 } else { 0 }..]);
        let why = refused(&two);
        let plain = engine.streams == 1 && !engine.v.is_empty();
        assert!(!plain || why == LayoutError::Trailing, "{engine:?}: {why}");
    }
    // With all of V cut off it is a state without V.
    let without_v = bytes.len() - 2 * (12 + 3 * 4);
    for length in 0..bytes.len() {
        match SequenceState::read(&bytes[..length]) {
            Ok(state) => assert_eq!((length, state.layout().bytes_per_token()), (without_v, 8)),
            Err(_) => assert_ne!(length, without_v),
        }
        let mut long = bytes.clone();
        long.extend(&bytes[..length + 1]);
        refused(&long);
    }
    let with = |at: usize, word: u32| {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        refused(&bytes)
    };
    assert_eq!(with(0, 0xaf14_3cd9), LayoutError::Unknown, "another magic");
    assert_eq!(with(4, 1), LayoutError::Unknown, "the sequence differs");
    assert_eq!(
        with(16 + 4, 2),
        LayoutError::Unknown,
        "a cell of two sequences"
    );
    assert_eq!(with(16 + 36, 2), LayoutError::Unknown, "transposed twice");
}

#[test]
fn a_digest_depends_on_the_rows_and_not_on_the_slots() {
    let digest = |engine: &Engine| {
        let bytes = engine.state(0, &[0, 1, 2]);
        SequenceState::read(&bytes)
            .expect("it is understood")
            .layout()
            .digest()
    };
    let engine = Engine::dense(2, 4);
    let same = Engine {
        magic: false,
        streams: 4,
        ..engine.clone()
    };
    assert_eq!(digest(&engine), digest(&same));
    for other in [
        Engine::dense(3, 4),
        Engine::dense(2, 6),
        Engine {
            extra: 2,
            ..engine.clone()
        },
        Engine {
            transposed: true,
            ..engine.clone()
        },
        Engine {
            v: vec![],
            ..engine.clone()
        },
        Engine {
            words: vec![],
            ..engine.clone()
        },
        Engine {
            words: vec![0, 1],
            ..engine.clone()
        },
    ] {
        assert_ne!(digest(&engine), digest(&other), "{other:?}");
    }
}

#[test]
fn what_does_not_fit_is_not_put() {
    let engine = Engine::dense(2, 4);
    let bytes = engine.state(0, &[0, 1, 2, 3]);
    let layout = SequenceState::read(&bytes)
        .expect("it is understood")
        .layout()
        .clone();
    let mut buffer = Vec::new();
    assert_eq!(
        Composer::new(&layout, -1, 0..4, &mut buffer).err(),
        Some(ComposeError::Sequence)
    );
    for range in [0..0, 0..usize::MAX, 1 << 31..(1 << 31) + 1] {
        let error = Composer::new(&layout, 0, range, &mut buffer).err();
        assert_eq!(error, Some(ComposeError::Positions));
    }
    let rows = engine.chunk(0..4);
    let mut composer = Composer::new(&layout, 0, 0..4, &mut buffer).expect("it can be");
    for (at, length, tokens, skip, take, error) in [
        (0, rows.len() - 1, 4, 0, 4, ComposeError::Rows),
        (0, rows.len(), 3, 0, 3, ComposeError::Rows),
        (0, rows.len(), 4, 1, 4, ComposeError::Positions),
        (0, rows.len(), 4, usize::MAX, 2, ComposeError::Positions),
        (1, rows.len(), 4, 0, 1, ComposeError::Positions),
    ] {
        assert_eq!(
            composer.put(at, &rows[..length], tokens, skip, take),
            Err(error)
        );
    }
    assert_eq!(composer.put(0, &rows, 4, 0, 3), Ok(()));
    assert_eq!(
        composer.put(3, &rows, 4, 0, 2),
        Err(ComposeError::Positions)
    );
    // Three of four: no state.
    assert_eq!(composer.finish(), Err(ComposeError::Positions));
}

#[test]
fn a_buffer_is_used_again() {
    let engine = Engine::dense(2, 4);
    let bytes = engine.state(0, &(0..100).collect::<Vec<_>>());
    let layout = SequenceState::read(&bytes)
        .expect("it is understood")
        .layout()
        .clone();
    let mut buffer = Vec::new();
    Composer::new(&layout, 0, 0..100, &mut buffer).expect("it can be");
    let (pointer, capacity) = (buffer.as_ptr(), buffer.capacity());
    Composer::new(&layout, 0, 0..7, &mut buffer).expect("it can be");
    Composer::new(&layout, 0, 0..90, &mut buffer).expect("it can be");
    assert_eq!(buffer.len(), layout.state_size(90));
    assert_eq!((buffer.as_ptr(), buffer.capacity()), (pointer, capacity));
}

/// They stand in brackets behind what did not succeed, and people tell them apart by their words alone.
#[test]
fn every_error_says_something_else() {
    let layout = [
        LayoutError::Empty,
        LayoutError::Short,
        LayoutError::Trailing,
        LayoutError::Unknown,
        LayoutError::Positions,
        LayoutError::Differs,
    ];
    let compose = [
        ComposeError::Sequence,
        ComposeError::Positions,
        ComposeError::Rows,
    ];
    let refused = [
        Refused::Full,
        Refused::Known,
        Refused::NoParent,
        Refused::Malformed,
    ];
    let mut said = vec![NameError.to_string()];
    said.extend(layout.map(|error| error.to_string()));
    said.extend(compose.map(|error| error.to_string()));
    said.extend(refused.map(|error| error.to_string()));
    assert_eq!(said.iter().collect::<BTreeSet<_>>().len(), said.len());
    for text in said {
        let is_clause = text.starts_with(char::is_lowercase) && !text.ends_with('.');
        assert!(is_clause, "{text:?}");
    }
}

/// What M-RoPE makes of an image: its cells share a position, and say column and row instead.
#[test]
fn rows_of_an_image_that_share_a_position_are_in_their_order() {
    let engine = Engine {
        extra: 3,
        ..Engine::dense(2, 4)
    };
    let image = media::shared_run(&[7; 32], 6, 3).unwrap();
    let tokens = [&[1, 2][..], &image, &[4, 5]].concat();
    let count = tokens.len();
    let (first, cell) = (16, 12 + 4 * engine.extra);
    // As if each had a position of its own: the rows are those of the indexes.
    let made = |order: &[usize]| {
        let mut bytes = engine.state(0, order);
        for (nth, &index) in order.iter().enumerate() {
            let position = media::position(&tokens[..index]);
            let within = index.saturating_sub(2).min(5);
            let (column, row) = match index {
                2..8 => (position + within % 3, position + within / 3),
                _ => (position, position),
            };
            let words = [position, 1, column, row, index];
            for (word, value) in words.into_iter().enumerate() {
                let at = first + nth * cell + 4 * word;
                bytes[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
            }
        }
        bytes
    };
    let in_order: Vec<usize> = (0..count).collect();
    let whole = made(&in_order);
    let expected = SequenceState::read(&whole).unwrap();
    assert!(expected.is_of(&tokens) && !expected.is_whole());
    assert!(
        !expected.is_of(&tokens[1..])
            && !expected.is_of(&in_order.iter().map(|at| *at as i32).collect::<Vec<_>>())
    );
    let other = media::shared_run(&[7; 32], 6, 4).unwrap();
    assert!(!expected.is_of(&[&[1, 2][..], &other, &[4, 5]].concat()));
    assert!(prove(&whole).is_ok());
    for order in [
        &[8, 9, 5, 6, 7, 0, 1, 2, 3, 4][..],
        &[3, 2, 9, 8, 7, 6, 5, 4, 1, 0],
    ] {
        let bytes = made(order);
        let state = SequenceState::read(&bytes).unwrap();
        assert!(state.is_of(&tokens));
        assert!(prove(&bytes).is_ok());
        assert_eq!(rows(&state, 0..count), rows(&expected, 0..count));
        assert_eq!(rows(&state, 4..9), rows(&expected, 4..9));
        // Put together, they are in order.
        let mut buffer = Vec::new();
        let mut composer = Composer::new(state.layout(), 0, 0..count, &mut buffer).unwrap();
        composer.place_tokens(&tokens);
        composer
            .put(0, &rows(&state, 0..count), count, 0, count)
            .unwrap();
        assert_eq!(composer.finish(), Ok(&whole[..]));
    }
    // Two rows at one place.
    let mut bytes = whole.clone();
    let place = first + 3 * cell;
    bytes.copy_within(place..place + cell, place + cell);
    let state = SequenceState::read(&bytes).unwrap();
    assert_eq!(state.indexes(), None);
    assert!(!state.is_of(&tokens));
}
