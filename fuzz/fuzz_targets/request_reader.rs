//! However the bytes of a connection are cut into reads, the reader finds the
//! same requests, and it never panics.
//!
//! The first bytes of an input say where to cut (see [`Cuts`]), so that the
//! fuzzer can move the cuts as well as the bytes.
#![no_main]

use contextpilot_request::{ConnectionReader, Identity, MAX_ID_BYTES, RequestReader, Step};
use libfuzzer_sys::fuzz_target;

/// How many bytes of an input are for the cuts.
const CUT_BYTES: usize = 4;

fuzz_target!(|input: &[u8]| {
    let (cuts, stream) = input.split_at(input.len().min(CUT_BYTES));
    let whole = steps([stream]);
    assert_eq!(
        steps(Cuts {
            cuts: cuts.iter().cycle(),
            rest: stream
        }),
        whole
    );
    if stream.len() < 256 {
        assert_eq!(steps(stream.chunks(1)), whole);
    }
    // What the hook calls must not panic either, whatever the server does between two reads.
    let mut reader = ConnectionReader::new();
    for read in (Cuts {
        cuts: cuts.iter().cycle(),
        rest: stream,
    }) {
        check(&reader.received(read));
        for answer in [&b"HTTP/1.1 200 OK\r\n\r\n"[..], read] {
            if let Some(step) = reader.sending(answer) {
                check(&step);
            }
        }
        if let Some(step) = reader.goes_on() {
            check(&step);
        }
    }
});

/// Pieces of the lengths that the cut bytes give, over and over.
struct Cuts<'a, I> {
    cuts: I,
    rest: &'a [u8],
}

impl<'a, 'b, I: Iterator<Item = &'b u8>> Iterator for Cuts<'a, I> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let length = self.cuts.next().map_or(1, |&cut| usize::from(cut) + 1);
        let (piece, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        Some(piece)
    }
}

fn steps<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Step> {
    let mut reader = RequestReader::new();
    let mut steps = Vec::new();
    for mut piece in pieces {
        while !piece.is_empty() {
            let (used, step) = reader.feed(piece);
            assert!(used > 0 && used <= piece.len());
            check(&step);
            if step != Step::More {
                steps.push(step);
            }
            piece = &piece[used..];
        }
    }
    steps
}

/// Checks what holds for every request.
fn check(step: &Step) {
    if let Step::Complete(request) = step {
        if let Identity::Id(id) = &request.identity {
            assert!((1..=MAX_ID_BYTES).contains(&id.len()));
        }
    }
}
