//! With any prompts, losses, budgets and restarts, the store does what the naive implementation does.
//!
//! An operation is six bytes. Chunks are short here (see `GRID`), so that prompts need not be long.
#![no_main]

use libfuzzer_sys::fuzz_target;
use naive::{Both, Step};

#[path = "../../crates/store/kv-store/tests/naive/mod.rs"]
mod naive;

fuzz_target!(|input: &[u8]| {
    let Some((&[limit, ..], operations)) = input.split_first_chunk::<1>() else {
        return;
    };
    let mut both = Both::new(u64::from(limit) * 4096);
    for operation in operations.chunks_exact(6) {
        let &[kind, model, like, share, more, salt] = operation else {
            return;
        };
        both.apply(&match kind % 16 {
            0 => Step::Lose(like.into()),
            1 => Step::Limit(u64::from(like) * 5),
            2 => Step::Restart {
                seed: u64::from_le_bytes([kind, model, like, share, more, salt, 1, 1]),
                without: like.into(),
            },
            _ => Step::Prompt {
                model: model % 2,
                like: like.into(),
                share: (share % 64).into(),
                more: (more % 48).into(),
                salt: (salt % 3).into(),
            },
        });
    }
    both.nothing_is_twice();
});
