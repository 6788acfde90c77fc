//! Reads a small whole number.

/// Room for the longest number of 32 bits.
const BYTES: usize = 11;

/// The text of a number, as it streams past.
#[derive(Debug, Clone, Default)]
pub(super) struct Number {
    text: [u8; BYTES],
    length: usize,
    /// A blank has followed.
    ended: bool,
    /// It is not a number, not whole, or too large.
    refused: bool,
}

impl Number {
    pub(super) fn push(&mut self, byte: u8) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => self.ended = true,
            b'0'..=b'9' | b'-' if !self.ended && self.length < BYTES => {
                self.text[self.length] = byte;
                self.length += 1;
            }
            _ => self.refused = true,
        }
    }

    pub(super) fn get(&self) -> Option<i32> {
        let text = std::str::from_utf8(&self.text[..self.length]).ok()?;
        text.parse().ok().filter(|_| !self.refused)
    }
}
