//! A simple model of llama-server: it follows the server's rules, and says for each token why it is
//! evaluated.
//!
//! Slots and host entries are lists of tokens, and so is all that was ever in a slot.

use super::super::open::MOVABLE;
use super::super::past::common;
use super::super::past::repeats::REPEATED;
use super::*;

const ENGINE: ContextId = ContextId(1);

#[derive(Default)]
pub(super) struct SimulatedSlot {
    pub(super) tokens: Vec<Token>,
    pub(super) busy: bool,
    /// The task that was last launched in it.
    task: TaskId,
    /// The clock when the slot was written last, or was left before it was written.
    used: u64,
}

/// What the server is started with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags {
    pub(super) slots: usize,
    /// Entries of the host prompt cache; 0: there is none.
    pub(super) host: usize,
    /// Idle slots are saved and emptied when another slot takes a task.
    pub(super) unified: bool,
    pub(super) rules: Rules,
}

#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) prompt: Vec<Token>,
    pub(super) wishes: Wishes,
    /// Tokens of a batch.
    pub(super) batch: usize,
    /// The client leaves after so many batches.
    pub(super) leaves: Option<usize>,
    /// How many tokens the prefix store has behind those in the slot.
    pub(super) stored: usize,
}

pub(super) struct SimulatedServer {
    flags: Flags,
    pub(super) slots: Vec<SimulatedSlot>,
    host: Vec<(BufferId, Vec<Token>)>,
    /// All that was ever in a slot, and the task that was last launched in it.
    ever: Vec<(TaskId, Vec<Token>)>,
    /// Prompts that are being evaluated.
    flights: Vec<Flight>,
    /// Counts events.
    clock: u64,
    /// The number of the last host entry.
    buffers: usize,
    /// The number of the last task.
    tasks: TaskId,
    /// How each task came into its slot, and whether the slot was filled from the host prompt cache.
    pub(super) taken: Vec<(Choice, bool)>,
    pub(super) ledger: Ledger,
    pub(super) accounts: Accounts,
}

/// A prompt that a slot is at work on.
struct Flight {
    ask: Ask,
    slot: usize,
    task: TaskId,
    /// What the slot held when the prompt was launched.
    held: Vec<Token>,
    /// All that was cached before the slot was chosen.
    all: Vec<Vec<Token>>,
    /// The number of the last host entry when the slot had been chosen.
    saved_before: usize,
    /// The slot was filled from the host prompt cache.
    loaded: bool,
    /// How many of the slot's tokens are reused.
    from: usize,
    /// How many tokens are reused, with those of the prefix store.
    loaded_end: usize,
    batches: usize,
    /// What was cached when its first batch was submitted.
    then: Option<Then>,
    /// Others were evaluated, or generated tokens, at the same time.
    overlaps: bool,
}

struct Then {
    /// What other slots, and the host, held. `true`: in a slot when this one's was chosen.
    others: Vec<(Vec<Token>, bool)>,
    /// How much had ever been in slots.
    ever: usize,
}

/// The account of an evaluated prompt, and the figures that it should have.
pub(super) struct CheckedAccount {
    pub(super) account: Account,
    pub(super) causes: Causes,
    /// Of the tokens that the request did not want from the cache, those that were held when it came.
    pub(super) held_uncached: u64,
    pub(super) from: Sources,
    /// The most tokens that the prompt has in common with any earlier one.
    pub(super) common: usize,
    /// The most tokens that anything held behind these when the prompt came.
    pub(super) behind: usize,
    /// Others were evaluated, or generated tokens, at the same time.
    pub(super) overlaps: bool,
}

impl SimulatedServer {
    pub(super) fn new(flags: Flags, bytes: usize) -> Self {
        let slots = (0..flags.slots).map(|_| SimulatedSlot::default()).collect();
        let mut server = Self {
            flags,
            slots,
            host: Vec::new(),
            ever: Vec::new(),
            flights: Vec::new(),
            clock: 0,
            buffers: 0,
            tasks: 0,
            taken: Vec::new(),
            ledger: Ledger::observed(),
            accounts: Accounts::new(flags.rules, bytes),
        };
        server.apply(Event::ContextCreated { context: ENGINE });
        server
    }

    pub(super) fn apply(&mut self, event: Event) {
        self.clock += 1;
        self.apply_as(event, |_| {});
    }

    /// `launch`: what the observer says of the event when the ledger has applied it.
    fn apply_as(&mut self, event: Event, launch: impl FnOnce(&mut Accounts)) {
        let Self {
            accounts, ledger, ..
        } = self;
        ledger.upcoming(&event, &mut |upcoming| accounts.upcoming(upcoming, ledger));
        let mut facts = Vec::new();
        ledger.apply(event, &mut facts);
        facts.iter().for_each(|fact| accounts.fact(fact));
        launch(accounts);
        accounts.after(ledger, self.clock);
    }

    fn idle(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.len()).filter(|&slot| !self.slots[slot].busy)
    }

    /// What accounts say of the slot that the server will choose.
    fn foreseen(&self, ask: &Ask) -> Option<(SequenceId, Choice)> {
        let busy = (0..self.slots.len()).filter(|&slot| self.slots[slot].busy);
        let occupied = Occupied {
            busy: busy.map(|slot| slot as SequenceId).collect(),
            slots: Some(self.slots.len() as u32),
        };
        let found = self
            .accounts
            .matching(&ask.prompt, ask.wishes.slot, &occupied, &self.ledger);
        found.choice
    }

    /// The server's `get_available_slot`. `None`: the request would wait.
    fn choose(&mut self, ask: &Ask) -> Option<(usize, Choice)> {
        let all = ask.prompt.len() as f32;
        let pinned = ask.wishes.slot.map(|slot| slot as usize);
        if pinned.is_some_and(|slot| self.slots[slot].busy) {
            return None;
        }
        let mut chosen = pinned;
        let mut choice = match pinned {
            Some(_) => Choice::Pinned,
            None => Choice::Similarity,
        };
        let mut best = 0.0;
        if self.flags.rules.similarity > 0.0 {
            for slot in self.idle().filter(|&slot| pinned.is_none_or(|p| p == slot)) {
                let share = common(&self.slots[slot].tokens, &ask.prompt) as f32 / all;
                if share > best && share > self.flags.rules.similarity {
                    (chosen, best) = (Some(slot), share);
                }
            }
        }
        let mut update = self.flags.rules.similarity > 0.0
            && chosen.is_some_and(|slot| {
                let held = self.slots[slot].tokens.len();
                held > 0 && best * all / (held as f32) < 0.5
            });
        if chosen.is_none() {
            chosen = self.idle().min_by_key(|&slot| {
                let SimulatedSlot { tokens, used, .. } = &self.slots[slot];
                (!tokens.is_empty(), *used)
            });
            choice = Choice::LeastRecentlyUsed;
            update = true;
        }
        let slot = chosen?;
        if update && self.flags.host > 0 {
            self.save(slot);
            self.load(slot, &ask.prompt);
        }
        Some((slot, choice))
    }

    /// The server's `server_prompt_cache::alloc`.
    fn save(&mut self, slot: usize) {
        let tokens = self.slots[slot].tokens.clone();
        let contained = |inner: &[Token], other: &[Token]| common(inner, other) == inner.len();
        if tokens.is_empty() || self.host.iter().any(|(_, entry)| contained(&tokens, entry)) {
            return;
        }
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.host)
            .into_iter()
            .partition(|(_, entry)| contained(entry, &tokens));
        self.host = stay;
        for (buffer, _) in gone {
            self.apply(Event::Freed { buffer });
        }
        while self.host.len() >= self.flags.host {
            let (buffer, _) = self.host.remove(0);
            self.apply(Event::Freed { buffer });
        }
        self.buffers += 1;
        let buffer = BufferId(self.buffers);
        self.host.push((buffer, tokens));
        self.apply(Event::Saved {
            context: ENGINE,
            sequence: slot as SequenceId,
            buffer,
        });
    }

    /// The server's `server_prompt_cache::load`.
    fn load(&mut self, slot: usize, prompt: &[Token]) {
        let all = prompt.len() as f32;
        let held = &self.slots[slot].tokens;
        let same = common(held, prompt) as f32;
        let mut best = match held.len() {
            0 => (-1.0, same / all),
            length => (same / length as f32, same / all),
        };
        let mut found = None;
        for (nth, (_, entry)) in self.host.iter().enumerate() {
            let same = common(entry, prompt) as f32;
            let shares = (same / entry.len() as f32, same / all);
            if shares.0 >= 0.25 && best.0 < shares.0 && best.1 < shares.1 {
                (best, found) = (shares, Some(nth));
            }
        }
        if let Some(nth) = found {
            let (buffer, tokens) = self.host.remove(nth);
            self.slots[slot].tokens = tokens;
            self.apply(Event::Restored {
                context: ENGINE,
                sequence: slot as SequenceId,
                buffer,
            });
            self.apply(Event::Freed { buffer });
        }
    }

    /// Evaluates a prompt, and all that was launched before. `None`: no slot is free, or the client has left.
    pub(super) fn ask(&mut self, ask: &Ask) -> Option<CheckedAccount> {
        let task = self.launch(ask)?;
        let mut answers = self.batches().into_iter();
        answers.find(|answer| answer.account.asker.number == task as u64)
    }

    /// Gives a prompt to a slot. `None`: none is free.
    pub(super) fn launch(&mut self, ask: &Ask) -> Option<TaskId> {
        let before: Vec<Vec<Token>> = self.slots.iter().map(|slot| slot.tokens.clone()).collect();
        let host = self.host.iter().map(|(_, entry)| entry);
        let all = before.iter().chain(host).cloned().collect();
        let foreseen = self.foreseen(ask);
        let chosen = self.choose(ask);
        let expected = chosen.map(|(slot, choice)| (slot as SequenceId, choice));
        assert_eq!(foreseen, expected);
        let (slot, choice) = chosen?;
        let loaded = self.slots[slot].tokens != before[slot];
        self.taken.push((choice, loaded));
        let sequence = slot as SequenceId;
        self.tasks += 1;
        let task = self.tasks;
        let event = Event::Launched { sequence, task };
        let asker = Asker {
            number: task as u64,
            id: None,
        };
        self.apply_as(event, |accounts| {
            accounts.launch(sequence, task, asker, ask.wishes);
        });
        let held = self.slots[slot].tokens.clone();
        let saved_before = self.buffers;
        self.slots[slot].busy = true;
        self.slots[slot].task = task;
        if self.flags.unified && self.flags.host > 0 {
            for idle in self.idle().collect::<Vec<_>>() {
                self.save(idle);
                self.remove(idle, -1, 0);
            }
        }
        // The last token is always evaluated.
        let last = ask.prompt.len() - 1;
        let from = if ask.wishes.uncached {
            0
        } else {
            common(&held, &ask.prompt).min(last)
        };
        self.flights.push(Flight {
            ask: ask.clone(),
            slot,
            task,
            held,
            all,
            saved_before,
            loaded,
            from,
            loaded_end: last.min(from + ask.stored),
            batches: 0,
            then: None,
            overlaps: false,
        });
        self.flights.sort_unstable_by_key(|flight| flight.slot);
        Some(task)
    }

    /// Evaluates all prompts that are launched.
    pub(super) fn batches(&mut self) -> Vec<CheckedAccount> {
        let mut answers = Vec::new();
        while !self.flights.is_empty() {
            answers.extend(self.batch());
        }
        answers
    }

    /// A batch with the next tokens of each prompt that is launched. Returns the answers of those that are evaluated.
    pub(super) fn batch(&mut self) -> Vec<CheckedAccount> {
        let mut flights = std::mem::take(&mut self.flights);
        for flight in flights.iter().filter(|flight| flight.then.is_none()) {
            self.remove(flight.slot, flight.from as Position, flight.from);
        }
        flights.retain(|flight| {
            let leaves = flight.ask.leaves == Some(flight.batches);
            if leaves && flight.batches == 0 {
                self.slots[flight.slot].used = self.clock;
                self.accounts.answered(Arrival(flight.task as u64));
            }
            if leaves {
                self.slots[flight.slot].busy = false;
            }
            !leaves
        });
        let overlaps = flights.len() > 1;
        let mut parts = Vec::new();
        for flight in &mut flights {
            flight.overlaps |= overlaps;
            if flight.then.is_none() {
                flight.then = Some(self.look(flight));
            }
            let at = flight.from + flight.batches * flight.ask.batch;
            let rest = &flight.ask.prompt[at..];
            let part = &rest[..rest.len().min(flight.ask.batch)];
            let stored = flight.loaded_end.saturating_sub(at).min(part.len());
            parts.push((flight.slot, part.to_vec(), part.len() == rest.len(), stored));
            flight.batches += 1;
        }
        if parts.is_empty() {
            return Vec::new();
        }
        self.submit_all(&parts);
        let mut answers = Vec::new();
        for (flight, (.., ends, _)) in flights.into_iter().zip(parts) {
            if ends {
                answers.extend(self.answer(&flight));
            } else {
                self.flights.push(flight);
            }
        }
        answers
    }

    fn look(&self, flight: &Flight) -> Then {
        let others = (0..self.slots.len()).filter(|&other| other != flight.slot);
        let slots = others.map(|other| (self.slots[other].tokens.clone(), true));
        let host = self.host.iter().map(|(buffer, entry)| {
            // Saved after the slot had been chosen, from an idle slot: counts as in that slot.
            (entry.clone(), buffer.0 > flight.saved_before)
        });
        Then {
            others: slots.chain(host).collect(),
            ever: self.ever.len(),
        }
    }

    fn answer(&mut self, flight: &Flight) -> Option<CheckedAccount> {
        let (causes, held_uncached) = self.causes(flight);
        let ask = &flight.ask;
        let (reused, evaluated) = (flight.loaded_end, ask.prompt.len() - flight.loaded_end);
        let (slot, counts) = (flight.slot as SequenceId, (reused as u64, evaluated as u64));
        let account = self
            .accounts
            .close(slot, counts.0, counts.1, &self.ledger)?;
        assert_eq!(account.asker.number, flight.task as u64);
        let others = self.ever.iter().filter(|(task, _)| *task != flight.task);
        let shared = others.map(|(_, held)| common(held, &ask.prompt));
        let most = shared.max().unwrap_or(0);
        let then = flight.then.iter().flat_map(|then| &then.others);
        let all = flight.all.iter().chain(then.map(|(held, _)| held));
        let behind = all.filter(|held| common(held, &ask.prompt) == most);
        let mut from = Sources::default();
        if flight.loaded {
            from.host = flight.from as u64
        } else {
            from.slot = flight.from as u64
        }
        from.store = (flight.loaded_end - flight.from) as u64;
        Some(CheckedAccount {
            account,
            causes,
            held_uncached,
            from,
            common: most,
            behind: behind.map(|held| held.len() - most).max().unwrap_or(0),
            overlaps: flight.overlaps,
        })
    }

    /// A prompt that a slot takes by itself, evaluated from its first token on whatever the slot holds. With `refused`, the engine
    /// refuses it once before.
    pub(super) fn ask_anew(&mut self, slot: usize, prompt: &[Token], refused: bool) -> Account {
        self.evaluate_anew(slot, prompt, refused);
        self.close(slot, prompt)
    }

    /// The same of an embedding: the server empties the slot before the prompt's end is known.
    pub(super) fn embed(&mut self, slot: usize, prompt: &[Token]) -> Account {
        self.evaluate_anew(slot, prompt, false);
        self.empty(slot);
        self.close(slot, prompt)
    }

    fn close(&mut self, slot: usize, prompt: &[Token]) -> Account {
        let account = self
            .accounts
            .close(slot as SequenceId, 0, prompt.len() as u64, &self.ledger);
        account.expect("its prompt was evaluated")
    }

    fn evaluate_anew(&mut self, slot: usize, prompt: &[Token], refused: bool) {
        let sequence = slot as SequenceId;
        self.tasks += 1;
        let task = self.tasks;
        self.apply_as(Event::Launched { sequence, task }, |accounts| {
            let number = task as u64;
            let asker = Asker { number, id: None };
            accounts.launch(sequence, task, asker, Wishes::default());
        });
        self.remove(slot, 0, 0);
        if refused {
            self.apply(Event::Submitted {
                context: ENGINE,
                entries: (0..).zip(prompt).map(entry(sequence)).collect(),
            });
            self.fail(slot, false);
        }
        self.submit(slot, prompt, true, 0);
    }

    /// An adapter is applied to all that is evaluated from now on.
    pub(super) fn adapt(&mut self) {
        self.apply(Event::Adapters {
            context: ENGINE,
            adapters: vec![Adapter {
                address: 1,
                scale: Scale::new(1.0),
                invocation: [].into(),
            }],
            compared: Compared::WhenNamed,
        });
    }

    /// Why tokens of an evaluated prompt were evaluated, and of those that it did not want from the cache, how many were held.
    fn causes(&self, flight: &Flight) -> (Causes, u64) {
        let Ask { prompt, wishes, .. } = &flight.ask;
        let then = flight.then.as_ref().expect("its first batch was submitted");
        let rules = &self.flags.rules;
        let mut causes = Causes {
            last_token: 1,
            ..Causes::default()
        };
        let mut held_uncached = 0;
        let others = then.others.iter();
        let best = others.map(|(held, in_slot)| (common(held, prompt), *in_slot));
        let (most, in_slot) = best.max().unwrap_or_default();
        let movable = movable(&flight.held, prompt);
        let (ever, since) = self.ever.split_at(then.ever);
        let repeated = repeated(ever, prompt);
        let earlier = since.iter().filter(|(task, _)| *task < flight.task);
        let shared = earlier.map(|(_, held)| common(held, prompt));
        let beside = shared.max().unwrap_or(0);
        let is_similar = |common: usize| common as f32 / prompt.len() as f32 > rules.similarity;
        for at in flight.loaded_end..prompt.len() - 1 {
            let upto = &prompt[..=at];
            let was_ever = ever.iter().any(|(_, held)| held.starts_with(upto));
            let is_elsewhere = at < most;
            let is_held = flight.held.starts_with(upto) || is_elsewhere;
            let is_beside = at < beside && !was_ever;
            held_uncached += u64::from(is_held && wishes.uncached);
            let elsewhere = if is_elsewhere { most } else { beside };
            let cause = if (is_held || was_ever || is_beside) && wishes.uncached {
                &mut causes.uncached
            } else if is_elsewhere && !in_slot {
                &mut causes.elsewhere.host_rule
            } else if movable.contains(&at) && !is_elsewhere && !wishes.uncached {
                &mut causes.moved
            } else if was_ever && !is_elsewhere {
                &mut causes.evicted
            } else if !is_elsewhere && !is_beside {
                if repeated[at] {
                    &mut causes.repeated
                } else {
                    &mut causes.new
                }
            } else if wishes.slot.is_some() {
                &mut causes.elsewhere.pinned
            } else if rules.similarity == 0.0 {
                &mut causes.elsewhere.least_recently_used
            } else if is_similar(elsewhere) {
                &mut causes.elsewhere.busy
            } else {
                &mut causes.elsewhere.similarity
            };
            *cause += 1;
        }
        (causes, held_uncached)
    }

    /// A batch with nothing but a slot that stays empty was not evaluated.
    pub(super) fn fail(&mut self, slot: usize, no_room: bool) {
        self.apply(Event::Evaluated {
            context: ENGINE,
            failed: vec![(slot as SequenceId, -1)],
            no_room,
        });
    }

    /// The engine removes what a slot holds, busy or not.
    pub(super) fn empty(&mut self, slot: usize) {
        self.remove(slot, -1, 0);
    }

    fn remove(&mut self, slot: usize, position: Position, keep: usize) {
        self.slots[slot].tokens.truncate(keep);
        self.apply(Event::Removed {
            context: ENGINE,
            sequence: slot as SequenceId,
            from: position,
            to: -1,
        });
    }

    /// `stored`: so many of the tokens are loaded from the prefix store.
    pub(super) fn submit(&mut self, slot: usize, tokens: &[Token], ends: bool, stored: usize) {
        self.submit_all(&[(slot, tokens.to_vec(), ends, stored)]);
    }

    /// A batch of several slots: see [`Self::submit`].
    fn submit_all(&mut self, parts: &[(usize, Vec<Token>, bool, usize)]) {
        let mut entries: Vec<Entry> = Vec::new();
        let mut loaded = Vec::new();
        for &(slot, ref tokens, ends, stored) in parts {
            let held = &mut self.slots[slot];
            let from = held.tokens.len();
            held.tokens.extend(tokens);
            held.used = self.clock;
            self.ever.push((held.task, held.tokens.clone()));
            let placed = (from as Position..).zip(tokens);
            entries.extend(placed.map(entry(slot as SequenceId)));
            if let Some(last) = entries.last_mut() {
                last.output = ends;
            }
            if stored > 0 {
                loaded.push(Event::Loaded {
                    context: ENGINE,
                    sequence: slot as SequenceId,
                    from: from as Position,
                    to: (from + stored) as Position,
                    entries: stored as u32,
                });
            }
        }
        self.apply(Event::Submitted {
            context: ENGINE,
            entries: entries.into(),
        });
        for event in loaded {
            self.apply(event);
        }
        self.apply(Event::Evaluated {
            context: ENGINE,
            failed: Vec::new(),
            no_room: false,
        });
    }

    fn works_on_prompt(&self, slot: usize) -> bool {
        self.flights.iter().any(|flight| flight.slot == slot)
    }

    pub(super) fn generate(&mut self, slot: usize, token: Token) {
        if self.slots[slot].busy && !self.works_on_prompt(slot) {
            for flight in self
                .flights
                .iter_mut()
                .filter(|flight| flight.then.is_some())
            {
                flight.overlaps = true;
            }
            self.submit(slot, &[token], true, 0);
        }
    }

    pub(super) fn finish(&mut self, slot: usize) {
        self.slots[slot].busy = self.works_on_prompt(slot);
    }

    pub(super) fn erase(&mut self, slot: usize) {
        if !self.slots[slot].busy {
            self.remove(slot, -1, 0);
        }
    }
}

/// For each token of a prompt whether a row of tokens with it was in any of these contents, wherever.
fn repeated(ever: &[(TaskId, Vec<Token>)], prompt: &[Token]) -> Vec<bool> {
    let mut repeated = vec![false; prompt.len()];
    for (at, row) in prompt.windows(REPEATED).enumerate() {
        let mut ever = ever.iter();
        if ever.any(|(_, held)| held.windows(REPEATED).any(|window| window == row)) {
            repeated[at..at + REPEATED].fill(true);
        }
    }
    repeated
}

fn entry(sequence: SequenceId) -> impl Fn((Position, &Token)) -> Entry {
    move |(position, &token)| Entry {
        sequence,
        position,
        token,
        output: false,
    }
}

/// The rule of `--cache-reuse`: the indexes of the prompt's tokens that would be moved up in the slot.
fn movable(held: &[Token], prompt: &[Token]) -> Vec<usize> {
    let (mut cached, mut place) = (common(held, prompt), common(held, prompt));
    let mut moved = Vec::new();
    while cached < held.len() && place < prompt.len() {
        let alike = common(&held[cached..], &prompt[place..]);
        if alike >= MOVABLE {
            moved.extend(place..place + alike);
            place += alike;
            cached += alike;
        } else {
            cached += 1;
        }
    }
    moved
}
