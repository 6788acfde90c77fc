//! Numbers as bytes: seven bits each, the lowest first (LEB128).

pub(crate) fn put(into: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// A signed number in zigzag encoding: the sign is in the lowest bit.
pub(crate) fn put_signed(into: &mut Vec<u8>, number: i64) {
    put(into, ((number << 1) ^ (number >> 63)) as u64);
}

pub(crate) fn put_text(into: &mut Vec<u8>, text: &str) {
    put(into, text.len() as u64);
    into.extend(text.as_bytes());
}

/// Reads what the functions above write. `None`: the bytes end too soon, or are no such value.
#[derive(Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                return None;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(crate) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(crate) fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// A count of items that take at least a byte each. `None` if fewer bytes follow, so a count from
    /// a damaged file makes no reader reserve memory.
    pub(crate) fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len()).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_were_written_are_read_back_and_overlong_ones_refused() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            put_signed(&mut bytes, number as i64);
            let mut read = Bytes(&bytes);
            assert_eq!(read.number(), Some(number));
            assert_eq!(read.signed(), Some(number as i64));
            assert_eq!(read.number(), None);
        }
        assert_eq!(Bytes(&[0xff; 10]).number(), None, "more than 64 bits");
        assert_eq!(Bytes(&[5, 0]).count(), None, "more than there is");
    }
}
