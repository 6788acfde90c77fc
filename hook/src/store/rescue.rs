//! Puts contexts right after the library has stopped (an error of ours, on any thread, or in a forked child): what the
//! engine holds is then what the host believes, and the host goes on without us.
//!
//! Each context is put right by its own next call, on the thread that makes it, before the engine's function runs: nobody
//! touches a context that another thread may be using. A call in which the library stops does so itself, if the engine's
//! function is still to come.
//!
//! An error may have come anywhere in the record's code, so what is needed is noted here as well, by code that cannot
//! panic: in a [`Rescue`], outside the record. From a context that can go back, what is [`loose`](Rescue::loose) is cut
//! off. In one that cannot ([`exact`](super::exact)), it is evaluated again, and so is what is owed: the tokens are those
//! of the record. If that fails, the host hears of it at its next evaluation ([`LOST`](super::evaluate::LOST)).
//!
//! The indexes of outputs are those of the last evaluation, so what it left out is kept until the next one.

use contextpilot_kv_engine::Engine as _;
use contextpilot_kv_store::{Conditions, Run};

use super::context::ContextStore;
use super::records::{self, Row};
use super::{Context, exact};
use crate::base::{guard, mode};

/// What is needed to put a context right, whatever became of its record.
#[derive(Debug)]
pub(super) struct Rescue {
    /// Sequences of which the engine may hold something else than the host believes.
    loose: Vec<Loose>,
    /// What is owed, but could not be noted in the record.
    owed: Vec<Owed>,
    /// Sequences that the host has changed while the record did not hear of it. Negative: all.
    unheard: Vec<i32>,
    /// The host has removed all sequences but this one, while the record did not hear of it.
    kept: Option<i32>,
    /// Sequences that could not be put right.
    lost: Vec<i32>,
    /// The entries that were left out of the last evaluation.
    pub(super) left_out: Vec<u32>,
    /// Of which the host was told how large they are: it asks for them next, and must get as much, whatever became of the
    /// library.
    promised: Vec<Checkpoint>,
}

/// What a host's checkpoint of a sequence that is owed gets.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) sequence: i32,
    /// What the host believes in, and under what it was evaluated.
    pub(super) tokens: Vec<i32>,
    pub(super) conditions: Conditions,
    pub(super) bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loose {
    sequence: i32,
    /// How many tokens the host believes in.
    believed: usize,
    /// How many the engine may hold.
    held: usize,
}

#[derive(Clone, Debug)]
struct Owed {
    sequence: i32,
    from: usize,
    tokens: Vec<i32>,
}

impl Rescue {
    pub(super) const NONE: Self = Self {
        loose: Vec::new(),
        owed: Vec::new(),
        unheard: Vec::new(),
        kept: None,
        lost: Vec::new(),
        left_out: Vec::new(),
        promised: Vec::new(),
    };

    fn loosen(&mut self, one: Loose) {
        self.loose.retain(|known| known.sequence != one.sequence);
        if one.held > one.believed {
            self.loose.push(one);
        }
    }

    fn evaluated(&mut self, sequence: i32, end: usize) {
        self.break_promise(sequence);
        for one in &mut self.loose {
            if one.sequence == sequence {
                one.believed = end;
            }
        }
        self.loose.retain(|one| one.held > one.believed);
    }

    fn tighten(&mut self, sequence: i32) {
        self.loose
            .retain(|one| sequence >= 0 && one.sequence != sequence);
    }

    fn removed(&mut self, sequence: i32) {
        self.break_promise(sequence);
        self.tighten(sequence);
        self.lost.retain(|one| sequence >= 0 && *one != sequence);
    }

    fn kept(&mut self, sequence: i32) {
        self.loose.retain(|one| one.sequence == sequence);
        self.lost.retain(|one| *one == sequence);
    }

    fn break_promise(&mut self, sequence: i32) {
        self.promised
            .retain(|one| sequence >= 0 && one.sequence != sequence);
    }

    /// Whether the host has changed a sequence while the record did not hear of it.
    fn is_unheard(&self, sequence: i32) -> bool {
        let mut unheard = self.unheard.iter();
        unheard.any(|one| *one < 0 || *one == sequence)
            || self.kept.is_some_and(|kept| kept != sequence)
    }
}

fn with<R>(context: Context<'_>, work: impl FnOnce(&mut Rescue) -> R) -> Option<R> {
    let mut rescue = records::find(context)?.rescue()?;
    Some(work(&mut rescue))
}

/// The engine may soon hold `held` tokens of a sequence, or anything if that is [`ANYTHING`]; the host believes in so
/// many. Call this before the engine is changed. If `held` is not more, the two agree from now on.
pub(super) fn loosen(context: Context<'_>, sequence: i32, believed: usize, held: usize) {
    let one = Loose {
        sequence,
        believed,
        held,
    };
    with(context, |rescue| rescue.loosen(one));
}

/// See [`loosen`].
pub(super) const ANYTHING: usize = usize::MAX;

/// The host's batch was evaluated, and it believes in so many tokens of this sequence now.
pub(super) fn evaluated(context: Context<'_>, sequence: i32, end: usize) {
    with(context, |rescue| rescue.evaluated(sequence, end));
}

/// The engine holds what the host believes; negative: of all sequences.
pub(super) fn tighten(context: Context<'_>, sequence: i32) {
    with(context, |rescue| rescue.tighten(sequence));
}

/// The host has removed a whole sequence, or replaced it; negative: all of them.
pub(super) fn removed(context: Context<'_>, sequence: i32) {
    with(context, |rescue| rescue.removed(sequence));
}

/// The host has removed all sequences but one. `heard`: the record knows.
pub(super) fn kept(context: Context<'_>, sequence: i32, heard: bool) {
    with(context, |rescue| {
        rescue.kept(sequence);
        if !heard {
            rescue.kept = Some(sequence);
        }
    });
}

/// The host has changed a sequence, and the record could not hear of it; negative: all of them.
pub(super) fn unheard(context: Context<'_>, sequence: i32) {
    with(context, |rescue| rescue.unheard.push(sequence));
}

/// A run was left out, and the record could not note that it is owed.
pub(super) fn owe(context: Context<'_>, run: &Run) {
    let owed = Owed {
        sequence: run.sequence,
        from: usize::try_from(run.first).unwrap_or(0),
        tokens: run.tokens.clone(),
    };
    with(context, |rescue| rescue.owed.push(owed));
}

/// The host hears how large this checkpoint of a sequence is; `None`: it hears of the engine's. Returns how large, bytes.
pub(super) fn promise(
    context: Context<'_>,
    sequence: i32,
    checkpoint: Option<Checkpoint>,
) -> Option<usize> {
    let size = checkpoint.as_ref().map(|one| one.bytes.len());
    let noted = with(context, |rescue| {
        rescue.break_promise(sequence);
        rescue.promised.extend(checkpoint);
    });
    noted.and(size)
}

/// Whether a checkpoint of the sequence is promised.
pub(super) fn is_promised(context: Context<'_>, sequence: i32) -> bool {
    let is = |rescue: &mut Rescue| rescue.promised.iter().any(|one| one.sequence == sequence);
    with(context, is) == Some(true)
}

/// The checkpoint of the sequence that was promised. It is not promised any more.
pub(super) fn take_promised(context: Context<'_>, sequence: i32) -> Option<Checkpoint> {
    let take = |rescue: &mut Rescue| {
        let mut all = rescue.promised.iter();
        let place = all.position(|one| one.sequence == sequence)?;
        Some(rescue.promised.swap_remove(place))
    };
    with(context, take).flatten()
}

/// Whether the engine may hold something else of any sequence than the host believes.
pub(super) fn is_any_loose(context: Context<'_>) -> bool {
    with(context, |rescue| !rescue.loose.is_empty()) == Some(true)
}

/// Whether a sequence could not be put right, and was not removed since.
pub(super) fn is_any_lost(context: Context<'_>) -> bool {
    with(context, |rescue| !rescue.lost.is_empty()) == Some(true)
}

/// Whether the store goes on with a context. If the library has stopped, this puts the context right; then there is
/// nothing to do for it any more. The engine's function must be still to come: this may evaluate.
pub(super) fn goes_on(context: Context<'_>) -> bool {
    if mode::is_active() {
        return true;
    }
    if let Some(row) = records::find(context) {
        put_right(context, row);
    }
    false
}

#[cold]
fn put_right(context: Context<'_>, row: &Row) {
    let record = row.take_record();
    let Some(mut rescue) = row.rescue() else {
        return;
    };
    let kept = Rescue {
        left_out: std::mem::take(&mut rescue.left_out),
        ..Rescue::NONE
    };
    let found = std::mem::replace(&mut *rescue, kept);
    drop(rescue);
    let mut lost = found.lost.clone();
    match record.as_deref().filter(|one| one.bounds.is_some()) {
        Some(one) => evaluate_again(context, one, &found, &mut lost),
        None => {
            for one in &found.loose {
                context.cut(one.sequence, one.believed);
            }
        }
    }
    with(context, |rescue| rescue.lost = lost);
    guard::compute(|| drop(record));
}

/// Of a context that cannot go back: evaluates what the engine lacks, or may hold otherwise.
fn evaluate_again(context: Context<'_>, one: &ContextStore, found: &Rescue, lost: &mut Vec<i32>) {
    let all = guard::compute(|| missing(one, found)).unwrap_or_default();
    // What was not understood is lost.
    let unknown = found.loose.iter().map(|one| one.sequence);
    let unknown = unknown.filter(|id| all.iter().all(|missing| missing.sequence != *id));
    let mut unknown: Vec<i32> = unknown.collect();
    let most = exact::at_a_time(context, one);
    for missing in &all {
        let Missing {
            sequence,
            from,
            tokens,
        } = missing;
        if *from == 0 {
            context.cut(*sequence, 0);
        }
        let known = tokens.as_ref().filter(|rest| {
            rest.is_empty() || context.evaluate(*sequence, *from, rest, most).is_ok()
        });
        if known.is_none() {
            unknown.push(*sequence);
        }
    }
    for sequence in unknown {
        context.cut(sequence, 0);
        lost.push(sequence);
    }
}

/// What is to be evaluated of a sequence, behind the first `from` tokens. `None`: that is not known.
struct Missing {
    sequence: i32,
    from: usize,
    tokens: Option<Vec<i32>>,
}

fn missing(one: &ContextStore, found: &Rescue) -> Vec<Missing> {
    let session = &one.session;
    let mut sequences: Vec<i32> = session.sequences().collect();
    sequences.extend(found.owed.iter().map(|owed| owed.sequence));
    sequences.sort_unstable();
    sequences.dedup();
    sequences.retain(|id| !found.is_unheard(*id));
    let of = |sequence: i32| {
        let loose = found.loose.iter().find(|loose| loose.sequence == sequence);
        let believed = session.believed(sequence);
        let from = match loose {
            Some(_) => 0,
            None => session.in_engine(sequence),
        };
        let is_owed = session.believed_on_credit(sequence).is_some();
        let owed = || found.owed.iter().filter(|owed| owed.sequence == sequence);
        if session.is_lost(sequence) {
            return Some((0, None));
        }
        if loose.is_none() && !is_owed && owed().next().is_none() {
            return None;
        }
        let tokens = believed.and_then(|believed| {
            let mut tokens = believed.to_vec();
            for owed in owed() {
                match owed.from == tokens.len() {
                    true => tokens.extend_from_slice(&owed.tokens),
                    // The record knows of it.
                    false if owed.from + owed.tokens.len() == tokens.len() => {}
                    false => return None,
                }
            }
            // Else it would be evaluated under other adapters than it was meant for.
            let same = believed.is_empty() || session.under(sequence) == one.conditions();
            let as_noted = loose.is_none_or(|loose| loose.believed == tokens.len());
            (same && as_noted).then(|| tokens.get(from..).unwrap_or_default().to_vec())
        });
        Some((from, tokens))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn loose(sequence: i32, believed: usize, held: usize) -> Loose {
        Loose {
            sequence,
            believed,
            held,
        }
    }

    #[test]
    fn a_sequence_is_loose_until_the_host_believes_in_all_that_the_engine_holds() {
        let mut rescue = Rescue::NONE;
        rescue.loosen(loose(1, 10, 50));
        rescue.loosen(loose(2, 0, 9));
        rescue.evaluated(1, 30);
        assert_eq!(rescue.loose, [loose(1, 30, 50), loose(2, 0, 9)]);
        rescue.evaluated(1, 50);
        assert_eq!(rescue.loose, [loose(2, 0, 9)]);
        rescue.loosen(loose(2, 9, 9));
        assert_eq!(rescue.loose, []);
    }

    #[test]
    fn a_promise_is_kept_until_the_sequence_is_evaluated_or_removed() {
        let left = |work: fn(&mut Rescue)| {
            let mut rescue = Rescue::NONE;
            rescue.promised = [1, 2]
                .map(|sequence| Checkpoint {
                    sequence,
                    tokens: vec![7],
                    conditions: Conditions::default(),
                    bytes: vec![3],
                })
                .into();
            work(&mut rescue);
            let left = rescue.promised.iter().map(|one| one.sequence);
            left.collect::<Vec<_>>()
        };
        assert_eq!(left(|_| {}), [1, 2]);
        assert_eq!(left(|all| all.evaluated(1, 3)), [2]);
        assert_eq!(left(|all| all.removed(2)), [1]);
        assert_eq!(left(|all| all.removed(-1)), [0; 0]);
    }

    #[test]
    fn what_the_host_removes_is_neither_loose_nor_lost() {
        let all = || {
            let mut rescue = Rescue::NONE;
            for sequence in 0..3 {
                rescue.loosen(loose(sequence, 1, 2));
                rescue.lost.push(sequence);
            }
            rescue
        };
        let left = |work: fn(&mut Rescue)| {
            let mut rescue = all();
            work(&mut rescue);
            let loose: Vec<i32> = rescue.loose.iter().map(|one| one.sequence).collect();
            (loose, rescue.lost)
        };
        assert_eq!(left(|all| all.removed(1)), (vec![0, 2], vec![0, 2]));
        assert_eq!(left(|all| all.removed(-1)), (vec![], vec![]));
        assert_eq!(left(|all| all.kept(1)), (vec![1], vec![1]));
        assert_eq!(left(|all| all.tighten(1)), (vec![0, 2], vec![0, 1, 2]));
    }
}
