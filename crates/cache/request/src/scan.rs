//! Fast search in slices. Large bodies spend their time here, so it is written for the
//! compiler to vectorise.

/// Bytes looked at one by one before the blocks: most
/// JSON strings are short.
const HEAD: usize = 16;
const BLOCK: usize = 64;

/// The index of the first byte for which `wanted` holds.
#[inline(always)]
pub(crate) fn find(bytes: &[u8], wanted: impl Fn(u8) -> bool + Copy) -> Option<usize> {
    let head = bytes.len().min(HEAD);
    if let Some(at) = bytes[..head].iter().position(|&b| wanted(b)) {
        return Some(at);
    }
    find_far(bytes, head, wanted)
}

/// The index of the first quote.
#[inline(always)]
pub(crate) fn find_quote(bytes: &[u8]) -> Option<usize> {
    find(bytes, |b| b == b'"')
}

/// The index of the first quote or bracket of either kind.
#[inline(always)]
pub(crate) fn find_quote_or_bracket(bytes: &[u8]) -> Option<usize> {
    // '[' and '{', ']' and '}' differ in the bit 0x20 alone.
    find(bytes, |b| b == b'"' || b | 0x20 == b'{' || b | 0x20 == b'}')
}

/// The first byte from `at` on, expected to be far away.
#[inline(always)]
fn find_far(bytes: &[u8], mut at: usize, wanted: impl Fn(u8) -> bool + Copy) -> Option<usize> {
    for block in bytes[at..].chunks_exact(BLOCK) {
        // No early exit inside a block: a fold without branches vectorises.
        let hit = block.iter().fold(0u8, |hit, &b| hit | u8::from(wanted(b)));
        if hit != 0 {
            break;
        }
        at += BLOCK;
    }
    bytes[at..]
        .iter()
        .position(|&b| wanted(b))
        .map(|found| at + found)
}

/// Skips to the end of a JSON string whose content is not needed.
///
/// It searches for quotes only. A quote is escaped after an odd run of
/// backslashes before it. So text full of `\n` costs no more than plain text.
#[derive(Debug, Clone, Default)]
pub(crate) struct StringSkipper {
    /// The bytes so far end with an odd number of backslashes.
    odd: bool,
}

impl StringSkipper {
    pub(crate) const fn new() -> Self {
        Self { odd: false }
    }

    /// The index after the closing quote, or `None` when it is still to come.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut from = 0;
        while let Some(found) = find_quote(&bytes[from..]) {
            let quote = from + found;
            if !self.odd_run_before(bytes, quote) {
                return Some(quote + 1);
            }
            from = quote + 1;
        }
        self.odd = self.odd_run_before(bytes, bytes.len());
        None
    }

    /// Each run ends at a quote at the latest, so counting is linear over all.
    fn odd_run_before(&self, bytes: &[u8], end: usize) -> bool {
        let run = bytes[..end]
            .iter()
            .rev()
            .take_while(|&&b| b == b'\\')
            .count();
        let carried = run == end && self.odd;
        (run % 2 == 1) != carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_is_found_at_every_position() {
        let all = |bytes: &[u8]| {
            let quote = find(bytes, |b| b == b'"');
            assert_eq!(find_quote(bytes), quote);
            assert_eq!(find_quote_or_bracket(bytes), quote);
            quote
        };
        for len in 0..300 {
            let mut bytes = vec![b'a'; len];
            assert_eq!(all(&bytes), None);
            for at in 0..len {
                bytes[at] = b'"';
                assert_eq!(all(&bytes), Some(at), "length {len}");
                bytes[at] = b'a';
            }
        }
    }

    #[test]
    fn only_quotes_and_brackets_are_found() {
        for byte in 0..=255u8 {
            for before in [0, 0x7F, 0x80, 0xFF, b'!', b'#', b'|', b'~'] {
                let bytes = [before, byte, before, b'"', byte, before, byte, byte];
                let first = |set: &[u8]| bytes.iter().position(|b| set.contains(b));
                assert_eq!(find_quote(&bytes), first(b"\""), "{bytes:?}");
                assert_eq!(find_quote_or_bracket(&bytes), first(b"\"[]{}"), "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_quote_is_escaped_after_an_odd_number_of_backslashes() {
        for run in 0..40 {
            let mut text = vec![b'\\'; run];
            text.push(b'"');
            for split in 0..=text.len() {
                let mut skipper = StringSkipper::new();
                let first = skipper.feed(&text[..split]);
                let end = match first {
                    Some(end) => Some(end),
                    None => skipper.feed(&text[split..]).map(|end| end + split),
                };
                let expected = (run % 2 == 0).then_some(run + 1);
                assert_eq!(end, expected, "{run} backslashes, split at {split}");
            }
        }
    }
}
