//! Puts a context right after the library has stopped (an error of ours, on any thread, or in a forked child): what the
//! engine holds is then what the host believes, and the host goes on without us.
//!
//! From a context that can go back, what is uncertain is cut off. In one that cannot, it is evaluated again, behind what was put aside
//! of it, and so is what is pending: the tokens are those of the record. If that fails, the sequence is lost, and the host hears of it at its next
//! evaluation.

use contextpilot_kv_store::media;

use crate::host::Record;
use crate::{Engine, Journal};

/// Puts a context right. The journal then has what the host may still ask for.
///
/// `record`: what is left of it, which may be half changed. `guarded` runs what reads it, and catches its panics.
pub fn repair<R: Record>(
    engine: &impl Engine,
    record: Option<&R>,
    journal: Journal,
    guarded: impl FnOnce(&mut dyn FnMut()),
) -> Vec<i32> {
    let mut lost = journal.lost.clone();
    let Some(record) = record.filter(|record| record.bounds().is_some()) else {
        for uncertain in &journal.uncertain {
            engine.cut(uncertain.sequence, uncertain.believed);
        }
        return lost;
    };
    let mut all = Vec::new();
    guarded(&mut || all = missing(record, &journal));
    // What was not understood is lost.
    let uncertain = journal.uncertain.iter().map(|known| known.sequence);
    let mut unknown: Vec<i32> = uncertain
        .filter(|id| all.iter().all(|missing| missing.sequence != *id))
        .collect();
    for Missing {
        sequence,
        from,
        tokens,
    } in &all
    {
        let mut uncertain = journal.uncertain.iter();
        let mut aside = journal
            .aside
            .iter()
            .filter(|aside| aside.sequence == *sequence);
        let is_uncertain = uncertain.any(|known| known.sequence == *sequence);
        if let Some(aside) = aside.next().filter(|_| is_uncertain) {
            if !engine.load(*sequence, &aside.state) {
                unknown.push(*sequence);
                continue;
            }
        } else if *from == 0 {
            engine.cut(*sequence, 0);
        }
        let evaluates = |rest: &Vec<i32>| {
            let most = record.at_a_time();
            rest.is_empty() || engine.evaluate(*sequence, *from, rest, most).is_ok()
        };
        if !tokens.as_ref().is_some_and(evaluates) {
            unknown.push(*sequence);
        }
    }
    for sequence in unknown {
        engine.cut(sequence, 0);
        lost.push(sequence);
    }
    lost
}

/// What is to be evaluated of a sequence from a position on. `None`: that is not known.
struct Missing {
    sequence: i32,
    from: usize,
    tokens: Option<Vec<i32>>,
}

fn missing(record: &impl Record, journal: &Journal) -> Vec<Missing> {
    let session = record.session();
    let mut sequences: Vec<i32> = session.sequences().collect();
    sequences.extend(journal.pending.iter().map(|pending| pending.sequence));
    sequences.sort_unstable();
    sequences.dedup();
    sequences.retain(|id| !journal.is_unheard(*id));
    let of = |sequence: i32| {
        let mut noted = journal.uncertain.iter();
        let uncertain = noted.find(|known| known.sequence == sequence);
        let believed = session.believed(sequence);
        let aside = || {
            journal
                .aside
                .iter()
                .find(|aside| aside.sequence == sequence)
        };
        let from = match uncertain {
            Some(_) => aside().map_or(0, |aside| aside.tokens),
            None => session.in_engine(sequence),
        };
        let is_pending = session.believed_if_pending(sequence).is_some();
        let pending = || {
            let all = journal.pending.iter();
            all.filter(|pending| pending.sequence == sequence)
        };
        if session.is_lost(sequence) {
            return Some((0, None));
        }
        if uncertain.is_none() && !is_pending && pending().next().is_none() {
            return None;
        }
        let before = believed.unwrap_or_default().get(..from);
        let position = media::position(before.unwrap_or_default());
        let tokens = believed.and_then(|believed| {
            let mut tokens = believed.to_vec();
            for pending in pending() {
                let end = media::position(&tokens);
                if pending.from == end {
                    tokens.extend_from_slice(&pending.tokens);
                } else if pending.from + pending.tokens.len() != end {
                    // The record does not know of it.
                    return None;
                }
            }
            // Else it would be evaluated under other adapters than it was meant for.
            let same = believed.is_empty() || record.is_under_these(sequence);
            let as_noted = uncertain.is_none_or(|known| known.believed == media::position(&tokens));
            let rest = tokens.get(from..)?;
            // The rows of images and sounds are gone.
            (same && as_noted && !media::is_any_row(rest)).then(|| rest.to_vec())
        });
        Some((position, tokens))
    };
    let all = sequences.into_iter().filter_map(|sequence| {
        of(sequence).map(|(from, tokens)| Missing {
            sequence,
            from,
            tokens,
        })
    });
    all.collect()
}
