//! What a slot holds.

use std::sync::Arc;

use contextpilot_traffic::Tokens;

use crate::alike::Alike;

/// The first `length` tokens of a row. Several contents may share a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    row: Arc<Tokens>,
    length: u32,
    /// The row's place among those that were recorded. `None`: it is none of them.
    place: Option<u32>,
    /// The entry of the host prompt cache that begins with it, while that is there.
    pub(crate) in_host: Option<u64>,
}

impl Content {
    /// Of a row that was not recorded. Of others: [`Alike::of_request`].
    pub(crate) fn new(row: Arc<Tokens>, length: u32) -> Self {
        Self::placed(row, length, None)
    }

    pub(crate) fn placed(row: Arc<Tokens>, length: u32, place: Option<u32>) -> Self {
        let length = length.min(row.len());
        Self {
            row,
            length,
            place,
            in_host: None,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn row(&self) -> &Tokens {
        &self.row
    }

    /// `server_tokens::get_common_prefix`
    pub(crate) fn common_prefix(&self, other: &Self, alike: &Alike) -> u32 {
        let least = self.length.min(other.length);
        let common = match (self.place, other.place) {
            (Some(one), Some(other)) => alike.between(one, other),
            _ if Arc::ptr_eq(&self.row, &other.row) => None,
            _ => Some(self.row.common_prefix(&other.row)),
        };
        common.map_or(least, |common| common.min(least))
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
