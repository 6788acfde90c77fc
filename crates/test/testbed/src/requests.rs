//! Requests whose answers are the same every time.

use serde_json::{Value, json};

/// A request to a completion endpoint, with or without an id.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    id: Option<String>,
    path: String,
    body: Value,
}

impl Request {
    /// `POST path` with this body.
    pub fn new(path: impl Into<String>, body: Value) -> Self {
        Self {
            id: None,
            path: path.into(),
            body,
        }
    }

    /// `/completion`: a prompt, eight generated tokens, sampled without randomness.
    ///
    /// The prompt is a text, or anything else that the endpoint takes: tokens, a mixed array, several
    /// prompts.
    pub fn completion(prompt: impl Into<Value>) -> Self {
        let body = json!({
            "prompt": prompt.into(), "n_predict": 8, "temperature": 0, "seed": 1,
            "cache_prompt": true,
        });
        Self::new("/completion", body)
    }

    /// `/v1/chat/completions`: messages as (role, text), eight generated tokens, sampled without
    /// randomness.
    pub fn chat(messages: &[(&str, &str)]) -> Self {
        let messages: Vec<Value> = messages
            .iter()
            .map(|(role, content)| json!({"role": role, "content": content}))
            .collect();
        let body = json!({
            "messages": messages, "max_tokens": 8, "temperature": 0, "seed": 1,
            "cache_prompt": true,
        });
        Self::new("/v1/chat/completions", body)
    }

    /// Gives the request an id, as ContextPilot's index does.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Names the slot that must work on the request (`id_slot`).
    pub fn slot(self, slot: u32) -> Self {
        self.with("id_slot", slot)
    }

    /// Sets the number of tokens to generate. For 0, llama-server 0.7.0 generates one.
    ///
    /// # Panics
    /// If the request has no such number yet: which name it has depends on the endpoint.
    pub fn predict(mut self, tokens: u32) -> Self {
        assert!(
            self.set_predicted(tokens),
            "{} generates nothing",
            self.body
        );
        self
    }

    /// False: the request has no number of tokens to generate.
    fn set_predicted(&mut self, tokens: u32) -> bool {
        let mut is_set = false;
        for name in ["n_predict", "max_tokens"] {
            if !self.body[name].is_null() {
                self.body[name] = tokens.into();
                is_set = true;
            }
        }
        is_set
    }

    /// Asks for server-sent events.
    pub fn streamed(self) -> Self {
        self.with("stream", true)
    }

    /// Sets any field of the body.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.body[name] = value.into();
        self
    }

    /// Its id.
    pub fn request_id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Its path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its body, without the id.
    pub fn body(&self) -> &Value {
        &self.body
    }

    /// Its body as it is sent: with the id in `rid` and `request_id`, at the end of the top level,
    /// where the index puts it.
    pub fn wire_body(&self) -> String {
        let mut body = self.body.to_string();
        if let Some(id) = &self.id {
            let id = Value::from(id.as_str());
            let first = if body == "{}" { "" } else { "," };
            body.truncate(body.len() - 1);
            body.push_str(&format!("{first}\"rid\":{id},\"request_id\":{id}}}"));
        }
        body
    }

    /// Whether the endpoint honours `id_slot`. `/v1/messages` drops unknown fields, so the server
    /// chooses the slot by the longest common prefix.
    pub(crate) fn names_a_slot(&self) -> bool {
        self.path != "/v1/messages"
    }

    /// The requests that ask whether this request's prompt is cached, one for each of its prompts. They
    /// change as little as possible: no id, one generated token, one completion.
    pub(crate) fn questions(&self) -> Vec<Self> {
        let mut question = self.clone();
        question.id = None;
        if let Some(body) = question.body.as_object_mut() {
            for name in ["stream", "n", "id_slot", "n_cmpl"] {
                body.remove(name);
            }
            body.insert("cache_prompt".into(), true.into());
        }
        question.set_predicted(1);
        match self.body["prompt"].as_array() {
            Some(prompts) if several(prompts) => prompts
                .iter()
                .map(|prompt| question.clone().with("prompt", prompt.clone()))
                .collect(),
            _ => vec![question],
        }
    }

    /// The request whose prompt is this prompt with its answer, as in the next turn of a conversation.
    /// `None` if nothing can be appended.
    pub(crate) fn continued(&self, answer: &str) -> Option<Self> {
        let mut longer = self.clone();
        if let Some(messages) = longer.body["messages"].as_array_mut() {
            messages.push(json!({"role": "assistant", "content": answer}));
            return Some(longer);
        }
        match &mut longer.body["prompt"] {
            Value::String(prompt) => prompt.push_str(answer),
            Value::Array(prompt) => prompt.push(answer.into()),
            _ => return None,
        }
        Some(longer)
    }

    /// The LoRA adapters that the request names.
    pub(crate) fn adapters(&self) -> Option<&Value> {
        self.body.get("lora")
    }

    /// The same request with the LoRA adapters that another one names.
    pub(crate) fn with_adapters_of(mut self, other: &Self) -> Self {
        let adapters = other.adapters().cloned();
        if let Some(body) = self.body.as_object_mut() {
            match adapters {
                Some(adapters) => drop(body.insert("lora".into(), adapters)),
                None => drop(body.remove("lora")),
            }
        }
        self
    }

    /// Whether this prompt begins with the whole prompt of `other`, as far as can be seen without a
    /// tokenizer.
    pub(crate) fn extends(&self, other: &Self) -> bool {
        if self.path != other.path {
            return false;
        }
        let begins = |long: &[Value], short: &[Value]| long.starts_with(short);
        match (&self.body["messages"], &other.body["messages"]) {
            (Value::Array(long), Value::Array(short)) => return begins(long, short),
            (Value::Null, Value::Null) => {}
            _ => return false,
        }
        match (&self.body["prompt"], &other.body["prompt"]) {
            (Value::String(long), Value::String(short)) => long.starts_with(short.as_str()),
            (Value::Array(long), Value::Array(short)) => begins(long, short),
            _ => false,
        }
    }
}

/// Whether an array contains several prompts. An array of texts only, or with arrays, does. An array
/// with a token is one prompt, also if it is mixed with texts.
fn several(prompts: &[Value]) -> bool {
    prompts.iter().all(Value::is_string) || prompts.iter().any(Value::is_array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_sent_at_the_end_of_the_top_level() {
        let request = Request::completion("text").id("req-\"1");
        let wire = request.wire_body();
        assert!(
            wire.ends_with(r#","rid":"req-\"1","request_id":"req-\"1"}"#),
            "{wire}"
        );
        let parsed: Value = serde_json::from_str(&wire).expect("JSON");
        assert_eq!(parsed["prompt"], "text");
        assert_eq!(parsed["rid"], "req-\"1");
        let empty = Request::new("/", json!({})).id("x").wire_body();
        assert_eq!(empty, r#"{"rid":"x","request_id":"x"}"#);
        assert!(request.body()["rid"].is_null());
    }

    #[test]
    fn a_question_keeps_the_prompt_and_asks_for_one_token() {
        let request = Request::completion("text").id("a").slot(1).streamed();
        let questions = request.with("n", 2).questions();
        let expected = Request::completion("text").predict(1);
        assert_eq!(questions, [expected]);
    }

    #[test]
    fn a_request_with_several_prompts_makes_a_question_for_each() {
        let prompts = |prompt: Value| Request::completion(prompt).questions().len();
        assert_eq!(prompts(json!(["one", "two"])), 2);
        assert_eq!(prompts(json!([[1, 2], [3]])), 2);
        assert_eq!(prompts(json!([1, 2, 3])), 1);
        assert_eq!(prompts(json!([1, "two", 3])), 1);
    }

    #[test]
    fn a_continued_prompt_begins_with_the_prompt_before_it() {
        let text = Request::completion("ab");
        let longer = text.continued("cd").expect("text");
        assert_eq!(longer.body()["prompt"], "abcd");
        assert!(longer.extends(&text) && !text.extends(&longer));
        let chat = Request::chat(&[("user", "hi")]);
        let longer = chat.continued("ho").expect("chat");
        assert!(longer.extends(&chat) && !longer.extends(&text));
        let tokens = Request::completion(vec![1, 2]);
        let longer = tokens.continued("cd").expect("tokens");
        assert_eq!(longer.body()["prompt"], json!([1, 2, "cd"]));
        assert!(longer.extends(&tokens));
    }
}
