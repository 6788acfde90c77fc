//! What a slot holds.

use std::sync::Arc;

use contextpilot_traffic::Tokens;

/// The first `length` tokens of a row. Several contents may share a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    row: Arc<Tokens>,
    length: u32,
}

impl Content {
    pub(crate) fn new(row: Arc<Tokens>, length: u32) -> Self {
        let length = length.min(row.len());
        Self { row, length }
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
    pub(crate) fn common_prefix(&self, other: &Self) -> u32 {
        let least = self.length.min(other.length);
        if Arc::ptr_eq(&self.row, &other.row) {
            least
        } else {
            self.row.common_prefix(&other.row).min(least)
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
