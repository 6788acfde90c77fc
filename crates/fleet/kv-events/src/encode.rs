//! Writes a batch as msgpack, as vLLM 0.24 writes it and llm-d reads it.
//!
//! An array of exactly three: the time, the events, the rank. Each event is a map with a `type`.
//! Hashes of blocks are always written as `uint 64`.

use rmp::encode::{self, ByteBuf};

use crate::{KvEvent, Medium};

/// A server has no parallel ranks.
const RANK: u64 = 0;

/// A batch of these events, at a time in seconds since 1970.
pub(crate) fn batch(events: &[KvEvent], time: f64, block_size: u32) -> Vec<u8> {
    let mut writer = Writer(ByteBuf::new());
    writer.array(3);
    writer.written(|bytes| encode::write_f64(bytes, time));
    writer.array(events.len());
    for event in events {
        writer.event(event, block_size);
    }
    writer.number(RANK);
    writer.0.into_vec()
}

/// Writing into memory cannot fail.
struct Writer(ByteBuf);

impl Writer {
    fn event(&mut self, event: &KvEvent, block_size: u32) {
        match event {
            KvEvent::Stored {
                hashes,
                parent,
                tokens,
                medium,
                adapter,
            } => {
                self.map(8);
                self.field("type", "BlockStored");
                self.hashes(hashes);
                self.text("parent_block_hash");
                match parent {
                    Some(parent) => self.hash(*parent),
                    None => self.nil(),
                }
                self.text("token_ids");
                self.array(tokens.len());
                for &token in tokens {
                    self.number(u64::from(token));
                }
                self.text("block_size");
                self.number(u64::from(block_size));
                self.text("lora_id");
                self.nil();
                self.medium(*medium);
                self.text("lora_name");
                match adapter {
                    Some(name) => self.text(name),
                    None => self.nil(),
                }
            }
            KvEvent::Removed { hashes, medium } => {
                self.map(3);
                self.field("type", "BlockRemoved");
                self.hashes(hashes);
                self.medium(*medium);
            }
            KvEvent::Cleared => {
                self.map(1);
                self.field("type", "AllBlocksCleared");
            }
        }
    }

    fn hashes(&mut self, hashes: &[u64]) {
        self.text("block_hashes");
        self.array(hashes.len());
        for &hash in hashes {
            self.hash(hash);
        }
    }

    fn medium(&mut self, medium: Medium) {
        self.field("medium", medium.as_str());
    }

    fn field(&mut self, name: &str, value: &str) {
        self.text(name);
        self.text(value);
    }

    fn array(&mut self, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.written(|bytes| encode::write_array_len(bytes, length));
    }

    fn map(&mut self, length: u32) {
        self.written(|bytes| encode::write_map_len(bytes, length));
    }

    fn text(&mut self, text: &str) {
        self.written(|bytes| encode::write_str(bytes, text));
    }

    fn hash(&mut self, hash: u64) {
        self.written(|bytes| encode::write_u64(bytes, hash));
    }

    fn number(&mut self, number: u64) {
        self.written(|bytes| encode::write_uint(bytes, number));
    }

    fn nil(&mut self) {
        self.written(encode::write_nil);
    }

    fn written<T, E>(&mut self, write: impl FnOnce(&mut ByteBuf) -> Result<T, E>) {
        let result = write(&mut self.0);
        debug_assert!(result.is_ok(), "memory takes what is written");
    }
}
