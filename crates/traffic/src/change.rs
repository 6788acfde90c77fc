//! What befalls slots beside the requests that they serve.

use crate::bytes::{Bytes, put};
use crate::record::Applied;
use crate::row::Row;

/// A slot holds something else, or was used, without a prompt having been evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotChange {
    /// Launches before it: requests of this order and of higher ones come later.
    pub order: u64,
    /// Microseconds since the recording began.
    pub at: u64,
    /// The slot.
    pub slot: u32,
    /// Where media begin and end in what it holds since.
    pub media: Vec<(u32, u32)>,
    /// What happened.
    pub kind: ChangeKind,
}

/// What happened to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was emptied (`POST /slots/N?action=erase`), or could not be restored.
    Erased,
    /// It has what a file had (`POST /slots/N?action=restore`).
    Restored,
    /// It was chosen for a request that was refused.
    Refused(Refusal),
}

/// A request that was refused when a slot had been chosen for it: its prompt is too long, say. It
/// is not known what its prompt was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The slot that the client asked for.
    pub id_slot: Option<u32>,
    /// The server compares its LoRA adapters with those of the slot: it names some.
    pub names_adapters: bool,
    /// The adapters that it would have worked under.
    pub adapters: Applied,
    /// The slot never took it on: its adapters cannot be applied together, say.
    pub declined: bool,
    /// What the slot had was saved to the host cache for it.
    pub saved: bool,
    /// What the slot holds since was loaded from the host cache for it.
    pub loaded: bool,
}

const ERASED: u64 = 0;
const RESTORED: u64 = 1;
const REFUSED: u64 = 2;

impl SlotChange {
    /// `row`: what the slot holds since. `next`: the identity that its first new token gets.
    pub(crate) fn encode(&self, row: &Row, next: u64) -> Vec<u8> {
        let mut into = Vec::new();
        row.encode(next, &mut into);
        for number in [self.order, self.at, u64::from(self.slot)] {
            put(&mut into, number);
        }
        put(&mut into, self.media.len() as u64);
        for &(begin, end) in &self.media {
            put(&mut into, u64::from(begin));
            put(&mut into, u64::from(end));
        }
        let refusal = match self.kind {
            ChangeKind::Erased => {
                put(&mut into, ERASED);
                return into;
            }
            ChangeKind::Restored => {
                put(&mut into, RESTORED);
                return into;
            }
            ChangeKind::Refused(refusal) => refusal,
        };
        let flags = u64::from(refusal.names_adapters)
            | u64::from(refusal.adapters.enabled) << 1
            | u64::from(refusal.adapters.invoked) << 2
            | u64::from(refusal.declined) << 3
            | u64::from(refusal.saved) << 4
            | u64::from(refusal.loaded) << 5;
        for number in [
            REFUSED,
            refusal.id_slot.map_or(0, |slot| u64::from(slot) + 1),
            flags,
            refusal.adapters.hash,
        ] {
            put(&mut into, number);
        }
        into
    }

    /// The tokens come first, as they count for all that follows: also those of a change of a kind that
    /// this reader does not know, which is left out.
    pub(crate) fn decode(body: &[u8], next: u64) -> Option<(Row, Option<Self>)> {
        let mut bytes = Bytes(body);
        let row = Row::decode(&mut bytes, next)?;
        let (order, at, slot) = (bytes.number()?, bytes.number()?, bytes.small()?);
        let mut media = Vec::new();
        for _ in 0..bytes.count()? {
            media.push((bytes.small()?, bytes.small()?));
        }
        let kind = match bytes.number()? {
            ERASED => ChangeKind::Erased,
            RESTORED => ChangeKind::Restored,
            REFUSED => {
                let id_slot = bytes.small()?.checked_sub(1);
                let flags = bytes.number()?;
                ChangeKind::Refused(Refusal {
                    id_slot,
                    names_adapters: flags & 1 != 0,
                    adapters: Applied {
                        hash: bytes.number()?,
                        enabled: flags & 2 != 0,
                        invoked: flags & 4 != 0,
                    },
                    declined: flags & 8 != 0,
                    saved: flags & 16 != 0,
                    loaded: flags & 32 != 0,
                })
            }
            _ => return Some((row, None)),
        };
        let change = Self {
            order,
            at,
            slot,
            media,
            kind,
        };
        Some((row, Some(change)))
    }
}
