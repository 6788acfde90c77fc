//! How large the KV of a token is, by the head of a model's file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// No name or text that says something of a model's shape is longer; longer ones are passed over.
const LONGEST: u64 = 1 << 12;
/// More values than any model has.
const MOST: u64 = 1 << 20;
/// Layers, at most.
const LAYERS: u64 = 1 << 16;

/// A value that matters here.
#[derive(Debug, PartialEq)]
enum Value {
    Number(u64),
    /// One for each layer.
    Numbers(Vec<u64>),
    Text(String),
    Other,
}

/// Bytes that a token takes in a KV cache of 16-bit numbers.
pub(super) fn token_bytes(path: &Path) -> Result<u64, String> {
    let shown = path.display();
    let file = File::open(path).map_err(|e| format!("{shown} cannot be read ({e})"))?;
    let values = read(&mut BufReader::new(file)).map_err(|why| {
        format!("{shown} does not say how large the KV of a token is ({why}): say --kv-bytes")
    })?;
    of(&values).ok_or_else(|| {
        format!("{shown} does not say how large the KV of a token is: say --kv-bytes")
    })
}

fn of(values: &HashMap<String, Value>) -> Option<u64> {
    let Some(Value::Text(arch)) = values.get("general.architecture") else {
        return None;
    };
    let number = |name: &str| match values.get(&format!("{arch}.{name}")) {
        Some(Value::Number(number)) => Some(*number),
        _ => None,
    };
    let layers = number("block_count").filter(|layers| *layers <= LAYERS)?;
    let heads = number("attention.head_count");
    let of_head = || number("embedding_length")?.checked_div(heads?);
    let key = number("attention.key_length").or_else(of_head)?;
    let value = number("attention.value_length").or_else(of_head)?;
    let all_heads = match values.get(&format!("{arch}.attention.head_count_kv")) {
        Some(Value::Numbers(by_layer)) => by_layer.iter().copied().reduce(u64::saturating_add)?,
        Some(Value::Number(heads)) => heads.checked_mul(layers)?,
        _ => heads?.checked_mul(layers)?,
    };
    all_heads
        .checked_mul(key.checked_add(value)?)?
        .checked_mul(2)
}

fn read(from: &mut impl Read) -> Result<HashMap<String, Value>, String> {
    if &bytes::<4>(from)? != b"GGUF" {
        return Err("it is no GGUF file".to_owned());
    }
    let version = u32::from_le_bytes(bytes(from)?);
    if !(2..=3).contains(&version) {
        return Err(format!("its version is {version}"));
    }
    let _tensors = word(from)?;
    let count = word(from)?;
    if count > MOST {
        return Err("it is damaged".to_owned());
    }
    let mut values = HashMap::new();
    for _ in 0..count {
        let name = text(from)?;
        let kind = u32::from_le_bytes(bytes(from)?);
        let value = value(from, kind)?;
        if let (Some(name), false) = (name, value == Value::Other) {
            values.insert(name, value);
        }
    }
    Ok(values)
}

fn value(from: &mut impl Read, kind: u32) -> Result<Value, String> {
    Ok(match kind {
        0 | 1 | 7 => Value::Number(u64::from(bytes::<1>(from)?[0])),
        2 | 3 => Value::Number(u64::from(u16::from_le_bytes(bytes(from)?))),
        4 | 5 => Value::Number(u64::from(u32::from_le_bytes(bytes(from)?))),
        10 | 11 => Value::Number(word(from)?),
        6 => {
            bytes::<4>(from)?;
            Value::Other
        }
        12 => {
            bytes::<8>(from)?;
            Value::Other
        }
        8 => text(from)?.map_or(Value::Other, Value::Text),
        9 => {
            let kind = u32::from_le_bytes(bytes(from)?);
            let length = word(from)?;
            let mut numbers = Vec::new();
            for nth in 0..length {
                // Arrays of arrays are in no model.
                let one = match kind {
                    9 => return Err("it has arrays of arrays".to_owned()),
                    kind => value(from, kind)?,
                };
                match one {
                    Value::Number(number) if nth < LAYERS => numbers.push(number),
                    _ => {}
                }
            }
            match numbers.len() as u64 == length {
                true => Value::Numbers(numbers),
                false => Value::Other,
            }
        }
        kind => return Err(format!("it has a value of kind {kind}")),
    })
}

/// A text. `None`: it is too long to matter, or no UTF-8.
fn text(from: &mut impl Read) -> Result<Option<String>, String> {
    let length = word(from)?;
    if length > LONGEST {
        let passed = std::io::copy(&mut from.take(length), &mut std::io::sink());
        return match passed {
            Ok(passed) if passed == length => Ok(None),
            _ => Err("it ends too soon".to_owned()),
        };
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes).map_err(too_soon)?;
    Ok(String::from_utf8(bytes).ok())
}

fn word(from: &mut impl Read) -> Result<u64, String> {
    Ok(u64::from_le_bytes(bytes(from)?))
}

fn bytes<const N: usize>(from: &mut impl Read) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map_err(too_soon)?;
    Ok(bytes)
}

fn too_soon(_: std::io::Error) -> String {
    "it ends too soon".to_owned()
}

#[cfg(test)]
mod tests {
    use contextpilot_tiny_model::{Arch, Spec, write};

    use super::*;

    #[test]
    fn a_models_file_says_how_large_the_kv_of_a_token_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        write(&path, &Spec::new(Arch::Llama)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let values = read(&mut &bytes[..]).unwrap();
        let number = |name: &str| match values.get(&format!("llama.{name}")) {
            Some(Value::Number(number)) => *number,
            other => panic!("{name}: {other:?}"),
        };
        let head = number("embedding_length") / number("attention.head_count");
        let heads = number("attention.head_count_kv");
        let expected = 2 * 2 * number("block_count") * heads * head;
        assert_eq!(token_bytes(&path), Ok(expected));
        for cut in 0..200 {
            assert!(read(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        assert!(
            read(&mut &b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"[..])
                .is_err()
        );
    }
}
