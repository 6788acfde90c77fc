//! The ledger against its naive double with runs as long as they really are:
//! sequences of thousands of tokens, in blocks of equal ones.

use naive::{Generator, Pair, Random};

#[allow(dead_code, unused_imports, reason = "the fuzz target uses the rest")]
mod naive;

/// Tokens in a block, at most. A slot holds some twenty blocks, a run of the
/// tree 1,024 tokens.
const BLOCK: u32 = 700;

#[test]
fn the_ledger_agrees_with_the_naive_one_on_sequences_of_many_tree_nodes() {
    let mut longest = 0;
    for seed in 0..120 {
        let mut pair = Pair::default();
        let mut generator = Generator::from_bytes(&[seed as u8], BLOCK);
        let outcome = pair.run(&mut Random(seed), &mut generator, 150, |ledger| {
            longest = longest.max(ledger.held(0));
        });
        if let Err(difference) = outcome {
            panic!("seed {seed}: {difference}");
        }
    }
    assert!(longest > 8 * 1024, "sequences were short: {longest}");
}
