//! Reads and checks members of a JSON object.

use serde_json::{Map, Value, json};

use crate::IndexAnswer;

/// The members of a request.
pub(crate) struct Members<'a> {
    body: &'a Value,
    members: &'a Map<String, Value>,
}

type Read<T> = Result<T, Box<IndexAnswer>>;

impl<'a> Members<'a> {
    pub(crate) fn from_body(body: &'a Value) -> Read<Self> {
        match body {
            Value::Object(members) => Ok(Self { body, members }),
            other => Err(Box::new(IndexAnswer::invalid(
                "model_attributes_type",
                Vec::new(),
                "Input should be a valid dictionary: send a JSON object",
                other,
            ))),
        }
    }

    /// Absent and null are the same.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn list(&self, name: &str) -> Read<&'a [Value]> {
        match self.members.get(name) {
            None => Err(Box::new(IndexAnswer::invalid(
                "missing",
                vec![json!(name)],
                "Field required",
                self.body,
            ))),
            Some(Value::Array(list)) => Ok(list),
            Some(other) => Err(not_a_list(vec![json!(name)], other)),
        }
    }

    pub(crate) fn strings(&self, name: &str) -> Read<Vec<String>> {
        let list = self.list(name)?.iter().enumerate();
        list.map(|(at, value)| match value {
            Value::String(text) => Ok(text.clone()),
            other => Err(not_a_string(vec![json!(name), json!(at)], other)),
        })
        .collect()
    }

    /// A list of strings and nulls; empty if there is none.
    pub(crate) fn optional_strings(&self, name: &str) -> Read<Vec<Option<String>>> {
        if self.get(name).is_none() {
            return Ok(Vec::new());
        }
        let list = self.list(name)?.iter().enumerate();
        list.map(|(at, value)| match value {
            Value::String(text) => Ok(Some(text.clone())),
            Value::Null => Ok(None),
            other => Err(not_a_string(vec![json!(name), json!(at)], other)),
        })
        .collect()
    }

    pub(crate) fn string(&self, name: &str) -> Read<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(not_a_string(vec![json!(name)], other)),
        }
    }

    pub(crate) fn number(&self, name: &str, default: f64) -> Read<f64> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        value.as_f64().ok_or_else(|| {
            let message = "Input should be a valid number";
            Box::new(IndexAnswer::invalid(
                "float_type",
                vec![json!(name)],
                message,
                value,
            ))
        })
    }

    pub(crate) fn count(&self, name: &str, default: u64) -> Read<u64> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        value.as_u64().ok_or_else(|| {
            let message = "Input should be a valid integer, 0 or greater";
            Box::new(IndexAnswer::invalid(
                "int_type",
                vec![json!(name)],
                message,
                value,
            ))
        })
    }

    pub(crate) fn flag(&self, name: &str) -> Read<bool> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(Box::new(IndexAnswer::invalid(
                "bool_type",
                vec![json!(name)],
                "Input should be a valid boolean",
                other,
            ))),
        }
    }
}

pub(crate) fn not_a_list(path: Vec<Value>, input: &Value) -> Box<IndexAnswer> {
    let message = "Input should be a valid list";
    Box::new(IndexAnswer::invalid("list_type", path, message, input))
}

pub(crate) fn not_a_string(path: Vec<Value>, input: &Value) -> Box<IndexAnswer> {
    let message = "Input should be a valid string";
    Box::new(IndexAnswer::invalid("string_type", path, message, input))
}

/// A value that a field cannot have, though its type is right.
pub(crate) fn not_allowed(name: &str, message: &str, input: &str) -> Box<IndexAnswer> {
    let path = vec![json!(name)];
    Box::new(IndexAnswer::invalid(
        "value_error",
        path,
        message,
        &json!(input),
    ))
}

/// More than a call may have.
pub(crate) fn too_many(what: &str, given: usize, limit: usize) -> Box<IndexAnswer> {
    let why = format!("{given} {what}, and {limit} are allowed: send less at a time");
    Box::new(IndexAnswer::error(413, &why))
}
