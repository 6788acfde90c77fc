//! A context: the documents of one prompt.

use serde_json::{Value, json};

use crate::block::Key;
use crate::validate::too_many;
use crate::{IndexAnswer, Limits};

/// A context as it was sent.
#[derive(Debug, Default)]
pub struct Context {
    pub(crate) values: Vec<Value>,
    pub(crate) keys: Vec<Key>,
}

impl Context {
    /// Reads a list at a path of the body. Its values are taken from there later ([`Context::take`]).
    ///
    /// # Errors
    /// 422 for a block that is neither a text nor a number, 413 for too many of them.
    pub(crate) fn parse(
        list: &[Value],
        path: &[Value],
        limits: &Limits,
    ) -> Result<Self, Box<IndexAnswer>> {
        let most = limits.blocks_in_context;
        if list.len() > most {
            return Err(too_many("documents in one context", list.len(), most));
        }
        let keys = list.iter().enumerate().map(|(at, value)| {
            Key::from_value(value).ok_or_else(|| {
                let mut path = path.to_vec();
                path.push(json!(at));
                let message =
                    "Input should be a valid string or number: give documents as text or ids";
                Box::new(IndexAnswer::invalid("block_type", path, message, value))
            })
        });
        Ok(Self {
            keys: keys.collect::<Result<_, _>>()?,
            values: Vec::new(),
        })
    }

    /// Takes the values out of the list that it was read from.
    pub(crate) fn take(&mut self, list: &mut Value) {
        if let Value::Array(list) = list.take() {
            self.values = list;
        }
    }
}
