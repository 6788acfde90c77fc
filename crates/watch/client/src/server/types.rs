use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Whether a server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum Health {
    /// It answers requests.
    Ready,
    /// It runs, and loads its model.
    Loading,
    /// Nothing answers at the address.
    Unreachable {
        /// What the connection ended with.
        why: String,
    },
}

/// What `GET /props` says, as far as it concerns the cache.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Props {
    /// Number of slots; their ids are 0 to one less.
    #[serde(default)]
    pub total_slots: u32,
    /// Tokens that a slot can hold.
    #[serde(
        default,
        rename(deserialize = "default_generation_settings"),
        deserialize_with = "n_ctx"
    )]
    pub n_ctx: Option<u64>,
    /// The name under which the model is served.
    pub model_alias: Option<String>,
    /// The model's file.
    pub model_path: Option<String>,
    /// Build of llama.cpp, such as `b11669-Debian`.
    pub build_info: Option<String>,
    /// The chat template.
    pub chat_template: Option<String>,
    /// The chat template for requests with tools, if that is another one.
    pub chat_template_tool_use: Option<String>,
    /// The text of the token that a prompt begins with.
    pub bos_token: Option<String>,
    /// The text of the token that ends an answer.
    pub eos_token: Option<String>,
    /// Whether the model was unloaded because the server was idle (`--sleep-idle-seconds`).
    pub is_sleeping: Option<bool>,
}

fn n_ctx<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Value::deserialize(deserializer)?["n_ctx"].as_u64())
}

/// One slot, as `GET /slots` shows it. Fields that the server does not give are `None`: for a slot
/// that was never used it gives only a few.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Slot {
    /// Its id.
    pub id: u32,
    /// Tokens that it can hold.
    pub n_ctx: Option<u64>,
    /// Whether it works on a request.
    pub is_processing: bool,
    /// The number of the task that it works on, or worked on last.
    pub task: Option<u64>,
    /// Tokens that it holds: the prompt, and what was generated after it.
    pub tokens: Option<u64>,
    /// While it works: tokens of the prompt that had to be evaluated.
    pub evaluated: Option<u64>,
    /// While it works: tokens of the prompt that were cached.
    pub cached: Option<u64>,
    /// While it works: tokens generated so far.
    pub generated: Option<u64>,
}

impl<'de> Deserialize<'de> for Slot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let slot = Value::deserialize(deserializer)?;
        let id = slot["id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let number = |name: &str| slot[name].as_u64();
        // In servers of 2026 a list with one element, before that the element itself.
        let next = match &slot["next_token"] {
            Value::Array(list) => list.first(),
            element => Some(element),
        };
        let is_processing = slot["is_processing"] == true;
        // Afterwards they are all 0.
        let now = |number: Option<u64>| number.filter(|_| is_processing);
        Ok(Self {
            id: id.ok_or_else(|| serde::de::Error::missing_field("id"))?,
            n_ctx: number("n_ctx"),
            is_processing,
            task: number("id_task"),
            tokens: number("n_prompt_tokens"),
            evaluated: now(number("n_prompt_tokens_processed")),
            cached: now(number("n_prompt_tokens_cache")),
            generated: now(next.and_then(|next| next["n_decoded"].as_u64())),
        })
    }
}

/// The result of saving a slot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Saved {
    /// The slot.
    #[serde(rename = "id_slot")]
    pub slot: u32,
    /// The file, in the folder of `--slot-save-path`.
    #[serde(rename = "filename")]
    pub file: String,
    /// Tokens saved.
    #[serde(rename = "n_saved")]
    pub tokens: u64,
    /// Bytes written.
    #[serde(rename = "n_written")]
    pub bytes: u64,
}

/// The result of restoring a slot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Restored {
    /// The slot.
    #[serde(rename = "id_slot")]
    pub slot: u32,
    /// The file, in the folder of `--slot-save-path`.
    #[serde(rename = "filename")]
    pub file: String,
    /// Tokens restored.
    #[serde(rename = "n_restored")]
    pub tokens: u64,
    /// Bytes read.
    #[serde(rename = "n_read")]
    pub bytes: u64,
}

/// The result of erasing a slot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Erased {
    /// The slot.
    #[serde(rename = "id_slot")]
    pub slot: u32,
    /// Tokens that it held.
    #[serde(rename = "n_erased")]
    pub tokens: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_every_generation_are_read() {
        let unused = r#"{"id":1,"n_ctx":2048,"speculative":false,"is_processing":false}"#;
        let slot: Slot = serde_json::from_str(unused).expect("a slot");
        assert_eq!((slot.id, slot.n_ctx), (1, Some(2048)));
        assert_eq!((slot.tokens, slot.generated), (None, None));
        for next in [r#"[{"n_decoded":7}]"#, r#"{"n_decoded":7}"#] {
            let used = format!(
                r#"{{"id":0,"id_task":-1,"is_processing":true,"n_prompt_tokens":25,
                    "n_prompt_tokens_cache":4,"next_token":{next}}}"#
            );
            let slot: Slot = serde_json::from_str(&used).expect("a slot");
            assert!(slot.is_processing);
            assert_eq!((slot.tokens, slot.cached), (Some(25), Some(4)));
            assert_eq!((slot.generated, slot.task), (Some(7), None));
        }
        assert!(serde_json::from_str::<Slot>(r#"{"n_ctx":1}"#).is_err());
    }

    #[test]
    fn props_without_slots_are_those_of_a_router() {
        let props: Props = serde_json::from_str(r#"{"role":"router"}"#).expect("props");
        assert_eq!((props.total_slots, props.n_ctx), (0, None));
    }
}
