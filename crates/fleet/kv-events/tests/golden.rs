//! The bytes of batches. llm-d refuses a whole batch for one of these: not exactly three parts, a
//! parent of 0, a hash below 2³², an unknown event.

use contextpilot_kv_events::{Feed, KvEvent, Medium};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text of up to 31 bytes in msgpack.
fn text(text: &str) -> String {
    assert!(text.len() < 32);
    format!("{:02x}{}", 0xa0 + text.len(), hex(text.as_bytes()))
}

#[test]
fn a_batch_has_the_bytes_that_vllm_writes() {
    let mut feed = Feed::new(2, 7);
    let events = [
        KvEvent::Cleared,
        KvEvent::Stored {
            hashes: vec![0x1_0000_0000, u64::MAX],
            parent: None,
            tokens: vec![1, 127, 128, 151_644],
            medium: Medium::Gpu,
            adapter: None,
        },
        KvEvent::Stored {
            hashes: vec![0x2_0000_0000],
            parent: Some(u64::MAX),
            tokens: vec![0, 65_536],
            medium: Medium::Cpu,
            adapter: Some("sql".into()),
        },
        KvEvent::Removed {
            hashes: vec![u64::MAX],
            medium: Medium::Gpu,
        },
    ];
    let batch = feed.batch(&events, 1.5);
    assert_eq!(batch.sequence, 7);
    let expected = [
        // Three: the time, four events, the rank.
        "93cb3ff800000000000094".to_owned(),
        // {"type": "AllBlocksCleared"}
        format!("81{}{}", text("type"), text("AllBlocksCleared")),
        format!("88{}{}", text("type"), text("BlockStored")),
        format!(
            "{}92cf0000000100000000cfffffffffffffffff",
            text("block_hashes")
        ),
        format!("{}c0", text("parent_block_hash")),
        format!("{}94017fcc80ce0002505c", text("token_ids")),
        format!("{}02", text("block_size")),
        format!("{}c0", text("lora_id")),
        format!("{}{}", text("medium"), text("GPU")),
        format!("{}c0", text("lora_name")),
        format!("88{}{}", text("type"), text("BlockStored")),
        format!("{}91cf0000000200000000", text("block_hashes")),
        format!("{}cfffffffffffffffff", text("parent_block_hash")),
        format!("{}9200ce00010000", text("token_ids")),
        format!("{}02", text("block_size")),
        format!("{}c0", text("lora_id")),
        format!("{}{}", text("medium"), text("CPU")),
        // vLLM's number of an adapter is its own affair: routers go by the name.
        format!("{}{}", text("lora_name"), text("sql")),
        format!("83{}{}", text("type"), text("BlockRemoved")),
        format!("{}91cfffffffffffffffff", text("block_hashes")),
        format!("{}{}", text("medium"), text("GPU")),
        "00".to_owned(),
    ];
    assert_eq!(hex(&batch.payload), expected.concat());
}

#[test]
fn a_heartbeat_is_an_empty_batch() {
    let mut feed = Feed::new(16, 0);
    let batch = feed.batch(&[], 0.0);
    assert_eq!(batch.sequence, 0);
    assert_eq!(hex(&batch.payload), "93cb00000000000000009000");
    assert_eq!(feed.batch(&[], 0.0).sequence, 1);
}
