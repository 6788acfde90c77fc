//! The content of a server's slots, from the files that the server saves.

use std::collections::BTreeSet;

use contextpilot_kv_events::block_hash;
use contextpilot_testbed::{Error, Result, Server};
use serde_json::json;

const FILE: &str = "what-it-holds.bin";

/// The tokens of each slot, up to the first image. `None` if the server refuses to save a slot, as some
/// do if it has an image.
pub(crate) fn contents(server: &Server) -> Result<Option<Vec<Vec<i32>>>> {
    let mut all = Vec::new();
    for slot in 0..server.slots()? {
        let path = format!("/slots/{slot}?action=save");
        let response = server.post(&path, &json!({"filename": FILE}))?;
        if response.status != 200 {
            return Ok(None);
        }
        let file = server.folder().join(FILE);
        all.push(tokens(&std::fs::read(file)?)?);
    }
    Ok(Some(all))
}

/// `llama_state_seq_save_file`: magic, version, number of tokens, tokens; 32 bits each. Since 2026
/// the tokens are packed (`server_tokens`): -1, version, number of tokens, tokens, and what is
/// known of images.
fn tokens(bytes: &[u8]) -> Result<Vec<i32>> {
    let mut words = bytes.chunks_exact(4);
    let mut next = || {
        let word = words.next().and_then(|word| word.try_into().ok());
        word.map(i32::from_le_bytes)
    };
    let magic = next().map(i32::to_be_bytes);
    if magic.as_ref().map(|magic| &magic[..]) != Some(b"ggsq") {
        return Err(Error::new(format!("no file of a slot: {magic:?}")));
    }
    let _version = next();
    let count = next().unwrap_or(0);
    let all = (0..count).map(|_| next().ok_or_else(|| Error::new("the file of a slot is cut")));
    let all = all.collect::<Result<Vec<i32>>>()?;
    let mut tokens = match all[..] {
        [-1, _, count, ref rest @ ..] => rest.iter().take(count as usize).copied().collect(),
        _ => all,
    };
    let text = tokens.iter().take_while(|&&token| token >= 0).count();
    tokens.truncate(text);
    Ok(tokens)
}

/// The hashes of all full blocks of these contents.
pub(crate) fn names(contents: &[Vec<i32>], block: usize) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    for content in contents {
        let mut above = None;
        for tokens in content.chunks_exact(block) {
            let tokens: Vec<u32> = tokens.iter().map(|token| token.unsigned_abs()).collect();
            let name = block_hash(above, &tokens, None);
            all.insert(name);
            above = Some(name);
        }
    }
    all
}

/// How many full blocks two lists have in common.
pub(crate) fn common_blocks(one: &[i32], other: &[i32], block: usize) -> usize {
    common(one, other) / block
}

/// How many tokens they have in common.
pub(crate) fn common(one: &[i32], other: &[i32]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
