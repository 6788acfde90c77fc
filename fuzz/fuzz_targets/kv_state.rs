//! Whatever bytes are said to be the state of a sequence: they are refused, or they are understood to
//! the last byte, and are the same after they were taken apart and put together.
#![no_main]

use contextpilot_kv_store::{LayoutError, State, prove};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(state) = State::read(input) else {
        return;
    };
    let layout = state.layout();
    assert_eq!(layout.state_size(state.tokens()), input.len());
    let mut rows = Vec::new();
    match state.positions() {
        Some(all) => {
            assert_eq!(all.len(), state.tokens());
            for position in all.clone() {
                assert!(state.extract(position..position + 1, &mut rows));
            }
            assert_eq!(rows.len(), layout.bytes_per_token() * all.len());
            assert!(!state.extract(all.start..all.end + 1, &mut rows));
            assert_eq!(prove(input).as_ref(), Ok(layout));
        }
        None => {
            assert!(!state.extract(0..1, &mut rows));
            assert_eq!(prove(input), Err(LayoutError::Positions));
        }
    }
});
