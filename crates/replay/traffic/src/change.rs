//! Changes of slots other than by the requests that they serve.

use crate::bytes::{Bytes, put};
use crate::record::{Applied, LATEST, MOST_LAUNCHES};
use crate::row::Row;

/// A slot changed, or was chosen for a request, and no prompt was evaluated in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotChange {
    /// The number of launches before this change. Requests whose
    /// [`order`](crate::RequestRecord::order) is this or higher come after it.
    pub order: u64,
    /// Microseconds since the recording began.
    pub at: u64,
    /// The slot.
    pub slot: u32,
    /// Media in what the slot holds after the change: the tokens `[begin, end)` of each.
    pub media: Vec<(u32, u32)>,
    /// What happened.
    pub kind: ChangeKind,
}

/// What happened to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The slot was emptied (`POST /slots/N?action=erase`), or a restore failed.
    Erased,
    /// The slot was restored from a state file (`POST /slots/N?action=restore`).
    Restored,
    /// The slot was chosen for a request that was refused.
    Refused(Refusal),
    /// The context was freed and made anew (`--sleep-idle-seconds`): all slots lost their content, and the host prompt
    /// cache its entries.
    Slept,
    /// The process ended, and a later one went on with the model: a llama-server in router mode stopped it. All slots lost
    /// their content, and the host prompt cache its entries. `models`: how many models the router had started until then, if
    /// it started another one meanwhile, which took this one's place (`--models-max`). 0: it started none, so a client
    /// unloaded the model.
    Swapped {
        /// Models.
        models: u32,
    },
}

/// A request that was refused after a slot had been chosen for it, for example because its prompt is
/// too long. Its prompt is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The slot that the client asked for.
    pub id_slot: Option<u32>,
    /// The server compares the request's LoRA adapters with those of the slot: the request names some,
    /// or the server compares those of every request.
    pub names_adapters: bool,
    /// The adapters that the request would have been evaluated with.
    pub adapters: Applied,
    /// The launch itself failed (`launch_slot_with_task` returned false), for example because the
    /// adapters cannot be applied together.
    pub declined: bool,
    /// Before the launch, the slot's content was saved to the host prompt cache.
    pub saved: bool,
    /// Before the launch, an entry of the host prompt cache was loaded into the slot.
    pub loaded: bool,
}

const ERASED: u64 = 0;
const RESTORED: u64 = 1;
const REFUSED: u64 = 2;
const SLEPT: u64 = 3;
const SWAPPED: u64 = 4;

impl SlotChange {
    /// `row`: what the slot holds after the change. `next`: the identity of the row's first new token.
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
            ChangeKind::Slept => {
                put(&mut into, SLEPT);
                return into;
            }
            ChangeKind::Swapped { models } => {
                put(&mut into, SWAPPED);
                put(&mut into, u64::from(models));
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

    /// The row comes first, because its new tokens take part in the numbering of all later ones. So it
    /// is returned even where the change itself is of an unknown kind and left out (`None`).
    pub(crate) fn decode(body: &[u8], next: u64, version: u16) -> Option<(Row, Option<Self>)> {
        let mut bytes = Bytes(body);
        let row = Row::decode(&mut bytes, next, version)?;
        let (order, at, slot) = (bytes.number()?, bytes.number()?, bytes.small()?);
        if at > LATEST || order > MOST_LAUNCHES {
            return None;
        }
        let mut media = Vec::new();
        for _ in 0..bytes.count()? {
            media.push((bytes.small()?, bytes.small()?));
        }
        let kind = match bytes.number()? {
            ERASED => ChangeKind::Erased,
            RESTORED => ChangeKind::Restored,
            SLEPT => ChangeKind::Slept,
            SWAPPED => ChangeKind::Swapped {
                models: bytes.small()?,
            },
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
