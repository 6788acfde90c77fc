//! Messages on stderr: one line, one `write`, no lock, no allocation.

use std::fmt::{self, Write};

/// In bytes. Longer messages are cut.
const LONGEST: usize = 1024;

/// Writes `[ContextPilot] message` and a line end to stderr.
pub(crate) fn line(message: fmt::Arguments<'_>) {
    let mut line = Line::new();
    // Cannot fail: what does not fit is left out.
    let _ = write!(line, "[ContextPilot] {message}");
    line.print();
}

/// Writes a message that has the prefix already, as those of other crates do.
pub(crate) fn complete_line(message: &str) {
    let mut line = Line::new();
    let _ = line.write_str(message);
    line.print();
}

struct Line {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Self {
            bytes: [0; LONGEST],
            len: 0,
        }
    }

    fn print(mut self) {
        self.bytes[self.len] = b'\n';
        // SAFETY: the buffer holds len + 1 bytes; stderr may be closed, which is an error of the
        // call and nothing more.
        let _ = unsafe {
            libc::write(
                libc::STDERR_FILENO,
                self.bytes.as_ptr().cast(),
                self.len + 1,
            )
        };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut room = (LONGEST - 1 - self.len).min(text.len());
        while !text.is_char_boundary(room) {
            room -= 1;
        }
        self.bytes[self.len..self.len + room].copy_from_slice(&text.as_bytes()[..room]);
        self.len += room;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut line = Line::new();
        for _ in 0..LONGEST {
            let _ = write!(line, "ü");
        }
        assert_eq!(line.len, LONGEST - 2, "one byte is kept for the line end");
        assert!(std::str::from_utf8(&line.bytes[..line.len]).is_ok());
    }
}
