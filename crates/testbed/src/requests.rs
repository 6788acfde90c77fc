//! Requests that give the same answer every time.

use serde_json::{Value, json};

/// A request to a completion endpoint, with or without an id.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    id: Option<String>,
    path: String,
    body: Value,
}

impl Request {
    /// `POST path` with a body of your own.
    pub fn new(path: impl Into<String>, body: Value) -> Self {
        Self {
            id: None,
            path: path.into(),
            body,
        }
    }

    /// `/completion`: a prompt, eight tokens, no chance.
    ///
    /// The prompt is a text, or whatever else the endpoint takes: tokens, a
    /// mixed array, several prompts.
    pub fn completion(prompt: impl Into<Value>) -> Self {
        let body = json!({
            "prompt": prompt.into(), "n_predict": 8, "temperature": 0, "seed": 1,
            "cache_prompt": true,
        });
        Self::new("/completion", body)
    }

    /// `/v1/chat/completions`: messages as (role, text), eight tokens, no chance.
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

    /// The id that the index gave it.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The slot that shall work on it.
    pub fn slot(self, slot: u32) -> Self {
        self.with("id_slot", slot)
    }

    /// The number of tokens to generate. llama-server 0.7.0 makes one of 0.
    pub fn predict(mut self, tokens: u32) -> Self {
        for name in ["n_predict", "max_tokens"] {
            if !self.body[name].is_null() {
                self.body[name] = tokens.into();
            }
        }
        self
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

    /// Its body as it is sent: the id stands in `rid` and `request_id` at the
    /// end of the top level, where the index puts it.
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

    /// Whether the endpoint honours `id_slot`. `/v1/messages` drops what it does
    /// not know; the engine's own choice goes by the longest common prefix there.
    pub(crate) fn names_a_slot(&self) -> bool {
        self.path != "/v1/messages"
    }

    /// The requests that ask for the KV of this one's prompt and change as
    /// little as possible: no id, one token, one completion. A request with
    /// several prompts is asked about prompt by prompt.
    pub(crate) fn questions(&self) -> Vec<Self> {
        let mut question = self.clone();
        question.id = None;
        if let Some(body) = question.body.as_object_mut() {
            for name in ["stream", "n", "id_slot", "n_cmpl"] {
                body.remove(name);
            }
            body.insert("cache_prompt".into(), true.into());
        }
        let question = question.predict(1);
        match self.body["prompt"].as_array() {
            Some(prompts) if several(prompts) => prompts
                .iter()
                .map(|prompt| question.clone().with("prompt", prompt.clone()))
                .collect(),
            _ => vec![question],
        }
    }

    /// The question whose prompt goes on with the answer, as the next turn of a
    /// conversation would. `None` where nothing can be appended.
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

    /// The LoRA adapters that it names.
    pub(crate) fn adapters(&self) -> Option<&Value> {
        self.body.get("lora")
    }

    /// The same for the LoRA adapters of another.
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

    /// Whether this one's prompt begins with the whole of `other`'s, as far as
    /// can be seen without a tokenizer.
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

/// Whether an array is several prompts rather than one made of tokens. Texts
/// and tokens mixed are one prompt; all texts, or arrays, are several.
fn several(prompts: &[Value]) -> bool {
    prompts.iter().all(Value::is_string) || prompts.iter().any(Value::is_array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stands_where_the_index_puts_it() {
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
    fn questions_change_nothing_that_matters() {
        let request = Request::completion("text").id("a").slot(1).streamed();
        let questions = request.with("n", 2).questions();
        let expected = Request::completion("text").predict(1);
        assert_eq!(questions, [expected]);
    }

    #[test]
    fn several_prompts_are_several_questions() {
        let prompts = |prompt: Value| Request::completion(prompt).questions().len();
        assert_eq!(prompts(json!(["one", "two"])), 2);
        assert_eq!(prompts(json!([[1, 2], [3]])), 2);
        assert_eq!(prompts(json!([1, 2, 3])), 1);
        assert_eq!(prompts(json!([1, "two", 3])), 1);
    }

    #[test]
    fn continuations_extend() {
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
