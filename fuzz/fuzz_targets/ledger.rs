//! On any events, the ledger agrees with the naive implementation of it.
//!
//! Each byte of an input is one decision of the generator that the tests of the
//! crate use. The ledger is built with short runs (see `RUN` in its tree), so
//! that small inputs reach across them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use naive::{Bytes, Generator, Pair};

#[allow(dead_code, unused_imports, reason = "the tests use more of it")]
#[path = "../../crates/cache/residency/tests/naive/mod.rs"]
mod naive;

/// Longer inputs show nothing that shorter ones do not, and the naive implementation is slow.
const LONGEST: usize = 400;

fuzz_target!(|input: &[u8]| {
    let mut pair = Pair::default();
    let outcome = pair.run(
        &mut Bytes(&input[..input.len().min(LONGEST)]),
        &mut Generator::from_bytes(input, 1),
        usize::MAX,
        |_| (),
    );
    if let Err(difference) = outcome {
        panic!("{difference}");
    }
});
