//! The data of a report, which may be long: its lists are kept as text.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// What a report says.
pub(super) struct Data {
    pub(super) values: Value,
    /// Lists that are long, as text.
    lists: BTreeMap<&'static str, Vec<u8>>,
}

impl From<Value> for Data {
    fn from(values: Value) -> Self {
        Self {
            values,
            lists: BTreeMap::new(),
        }
    }
}

impl Data {
    pub(super) fn add(&mut self, name: &'static str, list: &impl Serialize) -> Result<(), String> {
        self.lists.insert(name, text_of(list)?);
        Ok(())
    }

    /// As JSON, in the order of the names.
    pub(super) fn text(&self) -> Result<Vec<u8>, String> {
        let members = self.values.as_object().into_iter().flatten();
        let values = members.map(|(name, value)| Ok((name.as_str(), Cow::Owned(text_of(value)?))));
        let mut all = values.collect::<Result<BTreeMap<_, _>, String>>()?;
        let lists = self.lists.iter();
        all.extend(lists.map(|(&name, list)| (name, Cow::Borrowed(&**list))));
        let mut text = Vec::new();
        for (name, part) in all {
            text.push(if text.is_empty() { b'{' } else { b',' });
            text.extend(text_of(&name)?);
            text.push(b':');
            text.extend_from_slice(&part);
        }
        text.push(b'}');
        Ok(text)
    }
}

fn text_of(value: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(value).map_err(|e| e.to_string())
}
