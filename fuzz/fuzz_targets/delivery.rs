//! Whatever answers a POST, only the index's own words settle ids; nothing panics, and the waiting ids are neither lost
//! nor sent twice.
//!
//! Each line of an input is an answer: its first byte is the status, its second says how many ids come before it, the
//! rest is the body.
#![no_main]

use std::collections::BTreeSet;
use std::sync::Arc;

use contextpilot_delivery::{IndexReply, Limits, Next, Outbox, Verdict, classify};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const STATUSES: [u16; 16] = [
    200, 200, 200, 422, 422, 503, 503, 201, 202, 204, 302, 400, 413, 429, 500, 999,
];
/// Ids of one POST.
const MOST: usize = 8;

fuzz_target!(|data: &[u8]| {
    let mut outbox = Outbox::new(Limits {
        ids: 64,
        bytes: 4096,
    });
    // What was evicted and is not settled.
    let mut open = BTreeSet::new();
    let mut next = 0_u64;
    for line in data.split(|byte| *byte == b'\n') {
        let Some((&[status, ids], body)) = line.split_first_chunk::<2>() else {
            continue;
        };
        for _ in 0..ids % 8 {
            next += 1;
            let id: Arc<str> = format!("id-{}", next % 24).into();
            open.insert(Arc::clone(&id));
            outbox.evict(id);
        }
        let batch = match ids & 0x80 {
            0 => outbox.take_batch(MOST),
            _ => outbox.take_aside(),
        };
        if batch.is_empty() {
            continue;
        }
        let sent: BTreeSet<&Arc<str>> = batch.iter().collect();
        assert_eq!(sent.len(), batch.len(), "an id is twice in one POST");
        let status = STATUSES[usize::from(status) % STATUSES.len()];
        let retry_after = (body.len() % 3 == 0).then_some("7");
        let answer = IndexReply {
            status,
            retry_after,
            body,
        };
        match judged(&answer) {
            Verdict::Delivered | Verdict::NothingThere => {
                outbox.delivered();
                for id in &batch {
                    open.remove(id);
                }
            }
            Verdict::Refused(places) => {
                let given_up = outbox.give_up(&places);
                assert!(given_up.iter().all(|id| sent.contains(id)));
                for id in &given_up {
                    open.remove(id);
                }
            }
            Verdict::Retry(retry) if retry.next != Next::Same && batch.len() == 1 => {
                outbox.set_aside();
            }
            Verdict::Retry(_) => outbox.put_back(),
        }
        assert_eq!(outbox.in_flight(), 0);
        assert_eq!(outbox.len(), open.len(), "{open:?}");
        assert!(open.iter().all(|id| outbox.is_waiting(id)));
    }
});

/// The verdict, compared with what it may be.
fn judged(answer: &IndexReply<'_>) -> Verdict {
    let verdict = classify(answer);
    let json: Option<Value> = serde_json::from_slice(answer.body).ok();
    let says = |name: &str| json.as_ref().and_then(|json| json.get(name)).cloned();
    match &verdict {
        Verdict::Delivered => {
            assert_eq!(answer.status, 200);
            assert_eq!(says("status"), Some("success".into()));
            assert!(says("removed_count").is_some_and(|count| count.is_u64()));
            assert!(says("not_found").is_some_and(|ids| ids.is_array()));
        }
        Verdict::NothingThere => {
            assert_eq!(answer.status, 503);
            let detail = says("detail");
            let detail = detail.as_ref().and_then(Value::as_str);
            assert!(detail.is_some_and(|text| text.starts_with("Index not initialized")));
        }
        Verdict::Refused(places) => {
            assert_eq!(answer.status, 422);
            assert!(!places.is_empty() && places.is_sorted_by(|a, b| a < b));
        }
        Verdict::Retry(retry) => {
            assert!(answer.status != 413 || retry.next == Next::HalfAtOnce);
        }
    }
    // What comes after the end of a whole answer, or is missing of it, settles nothing.
    if !matches!(verdict, Verdict::Retry(_)) {
        let longer = [answer.body, b"x"].concat();
        let shorter = &answer.body[..answer.body.trim_ascii_end().len() - 1];
        for body in [&longer[..], shorter] {
            let other = IndexReply { body, ..*answer };
            assert!(matches!(classify(&other), Verdict::Retry(_)), "{other:?}");
        }
    }
    verdict
}
