//! A completion and its figures, from the answer of any endpoint.

use serde_json::Value;

use crate::{Error, Response, Result};

/// One completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The slot that worked on it. `None` for the OpenAI-like endpoints, which do not say.
    pub slot: Option<u32>,
    /// Tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were reused from the cache (`timings.cache_n`).
    pub cache_n: usize,
    /// Prompt tokens that were evaluated (`timings.prompt_n`).
    pub prompt_n: usize,
    /// The generated text.
    pub content: String,
    /// The last (or only) JSON object of the answer.
    pub raw: Value,
}

impl Completion {
    /// Reads the answer of `/completion`, `/v1/completions`, `/v1/chat/completions`, `/infill` and the
    /// like, streamed or not. There are several completions if the request had several prompts or `n`.
    ///
    /// # Errors
    /// Any status but 200, and a body that is no completion.
    pub fn all(response: &Response) -> Result<Vec<Self>> {
        let text = response.text();
        if response.status != 200 {
            return Err(Error::new(format!("status {}: {text}", response.status)));
        }
        if text.starts_with("data: ") {
            return Self::streamed(&text).map(|completion| vec![completion]);
        }
        match response.json()? {
            Value::Array(items) => items.into_iter().map(Self::one).collect(),
            item => Ok(vec![Self::one(item)?]),
        }
    }

    /// The first completion of [`Completion::all`].
    ///
    /// # Errors
    /// Those of [`Completion::all`], and an answer without a completion.
    pub fn first(response: &Response) -> Result<Self> {
        let all = Self::all(response)?;
        let first = all.into_iter().next();
        first.ok_or_else(|| Error::new("an empty list of completions"))
    }

    fn one(raw: Value) -> Result<Self> {
        let content = content(&raw).unwrap_or_default().to_owned();
        Self::with_content(raw, content)
    }

    /// Reads server-sent events: each has a piece of `content`, and the last has the figures.
    fn streamed(text: &str) -> Result<Self> {
        let mut all = String::new();
        let mut last = Value::Null;
        for event in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
            if event == "[DONE]" {
                continue;
            }
            let event: Value = serde_json::from_str(event)
                .map_err(|error| Error::new(format!("{error} in {event:?}")))?;
            all.push_str(content(&event).unwrap_or_default());
            // A chat stream may end with an event that has `usage` only.
            if !event["timings"].is_null() {
                last = event;
            }
        }
        Self::with_content(last, all)
    }

    fn with_content(raw: Value, content: String) -> Result<Self> {
        let number = |value: &Value| value.as_u64().map(|number| number as usize);
        let timings = &raw["timings"];
        let usage = &raw["usage"];
        // `/v1/messages` counts the evaluated tokens only, `/v1/responses` the whole prompt.
        let evaluated = match (
            number(&usage["input_tokens"]),
            number(&usage["input_tokens_details"]["cached_tokens"]),
        ) {
            (Some(whole), Some(cached)) => Some(whole.saturating_sub(cached)),
            (evaluated, _) => evaluated,
        };
        let prompt_n = number(&timings["prompt_n"])
            .or(evaluated)
            .ok_or_else(|| Error::new(format!("no timings in {raw}")))?;
        // Servers of 2025 say how many tokens the prompt had, but not how many of them were cached.
        // Their chat streams say how many were cached, but not how many the prompt had.
        let whole = number(&raw["tokens_evaluated"]).or(number(&raw["usage"]["prompt_tokens"]));
        let cached = number(&timings["cache_n"])
            .or(number(&usage["cache_read_input_tokens"]))
            .or(number(&usage["input_tokens_details"]["cached_tokens"]));
        let (prompt_tokens, cache_n) = match (whole, cached) {
            (Some(whole), Some(cached)) => (whole, cached),
            (Some(whole), None) => (whole, whole.saturating_sub(prompt_n)),
            (None, Some(cached)) => (cached + prompt_n, cached),
            (None, None) => return Err(Error::new(format!("no token counts in {raw}"))),
        };
        Ok(Self {
            slot: raw["id_slot"].as_u64().map(|slot| slot as u32),
            prompt_tokens,
            cache_n,
            prompt_n,
            content,
            raw,
        })
    }
}

fn content(raw: &Value) -> Option<&str> {
    let choice = &raw["choices"][0];
    [
        &raw["content"],
        &choice["text"],
        &choice["message"]["content"],
        &choice["delta"]["content"],
        &raw["content"][0]["text"],
        &raw["output"][0]["content"][0]["text"],
    ]
    .into_iter()
    .find_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Response {
        Response {
            status,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    #[test]
    fn the_answers_of_all_endpoints_are_read() {
        let native = r#"{"content":"ab","id_slot":1,"tokens_evaluated":12,
                         "timings":{"cache_n":11,"prompt_n":1}}"#;
        let old = r#"{"content":"ab","id_slot":1,"tokens_evaluated":12,
                      "timings":{"prompt_n":1}}"#;
        let chat = r#"{"choices":[{"message":{"role":"assistant","content":"ab"}}],
                       "usage":{"prompt_tokens":12},"timings":{"cache_n":11,"prompt_n":1}}"#;
        let stream = "data: {\"choices\":[{\"delta\":{\"content\":null}}]}\n\n\
                      data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
                      data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n\
                      data: {\"choices\":[{\"delta\":{}}],\"timings\":{\"cache_n\":11,\"prompt_n\":1}}\n\n\
                      data: [DONE]\n\n";
        let messages = r#"{"content":[{"type":"text","text":"ab"}],
                           "usage":{"cache_read_input_tokens":11,"input_tokens":1}}"#;
        let responses = r#"{"output":[{"content":[{"text":"ab"}]}],
                            "usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":11}}}"#;
        for body in [native, old, chat, stream, messages, responses] {
            let completion = Completion::first(&answer(200, body)).expect(body);
            let figures = (
                completion.prompt_tokens,
                completion.cache_n,
                completion.prompt_n,
            );
            assert_eq!(figures, (12, 11, 1), "{body}");
            assert_eq!(completion.content, "ab", "{body}");
        }
        let both = format!("[{native},{native}]");
        let all = Completion::all(&answer(200, &both)).expect("two");
        assert_eq!(all.len(), 2);
        assert_eq!(all[1].slot, Some(1));
    }

    #[test]
    fn an_answer_without_a_completion_is_an_error_that_shows_the_body() {
        for (status, body) in [
            (400, r#"{"error":{"message":"too long"}}"#),
            (200, r#"{"status":"ok"}"#),
            (200, "[]"),
            (200, "not JSON"),
        ] {
            let error = Completion::first(&answer(status, body)).expect_err(body);
            assert!(!error.to_string().is_empty());
        }
    }
}
