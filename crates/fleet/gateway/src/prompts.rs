//! The prompts of a request, as llama-server reads them (`tokenize_input_prompts`).

use serde_json::Value;

/// A prompt to tokenize.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Token ids already.
    Tokens(Vec<Value>),
    /// A text, or a list of texts and token ids.
    Text(Value),
}

/// Why there is no prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPrompt {
    /// It is missing, or of no known form.
    Malformed,
    /// It has images or sounds.
    Media,
}

/// All prompts of a completion request.
pub(crate) fn of_completion(body: &Value) -> Result<Vec<Prompt>, NoPrompt> {
    match body.get("prompt") {
        Some(Value::Array(parts)) => {
            // Texts alone are a prompt each.
            let single = parts.iter().any(Value::is_u64) && parts.iter().all(is_part);
            if single || parts.is_empty() {
                return read_prompt(&Value::from(parts.clone())).map(|prompt| vec![prompt]);
            }
            parts.iter().map(read_prompt).collect()
        }
        Some(prompt) => read_prompt(prompt).map(|prompt| vec![prompt]),
        None => Err(NoPrompt::Malformed),
    }
}

fn read_prompt(prompt: &Value) -> Result<Prompt, NoPrompt> {
    match prompt {
        Value::String(_) => Ok(Prompt::Text(prompt.clone())),
        Value::Array(parts) if !parts.is_empty() && parts.iter().all(is_part) => {
            if parts.iter().all(Value::is_u64) {
                Ok(Prompt::Tokens(parts.clone()))
            } else {
                Ok(Prompt::Text(prompt.clone()))
            }
        }
        Value::Object(fields) if fields.contains_key("multimodal_data") => Err(NoPrompt::Media),
        Value::Object(fields) => match fields.get("prompt_string") {
            Some(text @ Value::String(_)) => Ok(Prompt::Text(text.clone())),
            _ => Err(NoPrompt::Malformed),
        },
        _ => Err(NoPrompt::Malformed),
    }
}

fn is_part(part: &Value) -> bool {
    part.is_u64() || part.is_string()
}

/// Whether the messages of a chat have more than text in them.
pub(crate) fn has_media(body: &Value) -> bool {
    let messages = body.get("messages").and_then(Value::as_array);
    let contents = messages
        .into_iter()
        .flatten()
        .map(|message| &message["content"]);
    let parts = contents.filter_map(Value::as_array).flatten();
    let mut kinds = parts.filter_map(|part| part.get("type")?.as_str());
    kinds.any(|kind| !matches!(kind, "text" | "refusal"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(prompt: Value) -> Result<Vec<Prompt>, NoPrompt> {
        of_completion(&json!({ "prompt": prompt }))
    }

    fn text(text: &str) -> Prompt {
        Prompt::Text(text.into())
    }

    fn tokens(tokens: &[u32]) -> Prompt {
        Prompt::Tokens(tokens.iter().map(|&token| token.into()).collect())
    }

    #[test]
    fn prompts_are_read_as_the_server_reads_them() {
        assert_eq!(read(json!("a")), Ok(vec![text("a")]));
        assert_eq!(read(json!([1, 2])), Ok(vec![tokens(&[1, 2])]));
        assert_eq!(read(json!(["a", "b"])), Ok(vec![text("a"), text("b")]));
        assert_eq!(
            read(json!([1, "a"])),
            Ok(vec![Prompt::Text(json!([1, "a"]))])
        );
        assert_eq!(
            read(json!([[1], "a", ["b", 2]])),
            Ok(vec![tokens(&[1]), text("a"), Prompt::Text(json!(["b", 2]))])
        );
        assert_eq!(read(json!({"prompt_string": "a"})), Ok(vec![text("a")]));
    }

    #[test]
    fn a_value_that_is_not_a_prompt_is_refused() {
        for prompt in [
            json!(null),
            json!(1),
            json!([]),
            json!([[]]),
            json!([-1]),
            json!([1.5]),
        ] {
            assert_eq!(read(prompt.clone()), Err(NoPrompt::Malformed), "{prompt}");
        }
        assert_eq!(of_completion(&json!({})), Err(NoPrompt::Malformed));
        let image = json!({"prompt_string": "a", "multimodal_data": ["…"]});
        assert_eq!(read(image.clone()), Err(NoPrompt::Media));
        assert_eq!(read(json!(["a", image])), Err(NoPrompt::Media));
    }

    #[test]
    fn media_in_messages_are_found() {
        let chat = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
        assert!(!has_media(&chat(json!("a"))));
        assert!(!has_media(&chat(json!([{"type": "text", "text": "a"}]))));
        assert!(!has_media(&json!({})));
        let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]);
        assert!(has_media(&chat(image)));
    }
}
