//! The metadata of a GGUF model, which stand at the head of its file. The model itself is not loaded.

use std::collections::HashMap;
use std::io::{self, Read};

/// What a GGUF file begins with.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// The longest text that is read, bytes: a chat template has some thousands.
const LONGEST: u64 = 16 << 20;
/// More values than any model has.
const MOST: u64 = 1 << 20;
/// The longest list of numbers that is kept: some have one for each layer.
const LAYERS: u64 = 1 << 16;

const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Number(u64),
    Numbers(Vec<u64>),
    Text(String),
    Texts(Vec<String>),
}

/// The values with names that are wanted, as far as they are whole numbers and texts.
///
/// # Errors
/// It cannot be read, is of another format, or damaged.
pub(super) fn metadata(
    from: impl Read,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<HashMap<String, Value>> {
    let mut reader = Reader(from);
    let mut magic = [0; 4];
    reader.fill(&mut magic)?;
    if &magic != MAGIC {
        return Err(damaged("it is no GGUF file"));
    }
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        return Err(damaged(format!("its version is {version}")));
    }
    let (_tensors, count) = (reader.u64()?, reader.u64()?);
    if count > MOST {
        return Err(damaged("it is damaged"));
    }
    let mut values = HashMap::new();
    for _ in 0..count {
        let name = reader.text()?;
        let kind = reader.u32()?;
        if wanted(&name) {
            values.extend(reader.value(kind)?.map(|value| (name, value)))
        } else {
            reader.pass(kind)?
        }
    }
    Ok(values)
}

struct Reader<R>(R);

impl<R: Read> Reader<R> {
    /// `None`: it is neither whole numbers nor texts, or more numbers than matter.
    fn value(&mut self, kind: u32) -> io::Result<Option<Value>> {
        Ok(match kind {
            STRING => Some(Value::Text(self.text()?)),
            ARRAY => self.list()?,
            kind if is_whole(kind) => Some(Value::Number(self.number(kind)?)),
            kind => self.pass(kind).map(|()| None)?,
        })
    }

    fn list(&mut self) -> io::Result<Option<Value>> {
        let (kind, count) = (self.u32()?, self.u64()?);
        Ok(match kind {
            STRING => {
                let texts = (0..count).map(|_| self.text());
                Some(Value::Texts(texts.collect::<io::Result<_>>()?))
            }
            kind if is_whole(kind) && count <= LAYERS => {
                let numbers = (0..count).map(|_| self.number(kind));
                Some(Value::Numbers(numbers.collect::<io::Result<_>>()?))
            }
            kind => self.pass_list(kind, count).map(|()| None)?,
        })
    }

    /// Passes over a value.
    fn pass(&mut self, kind: u32) -> io::Result<()> {
        match kind {
            STRING => {
                let length = self.u64()?;
                self.skip(length)
            }
            ARRAY => {
                let (kind, count) = (self.u32()?, self.u64()?);
                self.pass_list(kind, count)
            }
            kind => self.skip(size(kind)?),
        }
    }

    fn pass_list(&mut self, kind: u32, count: u64) -> io::Result<()> {
        match kind {
            STRING => (0..count).try_for_each(|_| self.pass(STRING)),
            kind => self.skip(count.saturating_mul(size(kind)?)),
        }
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        match io::copy(&mut self.0.by_ref().take(bytes), &mut io::sink())? {
            passed if passed == bytes => Ok(()),
            _ => Err(too_soon()),
        }
    }

    /// A text; what is no UTF-8 in it is replaced.
    fn text(&mut self) -> io::Result<String> {
        let length = self.u64()?;
        if length > LONGEST {
            return Err(damaged("a text in it is too long"));
        }
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn number(&mut self, kind: u32) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes[..size(kind)? as usize])?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn u32(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(bytes).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                too_soon()
            } else {
                error
            }
        })
    }
}

/// Whether it is the type of whole numbers. Those below zero are taken for large ones: none that matters is.
fn is_whole(kind: u32) -> bool {
    matches!(kind, 0..=5 | 7 | 10 | 11)
}

/// The bytes of a number of this type.
fn size(kind: u32) -> io::Result<u64> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        ARRAY => Err(damaged("it has arrays of arrays")),
        kind => Err(damaged(format!("it has a value of kind {kind}"))),
    }
}

fn too_soon() -> io::Error {
    damaged("it ends too soon")
}

fn damaged(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn list(kind: u32, count: u64, of: &[u8]) -> Vec<u8> {
        let head = [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
        [&head[..], of].concat()
    }

    fn file(values: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
        let mut file = [&MAGIC[..], &3_u32.to_le_bytes(), &[0; 8]].concat();
        file.extend((values.len() as u64).to_le_bytes());
        for (name, kind, value) in values {
            file.extend([&text(name)[..], &kind.to_le_bytes(), value].concat());
        }
        file
    }

    #[test]
    fn what_is_wanted_is_read_and_everything_else_is_passed_over() {
        let texts = [text("a"), text("")].concat();
        let whole = file(&[
            ("byte", 0, vec![7]),
            ("other byte", 0, vec![8]),
            ("word", 10, 9_u64.to_le_bytes().to_vec()),
            ("float", 6, vec![0; 4]),
            ("doubles", ARRAY, list(12, 2, &[0; 16])),
            ("other doubles", ARRAY, list(12, 2, &[0; 16])),
            ("shorts", ARRAY, list(2, 2, &[1, 0, 2, 0])),
            ("texts", ARRAY, list(STRING, 2, &texts)),
            ("other texts", ARRAY, list(STRING, 2, &texts)),
            ("other text", STRING, text("no")),
            ("text", STRING, text("yes")),
        ]);
        let wanted = |name: &str| !name.starts_with("other");
        let read = |bytes: &[u8]| metadata(bytes, wanted);
        let expected = [
            ("byte", Value::Number(7)),
            ("word", Value::Number(9)),
            ("shorts", Value::Numbers(vec![1, 2])),
            ("texts", Value::Texts(vec!["a".to_owned(), String::new()])),
            ("text", Value::Text("yes".to_owned())),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(read(&whole).unwrap(), expected.into());
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn what_no_model_has_is_an_error_that_says_what() {
        let nested = list(ARRAY, 1, &list(0, 1, &[0]));
        let long = (LONGEST + 1).to_le_bytes().to_vec();
        let mut many = file(&[]);
        many[16..].copy_from_slice(&(MOST + 1).to_le_bytes());
        let mut old = file(&[]);
        old[4] = 1;
        for (bytes, why) in [
            (b"GGML".to_vec(), "it is no GGUF file"),
            (old, "its version is 1"),
            (many, "it is damaged"),
            (file(&[("a", 13, Vec::new())]), "it has a value of kind 13"),
            (file(&[("a", ARRAY, nested)]), "it has arrays of arrays"),
            (file(&[("a", STRING, long)]), "a text in it is too long"),
        ] {
            let error = metadata(&bytes[..], |_| true).unwrap_err();
            assert_eq!(error.to_string(), why);
        }
    }
}
