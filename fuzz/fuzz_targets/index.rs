//! Whatever lines are sent to the index, it does not panic and does not answer with a 500. Contexts are
//! answered as permutations of what was asked, and the bounds hold.
#![no_main]

use contextpilot_index::{
    Endpoint, Found, Index, IndexAnswer, Limits, Mode, Next, Outcome, Query, Truth, timings,
};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// The first byte of a line selects the path.
const PATHS: [&str; 9] = [
    "/reorder",
    "/build",
    "/schedule",
    "/deduplicate",
    "/evict",
    "/reset",
    "/search",
    "/insert",
    "/stats",
];

const LIMITS: Limits = Limits {
    body: 4096,
    evict_body: 4096,
    bodies: 1 << 20,
    contexts: 16,
    blocks_in_context: 32,
    blocks_in_call: 64,
    ids_in_call: 24,
    hint: 64,
    requests: 12,
    blocks: 40,
    kept: 24 << 10,
    guessed: 6,
    turns: 8,
};

fuzz_target!(|data: &[u8]| {
    let mut index = Index::new(Mode::Live, LIMITS);
    let mut ids = 0_u64;
    for line in data.split(|byte| *byte == b'\n') {
        let Some((&first, body)) = line.split_first() else {
            continue;
        };
        match first {
            // Not requests: how the index learns what is cached, and events of the engine.
            b'!' => index.set_truth(Truth::Engine),
            b'?' => index.set_truth(Truth::Guess),
            b'=' => index.set_store(!index.has_store()),
            b'~' => index.other_process(),
            b'+' | b'-' | b'_' | b'|' | b'>' | b'<' => {
                let number = body.first().copied().unwrap_or(0) % 16;
                let id = format!("req-{number:012x}");
                match first {
                    b'+' => index.cached(&id, body.len() as u64 * 7),
                    b'-' => index.evicted(&id),
                    b'_' => index.left_engine(&id),
                    b'|' => index.left_with_process(&id),
                    b'>' => index.moved_to_host(&[id], 50),
                    _ => {
                        index.restored(std::slice::from_ref(&id));
                        if let Some(timings) = timings(body) {
                            index.completed(&id, timings);
                        }
                    }
                }
            }
            _ => {
                let path = PATHS[usize::from(first) % PATHS.len()];
                let answer = ask(&mut index, path, body, &mut ids);
                assert_ne!(answer.status, 500, "{path}: {}", answer.body);
                if answer.status == 200 && path != "/insert" {
                    check(&answer.body, body);
                }
            }
        }
        assert!(index.ids().len() <= LIMITS.requests);
        index.wishes();
    }
});

fn ask(index: &mut Index, path: &str, body: &[u8], ids: &mut u64) -> IndexAnswer {
    let method = if path == "/stats" { "GET" } else { "POST" };
    let Ok(Some(endpoint)) = Endpoint::find(method, path) else {
        panic!("{path} is the index's");
    };
    let query = match Query::parse(endpoint, body, index.limits()) {
        Ok(query) => query,
        Err(answer) => return answer,
    };
    let mut new_id = || {
        *ids += 1;
        format!("req-{:012x}", *ids % 16)
    };
    let mut work = match index.answer(query, 0.0, &mut new_id) {
        Outcome::Answer(answer) | Outcome::Emptied(answer, _) => return answer,
        Outcome::Work(work) => work,
    };
    loop {
        match work.next() {
            Next::State => index.proceed(&mut work, &mut new_id),
            Next::Alone => work.compute(),
            Next::Answer => break,
        }
    }
    let mut asked = 0;
    while let Some(question) = work.question() {
        let found = Found {
            tokens: question.tokens * u64::from(*ids % 3 > 0),
            reused: question.common / 2,
            loaded: (*ids % 5 > 0).then_some(question.common % 9),
            kept: (*ids % 7 == 0).then_some((question.common, *ids)),
        };
        index.answered(&mut work, found);
        asked += 1;
        assert!(asked <= 4, "questions end");
    }
    work.answer()
}

/// Checks that each context is answered once, with all of its blocks.
fn check(answer: &Value, body: &[u8]) {
    let (Some(ordered), Some(places)) = (
        answer["reordered_contexts"].as_array(),
        answer["original_indices"].as_array(),
    ) else {
        return;
    };
    let asked: Value = serde_json::from_slice(body).expect("it was read");
    let given = asked["contexts"].as_array().expect("it was read");
    assert_eq!(ordered.len(), given.len());
    let mut seen = vec![false; given.len()];
    for (context, place) in ordered.iter().zip(places) {
        let place = place.as_u64().expect("a place") as usize;
        assert!(!std::mem::replace(&mut seen[place], true), "{answer}");
        let blocks = |context: &Value| -> Vec<String> {
            let blocks = context.as_array().into_iter().flatten();
            let mut blocks: Vec<String> = blocks.map(Value::to_string).collect();
            blocks.sort_unstable();
            blocks
        };
        // A number may be written differently in the answer, so only texts are compared.
        assert_eq!(blocks(context).len(), blocks(&given[place]).len());
        if given[place]
            .as_array()
            .is_some_and(|all| all.iter().all(Value::is_string))
        {
            assert_eq!(blocks(context), blocks(&given[place]));
        }
    }
}
