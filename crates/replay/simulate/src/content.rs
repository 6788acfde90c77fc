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
    /// Of a row that was not recorded.
    pub(crate) fn new(row: Arc<Tokens>, length: u32) -> Self {
        Self::placed(row, length, None)
    }

    /// Of the row of the request with this number in the recording.
    pub(crate) fn of_request(alike: &Alike, nth: usize, row: &Arc<Tokens>, length: u32) -> Self {
        Self::placed(Arc::clone(row), length, alike.place_of_request(nth))
    }

    /// The same of the change with this number.
    pub(crate) fn of_change(alike: &Alike, nth: usize, row: &Arc<Tokens>, length: u32) -> Self {
        Self::placed(Arc::clone(row), length, alike.place_of_change(nth))
    }

    fn placed(row: Arc<Tokens>, length: u32, place: Option<u32>) -> Self {
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

#[cfg(test)]
mod tests {
    use contextpilot_traffic::Run;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_two_contents_share_what_their_tokens_do(
            rows in prop::collection::vec((prop::collection::vec(0_u64..3, 0..9), 0_u32..10), 1..20),
            known in 0_usize..20,
        ) {
            let rows: Vec<(Arc<Tokens>, u32)> = rows.iter().map(|(identities, length)| {
                let mut row = Tokens::new();
                identities.iter().for_each(|&first| row.push(Run { first, length: 1 }));
                (Arc::new(row), *length)
            }).collect();
            let alike = Alike::of_rows(rows.iter().take(known).map(|(row, _)| row));
            for (nth, (row, upto)) in rows.iter().enumerate() {
                for (there, (other, to)) in rows.iter().enumerate() {
                    let common = row.common_prefix(other).min(*upto).min(*to);
                    let a = Content::of_request(&alike, nth, row, *upto);
                    let b = Content::of_request(&alike, there, other, *to);
                    prop_assert_eq!(a.common_prefix(&b, &alike), common);
                }
            }
        }
    }
}
