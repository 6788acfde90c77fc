//! The LoRA adapters that a body names: `"lora": [{"id": 0, "scale": 0.5}]`.

use super::collected::{Collected, Reader};

/// The longest list that is read, in bytes.
const LONGEST: usize = 4096;

/// The LoRA adapters that a request is for.
#[derive(Debug, Clone, PartialEq)]
pub enum Adapters {
    /// Index in the server's list, and scale, as in the body. Never empty: an empty list
    /// counts as no list, as it does in the server.
    Named(Vec<(i32, f32)>),
    /// Something that the server may accept, but this crate cannot read.
    Unreadable,
}

/// The list, after its opening bracket.
pub(super) type List = Collected<LONGEST>;

/// What the list says, when it has ended. `None`: it is empty.
pub(super) fn read(list: &List) -> Option<Adapters> {
    match list.reader().and_then(|mut reader| named(&mut reader)) {
        Some(named) if named.is_empty() => None,
        Some(named) => Some(Adapters::Named(named)),
        None => Some(Adapters::Unreadable),
    }
}

fn named(reader: &mut Reader<'_>) -> Option<Vec<(i32, f32)>> {
    let mut named = Vec::new();
    loop {
        match reader.next()? {
            b']' => return Some(named),
            b',' => {}
            b'{' => named.push(entry(reader)?),
            _ => return None,
        }
    }
}

/// Missing members have the server's defaults.
fn entry(reader: &mut Reader<'_>) -> Option<(i32, f32)> {
    let (mut id, mut scale) = (-1, 0.0);
    loop {
        match reader.next()? {
            b'}' => return Some((id, scale)),
            b',' => {}
            b'"' => {
                let key = reader.key(b"scale".len())?;
                if key.is(b"id") {
                    id = number(reader, -1)?;
                } else if key.is(b"scale") {
                    scale = number(reader, 0.0)?;
                } else {
                    reader.skip()?;
                }
            }
            _ => return None,
        }
    }
}

/// A number, or the default for `null`.
fn number<T: std::str::FromStr>(reader: &mut Reader<'_>, default: T) -> Option<T> {
    match std::str::from_utf8(reader.scalar()?).ok()? {
        "null" => Some(default),
        text => text.parse().ok(),
    }
}
