//! The store against a second, naive implementation, with random operations.

mod naive;

use naive::{Both, Step};
use proptest::prelude::*;

fn step() -> impl Strategy<Value = Step> {
    let prompt = (0_u8..2, any::<usize>(), 0_u16..1000, 0_u16..700, 0_i32..3).prop_map(
        |(model, like, share, more, salt)| Step::Prompt {
            model,
            like,
            share,
            more,
            salt,
        },
    );
    prop_oneof![
        12 => prompt,
        1 => any::<usize>().prop_map(Step::Lose),
        1 => (0_u64..1500).prop_map(Step::Limit),
        1 => (any::<u64>(), any::<usize>()).prop_map(|(seed, without)| Step::Restart { seed, without }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_the_list_does(limit in 1_u64..4_000_000, steps in prop::collection::vec(step(), 1..40)) {
        let mut both = Both::new(limit);
        for step in &steps {
            both.apply(step);
        }
        both.nothing_is_twice();
    }
}
