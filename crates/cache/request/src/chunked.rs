//! The chunked transfer coding.

use crate::endpoint::hex_digit;
use crate::fields::{Event, Fields};
use crate::head::MAX_LINE_BYTES;
use crate::loss::Loss;

/// 2^60 bytes: no body is that long, and sizes stay far from overflow.
const MAX_CHUNK_BYTES: u64 = 1 << 60;

/// Finds the content in a chunked body, and its end.
///
/// Accepts what RFC 9112 allows. Older servers accept more (signs, `0x`, text
/// after the size), newer servers do not. For these the reader is lost.
#[derive(Debug, Clone)]
pub(crate) struct Chunked {
    state: State,
    /// Bytes so far of the line with a chunk's size.
    line_bytes: usize,
    trailers: Fields,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first digit of a size.
    Start,
    Size(u64),
    /// Blanks after the size.
    Blank(u64),
    Extension(u64),
    SizeEnd(u64),
    /// This many bytes of content are left, at least one.
    Content(u64),
    ContentCr,
    ContentLf,
    Trailers,
}

/// What the first bytes of the input are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// This many bytes of framing.
    Framing(usize),
    /// This many bytes of content.
    Content(usize),
    /// This many bytes of framing, which end the body.
    End(usize),
}

impl Chunked {
    pub(crate) const fn new() -> Self {
        Self {
            state: State::Start,
            line_bytes: 0,
            trailers: Fields::new(),
        }
    }

    /// Takes bytes, at least one if there is one.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Part, Loss> {
        if let State::Content(left) = self.state {
            let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            self.state = match left - here as u64 {
                0 => State::ContentCr,
                left => State::Content(left),
            };
            return Ok(Part::Content(here));
        }
        for (at, &byte) in bytes.iter().enumerate() {
            if self.framing(byte)? {
                return Ok(Part::End(at + 1));
            }
            if matches!(self.state, State::Content(_)) {
                return Ok(Part::Framing(at + 1));
            }
        }
        Ok(Part::Framing(bytes.len()))
    }

    /// Takes a byte of framing; true when the body has ended.
    fn framing(&mut self, byte: u8) -> Result<bool, Loss> {
        if self.state == State::Trailers {
            return Ok(matches!(self.trailers.push(byte)?, Some(Event::End)));
        }
        self.line_bytes += 1;
        if self.line_bytes > MAX_LINE_BYTES {
            return Err(Loss::Chunk);
        }
        self.state = match (self.state, byte) {
            (State::Start, byte) => State::Size(add_digit(0, byte)?),
            (State::Size(size) | State::Blank(size), b' ' | b'\t') => State::Blank(size),
            (State::Size(size) | State::Blank(size), b';') => State::Extension(size),
            (State::Extension(size), b' ' | b'\t' | 0x21..=0x7E | 0x80..) => State::Extension(size),
            (State::Size(size) | State::Blank(size) | State::Extension(size), b'\r') => {
                State::SizeEnd(size)
            }
            (State::Size(size), byte) => State::Size(add_digit(size, byte)?),
            (State::SizeEnd(0), b'\n') => State::Trailers,
            (State::SizeEnd(size), b'\n') => State::Content(size),
            (State::ContentCr, b'\r') => State::ContentLf,
            (State::ContentLf, b'\n') => {
                self.line_bytes = 0;
                State::Start
            }
            _ => return Err(Loss::Chunk),
        };
        Ok(false)
    }
}

fn add_digit(size: u64, byte: u8) -> Result<u64, Loss> {
    let digit = hex_digit(byte).ok_or(Loss::Chunk)?;
    let size = size << 4 | u64::from(digit);
    if size > MAX_CHUNK_BYTES {
        return Err(Loss::Chunk);
    }
    Ok(size)
}
