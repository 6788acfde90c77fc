//! Which dates and numbers the body of a request has, to tell whether a text of its prompt is its client's.

use crate::endpoint::hex_digit;

/// Bits of the filter.
const BITS: usize = 1 << 16;
const WORDS: usize = BITS / 64;
/// A word, or a pair of words, has so many bits.
const EACH: u32 = 2;

/// The words of a body that have a digit, and the pairs of words next to each other of which one has: a Bloom filter of
/// [`BYTES`](Self::BYTES). It never says that a text was not sent which was. The longer the body, the more it says
/// of texts that were not that they may have been.
///
/// A word is letters and digits of ASCII. What is between two words does not matter: JSON and chat templates may write that in
/// several ways.
#[derive(Clone, PartialEq, Eq)]
pub struct Sent(Box<[u64; WORDS]>);

impl Sent {
    /// Its size, in bytes.
    pub const BYTES: usize = BITS / 8;

    /// Whether the body may have this text. `None`: the text has no digit.
    #[must_use]
    pub fn may_have(&self, text: &str) -> Option<bool> {
        let mut has_all = None;
        let mut splitter = Splitter::default();
        for byte in text.bytes().chain([b'\n']) {
            splitter.push(byte, |hash| {
                has_all = Some(has_all != Some(false) && self.has(hash));
            });
        }
        has_all
    }

    fn has(&self, hash: u64) -> bool {
        bits(hash).all(|(word, bit)| self.0[word] & bit != 0)
    }
}

/// The bits are of no use to people.
impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set: u32 = self.0.iter().map(|word| word.count_ones()).sum();
        f.debug_struct("Sent").field("bits", &set).finish()
    }
}

/// Where the bits of a hash are.
fn bits(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    (0..EACH).map(move |nth| {
        let at = (hash >> (32 * nth)) as usize % BITS;
        (at / 64, 1 << (at % 64))
    })
}

/// Reads one body as it streams past.
#[derive(Debug, Clone)]
pub(crate) struct SentReader {
    filter: Sent,
    splitter: Splitter,
    escape: Escape,
}

/// Where in an escape of JSON.
#[derive(Debug, Clone, Copy)]
enum Escape {
    None,
    /// After a backslash.
    Begun,
    /// After `\u`: digits seen, and their value.
    Unicode(u8, u16),
}

impl Default for SentReader {
    fn default() -> Self {
        Self {
            filter: Sent(Box::new([0; WORDS])),
            splitter: Splitter::default(),
            escape: Escape::None,
        }
    }
}

impl SentReader {
    /// Takes the next bytes of the body.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match self.escape {
                Escape::None if byte == b'\\' => self.escape = Escape::Begun,
                Escape::None => self.push(byte),
                Escape::Begun => {
                    self.escape = Escape::None;
                    match byte {
                        b'u' => self.escape = Escape::Unicode(0, 0),
                        b'\\' => self.push(b'\\'),
                        // White space, or a quote.
                        _ => self.push(b' '),
                    }
                }
                Escape::Unicode(digits, value) => {
                    let value = value << 4 | u16::from(hex_digit(byte).unwrap_or(0));
                    if digits < 3 {
                        self.escape = Escape::Unicode(digits + 1, value);
                    } else {
                        self.escape = Escape::None;
                        self.push(u8::try_from(value).unwrap_or(b' '));
                    }
                }
            }
        }
    }

    /// What the body had that has ended. The next one begins.
    pub(crate) fn take(&mut self) -> Sent {
        self.push(b' ');
        std::mem::take(self).filter
    }

    fn push(&mut self, byte: u8) {
        let filter = &mut self.filter.0;
        self.splitter.push(byte, |hash| {
            for (word, bit) in bits(hash) {
                filter[word] |= bit;
            }
        });
    }
}

/// Divides text into words.
#[derive(Debug, Clone, Copy, Default)]
struct Splitter {
    word: Word,
    before: Option<Word>,
    /// The last byte is a backslash.
    is_escape: bool,
}

#[derive(Debug, Clone, Copy)]
struct Word {
    hash: u64,
    is_empty: bool,
    has_digit: bool,
}

impl Default for Word {
    fn default() -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            is_empty: true,
            has_digit: false,
        }
    }
}

impl Word {
    /// FNV-1a.
    fn push(&mut self, byte: u8) {
        self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        self.is_empty = false;
        self.has_digit |= byte.is_ascii_digit();
    }
}

impl Splitter {
    /// `end` gets the hash of each word that has a digit, and of each pair.
    fn push(&mut self, byte: u8, mut end: impl FnMut(u64)) {
        // JSON within a text has escapes of its own. Some templates decode them: so `\n` is no part of a word.
        let is_escaped = std::mem::take(&mut self.is_escape);
        if byte.is_ascii_alphanumeric() && !(is_escaped && b"nrtbf".contains(&byte)) {
            self.word.push(byte);
            return;
        }
        self.is_escape = byte == b'\\';
        if self.word.is_empty {
            return;
        }
        let word = std::mem::take(&mut self.word);
        if word.has_digit {
            end(mixed(word.hash));
        }
        let before = self.before.replace(word);
        if let Some(before) = before.filter(|before| before.has_digit || word.has_digit) {
            end(mixed(before.hash.rotate_left(29) ^ word.hash));
        }
    }
}

/// Of FNV's hashes of short words, the upper half is nearly the same.
fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ hash >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a body has, which comes in two parts, cut anywhere.
    fn sent(body: &str) -> Sent {
        let read = |cut: usize| {
            let (first, rest) = body.as_bytes().split_at(cut);
            let mut reader = SentReader::default();
            reader.feed(first);
            reader.feed(rest);
            reader.take()
        };
        let whole = read(0);
        (1..body.len()).for_each(|cut| assert_eq!(read(cut), whole, "cut at {cut}"));
        whole
    }

    #[test]
    fn a_text_with_digits_is_found_however_json_writes_it() {
        let sent = sent(
            r#"{"messages":[{"content":"It is\n30 Nov 2026\tand \"2026-11-30\", 2026\u5e7411\u670830, v\u0031.2"},
               {"arguments":"{\"at\": \"noon\\n17 May\"}"}], "max": 4711}"#,
        );
        for text in [
            "30 Nov 2026",
            "2026-11-30",
            "2026\u{5e74}11\u{6708}30",
            "2026/11/30",
            "30",
            "v1.2",
            "\n17 May",
            "\\n17 May",
            "4711",
        ] {
            assert_eq!(sent.may_have(text), Some(true), "{text}");
        }
        for text in ["29 Nov 2026", "30 Nov 2027", "2026-11-29", "31", "v1.3"] {
            assert_eq!(sent.may_have(text), Some(false), "{text}");
        }
        for text in ["", "Nov", "no such word"] {
            assert_eq!(sent.may_have(text), None, "{text}");
        }
    }

    #[test]
    fn of_a_long_body_most_of_what_it_has_not_is_known() {
        let text: Vec<String> = (0..10_000).map(|nth| format!("line {nth} is")).collect();
        let mut reader = SentReader::default();
        reader.feed(text.join("\\n").as_bytes());
        let sent = reader.take();
        let is_missing = |nth: u32| sent.may_have(&format!("{nth} Nov 2026")) == Some(false);
        let missing = (20_000..21_000).filter(|nth| is_missing(*nth)).count();
        assert!(missing > 600, "{missing}");
        assert!((0..10_000).all(|nth| sent.may_have(&format!("line {nth} is")) == Some(true)));
    }

    #[test]
    fn the_next_body_begins_empty() {
        let mut reader = SentReader::default();
        reader.feed(b"{\"a\": 17");
        assert_eq!(reader.take().may_have("17"), Some(true));
        assert_eq!(reader.take().may_have("17"), Some(false));
    }
}
