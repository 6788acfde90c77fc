//! A context: the documents of one prompt.

use serde_json::{Value, json};

use crate::Answer;
use crate::block::Key;

/// A context as it was sent.
#[derive(Debug, Default)]
pub struct Context {
    pub(crate) values: Vec<Value>,
    pub(crate) keys: Vec<Key>,
}

impl Context {
    /// Reads a list at a path of the body.
    ///
    /// # Errors
    /// 422 for a block that is neither a text nor a number.
    pub(crate) fn parse(list: &[Value], path: &[Value]) -> Result<Self, Box<Answer>> {
        let keys = list.iter().enumerate().map(|(at, value)| {
            Key::of(value).ok_or_else(|| {
                let mut path = path.to_vec();
                path.push(json!(at));
                let message =
                    "Input should be a valid string or number: give documents as text or ids";
                Box::new(Answer::invalid("block_type", path, message, value))
            })
        });
        Ok(Self {
            keys: keys.collect::<Result<_, _>>()?,
            values: list.to_vec(),
        })
    }
}
