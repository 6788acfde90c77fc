//! How long a prompt is to be kept: `"cache_control": {"type": "ephemeral", "ttl": "1h"}`, as Anthropic's API has it.

use super::text::Text;
use crate::scan::StringSkipper;

/// The longest object that is read, in bytes.
const LONGEST: usize = 256;
/// A lifetime that is not said, seconds.
const USUAL: u32 = 300;
/// More is as much, seconds.
const MOST: u32 = 31 * 24 * 3600;

/// Collects the object as it streams past, after its opening bracket.
#[derive(Debug, Clone)]
pub(super) struct Control {
    bytes: Vec<u8>,
    too_long: bool,
}

impl Control {
    pub(super) const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            too_long: false,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.too_long |= self.bytes.len() + bytes.len() > LONGEST;
        if !self.too_long {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// For how many seconds the prompt is to be kept. 0: no longer. `None`: it says something else.
    pub(super) fn seconds(self) -> Option<u32> {
        let mut reader = Reader { rest: &self.bytes };
        let seconds = reader.object().filter(|_| !self.too_long)?;
        Some(seconds.unwrap_or(USUAL).min(MOST))
    }
}

/// Reads valid JSON only: the server rejects anything else.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    /// The member `ttl`, if there is one. `None`: it cannot be read, or the type is another one.
    fn object(&mut self) -> Option<Option<u32>> {
        let mut seconds = None;
        loop {
            match self.next()? {
                b'}' => return Some(seconds),
                b',' => {}
                b'"' => {
                    let key = self.text()?;
                    if self.next()? != b':' {
                        return None;
                    }
                    match &*key {
                        "ttl" => seconds = Some(self.lifetime()?),
                        "type" if self.next()? != b'"' || &*self.text()? != "ephemeral" => {
                            return None;
                        }
                        "type" => {}
                        _ => self.skip()?,
                    }
                }
                _ => return None,
            }
        }
    }

    /// Seconds, or a text such as `5m`.
    fn lifetime(&mut self) -> Option<u32> {
        let first = self.next()?;
        if first == b'"' {
            return seconds(&self.text()?);
        }
        let end = self.rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let mut number = vec![first];
        number.extend_from_slice(&self.rest[..end]);
        self.rest = &self.rest[end..];
        seconds(std::str::from_utf8(&number).ok()?)
    }

    /// Behind an opening quote.
    fn text(&mut self) -> Option<Box<str>> {
        let mut text = Text::new();
        text.start(LONGEST);
        let used = text.feed(self.rest)?;
        self.rest = &self.rest[used..];
        text.take().ok()
    }

    /// A value that is not of interest, if it is no object and no list.
    fn skip(&mut self) -> Option<()> {
        match self.next()? {
            b'"' => {
                let used = StringSkipper::new().feed(self.rest)?;
                self.rest = &self.rest[used..];
            }
            b'{' | b'[' => return None,
            _ => {
                let end = self
                    .rest
                    .iter()
                    .position(|byte| matches!(byte, b',' | b'}'))?;
                self.rest = &self.rest[end..];
            }
        }
        Some(())
    }

    /// The next byte that is no blank.
    fn next(&mut self) -> Option<u8> {
        let at = self
            .rest
            .iter()
            .position(|byte| !byte.is_ascii_whitespace())?;
        let byte = self.rest[at];
        self.rest = &self.rest[at + 1..];
        Some(byte)
    }
}

/// A number of seconds, or of minutes, hours or days: `90`, `90s`, `5m`, `1h`, `2d`.
fn seconds(text: &str) -> Option<u32> {
    let digits = text.trim_end_matches(['s', 'm', 'h', 'd']);
    let each = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return None,
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: u32 = is_number.then(|| digits.parse().unwrap_or(u32::MAX))?;
    Some(count.saturating_mul(each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_read_as_clients_write_it() {
        let read = |text: &str| {
            let mut control = Control::new();
            text.as_bytes()
                .chunks(3)
                .for_each(|some| control.feed(some));
            control.seconds()
        };
        for (text, seconds) in [
            (r#""type":"ephemeral"}"#, Some(300)),
            ("}", Some(300)),
            (r#" "type" : "ephemeral" , "ttl" : "5m" }"#, Some(300)),
            (r#""ttl":"1h","type":"ephemeral"}"#, Some(3600)),
            (r#""ttl":"2d"}"#, Some(172_800)),
            (r#""ttl":90}"#, Some(90)),
            (r#""ttl":90 ,"x":1}"#, Some(90)),
            (r#""ttl":"90s","x":"}","y":null}"#, Some(90)),
            (r#""ttl":0}"#, Some(0)),
            (r#""ttl":"0s"}"#, Some(0)),
            (r#""ttl":"99999999999d"}"#, Some(MOST)),
            (r#""ttl":"5 m"}"#, None),
            (r#""ttl":"m"}"#, None),
            (r#""ttl":""}"#, None),
            (r#""ttl":"5mm"}"#, None),
            (r#""ttl":-5}"#, None),
            (r#""ttl":1.5}"#, None),
            (r#""ttl":null}"#, None),
            (r#""type":"persistent"}"#, None),
            (r#""type":7}"#, None),
            (r#""x":{}}"#, None),
            (r#""ttl":"5m""#, None),
        ] {
            assert_eq!(read(text), seconds, "{text}");
        }
        assert_eq!(read(&format!(r#""x":"{}"}}"#, "x".repeat(LONGEST))), None);
    }
}
