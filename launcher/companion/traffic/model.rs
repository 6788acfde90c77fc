//! How large the KV of a token is, by the metadata of a model's file.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use crate::companion::gguf::{Value, metadata};

const ARCH: &str = "general.architecture";
/// Layers, at most.
const LAYERS: u64 = 1 << 16;

/// Bytes that a token takes in a KV cache of 16-bit numbers.
pub(super) fn token_bytes(path: &Path) -> Result<u64, String> {
    let shown = path.display();
    let file = File::open(path).map_err(|e| format!("{shown} cannot be read ({e})"))?;
    let values = metadata(BufReader::new(file), is_of_shape).map_err(|why| {
        format!("{shown} does not say how large the KV of a token is ({why}): say --kv-bytes")
    })?;
    kv_bytes(&values).ok_or_else(|| {
        format!("{shown} does not say how large the KV of a token is: say --kv-bytes")
    })
}

/// Whether a value says something of a model's shape.
fn is_of_shape(name: &str) -> bool {
    !["general.", "tokenizer."]
        .iter()
        .any(|other| name.starts_with(other))
        || name == ARCH
}

fn kv_bytes(values: &HashMap<String, Value>) -> Option<u64> {
    let Some(Value::Text(arch)) = values.get(ARCH) else {
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
        let values = metadata(&bytes[..], is_of_shape).unwrap();
        let number = |name: &str| match values.get(&format!("llama.{name}")) {
            Some(Value::Number(number)) => *number,
            other => panic!("{name}: {other:?}"),
        };
        let head = number("embedding_length") / number("attention.head_count");
        let heads = number("attention.head_count_kv");
        let expected = 2 * 2 * number("block_count") * heads * head;
        assert_eq!(token_bytes(&path), Ok(expected));
        for cut in 0..200 {
            assert!(metadata(&bytes[..cut], is_of_shape).is_err(), "{cut}");
        }
        assert!(
            metadata(
                &b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"[..],
                is_of_shape
            )
            .is_err()
        );
    }
}
