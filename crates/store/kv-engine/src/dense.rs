//! Contexts that can go back to any position.
//!
//! All of a stored prompt is loaded at once, though the server asks for it batch by batch. What the engine then holds beyond
//! the server's view is *ahead*, and is cut off before anything but an evaluation meets it.

use contextpilot_kv_store::{Advice, Conditions, Run, worth};

use crate::Refusal;
use crate::change::{Plan, carry_out, change_engine};
use crate::host::{Host, Part, Record, Supply, Wanted};

/// Cuts off what a sequence has ahead; a negative sequence stands for all. Returns whether there was anything.
pub fn cut_ahead<H: Host>(host: &H, sequence: i32) -> bool {
    let all = host.record(|record| {
        let all = record.session().ahead();
        all.filter(|(id, _)| sequence < 0 || *id == sequence)
            .collect::<Vec<_>>()
    });
    let all = all.unwrap_or_default();
    for &(sequence, believed) in &all {
        cut(host, sequence, None, believed);
    }
    !all.is_empty()
}

/// Cuts what the engine holds of a sequence to so many tokens. `believed`: where the host's view ends, if not there.
fn cut<H: Host>(host: &H, sequence: i32, believed: Option<usize>, held: usize) {
    let end = host.record(|record| record.session().position(sequence, held));
    let Some(end) = end else {
        return;
    };
    let cut = || host.cut(sequence, end);
    let believed = believed.unwrap_or(end);
    change_engine(host, sequence, believed, cut, |record, ()| {
        record.session_mut().cut(sequence, held);
        end
    });
}

/// Does what is to be done before a part of a batch is evaluated.
///
/// # Errors
/// The engine lost a sequence that the host believes in, and it cannot be repaired.
pub fn prepare_part<H: Host>(host: &H, part: &Part) -> Result<(), Refusal> {
    let run = &part.run;
    let sequence = run.sequence;
    let known = host.record(|record| {
        let conditions = record.conditions(sequence);
        let again = record.session().to_see_again(run, conditions);
        (conditions, again.filter(|_| record.may_store()))
    });
    let Some((conditions, again)) = known else {
        return Ok(());
    };
    if let Some((from, tokens)) = again {
        see_again(host, sequence, conditions, from, &tokens)?;
    }
    let is_uncached = host.is_uncached(sequence);
    let advice = host.record_before(part, |record| {
        let cut = record.session().ahead_of(sequence);
        if !part.follows {
            return Advice { cut, search: None };
        }
        let session = record.session_mut();
        let mut advice = session.advise(run, conditions, worth::LEAST_GAINED);
        if record.has_embeddings() {
            advice = Advice { cut, search: None };
        }
        if is_uncached {
            advice.search = None;
        }
        advice
    });
    let Some(advice) = advice else {
        return Ok(());
    };
    if let Some(length) = advice.cut {
        cut(host, sequence, usize::try_from(run.first).ok(), length);
    }
    if !part.follows {
        host.record(|record| record.session_mut().obscure(sequence));
    }
    match advice.search {
        Some(held) => load(host, run, held),
        None => Ok(()),
    }
}

/// These few tokens stand between what is known of a sequence and a prompt. They are evaluated again, so that the prompt is stored.
fn see_again<H: Host>(
    host: &H,
    sequence: i32,
    conditions: Conditions,
    from: usize,
    tokens: &[i32],
) -> Result<(), Refusal> {
    let believed = from + tokens.len();
    let evaluate = || {
        host.cut(sequence, from);
        host.evaluate(sequence, from, tokens, tokens.len())
    };
    let done = change_engine(host, sequence, believed, evaluate, |record, done| {
        let session = record.session_mut();
        if done.is_ok() {
            session.seen_again(sequence, conditions);
        } else {
            session.removed(sequence, -1, -1);
            session.obscure(sequence);
        }
        believed
    });
    done.map_err(|_| Refusal::Failed)
}

/// Looks for a run whose sequence holds `held` tokens, and loads what there is.
fn load<H: Host>(host: &H, run: &Run, held: usize) -> Result<(), Refusal> {
    let sequence = run.sequence;
    let Some(wanted) = host.record(|record| record.session().wanted(run)) else {
        return Ok(());
    };
    let first = usize::try_from(run.first).unwrap_or(0);
    let wanted = Wanted {
        sequence,
        tokens: &wanted,
        believed: wanted.len() - run.leading,
        held,
        run: Some(run),
    };
    let Some(mut supply) = host.find(&wanted) else {
        return Ok(());
    };
    // The engine takes as many tokens at a time as the server's batch has.
    let plan = Plan::to_load(&wanted, &supply, run.tokens.len());
    let work = || {
        let done = carry_out(host, &plan, wanted.tokens, Some(&mut supply));
        (done, supply)
    };
    let (done, supply) = change_engine(host, sequence, first, work, |record, (done, supply)| {
        let session = record.session_mut();
        if done.held < plan.least {
            session.removed(sequence, -1, -1);
            session.obscure(sequence);
        } else {
            session.loaded(sequence, supply.tokens()[..done.held].to_vec());
        }
        session.position(sequence, done.held)
    });
    supply.finish(&done);
    if done.held < plan.least {
        return Err(Refusal::Failed);
    }
    Ok(())
}
