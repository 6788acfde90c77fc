//! A strict subscriber: it panics at every event that one of the routers would misinterpret.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use contextpilot_kv_events::{KvEvent, Medium, block_hash};
use rmp::decode;

/// The blocks of each medium: what lies above each, and the adapter of the requests that it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subscriber {
    pub(crate) block: usize,
    pub(crate) on: [BTreeMap<u64, Block>; Medium::ALL.len()],
}

/// See [`Subscriber`].
type Block = (Option<u64>, Option<Arc<str>>);

impl Subscriber {
    pub(crate) fn new(block: usize) -> Self {
        Self {
            block,
            on: Default::default(),
        }
    }

    pub(crate) fn take(&mut self, events: &[KvEvent]) {
        for (nth, event) in events.iter().enumerate() {
            match event {
                KvEvent::Stored {
                    hashes,
                    parent,
                    tokens,
                    medium,
                    adapter,
                } => {
                    let on = &mut self.on[*medium as usize];
                    assert_eq!(tokens.len(), hashes.len() * self.block);
                    assert!(!hashes.is_empty());
                    let mut above = *parent;
                    for (&hash, tokens) in hashes.iter().zip(tokens.chunks(self.block)) {
                        let same = |above| on.get(&above).is_some_and(|block| block.1 == *adapter);
                        assert!(above.is_none_or(same), "a hole");
                        assert_eq!(hash, block_hash(above, tokens, adapter.as_deref()));
                        assert!(hash >= 1 << 32);
                        let stored = on.insert(hash, (above, adapter.clone()));
                        assert!(stored.is_none(), "stored twice");
                        above = Some(hash);
                    }
                }
                KvEvent::Removed { hashes, medium } => {
                    let on = &mut self.on[*medium as usize];
                    assert!(!hashes.is_empty());
                    for hash in hashes {
                        assert!(on.remove(hash).is_some(), "removed twice");
                        let below = on.values().any(|block| block.0 == Some(*hash));
                        assert!(!below, "removed before what lies below it");
                    }
                }
                KvEvent::Cleared => {
                    assert_eq!(nth, 0, "only at the beginning");
                    self.on = Default::default();
                }
            }
        }
    }

    /// Those that serve requests for an adapter, or for none.
    pub(crate) fn blocks(&self, medium: Medium, adapter: Option<&str>) -> BTreeSet<u64> {
        let all = self.on[medium as usize]
            .iter()
            .filter(|(_, block)| block.1.as_deref() == adapter);
        all.map(|(hash, _)| *hash).collect()
    }
}

/// The events of a batch, read as a router does.
pub(crate) fn read(payload: &[u8]) -> Vec<KvEvent> {
    let mut bytes = payload;
    let bytes = &mut bytes;
    assert_eq!(decode::read_array_len(bytes).expect("a batch"), 3);
    assert!(decode::read_f64(bytes).expect("a time") >= 0.0);
    let count = decode::read_array_len(bytes).expect("events");
    let events = (0..count).map(|_| event(bytes)).collect();
    assert_eq!(decode::read_int::<u64, _>(bytes).expect("a rank"), 0);
    assert!(bytes.is_empty(), "nothing follows");
    events
}

fn event(bytes: &mut &[u8]) -> KvEvent {
    let fields = decode::read_map_len(bytes).expect("an event");
    let (mut kind, mut medium) = (String::new(), None);
    let (mut hashes, mut tokens, mut parent) = (Vec::new(), Vec::new(), None);
    let mut adapter = None;
    for _ in 0..fields {
        match &*text(bytes) {
            "type" => kind = text(bytes),
            "medium" => {
                let name = text(bytes);
                medium = Medium::ALL
                    .into_iter()
                    .find(|medium| medium.as_str() == name);
                assert!(medium.is_some(), "{name}");
            }
            "block_hashes" => {
                let count = decode::read_array_len(bytes).expect("an array");
                let hash = |_| decode::read_u64(bytes).expect("a hash is written as cf");
                hashes = (0..count).map(hash).collect();
            }
            "token_ids" => {
                let count = decode::read_array_len(bytes).expect("an array");
                let token = |_| decode::read_int(bytes).expect("a token");
                tokens = (0..count).map(token).collect();
            }
            "parent_block_hash" => {
                parent = (bytes[0] != 0xc0).then(|| decode::read_u64(bytes).expect("a hash"));
                if parent.is_none() {
                    decode::read_nil(bytes).expect("nil");
                }
            }
            "block_size" => {
                let size: usize = decode::read_int(bytes).expect("a size");
                assert_eq!(hashes.len() * size, tokens.len());
            }
            "lora_id" => decode::read_nil(bytes).expect("nil"),
            "lora_name" if bytes[0] == 0xc0 => decode::read_nil(bytes).expect("nil"),
            "lora_name" => adapter = Some(text(bytes).into()),
            name => panic!("{name}"),
        }
    }
    match &*kind {
        "BlockStored" => KvEvent::Stored {
            hashes,
            parent,
            tokens,
            medium: medium.expect("a medium"),
            adapter,
        },
        "BlockRemoved" => KvEvent::Removed {
            hashes,
            medium: medium.expect("a medium"),
        },
        "AllBlocksCleared" => KvEvent::Cleared,
        _ => panic!("{kind}"),
    }
}

fn text(bytes: &mut &[u8]) -> String {
    let length = decode::read_str_len(bytes).expect("a text") as usize;
    let (text, rest) = bytes.split_at(length);
    *bytes = rest;
    String::from_utf8(text.to_vec()).expect("UTF-8")
}
