//! Requests with text.

use serde_json::Value;

use super::{Damaged, Fields, Format, Reader, Text, Time, micros, tokens};
use crate::trace::NewRequest;

impl Reader {
    pub(super) fn text(&mut self, mut fields: Fields, format: Format) -> Result<Text, Damaged> {
        for name in ["request", "body"] {
            let within = match name {
                "request" => fields.request.take(),
                _ => fields.body.take(),
            };
            let Some(mut within) = within else { continue };
            let mut take = |key: &str| within.get_mut(key).map(Value::take);
            fields.messages = fields.messages.or_else(|| take("messages"));
            fields.prompt = fields.prompt.or_else(|| take("prompt"));
            fields.input = fields.input.or_else(|| take("input"));
            fields.tools = fields.tools.or_else(|| take("tools"));
        }
        let messages = fields.messages.or(fields.input);
        // The Responses API may have a text there.
        let (messages, prompt) = match (messages, fields.prompt) {
            (Some(Value::String(text)), _) => (None, text),
            (Some(messages @ Value::Array(_)), _) => {
                let text = self.plain(&messages);
                (Some(messages), text)
            }
            (None, Some(Value::String(text))) => (None, text),
            (None, Some(Value::Array(parts))) if parts.iter().all(Value::is_string) => {
                let parts = parts.iter().filter_map(Value::as_str);
                (None, parts.collect())
            }
            _ => {
                return Err(Damaged::new(
                    "its prompt or its messages are neither text nor a list",
                ));
            }
        };
        let answered = fields.usage.as_ref().or_else(|| {
            let response = fields.response.as_ref()?;
            let usage = response.get("usage");
            usage.or_else(|| response.get("body")?.get("usage"))
        });
        let answered = answered.and_then(|usage| {
            let keys = ["completion_tokens", "output_tokens"];
            keys.iter().find_map(|key| usage.get(key)?.as_u64())
        });
        let output = fields.output_length.or(answered).unwrap_or(0);
        let output = tokens("output_length", output)?;
        let (session, at, after) = match format {
            Format::LmCache => {
                let gap = fields.pre_gap.or(fields.delay).unwrap_or(0.0);
                let gap = micros("pre_gap", gap, 1e6)?;
                let session = match fields.session_id {
                    Some(name) => self.named(name.0)?,
                    None => self.next_session()?,
                };
                let (at, after) = self.behind_last(session, gap, output);
                (Some(session), at, after)
            }
            _ => {
                let named = fields.session_id.or(fields.user);
                let session = named.map(|name| self.named(name.0)).transpose()?;
                let times = [fields.timestamp, fields.created_at, fields.created];
                let time = times.into_iter().flatten().find_map(|Time(time)| time);
                // What is far behind 1970 in seconds is in milliseconds.
                let unit = |time| if time > 1e11 { 1e3 } else { 1e6 };
                (session, self.moment(time, unit)?, None)
            }
        };
        self.requests += 1;
        Ok(Text {
            messages,
            tools: fields.tools,
            prompt,
            request: NewRequest {
                at,
                session,
                output,
                after,
                ..NewRequest::default()
            },
        })
    }

    /// When a request comes that waits for the last answer of its session, and how many requests before it that one is.
    fn behind_last(&mut self, session: u32, gap: u64, output: u32) -> (u64, Option<(u32, u32)>) {
        let wanted = session as usize + 1;
        if self.lasts.len() < wanted {
            self.lasts.resize(wanted, (u64::MAX, 0));
        }
        let (last, end) = self.lasts[session as usize];
        let pause = u32::try_from(gap / 1000).unwrap_or(u32::MAX);
        let (at, after) = match last {
            u64::MAX => (0, None),
            last => {
                let back = u32::try_from(self.requests - last).unwrap_or(u32::MAX);
                (end.saturating_add(gap), Some((back, pause)))
            }
        };
        let took = u64::from(output).saturating_mul(crate::trace::TOKEN);
        self.lasts[session as usize] = (self.requests, at.saturating_add(took));
        (at, after)
    }

    /// Messages as plain text: roles, and what was said.
    fn plain(&mut self, messages: &Value) -> String {
        let mut text = String::new();
        for message in messages.as_array().into_iter().flatten() {
            let role = message.get("role").and_then(Value::as_str).unwrap_or("");
            text += role;
            text.push('\n');
            match message.get("content") {
                Some(Value::String(content)) => text += content,
                Some(Value::Array(parts)) => {
                    for part in parts {
                        let said = part.get("text").or_else(|| part.get("content"));
                        match said.and_then(Value::as_str) {
                            Some(said) => text += said,
                            None if part.is_string() => text += part.as_str().unwrap_or(""),
                            None => self.left_out.media += 1,
                        }
                    }
                }
                _ => {}
            }
            if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
                text += &calls.to_string();
            }
            text.push('\n');
        }
        text
    }
}
