//! Why prompts were evaluated: an account for each, whose numbers add up to the engine's.
//!
//! ```text
//!  events ──► Accounts::before ──► ledger ──► Accounts::after
//!                 │  what is cached just now, when a prompt's first batch is submitted
//!                 │  what slots and buffers are about to lose
//!                 ▼
//!              [`past`]: all contents of slots, in bounded memory ──► Accounts::close ──► [`Account`]
//! ```
//!
//! It looks at the ledger and changes nothing in it: what is reported of evictions is the same with
//! it and without.

use crate::adapters::Blend;
use crate::event::{BufferId, Reason, SequenceId, TaskId, Token};
use crate::ledger::Ledger;
use crate::prompts::UNTIED;
use open::Open;
use past::{Nth, Past};
use std::collections::{BTreeMap, HashMap};

mod batches;
mod close;
mod difference;
mod leaving;
mod losses;
mod matching;
mod open;
mod past;
mod rules;
#[cfg(test)]
mod tests;
mod types;
mod watch;

use losses::Losses;
pub use losses::{EACH as REMEMBERED_EACH, MOST as MOST_REMEMBERED};
pub use matching::{Choice, Match, Matched, Occupied};
pub use rules::Rules;
pub use types::{Account, Around, Asker, Causes, Diverged, Elsewhere, Loss, Sources, Wishes};

/// Accounts for prompts. Call [`Self::before`] with each event, let the ledger apply it, and call
/// [`Self::after`].
#[derive(Debug)]
pub struct Accounts {
    rules: Rules,
    past: Past,
    losses: Losses,
    slots: BTreeMap<SequenceId, Slot>,
    /// When each host entry was saved, and which slot it was saved from.
    saved: HashMap<BufferId, (u64, SequenceId)>,
    /// Contents that the event under way takes from a slot or buffer.
    going: Vec<(Vec<Token>, Reason, Option<Nth>)>,
    /// Slots with entries in the batch that is being evaluated, and whether these were the last.
    batch: Vec<(SequenceId, bool)>,
    /// The slot that takes on a task with this event, unless it has left something before.
    launching: Option<SequenceId>,
    /// Counts events.
    clock: u64,
    /// When the last batch was submitted.
    batched: u64,
    /// The prompt that was launched since.
    launched: Option<Nth>,
    /// The last prompt that was launched.
    last: Nth,
    /// The last prompt before events were lost.
    gap: Nth,
    /// LoRA adapters were applied.
    adapted: bool,
    /// Of slots that were never used, the server takes the last one first. `None`: not seen yet.
    from_the_end: Option<bool>,
    /// Accounts have the tokens around differences.
    quotes: bool,
}

/// A slot.
#[derive(Debug, Default)]
struct Slot {
    open: Option<Open>,
    /// The last prompt that was begun in it.
    owner: Nth,
    /// It holds more than was recorded.
    dirty: bool,
    /// What it has left and may come back to.
    left: Option<Vec<Token>>,
    /// What it held before room was made in it for its next prompt.
    own: Option<Vec<Token>>,
    prepared: Prepared,
    /// Its entries in the last batch, if outputs of all of several were asked for: then all but one may
    /// be drafts.
    drafted: u32,
    /// The adapters that it worked under then; `None`: it was at work on nothing yet.
    blend: Option<Blend>,
    /// When it was last at work.
    used: u64,
    /// The last prompt in it, for children that take it over.
    last: Option<Account>,
}

/// What was done to a slot since it was last at work.
#[derive(Clone, Copy, Debug, Default)]
struct Prepared {
    /// When, last.
    at: u64,
    /// It was loaded from the host prompt cache.
    restored: bool,
    /// So many tokens were moved up.
    moved: u32,
    /// It was emptied, as its next prompt is for other adapters.
    readapted: bool,
    /// LoRA adapters were applied to any.
    adapted: bool,
}

/// Bytes of contents that are remembered, unless it is said otherwise.
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
            batch: Vec::new(),
            launching: None,
            clock: 0,
            batched: 0,
            launched: None,
            last: 0,
            gap: 0,
            adapted: false,
            from_the_end: None,
            quotes: false,
        }
    }

    /// From now on, accounts have the tokens around differences ([`Diverged::around`]).
    #[must_use]
    pub fn quoting(mut self) -> Self {
        self.quotes = true;
        self
    }

    /// Bytes that contents take now.
    #[must_use]
    pub fn remembered_bytes(&self) -> usize {
        self.past.bytes()
    }

    /// A slot takes on a task. Before the event of that is applied.
    pub fn launch(&mut self, slot: SequenceId, task: TaskId, asker: Asker, wishes: Wishes) {
        if self.last == 0 && wishes.slot.is_none() {
            self.from_the_end = Some(slot > 0);
        }
        let untied = task == UNTIED;
        // Where launches are known by what is submitted, the slot was chosen before room was made.
        let decided = match self.rules.tied {
            true => self.batched,
            false => self.clock,
        };
        let place = self.slots.entry(slot).or_default();
        // The end of a prompt tells whose it is: its beginning was seen already.
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

    /// How many of the first tokens of a prompt that was evaluated could be reused by now. `None`:
    /// it is not remembered.
    #[must_use]
    pub fn cached_tokens(&self, nth: u64, ledger: &Ledger) -> Option<u32> {
        let prompt = self.past.read(self.losses.end(nth)?)?;
        let most = (prompt.len() as u32).saturating_sub(1);
        let all = ledger.holdings(&prompt).into_iter();
        let best = all.map(|one| {
            let goes_on = (one.common as usize) < prompt.len();
            let reusable = ledger.way_back_in(one.holds, one.common, goes_on);
            reusable.min(most)
        });
        Some(best.max().unwrap_or(0))
    }

    /// The prompt that a slot is at work on has been evaluated: so many tokens, by the engine's
    /// count. `None` if its beginning was not seen.
    pub fn close(&mut self, slot: SequenceId, reused: u64, evaluated: u64) -> Option<Account> {
        let open = self.slots.get_mut(&slot)?.open.take()?;
        let account = self.account(&open, reused, evaluated);
        if let Some(place) = self.slots.get_mut(&slot) {
            place.last = Some(account.clone());
        }
        Some(account)
    }

    /// It shows who asked for the prompt that a slot is at work on.
    pub fn rename(&mut self, slot: SequenceId, asker: Asker, wishes: Wishes) {
        let place = self.slots.get_mut(&slot);
        if let Some(open) = place.and_then(|place| place.open.as_mut()) {
            open.asker = asker.clone();
            open.wishes = wishes;
            self.losses.name(open.nth, asker);
        }
    }

    /// It shows who asked for a prompt that was evaluated.
    pub fn name(&mut self, nth: u64, asker: Asker) {
        self.losses.name(nth, asker);
    }

    /// A slot takes over the prompt of another (`n`), which was evaluated there. Its own launch may
    /// not have been seen.
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
