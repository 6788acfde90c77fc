//! The chat template of a GGUF model, read from its metadata. The model itself is not loaded.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use contextpilot_tiny_model::Chat;

/// What a GGUF file begins with.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// The longest text that is read: a chat template has some kilobytes.
const LONGEST: u64 = 16 << 20;

const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// The chat template of a model's file.
///
/// # Errors
/// The file cannot be read, is damaged, or has no template.
pub(super) fn chat(path: &Path) -> Result<Chat, String> {
    let read = File::open(path).and_then(|file| Reader(BufReader::new(file)).chat());
    match read {
        Ok(Some(chat)) => Ok(chat),
        Ok(None) => Err(format!(
            "{} has no chat template: give the file of one (.jinja)",
            path.display()
        )),
        Err(e) => Err(format!("{} cannot be read: {e}", path.display())),
    }
}

struct Reader<R>(R);

impl<R: Read + Seek> Reader<R> {
    fn chat(&mut self) -> io::Result<Option<Chat>> {
        self.skip(4)?;
        if !(2..=3).contains(&self.u32()?) {
            return Err(damaged("it is of a version of GGUF that is not known"));
        }
        let (_tensors, pairs) = (self.u64()?, self.u64()?);
        let (mut template, mut tool_use) = (None, None);
        let (mut bos, mut eos) = (None, None);
        let mut tokens = Vec::new();
        for _ in 0..pairs {
            let key = self.string()?;
            let kind = self.u32()?;
            match (&*key, kind) {
                ("tokenizer.chat_template", STRING) => template = Some(self.string()?),
                ("tokenizer.chat_template.tool_use", STRING) => tool_use = Some(self.string()?),
                ("tokenizer.ggml.bos_token_id", 4) => bos = Some(self.u32()?),
                ("tokenizer.ggml.eos_token_id", 4) => eos = Some(self.u32()?),
                ("tokenizer.ggml.tokens", ARRAY) => tokens = self.strings()?,
                _ => self.value(kind)?,
            }
        }
        let text = |id: Option<u32>| tokens.get(id? as usize).cloned();
        Ok(template.map(|template| {
            let usual = Chat::new(template);
            Chat {
                tool_use,
                bos: text(bos).unwrap_or_else(|| usual.bos.clone()),
                eos: text(eos).unwrap_or_else(|| usual.eos.clone()),
                ..usual
            }
        }))
    }

    fn strings(&mut self) -> io::Result<Vec<String>> {
        let kind = self.u32()?;
        let count = self.u64()?;
        if kind != STRING {
            return Err(damaged("its tokens are no texts"));
        }
        (0..count).map(|_| self.string()).collect()
    }

    /// Passes over a value.
    fn value(&mut self, kind: u32) -> io::Result<()> {
        match kind {
            STRING => {
                let length = self.u64()?;
                self.skip(length)
            }
            ARRAY => {
                let kind = self.u32()?;
                let count = self.u64()?;
                match size(kind) {
                    Some(size) => self.skip(count.saturating_mul(size)),
                    None if kind == STRING => (0..count).try_for_each(|_| self.value(kind)),
                    None => Err(damaged("it has a list of what is not known")),
                }
            }
            kind => match size(kind) {
                Some(size) => self.skip(size),
                None => Err(damaged("it has a value of a type that is not known")),
            },
        }
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let bytes = i64::try_from(bytes).map_err(|_| damaged("a length is too large"))?;
        self.0.seek_relative(bytes)
    }

    fn string(&mut self) -> io::Result<String> {
        let length = self.u64()?;
        if length > LONGEST {
            return Err(damaged("a text in it is too long"));
        }
        let mut bytes = vec![0; length as usize];
        self.0.read_exact(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn u32(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.0.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// The bytes of a number of this type.
fn size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | BOOL => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use contextpilot_tiny_model::{Arch, Spec, write_with};

    use super::*;

    #[test]
    fn the_template_and_its_tokens_are_read_from_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let given = Chat {
            tool_use: Some("with tools".to_owned()),
            bos: "<|begin|>".to_owned(),
            eos: "<|end|>".to_owned(),
            ..Chat::new("no tools")
        };
        write_with(&path, &Spec::new(Arch::Llama), &given).unwrap();
        assert_eq!(chat(&path).unwrap(), given);

        // One token for both, as some models have it.
        let both = Chat {
            bos: "<|end|>".to_owned(),
            ..given
        };
        write_with(&path, &Spec::new(Arch::Llama), &both).unwrap();
        assert_eq!(chat(&path).unwrap(), both);

        let whole = std::fs::read(&path).unwrap();
        for length in [4, 8, 30, 200, 2000] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(chat(&path).is_err(), "{length}");
        }
    }
}
