//! The engine's token counts at the end of an answer.

use serde_json::Value;

/// Token counts of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Reused from the cache (`cache_n`).
    pub reused: u64,
    /// Tokens of the whole prompt, if the answer has that.
    pub prompt: Option<u64>,
}

/// Finds them in the end of an answer of llama-server's, JSON or a stream of events: its
/// `timings`, or the counts of the OpenAI and Anthropic routes. Quotes inside of texts are
/// escaped, so that what a model writes is not taken for them.
#[must_use]
pub fn timings(tail: &[u8]) -> Option<Timings> {
    let tail = String::from_utf8_lossy(tail);
    let own = last_object(&tail, "\"timings\":").and_then(|timings| {
        let reused = timings["cache_n"].as_u64()?;
        let evaluated = timings["prompt_n"].as_u64();
        Some(Timings {
            reused,
            prompt: evaluated.map(|evaluated| reused + evaluated),
        })
    });
    own.or_else(|| {
        let usage = last_object(&tail, "\"usage\":")?;
        let openai = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        Some(match openai {
            Some(reused) => Timings {
                reused,
                prompt: usage["prompt_tokens"].as_u64(),
            },
            None => {
                let reused = usage["cache_read_input_tokens"].as_u64()?;
                let evaluated = usage["input_tokens"].as_u64();
                Timings {
                    reused,
                    prompt: evaluated.map(|evaluated| reused + evaluated),
                }
            }
        })
    })
}

/// The last complete value after a key.
fn last_object(text: &str, key: &str) -> Option<Value> {
    text.rmatch_indices(key).find_map(|(at, _)| {
        let rest = &text[at + key.len()..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        values.next()?.ok().filter(Value::is_object)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_every_kind_of_answer() {
        let of = |text: &str| timings(text.as_bytes()).map(|it| (it.reused, it.prompt));
        let own = r#"{"content":"say \"timings\":{\"cache_n\":7}","timings":{"cache_n":5,"prompt_n":3,"x":[1]},"a":1}"#;
        assert_eq!(of(own), Some((5, Some(8))));
        let openai = r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        assert_eq!(of(openai), Some((4, Some(9))));
        let anthropic = r#"{"usage": {"input_tokens":2,"cache_read_input_tokens":3}}"#;
        assert_eq!(of(anthropic), Some((3, Some(5))));
        let stream = "data: {\"timings\":{\"cache_n\":1,\"prompt_n\":2}}\n\ndata: {\"timings\":{\"cache_n\":3,\"prompt_n\":2}}\n\ndata: [DONE]\n\n";
        assert_eq!(of(stream), Some((3, Some(5))));
        assert_eq!(of("{\"error\":{}}"), None);
        assert_eq!(of("\"timings\":{\"cache_n\":3"), None);
        assert_eq!(of(""), None);
    }
}
