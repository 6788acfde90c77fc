//! The engine's token counts at the end of an answer.

use serde_json::Value;

/// No prompt has more tokens. A larger number is no count, and sums of some would overflow.
const MOST: u64 = 1 << 32;

/// How many places of an answer are looked at, from its end.
const PLACES: usize = 16;

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
    let counts = |reused: u64, prompt: Option<u64>| Timings {
        reused: reused.min(MOST),
        prompt: prompt.map(|prompt| prompt.min(MOST)),
    };
    let own = last_object(&tail, "\"timings\":").and_then(|timings| {
        let reused = timings["cache_n"].as_u64()?;
        let evaluated = timings["prompt_n"].as_u64();
        Some(counts(
            reused,
            evaluated.map(|it| reused.saturating_add(it)),
        ))
    });
    own.or_else(|| {
        let usage = last_object(&tail, "\"usage\":")?;
        let openai = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        Some(match openai {
            Some(reused) => counts(reused, usage["prompt_tokens"].as_u64()),
            None => {
                let reused = usage["cache_read_input_tokens"].as_u64()?;
                let evaluated = usage["input_tokens"].as_u64();
                counts(reused, evaluated.map(|it| reused.saturating_add(it)))
            }
        })
    })
}

/// The last complete object after a key.
fn last_object(text: &str, key: &str) -> Option<Value> {
    text.rmatch_indices(key).take(PLACES).find_map(|(at, _)| {
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

    #[test]
    fn counts_that_no_prompt_has_do_not_overflow() {
        let of = |text: &str| timings(text.as_bytes()).expect("counts");
        let large = format!(
            r#"{{"timings":{{"cache_n":{0},"prompt_n":{0}}}}}"#,
            u64::MAX
        );
        assert_eq!(of(&large).prompt, Some(MOST));
        let usage = format!(
            r#"{{"usage":{{"input_tokens":{0},"cache_read_input_tokens":{0}}}}}"#,
            u64::MAX
        );
        assert_eq!(of(&usage).reused, MOST);
    }
}
