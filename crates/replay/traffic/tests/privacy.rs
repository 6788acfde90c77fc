//! What a recording gives away, and to whom.
//!
//! A reader of a file guesses a prompt. With the file's key the guess can be tested. Without the
//! key it must not be testable: had another prompt been sent that has the same length and shares as
//! much with the others, the file would be the same outside its hashes. The hashes are values of a
//! pseudorandom function, so they say nothing without the key.

use contextpilot_traffic::{
    BLOCK, ChangeKind, Key, Recorded, RequestRecord, SlotChange, Writer, read,
};

/// Two prompts that share a system prompt. The first one's question is `secret`.
fn traffic(secret: &[i32]) -> Vec<Vec<i32>> {
    let system: Vec<i32> = (0..150).map(|nth| 40 + nth % 60).collect();
    let other: Vec<i32> = (0..90).map(|nth| 9000 + nth).collect();
    [secret, &other]
        .map(|question| [&system, question].concat())
        .to_vec()
}

fn secret() -> Vec<i32> {
    (0..100).map(|nth| 500 + 7 * nth).collect()
}

/// Another text of the same length as the secret. Like the secret it repeats nothing.
fn decoy() -> Vec<i32> {
    (0..100).map(|nth| 20_000 + 11 * nth).collect()
}

fn record(key: [u8; 16], keep: bool, prompts: &[Vec<i32>]) -> Vec<u8> {
    let (mut writer, mut file) = Writer::new(Key::new(key), keep, 1 << 20);
    for prompt in prompts {
        let record = RequestRecord {
            prompt: prompt.len() as u32,
            ..RequestRecord::default()
        };
        let Recorded::Bytes(bytes) = writer.request(record, prompt, None) else {
            panic!("there is room");
        };
        file.extend(bytes);
    }
    // A slot is restored to tokens that no prompt had.
    let change = SlotChange {
        order: prompts.len() as u64,
        at: 5,
        slot: 0,
        media: Vec::new(),
        kind: ChangeKind::Restored,
    };
    let Recorded::Bytes(bytes) = writer.change(&change, &restored(&prompts[0])) else {
        panic!("there is room");
    };
    file.extend(bytes);
    file
}

/// What the slot is restored to: a prompt backwards.
fn restored(prompt: &[i32]) -> Vec<i32> {
    prompt.iter().rev().copied().collect()
}

fn hashes(key: [u8; 16], prompt: &[i32]) -> Vec<[u8; 8]> {
    let blocks = Key::new(key).blocks(prompt);
    blocks.into_iter().map(u64::to_le_bytes).collect()
}

fn contains(file: &[u8], bytes: &[u8]) -> bool {
    file.windows(bytes.len()).any(|window| window == bytes)
}

/// The file with zeros in place of the hashes and of all checksums, which cover the hashes.
fn without_hashes(key: [u8; 16], prompts: &[Vec<i32>], mut file: Vec<u8>) -> Vec<u8> {
    let restored = restored(&prompts[0]);
    let all = prompts.iter().chain(std::iter::once(&restored));
    for hash in all.flat_map(|prompt| hashes(key, prompt)) {
        for at in 0..file.len() - 8 {
            if file[at..at + 8] == hash {
                file[at..at + 8].fill(0);
            }
        }
    }
    let mut at = 10;
    while let Some(length) = file.get(at + 1..at + 5) {
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        at += 5 + length;
        file[at..at + 4].fill(0);
        at += 4;
    }
    file
}

#[test]
fn without_the_key_a_guessed_prompt_cannot_be_tested() {
    let key = [0x5a; 16];
    let (sent, not_sent) = (traffic(&secret()), traffic(&decoy()));
    let (file, other) = (record(key, false, &sent), record(key, false, &not_sent));
    assert_ne!(file, other, "hashes differ");
    assert_eq!(
        without_hashes(key, &sent, file.clone()),
        without_hashes(key, &not_sent, other),
        "nothing else differs"
    );
    assert!(!contains(&file, &key), "the key is not in the file");
    // Hashes of the guess under other keys: none of them is in the file.
    let (guess, public) = (&sent[0], [[0; 16], [0xff; 16], [1; 16]]);
    for guessed in public.iter().flat_map(|key| hashes(*key, guess)) {
        assert!(!contains(&file, &guessed));
    }
    // No two successive tokens are in the file as plain numbers, in either order.
    let backwards = restored(&secret());
    for pair in secret().windows(2).chain(backwards.windows(2)) {
        let plain: Vec<u8> = pair.iter().flat_map(|token| token.to_le_bytes()).collect();
        assert!(!contains(&file, &plain));
    }
}

#[test]
fn with_the_key_a_guessed_prompt_can_be_tested() {
    let key = [0x5a; 16];
    let sent = traffic(&secret());
    let file = record(key, true, &sent);
    let kept = read(&file).key.expect("it was asked for");
    assert_eq!(kept, Key::new(key));
    let (ours, others) = (hashes(key, &sent[0]), hashes(key, &traffic(&decoy())[0]));
    assert!(ours.iter().all(|hash| contains(&file, hash)));
    // The decoy begins with the same system prompt, which fills two whole blocks.
    let shared = 150 / BLOCK;
    assert!(!others[shared..].iter().any(|hash| contains(&file, hash)));
}

#[test]
fn the_same_prompts_under_another_key_have_other_hashes() {
    let sent = traffic(&secret());
    let (one, other) = (record([1; 16], false, &sent), record([2; 16], false, &sent));
    assert!(
        hashes([1; 16], &sent[0])
            .iter()
            .all(|hash| contains(&one, hash))
    );
    assert!(
        !hashes([1; 16], &sent[0])
            .iter()
            .any(|hash| contains(&other, hash))
    );
}
