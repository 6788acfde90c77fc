//! Context checkpoints: sliding-window and recurrent models need them to go back to earlier positions.

use contextpilot_kv_store::Conditions;
use contextpilot_traffic::Memory;

use crate::content::Content;
use crate::setting::{Generation, Setting};
use crate::sizes::Sizes;
use crate::window::Kept;

/// `common_prompt_checkpoint`
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    task: u64,
    tokens: u32,
    first: i64,
    last: i64,
    pub(crate) bytes: u64,
    taken: Taken,
}

/// Under what the tokens of a checkpoint or an entry of the host prompt cache were evaluated, and where the rows of its windows begin.
pub(crate) type Evaluated = (Conditions, usize);

/// What a checkpoint has of a slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) kept: Kept,
    /// The tokens, as far as the prefix store knows them.
    pub(crate) known: Option<(Content, Evaluated)>,
}

/// How much of a common prefix can be reused.
pub(crate) struct Reach {
    /// Tokens that are reused.
    pub(crate) past: u32,
    /// What is in the checkpoint that is loaded for it, if any.
    pub(crate) restored: Option<Taken>,
}

/// How much of a common prefix of `past` tokens can be reused (`pre_decode`). `prompt`, `held`: the
/// tokens of the prompt and of the slot's content. `first`: the first position that the context has of
/// the slot. Removes the checkpoints beyond the reused tokens.
pub(crate) fn reach(
    checkpoints: &mut Vec<Checkpoint>,
    (past, prompt, held): (u32, u32, u32),
    first: i64,
    setting: &Setting,
) -> Reach {
    let window = match setting.server.memory {
        Memory::Window(window) => i64::from(window),
        Memory::Full | Memory::Recurrent => 0,
    };
    let mut reach = Reach {
        past,
        restored: None,
    };
    let mut next = i64::from(past);
    let is_early = setting.generation == Generation::Early2026;
    let is_whole = past >= prompt && !is_early;
    // Since 0.7.0 the rule is exact: before, it asked for two positions more than the model looks at.
    let is_exact = setting.generation == Generation::Late2026 && window > 0;
    let spare = if is_exact { 2 } else { 0 };
    let least = (next - window + spare - i64::from(is_whole)).max(0);
    let beyond = match setting.generation {
        Generation::Of2025 if setting.server.memory == Memory::Recurrent => true,
        Generation::Of2025 => first > least,
        Generation::Early2026 => first >= least && past < held,
        Generation::Older | Generation::Late2026 => first >= least,
    };
    if past > 0 && past <= held && beyond {
        let serves = |c: &&Checkpoint| {
            if is_early {
                c.first < least
            } else {
                c.last <= next && (c.first < least || c.first == 0)
            }
        };
        match checkpoints.iter().rev().find(serves) {
            Some(found) => {
                next = next.min((found.first + 1).max(found.last));
                reach.past = (next as u32).min(held).min(found.tokens);
                reach.restored = Some(found.taken.clone());
            }
            None => {
                next = 0;
                reach.past = 0;
            }
        }
    }
    drop_beyond(checkpoints, next);
    reach
}

/// Removes the checkpoints that end beyond this position, from which a prompt is evaluated.
pub(crate) fn drop_beyond(checkpoints: &mut Vec<Checkpoint>, next: i64) {
    checkpoints.retain(|checkpoint| checkpoint.last <= next);
}

/// A batch of a prompt that is about to be evaluated.
pub(crate) struct Batch {
    pub(crate) task: u64,
    /// Tokens before the batch, after it, and of the whole prompt.
    pub(crate) begin: u32,
    pub(crate) end: u32,
    pub(crate) prompt: u32,
    /// Whether it begins with a message of the user, and whether that is the last one.
    pub(crate) marked: bool,
    pub(crate) last_marked: bool,
    /// The first and the last position that the context has before the batch is evaluated.
    pub(crate) first: i64,
    pub(crate) last: i64,
}

/// Where the batch ends that begins at `begin`, for models with checkpoints. It is filled, but ends
/// earlier at each place where a checkpoint may be made: shortly before the end of the prompt, and where
/// messages of users begin (`marks`). Of these the last counts, and others that are far enough from the
/// last checkpoint.
pub(crate) fn batch_end(
    begin: u32,
    prompt: u32,
    setting: &Setting,
    marks: &[u32],
    checkpoints: &[Checkpoint],
) -> u32 {
    let full = prompt.min(begin.saturating_add(setting.server.batch_size));
    let stops = [4 + setting.server.ubatch_size, 4].map(|offset| {
        let offset = offset.min(setting.server.batch_size);
        prompt.checked_sub(offset).filter(|&stop| stop > begin)
    });
    let apart = |at: u32| {
        let last = checkpoints.last().map(|last| last.tokens);
        last.is_none_or(|last| at > last.saturating_add(setting.server.checkpoint_min_step))
    };
    let marked = marks.iter().copied().filter(|&at| at > begin);
    let marked = marked.filter(|&at| marks.last() == Some(&at) || apart(at));
    stops
        .into_iter()
        .flatten()
        .chain(marked)
        .fold(full, u32::min)
}

/// Makes a checkpoint before the batch is evaluated, if one is due (`do_checkpoint`,
/// `create_checkpoint`). `take`: returns what the context has.
pub(crate) fn note(
    checkpoints: &mut Vec<Checkpoint>,
    batch: &Batch,
    (setting, sizes): (&Setting, &Sizes),
    take: impl FnOnce() -> Taken,
) {
    let is_due = match setting.generation {
        Generation::Early2026 => is_due_early(checkpoints, batch, setting),
        _ => is_due(checkpoints, batch, setting),
    };
    if !is_due {
        return;
    }
    let most = setting.server.ctx_checkpoints as usize;
    let is_early = setting.generation == Generation::Early2026;
    if !is_early {
        thin_out(checkpoints, batch, setting);
    }
    while checkpoints.len() >= most.max(1) {
        checkpoints.remove(0);
    }
    checkpoints.retain(|checkpoint| is_early || checkpoint.tokens != batch.begin);
    checkpoints.push(Checkpoint {
        task: batch.task,
        tokens: batch.begin,
        first: batch.first,
        last: batch.last,
        bytes: sizes.checkpoint(batch.begin),
        taken: take(),
    });
}

fn is_due(checkpoints: &[Checkpoint], batch: &Batch, setting: &Setting) -> bool {
    let near_end = batch.prompt < batch.end.saturating_add(setting.server.ubatch_size);
    let apart = |last: u32| batch.begin > last.saturating_add(setting.server.checkpoint_min_step);
    if batch.end < batch.prompt && !near_end && !batch.marked || batch.first < 0 {
        return false;
    }
    near_end || batch.last_marked || checkpoints.last().is_none_or(|last| apart(last.tokens))
}

/// The rule up to early 2026: near the end of a prompt, or far from the last checkpoint.
fn is_due_early(checkpoints: &[Checkpoint], batch: &Batch, setting: &Setting) -> bool {
    const LEAST: u32 = 64;
    let last = checkpoints.last().map(|last| last.tokens);
    let near_end = batch.prompt < batch.end.saturating_add(setting.server.ubatch_size);
    let step = setting.server.checkpoint_min_step;
    let far = step > 0 && batch.begin >= last.unwrap_or(0).saturating_add(step);
    (near_end || far)
        && batch.first >= 0
        && batch.end >= LEAST
        && last.is_none_or(|last| batch.begin > last.saturating_add(LEAST))
}

/// While there is no room for one more, removes checkpoints of other tasks that are close to the one
/// before them.
fn thin_out(checkpoints: &mut Vec<Checkpoint>, batch: &Batch, setting: &Setting) {
    let most = setting.server.ctx_checkpoints as usize;
    let mut kept: Option<u32> = None;
    let mut at = 0;
    while checkpoints.len() + 1 >= most && at < checkpoints.len() {
        let checkpoint = &checkpoints[at];
        let close = kept.is_some_and(|last| {
            checkpoint.tokens <= last.saturating_add(setting.server.checkpoint_min_step)
        });
        if checkpoint.task != batch.task && close {
            checkpoints.remove(at);
        } else {
            kept = Some(checkpoint.tokens);
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_traffic::Setup;

    use super::*;
    use crate::made::{recorded, traffic};

    fn setting(memory: Memory, generation: Generation) -> Setting {
        let setup = Setup {
            memory,
            checkpoint_min_step: 0,
            ..Setup::default()
        };
        Setting {
            generation,
            ..recorded(&traffic(setup, Vec::new()))
        }
    }

    /// A window of 8 tokens: the context must have two positions less than 8 before the place, and those behind.
    #[test]
    fn a_window_is_left_no_farther_than_it_reaches() {
        let setting = setting(Memory::Window(8), Generation::Late2026);
        let reused = |first| reach(&mut Vec::new(), (100, 150, 120), first, &setting).past;
        assert_eq!([reused(0), reused(93), reused(94)], [100, 100, 0]);
    }

    #[test]
    fn up_to_early_2026_checkpoints_are_made_near_the_end_of_a_prompt_only() {
        let setting = setting(Memory::Recurrent, Generation::Early2026);
        let made = |begin: u32, end| {
            let batch = Batch {
                task: 1,
                begin,
                end,
                prompt: 4000,
                marked: false,
                last_marked: false,
                first: 0,
                last: i64::from(begin) - 1,
            };
            let mut checkpoints = Vec::new();
            let sizes = Sizes::new(&[]);
            note(&mut checkpoints, &batch, (&setting, &sizes), Taken::default);
            checkpoints.len()
        };
        assert_eq!((made(1000, 2000), made(3000, 3996)), (0, 1));
    }
}
