//! Frames of ZMTP 3.0 (RFC 23): a byte of flags, the size, the body.

use crate::Refusal;

/// The longest body that is accepted from a peer, in bytes. Messages that we send have no such limit.
pub const LONGEST_FRAME: usize = 4096;

/// More parts of the same message follow.
const MORE: u8 = 1;
/// The size has eight bytes, not one.
const LONG: u8 = 2;
/// It is a command.
const COMMAND: u8 = 4;

/// A frame that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A part of a message.
    Part {
        /// Its bytes.
        body: &'a [u8],
        /// Another part follows.
        more: bool,
    },
    /// A command, with its name.
    Command(&'a [u8]),
}

/// Reads the frame at the front of `bytes`: the frame, and how many bytes it takes. `None` if it
/// is not complete.
///
/// # Errors
/// It is not a frame, or too long. Returned as soon as the first bytes show it.
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Refusal> {
    let Some((&flags, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(Refusal::Flags);
    }
    let (size, rest) = if flags & LONG == 0 {
        match rest.split_first() {
            Some((&size, rest)) => (u64::from(size), rest),
            None => return Ok(None),
        }
    } else {
        match rest.split_first_chunk() {
            Some((size, rest)) => (u64::from_be_bytes(*size), rest),
            None => return Ok(None),
        }
    };
    let size = usize::try_from(size).map_err(|_| Refusal::LongFrame)?;
    if size > LONGEST_FRAME {
        return Err(Refusal::LongFrame);
    }
    let Some(body) = rest.get(..size) else {
        return Ok(None);
    };
    let taken = bytes.len() - rest.len() + size;
    let frame = if flags & COMMAND != 0 {
        Frame::Command(body)
    } else {
        Frame::Part {
            body,
            more: flags & MORE != 0,
        }
    };
    Ok(Some((frame, taken)))
}

/// The bytes of a message of these parts.
#[must_use]
pub fn encode(parts: &[&[u8]]) -> Vec<u8> {
    let bytes = parts.iter().map(|part| part.len() + 9).sum();
    let mut message = Vec::with_capacity(bytes);
    for (nth, part) in parts.iter().enumerate() {
        let more = if nth + 1 < parts.len() { MORE } else { 0 };
        append(&mut message, more, part);
    }
    message
}

/// The bytes of a command.
pub(crate) fn command(name: &[u8], data: &[u8]) -> Vec<u8> {
    // Ours have names of a few letters.
    let length = u8::try_from(name.len()).unwrap_or(u8::MAX);
    let body = [&[length], name, data].concat();
    let mut bytes = Vec::with_capacity(body.len() + 9);
    append(&mut bytes, COMMAND, &body);
    bytes
}

/// A command's name and data.
pub(crate) fn name_of(command: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    let (&length, rest) = command.split_first().ok_or(Refusal::Command)?;
    rest.split_at_checked(usize::from(length))
        .ok_or(Refusal::Command)
}

fn append(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(size) => bytes.extend_from_slice(&[flags, size]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let long = vec![7; 300];
        let bytes = encode(&[b"", b"ab", &long]);
        assert_eq!(bytes[..6], [1, 0, 1, 2, b'a', b'b']);
        assert_eq!(bytes[6..15], [2, 0, 0, 0, 0, 0, 0, 1, 44]);
        let mut rest = &bytes[..];
        let mut parts = Vec::new();
        while let Some((Frame::Part { body, more }, taken)) = decode(rest).expect("frames") {
            parts.push((body, more));
            rest = &rest[taken..];
        }
        assert_eq!(parts, [(&b""[..], true), (b"ab", true), (&long, false)]);
        assert!(rest.is_empty());
    }

    #[test]
    fn an_incomplete_frame_gives_none() {
        for bytes in [encode(&[b"abc"]), encode(&[&[1; 256]])] {
            for cut in 0..bytes.len() {
                assert_eq!(decode(&bytes[..cut]), Ok(None), "{cut}");
            }
        }
    }

    #[test]
    fn nonsense_is_refused_at_its_first_bytes() {
        for flags in [8, 128, 255, MORE | COMMAND] {
            assert_eq!(decode(&[flags]), Err(Refusal::Flags));
        }
        let size = [2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(decode(&size), Err(Refusal::LongFrame));
        let size = [2, 0, 0, 0, 0, 0, 0, 16, 1];
        assert_eq!(decode(&size), Err(Refusal::LongFrame));
        assert_eq!(name_of(b""), Err(Refusal::Command));
        assert_eq!(name_of(b"\x05PIN"), Err(Refusal::Command));
    }
}
