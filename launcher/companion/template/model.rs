//! The chat template of a GGUF model.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use contextpilot_tiny_model::Chat;

use crate::companion::gguf::{Value, metadata};

const TEMPLATE: &str = "tokenizer.chat_template";
const TOOL_USE: &str = "tokenizer.chat_template.tool_use";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const TOKENS: &str = "tokenizer.ggml.tokens";

/// The chat template of a model's file.
///
/// # Errors
/// The file cannot be read, is damaged, or has no template.
pub(super) fn chat(path: &Path) -> Result<Chat, String> {
    match read(path) {
        Ok(Some(chat)) => Ok(chat),
        Ok(None) => Err("it has no chat template: give the file of one (.jinja)".to_owned()),
        Err(e) => Err(format!("it cannot be read: {e}")),
    }
}

fn read(path: &Path) -> io::Result<Option<Chat>> {
    let wanted = |name: &str| [TEMPLATE, TOOL_USE, BOS, EOS, TOKENS].contains(&name);
    let mut values = metadata(BufReader::new(File::open(path)?), wanted)?;
    let tokens = match values.remove(TOKENS) {
        Some(Value::Texts(tokens)) => tokens,
        Some(_) => {
            let why = "its tokens are no texts";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        None => Vec::new(),
    };
    let token = |name: &str| match values.get(name) {
        Some(Value::Number(id)) => tokens.get(usize::try_from(*id).ok()?).cloned(),
        _ => None,
    };
    let (bos, eos) = (token(BOS), token(EOS));
    let mut text = |name: &str| match values.remove(name) {
        Some(Value::Text(text)) => Some(text),
        _ => None,
    };
    Ok(text(TEMPLATE).map(|template| {
        let usual = Chat::new(template);
        Chat {
            tool_use: text(TOOL_USE),
            bos: bos.unwrap_or_else(|| usual.bos.clone()),
            eos: eos.unwrap_or_else(|| usual.eos.clone()),
            ..usual
        }
    }))
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
