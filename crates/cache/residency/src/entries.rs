//! The entries of a batch.

use std::fmt;
use std::ops::Deref;

use crate::ids::SequenceId;
use crate::token::{Position, Token};

/// One entry of a batch that was handed to the engine for evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The sequence that the entry belongs to. An entry of several sequences is listed once for
    /// each.
    pub sequence: SequenceId,
    /// The position in that sequence.
    pub position: Position,
    /// The token.
    pub token: Token,
    /// Whether the output (logits or embeddings) of this token is asked for.
    pub output: bool,
}

/// The entries of a batch, in its order. Reads as a slice.
///
/// A batch of one entry is stored without an allocation. A slot that generates submits such a batch
/// for each token, and the memory would be allocated on the server's thread and released on another
/// one.
#[derive(Clone)]
pub struct Entries(Repr);

#[derive(Clone)]
enum Repr {
    One(Entry),
    /// Any other number, also none.
    Many(Vec<Entry>),
}

impl Deref for Entries {
    type Target = [Entry];

    fn deref(&self) -> &[Entry] {
        match &self.0 {
            Repr::One(entry) => std::slice::from_ref(entry),
            Repr::Many(entries) => entries,
        }
    }
}

impl From<&[Entry]> for Entries {
    fn from(entries: &[Entry]) -> Self {
        Self(match entries {
            [entry] => Repr::One(*entry),
            _ => Repr::Many(entries.to_vec()),
        })
    }
}

impl From<Entry> for Entries {
    #[inline]
    fn from(entry: Entry) -> Self {
        Self(Repr::One(entry))
    }
}

impl From<Vec<Entry>> for Entries {
    fn from(entries: Vec<Entry>) -> Self {
        match entries[..] {
            [entry] => Self(Repr::One(entry)),
            _ => Self(Repr::Many(entries)),
        }
    }
}

impl FromIterator<Entry> for Entries {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        Vec::from_iter(entries).into()
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Entries {}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContextId, Event};

    fn entry(position: i32) -> Entry {
        Entry {
            sequence: 0,
            position,
            token: 7,
            output: true,
        }
    }

    #[test]
    fn one_entry_is_stored_without_an_allocation() {
        let copied = Entries::from(&[entry(3)][..]);
        let given = Entries::from(vec![entry(3)]);
        let only = Entries::from(entry(3));
        for entries in [&copied, &given, &only] {
            assert!(matches!(entries.0, Repr::One(_)));
        }
        assert_eq!(copied, given);
        assert_eq!(copied, only);
        assert_eq!(*copied, [entry(3)]);
        assert_eq!(format!("{copied:?}"), format!("{:?}", [entry(3)]));
    }

    #[test]
    fn several_entries_keep_their_order() {
        let several: Entries = (0..3).map(entry).collect();
        assert_eq!(several, Entries::from(&[entry(0), entry(1), entry(2)][..]));
        assert_ne!(several, Entries::from(&[entry(0)][..]));
        assert!(Entries::from(&[][..]).is_empty());
    }

    #[test]
    fn an_event_with_entries_is_no_larger_than_one_with_a_vector() {
        assert_eq!(size_of::<Entries>(), size_of::<Vec<Entry>>());
        let submitted = Event::Submitted {
            context: ContextId(1),
            entries: Entries::from(&[entry(0)][..]),
        };
        assert!(size_of_val(&submitted) <= 48);
    }
}
