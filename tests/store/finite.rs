//! Rows with values that are no numbers: one such chunk, with right sums, spoiled the answers of all clients.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use contextpilot_kv_files::{Folder, Writer};
use contextpilot_kv_store::{Chunk, Name};
use contextpilot_testbed::{Arch, Builder, Model, Request, Server, Spec, chunk_files};
use serde_json::Value;

use super::moved::companion;
use super::{Stored, folder, started, tokens};

fn four_slots(arch: Arch) -> Builder {
    Server::builder()
        .model(&Model::tiny(arch))
        .bare_slots(4)
        .args(["-c", "8192"])
}

/// Writes these chunks again, with the same value that is no number in the last of their rows, and with right sums: as a
/// program that can write there, or a device that had a fault when it evaluated them.
fn plant(folder: &Path, is_it: impl Fn(&Chunk) -> bool, value: &[u8]) -> Vec<Chunk> {
    let folder = Folder::open(folder).unwrap();
    let writer = Writer::start(folder.clone(), u64::MAX, || (), || false).unwrap();
    let mut rows = Vec::new();
    let headers = folder.headers().unwrap().map(|header| header.chunk);
    let chunks: Vec<Chunk> = headers.filter(is_it).collect();
    assert!(!chunks.is_empty());
    for chunk in &chunks {
        folder.read(&chunk.name, chunk.bytes, &mut rows).unwrap();
        // Behind the rows of windows there are words for other streams.
        let end = rows.len() - 16;
        for place in rows[end - 64..end].chunks_exact_mut(value.len()) {
            place.copy_from_slice(value);
        }
        writer.write(chunk, Arc::new(rows.clone())).unwrap();
    }
    assert!(writer.flush(Duration::from_secs(60)));
    chunks
}

/// The chunks that continue each other from the beginning of this prompt on.
fn of_prompt(folder: &Path, prompt: &[u32]) -> HashSet<Name> {
    let headers = Folder::open(folder).unwrap().headers().unwrap();
    let mut all: Vec<Chunk> = headers.map(|header| header.chunk).collect();
    all.sort_by_key(|chunk| chunk.start);
    let mut of = HashSet::new();
    for chunk in all {
        let begins = || {
            let pairs = chunk.tokens.iter().zip(prompt);
            chunk.start == 0 && pairs.take(8).all(|(one, other)| *one == *other as i32)
        };
        if begins() || chunk.parent.is_some_and(|(parent, _)| of.contains(&parent)) {
            of.insert(chunk.name);
        }
    }
    of
}

fn asking(prompt: &[u32], slot: u32) -> Request {
    Request::completion(Value::from(prompt))
        .predict(8)
        .slot(slot)
}

/// What plain servers say, and what one says that has the store, of nine clients that share nothing with the first but their
/// slots' memory.
fn must_answer_as_ever(
    slots: &Builder,
    what: &str,
    planted: impl Fn(&Chunk) -> bool,
    value: &[u8],
) {
    let folder = folder();
    let prompts: Vec<Vec<u32>> = (0..9).map(|seed| tokens(300 + seed, 600)).collect();
    let mut first = Stored::start(slots, folder.path());
    for (slot, prompt) in (0..4).cycle().zip(&prompts) {
        first.send(asking(prompt, slot));
    }
    first.end();
    let of_first = of_prompt(folder.path(), &prompts[0]);
    let is_it = |chunk: &Chunk| planted(chunk) && of_first.contains(&chunk.name);
    let bad = plant(folder.path(), is_it, value);

    let plain = started(slots);
    for life in 0..2 {
        let mut next = Stored::start(slots, folder.path());
        for (slot, prompt) in (0..4).cycle().zip(&prompts) {
            let (ours, account) = next.send(asking(prompt, slot));
            let theirs = plain.complete(&asking(prompt, slot)).unwrap();
            assert_eq!(ours.content, theirs.content, "{what} {life}: {account:?}");
        }
        let figures = next.figures();
        let said = figures.problem.as_deref().unwrap_or_default();
        assert_eq!(said.contains("no numbers"), life == 0, "{figures:?}");
        next.end();
    }
    // What was not wanted again is still there.
    companion(folder.path(), &["verify"]);
    let opened = Folder::open(folder.path()).unwrap();
    let mut rows = Vec::new();
    for chunk in bad {
        if opened.read(&chunk.name, chunk.bytes, &mut rows).is_ok() {
            assert!(
                !rows[..rows.len() - 16].ends_with(&value.repeat(4)),
                "{what}"
            );
        }
    }
}

#[test]
fn a_chunk_that_is_no_numbers_spoils_no_answer() {
    let f16 = [0x00, 0x7e];
    let slots = four_slots(Arch::Llama);
    must_answer_as_ever(&slots, "f16", |chunk| chunk.start == 256, &f16);
    must_answer_as_ever(&slots, "f16", |chunk| chunk.start == 0, &[0x00, 0x7c]);
}

/// Of whatever the rows are made; of quantised ones the scales.
#[test]
fn neither_does_one_of_other_values() {
    let f16 = [0x00, 0x7e];
    for (kind, value) in [
        ("f32", &f32::INFINITY.to_le_bytes()[..]),
        ("bf16", &[0xc0, 0x7f]),
        ("q8_0", &f16),
        ("q5_1", &f16),
    ] {
        // Quantised rows are of 32 values, and the tiny model's heads of 16.
        let model = if kind.starts_with('q') {
            Model::of(&Spec {
                layers: 1,
                width: 512,
                ..Spec::new(Arch::Llama)
            })
        } else {
            Model::tiny(Arch::Llama)
        };
        let slots = four_slots(Arch::Llama).model(&model);
        let slots = slots.args(["-ctk", kind, "-ctv", kind, "-fa", "on"]);
        must_answer_as_ever(&slots, kind, |chunk| chunk.start == 256, value);
    }
}

/// Where rows go from the files into the engine, some are there before one is seen that is no number.
#[test]
fn neither_does_one_that_goes_straight_into_the_engine() {
    let slots = four_slots(Arch::Llama).env("CONTEXTPILOT_FAULT", "straight:1");
    must_answer_as_ever(
        &slots,
        "straight",
        |chunk| chunk.start == 256,
        &[0x00, 0x7e],
    );
}

#[test]
fn neither_does_what_a_model_remembers_that_cannot_go_back() {
    let f32 = f32::NAN.to_le_bytes();
    for (arch, value) in [
        (Arch::Mamba, &f32[..]),
        (Arch::Jamba, &f32),
        (Arch::Gemma2, &[0x00, 0x7e]),
    ] {
        let slots = four_slots(arch);
        must_answer_as_ever(&slots, &arch.to_string(), Chunk::is_tail, value);
    }
}

/// A chunk in the middle of a prompt: what continues it goes, what is before it and beside it stays.
#[test]
fn a_store_that_has_some_is_cleaned_with_what_continues_it() {
    let folder = folder();
    let prompts = [tokens(310, 900), tokens(311, 900)];
    let mut first = Stored::start(&four_slots(Arch::Llama), folder.path());
    for (slot, prompt) in (0..4).zip(&prompts) {
        first.send(asking(prompt, slot));
    }
    first.end();
    let of_first = of_prompt(folder.path(), &prompts[0]);
    let is_it = |chunk: &Chunk| chunk.start == 256 && of_first.contains(&chunk.name);
    plant(folder.path(), is_it, &[0x00, 0x7e]);
    let before = chunk_files(folder.path()).len();
    let output = companion(folder.path(), &["verify", "--json"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["damaged"], of_first.len() - 1, "{said}");
    assert_eq!(said["good"], before - of_first.len() + 1, "{said}");
    let lines = String::from_utf8(output.stderr).unwrap();
    let continuing = lines.matches("continues rows with values that are no numbers");
    assert_eq!(continuing.count(), of_first.len() - 2, "{lines}");
    let mut next = Stored::start(&four_slots(Arch::Llama), folder.path());
    for (prompt, there) in prompts.iter().zip([256, 899]) {
        let (_, account) = next.send(asking(prompt, 0));
        assert_eq!(account.from.store, there, "{account:?}");
    }
}
