//! Many clients at once. Afterwards each slot holds one prompt, and exactly the
//! ids of these prompts were not reported as evicted.

use contextpilot_testbed::{Index, Request, Server};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{PATIENCE, hooked};

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

const CLIENTS: usize = 8;
const SLOTS: u32 = 4;
const REQUESTS: usize = 3000;

/// The digits of the number in reverse order, and letters. So consecutive prompts
/// differ in their first token.
fn prompt(n: usize) -> String {
    let number: String = format!("{n:05}").chars().rev().collect();
    let letters = "abcdefghij".chars().cycle().skip(n % 10).take(25);
    number.chars().chain(letters).collect()
}

#[test]
fn with_eight_clients_exactly_the_ids_that_were_not_reported_are_cached() {
    let index = Index::start().unwrap();
    let server = Server::tiny().bare_slots(SLOTS).args(["-c", "1024"]);
    let server = hooked(&server.observed(), &index);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut connection = server.connect().unwrap();
                let mut served = 0;
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= REQUESTS {
                        break;
                    }
                    let request = Request::completion(prompt(n))
                        .id(format!("req-{n}"))
                        .predict(2);
                    // The server closes a connection after 100 requests.
                    if served == 90 {
                        connection = server.connect().unwrap();
                        served = 0;
                    }
                    served += 1;
                    let body = request.wire_body().to_string();
                    let answer = connection
                        .exchange("POST", request.path(), body.as_bytes())
                        .unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.text());
                }
            });
        }
    });
    server.wait_idle().unwrap();

    let room = SLOTS as usize;
    index.wait_until(|evicted| evicted.len() + room >= REQUESTS, PATIENCE);
    server.come_to_rest().unwrap();
    let evicted = index.evicted();
    assert_eq!(
        index.reports().len(),
        evicted.len(),
        "each is reported once"
    );
    let survivors: BTreeSet<usize> = (0..REQUESTS)
        .filter(|n| !evicted.contains(&format!("req-{n}")))
        .collect();
    assert_eq!(
        survivors.len(),
        room,
        "one prompt fits in each slot: {survivors:?}"
    );

    // Each of these prompts is still cached. Each is in a slot of its own, so sending
    // one again does not change the others.
    for n in survivors {
        let answer = server
            .complete(&Request::completion(prompt(n)).predict(1))
            .unwrap();
        assert_eq!(
            answer.cache_n + 1,
            answer.prompt_tokens,
            "req-{n} is cached"
        );
    }
}
