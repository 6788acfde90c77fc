//! Why prompts were evaluated: an account for each, whose numbers add up to the engine's.
//!
//! ```text
//!  Accounts::upcoming ──► ledger applies an event ──► Accounts::fact ──► Accounts::after
//!                 │  what is cached when a prompt's first batch is submitted
//!                 │  what slots and buffers are about to lose
//!                 ▼
//!              [`past`]: all contents of slots, in bounded memory ──► Accounts::close ──► [`Account`]
//! ```
//!
//! Accounts read the ledger and change nothing in it: the reported evictions are the same without
//! them.

use crate::adapters::Blend;
use crate::fact::Reason;
use crate::ids::{Arrival, BufferId, CacheEntry, SequenceId, TaskId, UNTIED};
use crate::ledger::Ledger;
use crate::token::Token;
use open::{Open, Prepared};
use past::{Nth, Past};
use std::collections::{BTreeMap, HashMap};

mod batches;
mod close;
mod difference;
mod leaving;
mod losses;
mod matching;
mod open;
mod order;
mod past;
mod rules;
mod types;
mod watch;

use crate::fact::Asker;
use losses::Losses;
pub use losses::{EACH as REMEMBERED_EACH, MOST as MOST_REMEMBERED};
pub use rules::Rules;
pub use types::{
    Account, Around, Causes, Choice, Diverged, Elsewhere, Loss, Match, Matched, Occupied, Sources,
    Taking, Through, Wishes,
};

/// Accounts for prompts. Call [`Self::upcoming`] with all that the [ledger](Ledger::upcoming) says before it
/// applies an event, [`Self::fact`] with each fact that it tells of it, and then [`Self::after`].
#[derive(Debug)]
pub struct Accounts {
    rules: Rules,
    past: Past,
    losses: Losses,
    slots: BTreeMap<SequenceId, SlotAccount>,
    /// When each host entry was saved (see [`Self::clock`]), and from which slot.
    saved: HashMap<BufferId, (u64, SequenceId)>,
    /// Contents that the current event removes from a slot or buffer.
    going: Vec<Going>,
    /// The last batch found no room. What the server empties before the next one, it empties for that reason.
    no_room: bool,
    /// Slots with entries in the batch that was just submitted, and whether the last of a slot's
    /// entries asks for its output.
    batch: Vec<(SequenceId, bool)>,
    /// The slot that takes a task with the current event, unless it has an undecided branch.
    launching: Option<SequenceId>,
    /// The number of the current event. All times here are such numbers.
    clock: u64,
    /// When the last batch was submitted.
    batched: u64,
    /// The prompt that was launched since the last batch.
    launched: Option<Nth>,
    /// The last prompt that was launched.
    last: Nth,
    /// The last prompt before events were lost.
    gap: Nth,
    /// LoRA adapters were applied at some time.
    adapted: bool,
    /// Whether the server takes slots that were never used from the last one on. `None`: not seen
    /// yet.
    from_the_end: Option<bool>,
    /// Accounts contain the tokens around differences.
    quotes: bool,
}

/// Content that leaves a slot or a buffer.
#[derive(Debug)]
struct Going {
    tokens: Vec<Token>,
    reason: Reason,
    /// The prompt for which the engine removes it, if that is known.
    by: Option<Nth>,
    through: Option<Through>,
}

/// What accounts know of a slot.
#[derive(Debug, Default)]
struct SlotAccount {
    /// The prompt that the slot works on.
    open: Option<Open>,
    /// The last prompt whose first batch was submitted in the slot.
    owner: Nth,
    /// The slot holds more than was recorded in [`Past`].
    dirty: bool,
    /// The tokens of its undecided branch, which it may come back to.
    left: Option<Vec<Token>>,
    /// Some of these were moved, or cut out of their middle: a context shift.
    shifted: bool,
    /// What the slot held before tokens were removed to make room for its next prompt.
    own: Option<Vec<Token>>,
    prepared: Prepared,
    /// A client wants it to be erased. The server does that once it is idle.
    erasing: bool,
    /// The number of its entries in the last batch, if these were several and all asked for their
    /// outputs. Then all but one may be drafted tokens.
    drafted: u32,
    /// The adapters that the slot worked under in its last batch; `None`: not known, or no batch yet.
    blend: Option<Blend>,
    /// When the slot was last in a batch, or a task ended in it that came into none.
    used: u64,
    /// The account of the last prompt in it, for child tasks that take the prompt over.
    last: Option<Account>,
}

/// Bytes of contents that are remembered by default: 32 MiB.
pub const REMEMBERED_BYTES: usize = 32 << 20;

impl Accounts {
    /// Remembers at most `bytes` of contents.
    #[must_use]
    pub fn new(rules: Rules, bytes: usize) -> Self {
        Self {
            rules,
            past: Past::new(bytes),
            losses: Losses::new(),
            slots: BTreeMap::new(),
            saved: HashMap::new(),
            going: Vec::new(),
            no_room: false,
            batch: Vec::new(),
            launching: None,
            clock: 1,
            batched: 0,
            launched: None,
            last: 0,
            gap: 0,
            adapted: false,
            from_the_end: None,
            quotes: false,
        }
    }

    /// From now on, accounts contain the tokens around differences ([`Diverged::around`]).
    #[must_use]
    pub fn quoting(mut self) -> Self {
        self.quotes = true;
        self
    }

    /// A slot takes a task. Call this before the event is applied.
    pub fn launch(&mut self, slot: SequenceId, task: TaskId, asker: Asker, wishes: Wishes) {
        if self.last == 0 && wishes.slot.is_none() {
            self.from_the_end = Some(slot > 0);
        }
        let untied = task == UNTIED;
        // If launches are found by prompts, the launch comes late: the slot was chosen before room
        // was made in it, so before anything that follows the last batch.
        let decided = if self.rules.tied {
            self.batched
        } else {
            self.clock
        };
        let place = self.slots.entry(slot).or_default();
        // The second launch of a tied prompt: its end tells whose it is.
        if let Some(open) = place.open.as_mut().filter(|open| open.untied && !untied) {
            open.asker = asker.clone();
            open.wishes = wishes;
            open.untied = false;
            self.losses.name(open.nth, asker);
            return;
        }
        let nth = self.losses.ask(asker.clone());
        place.open = Some(Open::new(nth, asker, wishes, untied, decided));
        self.losses.claim(nth);
        self.launched = Some(nth);
        self.last = nth;
    }

    /// The tokens of an evaluated prompt. `None`: it is not remembered.
    #[must_use]
    pub fn prompt(&self, nth: u64) -> Option<Vec<Token>> {
        self.past.read(self.losses.end(nth)?)
    }

    /// The last prompts and their tokens, the latest first: `most` of them, with `tokens` tokens together at
    /// most. Those that are not remembered are left out.
    #[must_use]
    pub fn recent(&self, most: usize, tokens: usize) -> Vec<(Asker, Vec<Token>)> {
        let mut left = tokens;
        let last = self.losses.last();
        let recent = (0..=last).rev().take(most).filter_map(|nth| {
            let asker = self.losses.asker(nth)?;
            let prompt = self.prompt(nth)?;
            Some((asker, prompt))
        });
        recent
            .take_while(|(_, prompt)| {
                let fits = prompt.len() <= left;
                left = left.saturating_sub(prompt.len());
                fits
            })
            .collect()
    }

    /// The prompt that a slot works on has been evaluated. `reused` and `evaluated` are its tokens by
    /// the engine's count. `None`: the launch was not seen.
    pub fn close(
        &mut self,
        slot: SequenceId,
        reused: u64,
        evaluated: u64,
        ledger: &Ledger,
    ) -> Option<Account> {
        let open = self.slots.get_mut(&slot)?.open.take()?;
        let account = self.account(&open, reused, evaluated, ledger);
        if let Some(place) = self.slots.get_mut(&slot) {
            place.last = Some(account.clone());
        }
        Some(account)
    }

    /// The client has left, and no more of the prompt that a slot works on will be evaluated. The ledger still has
    /// what was.
    pub fn give_up(
        &mut self,
        slot: SequenceId,
        reused: u64,
        evaluated: u64,
        ledger: &Ledger,
    ) -> Option<Account> {
        let mut open = self.slots.get_mut(&slot)?.open.take()?;
        open.given_up = true;
        // If the slot was emptied since, it does not hold the prompt any more.
        if open.prompt.is_none() && open.begun.is_some() && open.before.is_none() {
            open.prompt = Some(ledger.tokens_from(CacheEntry::Slot(slot), 0));
        }
        Some(self.account(&open, reused, evaluated, ledger))
    }

    /// A client wants a slot to be erased. It may name one that the server does not have.
    pub fn erasing(&mut self, slot: SequenceId) {
        if let Some(place) = self.slots.get_mut(&slot) {
            place.erasing = true;
        }
    }

    /// The slot did not take the task that it was given: the server leaves its age as it was.
    pub fn declined(&mut self, slot: SequenceId) {
        let place = self.slots.get_mut(&slot);
        if let Some(open) = place.and_then(|place| place.open.as_mut()) {
            open.declined = true;
        }
    }

    /// A request was answered. If a slot took its prompt and evaluated nothing of it (it is too long, or the
    /// client has left), this was the slot's last use.
    pub fn answered(&mut self, arrival: Arrival) {
        for place in self.slots.values_mut() {
            let open = place.open.as_ref();
            let refused = |open: &&Open| open.begun.is_none() && !open.declined;
            if open.filter(refused).and_then(|open| open.asker.arrival()) == Some(arrival) {
                place.used = self.clock;
            }
        }
    }

    /// It became known who asked for the prompt that a slot works on.
    pub fn rename(&mut self, slot: SequenceId, asker: Asker, wishes: Wishes) {
        let place = self.slots.get_mut(&slot);
        if let Some(open) = place.and_then(|place| place.open.as_mut()) {
            open.asker = asker.clone();
            open.wishes = wishes;
            self.losses.name(open.nth, asker);
        }
    }

    /// It became known who asked for a prompt that was evaluated already.
    pub fn name(&mut self, nth: u64, asker: Asker) {
        self.losses.name(nth, asker);
    }

    /// A slot takes over the prompt that another slot has evaluated (`n` answers to one prompt). The
    /// launch of the `target` slot may not have been seen.
    pub fn take_over(&mut self, source: SequenceId, target: SequenceId) -> Option<Account> {
        let account = self.slots.get(&source)?.last.clone()?;
        let place = self.slots.entry(target).or_default();
        let (nth, asker) = match place.open.take() {
            Some(open) => (open.nth, open.asker),
            None => {
                self.last = self.losses.ask(account.asker.clone());
                (self.last, account.asker.clone())
            }
        };
        place.owner = nth;
        let account = Account {
            nth,
            asker,
            ..account
        };
        place.last = Some(account.clone());
        Some(account)
    }
}

#[cfg(test)]
mod tests;
