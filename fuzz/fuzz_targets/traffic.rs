//! Any bytes can be read as a recording, and what was read is within bounds. It can be simulated, and no token of it
//! is lost or counted twice. Checksums count as right here (`cfg(fuzzing)`).
#![no_main]

use contextpilot_simulate::{Setting, simulate};
use contextpilot_traffic::{Key, Writer, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // A valid header, so that what follows it is read.
    let (_, mut file) = Writer::new(Key::new([0; 16]), false, u64::MAX);
    file.extend(data);
    for bytes in [file.as_slice(), data] {
        let traffic = read(bytes);
        assert!(traffic.damage.is_none_or(|damage| damage.at <= bytes.len()));
        for change in &traffic.changes {
            for request in &traffic.requests {
                let common = change.tokens.common_prefix(&request.tokens);
                assert!(common <= change.tokens.len());
            }
        }
        for pair in traffic.requests.windows(2) {
            let common = pair[0].tokens.common_prefix(&pair[1].tokens);
            assert!(common <= pair[0].tokens.len().min(pair[1].tokens.len()));
            assert!(pair[0].record.prompt <= pair[0].tokens.len());
        }
        if let Some(setting) = Setting::recorded(&traffic) {
            let point = simulate(&traffic, &setting);
            assert_eq!(
                point.reused_tokens + point.loaded_tokens + point.evaluated_tokens,
                point.prompt_tokens
            );
            assert!(point.refused as usize <= traffic.requests.len());
        }
    }
});
