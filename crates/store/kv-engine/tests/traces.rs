//! Random traffic of a host with four sequences on an engine in memory, while that refuses calls, states are gone, and the library
//! stops at any look at its record: each output is what an engine without a store puts out, and what is stored is what it
//! would have evaluated.

mod memory;

use contextpilot_kv_engine::batch::Ready;
use contextpilot_kv_engine::{
    Change, Engine, Host, HostBatch, LOST, NO_ROOM, Record, STOPPED, batch, bounded, changed,
    dense, is_bounded, synchronise,
};
use contextpilot_kv_store::{Conditions, Held, media};
use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRunner};

use memory::{DROPS, Fault, Kind, Known, Memory, Rows, computed, part, rows_of};

const SEQUENCES: i32 = 4;
/// Tokens of a batch.
const BATCH: usize = 16;

/// What the host does.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A prompt: so many tokens of one of three texts, then of one that no other prompt has; then an answer. Two of the texts have an image,
    /// and so may what is its own: see [`Traffic::tokens`].
    Prompt {
        sequence: i32,
        text: u8,
        shared: usize,
        own: usize,
        answer: usize,
    },
    /// Two prompts in the same batches.
    Two(i32, usize, usize),
    Remove(i32),
    /// The last tokens go, as far as the context can do that.
    GoBack(i32, usize),
    Copy(i32, i32),
    Keep(i32),
    Clear,
    /// The host takes a copy of a state.
    Save(i32),
    /// The last copy replaces a sequence.
    Restore(i32),
    /// The host goes back to the last copy, of which the sequence still has all tokens (a checkpoint).
    Rewind(i32),
    /// Another adapter is applied from now on.
    Adapter(u32),
    /// Tokens are moved.
    Move(i32, usize),
    /// The host is about to do something after which it is not known what a load has left out.
    MakeWhole(i32),
}

/// A state that the host has saved.
#[derive(Clone)]
struct Saved {
    plain: Vec<(i32, Conditions)>,
    rows: Rows,
    held: Option<Held>,
}

/// A host that believes in its tokens, and the context that it uses.
struct Traffic {
    memory: Memory,
    /// What a plain engine would hold.
    plain: [Vec<(i32, Conditions)>; SEQUENCES as usize],
    /// What is not what it would be had it been evaluated there: no state of it is stored.
    is_moved: [bool; SEQUENCES as usize],
    /// How many tokens were there when a plain engine dropped what was behind the windows.
    dropped: [usize; SEQUENCES as usize],
    saved: Option<Saved>,
    own: i32,
    outputs: usize,
    lost: usize,
    tails: Cell<usize>,
    /// Images that were left out.
    images: Cell<usize>,
}

/// So many tokens of a text, and then some of its own.
fn text_of(text: u8, shared: usize, last: &mut i32, own: usize) -> Vec<i32> {
    let shared = i32::try_from(shared).unwrap();
    let own = i32::try_from(own).unwrap();
    *last += 1_000;
    let shared = (0..shared).map(|nth| 1_000 * i32::from(text) + nth);
    shared.chain(*last..=*last + own).collect()
}

/// How many rows the image has that these tokens begin with.
fn length_of_image(tokens: &[i32]) -> usize {
    let mut ends = 1..=tokens.len();
    ends.find(|end| media::whole(&tokens[..*end]) == *end)
        .unwrap()
}

impl Traffic {
    fn new(kind: Kind, fault: Option<Fault>) -> Self {
        Self {
            memory: Memory::new(kind, fault),
            plain: Default::default(),
            is_moved: Default::default(),
            dropped: Default::default(),
            saved: None,
            own: 10_000,
            outputs: 0,
            lost: 0,
            tails: Cell::new(0),
            images: Cell::new(0),
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Prompt {
                sequence,
                text,
                shared,
                own,
                answer,
            } => {
                let tokens = self.tokens(text, shared, own);
                let mut from = self.go_back_to(sequence, &tokens);
                let is_uncached = own == 7;
                self.memory.uncached.set(is_uncached.then_some(sequence));
                while from < tokens.len() {
                    if media::is_row(tokens[from]) {
                        let end = from + length_of_image(&tokens[from..]);
                        if !self.show(sequence, &tokens[from..end]) {
                            return;
                        }
                        from = end;
                        continue;
                    }
                    let rest = tokens[from..].iter();
                    let text = rest.take_while(|token| !media::is_row(**token)).count();
                    let end = from + text.min(BATCH);
                    let leading = if end == tokens.len() {
                        end - from - 1
                    } else {
                        end - from
                    };
                    if !self.decode(&[(sequence, &tokens[from..end], leading)]) {
                        return;
                    }
                    from = end;
                    if own % 3 == 0 {
                        // On the way through a prompt, states are taken, too.
                        self.store(sequence, 0);
                    }
                    if own % 5 == 2 && from % 3 > 0 {
                        // So are the host's own.
                        self.act(Act::Save(sequence));
                    }
                }
                for nth in 0..answer {
                    let token = 900_000 + i32::try_from(nth).unwrap();
                    if !self.decode(&[(sequence, &[token], 0)]) {
                        return;
                    }
                }
            }
            Act::Two(other, shared, own) => {
                let (first, other) = (0, other.max(1));
                let a = text_of(0, shared, &mut self.own, own);
                let b = text_of(1, shared + 3, &mut self.own, own);
                let (mut from, mut behind) =
                    (self.go_back_to(first, &a), self.go_back_to(other, &b));
                while from < a.len() || behind < b.len() {
                    let (end, limit) = (a.len().min(from + 9), b.len().min(behind + 7));
                    let mut all = Vec::new();
                    if end > from {
                        all.push((
                            first,
                            &a[from..end],
                            end - from - usize::from(end == a.len()),
                        ));
                    }
                    if limit > behind {
                        let last = usize::from(limit == b.len());
                        all.push((other, &b[behind..limit], limit - behind - last));
                    }
                    if !self.decode(&all) {
                        return;
                    }
                    (from, behind) = (end, limit);
                }
            }
            Act::Remove(sequence) => self.remove(sequence, 0),
            Act::GoBack(sequence, count) => {
                let length = self.plain[sequence as usize].len();
                // With windows, no farther than an engine without a store has them.
                let least = match self.memory.kind {
                    Kind::Dense => 0,
                    Kind::Window(_) => self.dropped[sequence as usize].saturating_sub(1),
                    Kind::Recurrent => length,
                };
                if least < length {
                    let kept = length.saturating_sub(count).max(least);
                    // A host keeps whole images.
                    let tokens = self.tokens_of(sequence);
                    let kept = media::whole(&tokens[..kept]);
                    if kept >= least {
                        self.remove(sequence, kept);
                    }
                }
            }
            Act::Copy(source, target) if source != target => {
                self.remove(target, 0);
                self.before(source);
                self.before(target);
                let rows = self.memory.get(source);
                self.memory.put(target, rows);
                self.plain[target as usize] = self.plain[source as usize].clone();
                self.is_moved[target as usize] = self.is_moved[source as usize];
                self.dropped[target as usize] = self.dropped[source as usize];
                changed(&self.memory, Change::Replaced(target), |known| {
                    known.session.copied(source, target, -1, -1);
                });
            }
            Act::Copy(..) => {}
            Act::Keep(kept) => {
                for sequence in 0..SEQUENCES {
                    if sequence != kept {
                        self.store(sequence, 0);
                    }
                }
                self.memory.goes_on();
                for sequence in (0..SEQUENCES).filter(|id| *id != kept) {
                    self.memory.rows.borrow_mut().remove(&sequence);
                    self.forget(sequence);
                }
                changed(&self.memory, Change::Kept(kept), |known| {
                    known.session.kept(kept)
                });
            }
            Act::Clear => self.clear(),
            Act::Save(sequence) => {
                self.before(sequence);
                let held = self.memory.record(|known| known.session.copy_out(sequence));
                let rows = self.memory.copy_out(sequence);
                let plain = self.plain[sequence as usize].clone();
                let is_moved = self.is_moved[sequence as usize];
                // The host reads what the engine has.
                if self.memory.journal.borrow().is_any_lost() {
                    return;
                }
                let lost = self.memory.record(|known| known.session.is_any_lost());
                if lost != Some(true) && !is_moved {
                    assert_eq!(rows.all, computed(&plain), "a state that the host saves");
                    let held = held.flatten();
                    self.saved = Some(Saved { plain, rows, held });
                }
            }
            Act::Restore(sequence) => {
                let Some(Saved { plain, rows, held }) = self.saved.clone() else {
                    return;
                };
                if self.acts() {
                    bounded::forget_pending(&self.memory, sequence);
                }
                self.store(sequence, 0);
                self.memory.goes_on();
                self.memory.put(sequence, rows);
                self.dropped[sequence as usize] = plain.len();
                self.plain[sequence as usize] = plain;
                self.is_moved[sequence as usize] = false;
                changed(
                    &self.memory,
                    Change::Removed(sequence),
                    |known| match held {
                        Some(held) => known.session.replaced(sequence, held),
                        None => known.session.restored(sequence, &[]),
                    },
                );
            }
            Act::Rewind(sequence) => {
                let Some(Saved { plain, rows, held }) = self.saved.clone() else {
                    return;
                };
                let is_there = self.plain[sequence as usize].starts_with(&plain);
                let is_moved = self.is_moved[sequence as usize];
                if !is_there || is_moved || plain.is_empty() || self.memory.kind == Kind::Dense {
                    return;
                }
                self.before(sequence);
                self.store(sequence, 0);
                if self.is_lost() {
                    return;
                }
                self.memory.put(sequence, rows);
                let kept = plain.len();
                self.dropped[sequence as usize] = kept;
                let held = held.filter(Held::is_whole);
                changed(
                    &self.memory,
                    Change::Shortened(sequence),
                    |known| match held {
                        Some(held) => {
                            let (conditions, first) = (held.conditions, held.first);
                            known
                                .session
                                .rewound(sequence, &held.tokens, conditions, first);
                        }
                        None => known.session.overwritten(sequence),
                    },
                );
                self.remove(sequence, kept);
            }
            Act::Adapter(adapter) => {
                // A server goes back to what a sequence was evaluated under before it goes on with it.
                for sequence in 0..SEQUENCES {
                    self.before(sequence);
                }
                let under = Conditions(adapter);
                if under != self.memory.under.get() {
                    self.memory.is_mixed.set(true);
                    self.memory.under.set(under);
                }
            }
            Act::MakeWhole(sequence) => {
                self.before(sequence);
                if self.acts() {
                    bounded::make_whole(&self.memory, sequence);
                    self.memory.goes_on();
                }
            }
            Act::Move(sequence, count) => {
                let length = self.plain[sequence as usize].len();
                let has_images = media::is_any_row(&self.tokens_of(sequence));
                if self.memory.kind != Kind::Dense || length < 4 || has_images {
                    return;
                }
                // The first tokens but one go, and the others take their places.
                let count = count.clamp(1, length - 2);
                self.before(sequence);
                let mut rows = self.memory.get(sequence);
                if self.is_lost() {
                    return;
                }
                rows.all.drain(1..=count);
                rows.tokens.drain(1..=count);
                self.memory.put(sequence, rows);
                self.plain[sequence as usize].drain(1..=count);
                self.is_moved[sequence as usize] = true;
                let count = i32::try_from(count).unwrap();
                changed(&self.memory, Change::Shortened(sequence), |known| {
                    known.session.removed(sequence, 1, count + 1);
                });
                changed(&self.memory, Change::Replaced(sequence), |known| {
                    known.session.moved(sequence, count + 1, -1, -count);
                });
            }
        }
    }

    /// The second text has an image, and the third one whose rows share a position; there may be one in what is the prompt's own.
    /// (Not with sliding windows: there nothing behind images is stored.)
    fn tokens(&mut self, text: u8, shared: usize, own: usize) -> Vec<i32> {
        let mut tokens = text_of(text, shared, &mut self.own, own);
        let is_windowed = matches!(self.memory.kind, Kind::Window(_));
        let at_once = self
            .memory
            .record(|known| known.bounds()?.at_once)
            .flatten();
        let most = at_once.unwrap_or(9);
        let of_prompt = (own % 4 == 1).then(|| media::run(&[self.own as u8; 32], most.min(5)));
        if let Some(image) = of_prompt.flatten() {
            tokens.splice(shared..shared, image);
        }
        let of_text = match text {
            1 => media::run(&[1; 32], most.min(9)),
            2 if !is_windowed => media::shared_run(&[2; 32], 9, 3),
            _ => None,
        };
        if let Some(image) = of_text.filter(|_| shared > 20) {
            tokens.splice(13..13, image);
        }
        tokens
    }

    /// What the host believes in.
    fn tokens_of(&self, sequence: i32) -> Vec<i32> {
        let plain = self.plain[sequence as usize].iter();
        plain.map(|(token, _)| *token).collect()
    }

    /// The position of its next token.
    fn end(&self, sequence: i32) -> usize {
        media::position(&self.tokens_of(sequence))
    }

    /// The host evaluates an image, a few rows at a time. False: that failed, and it begins anew.
    fn show(&mut self, sequence: i32, tokens: &[i32]) -> bool {
        // With sliding windows all at once.
        let most_rows = match self.memory.kind {
            Kind::Window(_) => tokens.len(),
            _ => 4,
        };
        let (shares, first) = (media::is_any_shared(tokens), self.end(sequence));
        let part_of = |from: usize, tokens: &[i32]| {
            let place = if shares { 0 } else { from };
            part(sequence, first + place, tokens, tokens.len(), 0)
        };
        let is_bounded = is_bounded(&self.memory);
        let is_one = shares || is_bounded;
        let mut is_there = false;
        for (nth, rows) in tokens.chunks(most_rows).enumerate() {
            let from = nth * most_rows;
            if is_there && is_one && nth > 0 {
                let under = self.memory.under.get();
                let rows = rows.iter().map(|token| (*token, under));
                self.plain[sequence as usize].extend(rows);
                continue;
            }
            let memory = &self.memory;
            let given = [(sequence, rows, rows.len())];
            let mut result = 0;
            let is_active = memory.goes_on();
            if !is_active && memory.journal.borrow().is_any_lost() {
                result = LOST;
            } else if is_active && nth == 0 {
                let all = part_of(0, tokens);
                let there = if is_bounded {
                    bounded::prepare_media(memory, &all)
                } else {
                    dense::prepare_part(memory, &all).map(|()| {
                        let there = memory.record(|known| known.session.there(&all.run));
                        there == Some(tokens.len())
                    })
                };
                is_there = there == Ok(true);
                if !is_there {
                    synchronise(memory, sequence);
                }
                result = there.err().map_or(0, |refusal| refusal.code());
            }
            if result == 0 {
                let mut part = part_of(from, rows);
                let mut left_out = Vec::new();
                if is_there && is_active {
                    left_out.clone_from(&part.indexes);
                    if is_one {
                        part.run.tokens = tokens.to_vec();
                        part.run.leading = tokens.len();
                    }
                }
                let mut batch = self.batch(&given);
                let memory = batch.memory;
                if is_active {
                    let ready = Ready {
                        left_out: left_out.clone(),
                        is_whole: true,
                    };
                    result = batch::evaluate(memory, &[part], rows.len(), ready, &mut batch);
                    if result == 0 && !batch.is_called {
                        batch.go_on(&left_out, false);
                    }
                } else {
                    result = batch.evaluate(&[]);
                }
                is_there = batch.left_out > 0;
            }
            if result != 0 {
                self.lost += 1;
                self.clear();
                return false;
            }
        }
        self.images.set(self.images.get() + usize::from(is_there));
        if is_bounded && !is_there {
            self.store(sequence, 0);
        }
        true
    }

    fn batch<'a>(&'a mut self, given: &'a [(i32, &'a [i32], usize)]) -> Given<'a> {
        Given {
            memory: &self.memory,
            given,
            plain: &mut self.plain,
            is_moved: &self.is_moved,
            dropped: &mut self.dropped,
            outputs: &mut self.outputs,
            is_called: false,
            left_out: 0,
        }
    }

    fn is_lost(&self) -> bool {
        let of_record = self.memory.record(|known| known.session.is_any_lost());
        self.memory.journal.borrow().is_any_lost() || of_record == Some(true)
    }

    /// Whether the store acts on a call of the host.
    fn acts(&self) -> bool {
        self.memory.goes_on()
    }

    /// What comes before anything but an evaluation.
    fn before(&self, sequence: i32) {
        if self.acts() {
            synchronise(&self.memory, sequence);
            self.memory.goes_on();
        }
    }

    /// The sequence is about to lose what is behind its first tokens: it is stored.
    fn store(&self, sequence: i32, kept: usize) {
        if !self.acts() {
            return;
        }
        let wanted = self.memory.record(|known| {
            let under = known.session.conditions(sequence)?;
            let tokens = known.session.believed(sequence)?;
            (tokens.len() >= kept + 8).then(|| (under, tokens.to_vec()))
        });
        if let Some((under, tokens)) = wanted.flatten() {
            if is_bounded(&self.memory) {
                self.store_tails(sequence, &tokens);
            } else {
                synchronise(&self.memory, sequence);
            }
            let mut state = Vec::new();
            if self.memory.save(sequence, &mut state) && self.memory.is_active.get() {
                let all: Vec<_> = tokens.iter().map(|token| (*token, under)).collect();
                let is_right = rows_of(&state).eq(computed(&all));
                assert!(is_right, "what is stored is what was evaluated");
                self.put(under, tokens);
            }
        }
        self.memory.goes_on();
    }

    fn put(&self, under: Conditions, tokens: Vec<i32>) {
        let mut stored = self.memory.stored.borrow_mut();
        if !stored.contains(&(under, tokens.clone())) {
            stored.push((under, tokens));
        }
    }

    /// The rows of these tokens are stored, and so are the tails that wait for them.
    fn store_tails(&self, sequence: i32, tokens: &[i32]) {
        let waiting = self
            .memory
            .record(|known| known.tails_mut().take_of(sequence));
        for tail in waiting.unwrap_or_default() {
            if !tokens.starts_with(&tail.tokens) {
                continue;
            }
            let all: Vec<_> = tail
                .tokens
                .iter()
                .map(|token| (*token, tail.conditions))
                .collect();
            let is_right = rows_of(&tail.bytes).eq(computed(&all));
            assert!(is_right, "a tail is of its tokens");
            self.tails.set(self.tails.get() + 1);
            self.put(tail.conditions, tail.tokens);
        }
    }

    fn forget(&mut self, sequence: i32) {
        self.dropped[sequence as usize] = 0;
        self.plain[sequence as usize].clear();
        self.is_moved[sequence as usize] = false;
    }

    fn remove(&mut self, sequence: i32, from: usize) {
        let position = media::position(&self.tokens_of(sequence)[..from]);
        if self.acts() && bounded::removes_only_pending(&self.memory, sequence, position) {
            self.plain[sequence as usize].truncate(from);
            return;
        }
        self.store(sequence, from);
        self.before(sequence);
        let mut lacking = Vec::new();
        if self.acts() {
            lacking = bounded::about_to_go_back(&self.memory, sequence, from);
        }
        {
            let mut rows = self.memory.rows.borrow_mut();
            if let Some(held) = rows.get_mut(&sequence) {
                held.remove_from(position);
                if from == 0 {
                    rows.remove(&sequence);
                }
            }
        }
        self.plain[sequence as usize].truncate(from);
        if from == 0 {
            self.forget(sequence);
        }
        let change = if from == 0 {
            Change::Removed(sequence)
        } else {
            Change::Shortened(sequence)
        };
        let at = i32::try_from(position).unwrap();
        changed(&self.memory, change, |known| {
            known.session.removed(sequence, at, -1)
        });
        bounded::check_window(&self.memory, sequence);
        if !lacking.is_empty() && self.acts() && self.memory.is_mixed.get() {
            bounded::complete(&self.memory, sequence);
        }
    }

    fn clear(&mut self) {
        for sequence in 0..SEQUENCES {
            self.store(sequence, 0);
            self.forget(sequence);
        }
        self.memory.goes_on();
        self.memory.rows.borrow_mut().clear();
        changed(&self.memory, Change::Removed(-1), |known| {
            known.session.cleared()
        });
    }

    /// The host keeps what it believes in of a prompt. Returns how much that is.
    fn go_back_to(&mut self, sequence: i32, tokens: &[i32]) -> usize {
        let under = self.memory.under.get();
        let plain = &self.plain[sequence as usize];
        let pairs = plain.iter().zip(tokens);
        let same = pairs
            .take_while(|(held, token)| **held == (**token, under))
            .count();
        let mut kept = media::whole(&tokens[..same.min(tokens.len() - 1)]);
        if kept < plain.len() && self.memory.kind != Kind::Dense {
            kept = 0;
        }
        if self.is_moved[sequence as usize] {
            kept = 0;
        }
        if kept < plain.len() {
            self.remove(sequence, kept);
        }
        kept
    }

    /// The host evaluates a batch. False: that failed, and it begins anew.
    fn decode(&mut self, parts: &[(i32, &[i32], usize)]) -> bool {
        // It tries again if there was no room.
        for _ in 0..2 {
            match self.try_decode(parts) {
                0 => return true,
                NO_ROOM => {}
                STOPPED => {
                    // It asks what is there.
                    for &(sequence, ..) in parts {
                        self.before(sequence);
                    }
                    self.lost += 1;
                    self.clear();
                    return false;
                }
                _ => {
                    self.lost += 1;
                    self.clear();
                    return false;
                }
            }
        }
        self.lost += 1;
        self.clear();
        false
    }

    fn try_decode(&mut self, given: &[(i32, &[i32], usize)]) -> i32 {
        let mut parts = Vec::new();
        let mut entries = 0;
        for &(sequence, tokens, leading) in given {
            let first = self.end(sequence);
            parts.push(part(sequence, first, tokens, leading, entries));
            entries += tokens.len();
        }
        let mut batch = self.batch(given);
        let memory = batch.memory;
        if !memory.goes_on() {
            if memory.journal.borrow().is_any_lost() {
                return LOST;
            }
            return batch.evaluate(&[]);
        }
        match batch::prepare(memory, &parts, entries) {
            Ok(ready) => {
                let bounds = memory.record(|known| known.bounds()).flatten();
                if let Some(at_once) = bounds.and_then(|bounds| bounds.at_once) {
                    let left = entries - ready.left_out.len();
                    assert!(left <= at_once || !ready.is_whole, "one call has too many");
                }
                let left_out = ready.left_out.clone();
                let result = batch::evaluate(memory, &parts, entries, ready, &mut batch);
                if result == 0 && !batch.is_called {
                    batch.go_on(&left_out, false);
                }
                result
            }
            Err(refusal) => refusal.code(),
        }
    }
}

/// A batch of the host's: sequences, tokens, and how many of these want no output.
struct Given<'a> {
    memory: &'a Memory,
    given: &'a [(i32, &'a [i32], usize)],
    plain: &'a mut [Vec<(i32, Conditions)>; SEQUENCES as usize],
    is_moved: &'a [bool; SEQUENCES as usize],
    dropped: &'a mut [usize; SEQUENCES as usize],
    outputs: &'a mut usize,
    /// The engine has evaluated it, or refused to.
    is_called: bool,
    /// How many of its entries the last evaluation was without.
    left_out: usize,
}

impl HostBatch<Known> for Given<'_> {
    fn leave_out(&mut self, left_out: &[u32]) {
        self.left_out = left_out.len();
    }

    fn evaluate(&mut self, left_out: &[u32]) -> i32 {
        self.is_called = true;
        let refused = self.memory.refuses_batch();
        // No room: nothing was evaluated. Else all but the last entry was.
        if refused.is_some_and(|part| part % 2 == 0) {
            return NO_ROOM;
        }
        self.go_on(left_out, refused.is_some());
        if refused.is_some() { LOST } else { 0 }
    }
}

impl Given<'_> {
    /// The host believes in its tokens, if they are not refused, and looks at every output.
    fn go_on(&mut self, left_out: &[u32], is_refused: bool) {
        let under = self.memory.under.get();
        let mut index = 0;
        for &(sequence, tokens, leading) in self.given {
            let plain = &mut self.plain[sequence as usize];
            let before = plain.len();
            for (nth, &token) in tokens.iter().enumerate() {
                plain.push((token, under));
                if plain.len() % DROPS == 0 {
                    let dropped = &mut self.dropped[sequence as usize];
                    *dropped = plain.len().max(*dropped);
                }
                let is_left_out = left_out.contains(&index);
                index += 1;
                if is_left_out {
                    assert!(nth < leading, "an output is left out");
                    continue;
                }
                let there = self.memory.length(sequence).unwrap();
                let rows = self.memory.push(sequence, token);
                if nth < leading {
                    continue;
                }
                let tokens: Vec<i32> = plain.iter().map(|(token, _)| *token).collect();
                let before = media::reach(&tokens[..tokens.len() - 1]);
                assert_eq!(there, before, "the position of an output");
                *self.outputs += 1;
                if !self.is_moved[sequence as usize] {
                    assert_eq!(Some(&rows), computed(plain).last(), "an output");
                }
            }
            if is_refused {
                plain.truncate(before);
            }
        }
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let sequence = || 0..SEQUENCES;
    let drawn = (sequence(), 0..3_u8, 0..60_usize, 0..12_usize, 0..4_usize);
    let prompt = drawn.prop_map(|(sequence, text, shared, own, answer)| Act::Prompt {
        sequence,
        text,
        shared,
        own,
        answer,
    });
    let act = prop_oneof![
        12 => prompt,
        2 => (1..SEQUENCES, 0..50_usize, 0..9_usize).prop_map(|(a, b, c)| Act::Two(a, b, c)),
        3 => sequence().prop_map(Act::Remove),
        3 => (sequence(), 1..12_usize).prop_map(|(a, b)| Act::GoBack(a, b)),
        2 => (sequence(), sequence()).prop_map(|(a, b)| Act::Copy(a, b)),
        1 => sequence().prop_map(Act::Keep),
        1 => Just(Act::Clear),
        2 => sequence().prop_map(Act::Save),
        2 => sequence().prop_map(Act::Restore),
        3 => sequence().prop_map(Act::Rewind),
        1 => (0..3_u32).prop_map(Act::Adapter),
        1 => (sequence(), 1..20_usize).prop_map(|(a, b)| Act::Move(a, b)),
        1 => sequence().prop_map(Act::MakeWhole),
    ];
    prop::collection::vec(act, 1..24)
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Dense),
        (2..20_usize).prop_map(Kind::Window),
        Just(Kind::Recurrent)
    ]
}

fn faults() -> impl Strategy<Value = Option<Fault>> {
    let at = any::<u32>;
    prop_oneof![
        1 => Just(None),
        2 => (at(), any::<u8>()).prop_map(|(at, part)| Some(Fault::Call(at, part))),
        1 => (at(), any::<u8>()).prop_map(|(at, part)| Some(Fault::Batch(at, part))),
        2 => at().prop_map(|at| Some(Fault::Before(at))),
        2 => at().prop_map(|at| Some(Fault::Behind(at))),
        1 => at().prop_map(|at| Some(Fault::Gone(at))),
    ]
}

/// How many traces.
fn config() -> ProptestConfig {
    let given = std::env::var("CONTEXTPILOT_TEST_ENGINE_TRACES").ok();
    let cases = given.map_or(3_000, |count| count.parse().expect("a number of traces"));
    ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        // The usual one takes longer to draw a trace than that takes to be played twice.
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    }
}

fn play(kind: Kind, fault: Option<Fault>, acts: &[Act]) -> Traffic {
    let mut traffic = Traffic::new(kind, fault);
    for &act in acts {
        traffic.act(act);
    }
    traffic
}

/// Each trace is played without an error first, and then with one.
#[test]
fn every_output_is_that_of_an_engine_without_a_store() {
    let config = config();
    let cases = config.cases as usize;
    let mut runner = TestRunner::new(config);
    let all = (kinds(), faults(), acts());
    let (seen, loaded, bounded) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let (tails, images) = (Cell::new(0), Cell::new(0));
    let result = runner.run(&all, |(kind, fault, acts)| {
        let traffic = play(kind, None, &acts);
        prop_assert_eq!(traffic.lost, 0, "nothing is lost without an error");
        seen.set(seen.get() + traffic.outputs);
        let loads = traffic.memory.loads.get();
        loaded.set(loaded.get() + loads);
        if kind != Kind::Dense {
            bounded.set(bounded.get() + loads);
        }
        tails.set(tails.get() + traffic.tails.get());
        images.set(images.get() + traffic.images.get());
        if let Some(fault) = fault {
            play(kind, Some(fault.within(traffic.memory.counts())), &acts);
        }
        Ok(())
    });
    let (outputs, loads, bounded) = (seen.get(), loaded.get(), bounded.get());
    let (tails, images) = (tails.get(), images.get());
    println!(
        "{cases} traces, {outputs} outputs, {loads} loads, {bounded} of them exact, {tails} tails, {images} images left out"
    );
    if let Err(error) = result {
        panic!("{error}");
    }
    // A few traces, under Miri, may have none.
    let has_all =
        loads > cases / 2 && bounded > cases / 8 && tails > cases / 8 && images > cases / 8;
    assert!(outputs > cases && (has_all || cases < 100));
}

/// It could not be evaluated again.
#[test]
fn what_a_load_left_out_of_a_sequence_that_is_not_known_any_more_stays_out() {
    let mut traffic = Traffic::new(Kind::Window(3), None);
    for sequence in [0, 1] {
        traffic.act(Act::Prompt {
            sequence,
            text: 0,
            shared: 40,
            own: 5,
            answer: 1,
        });
        traffic.act(Act::Remove(0));
    }
    let memory = &traffic.memory;
    assert_eq!(memory.loads.get(), 1);
    memory.record(|record| record.session.obscure(1));
    let before = memory.get(1);
    bounded::make_whole(memory, 1);
    assert_eq!(memory.get(1), before);
}

/// A checkpoint brings its own windows, whatever a load has left out behind them.
#[test]
fn a_checkpoint_before_what_was_loaded_is_gone_back_to_as_ever() {
    let mut traffic = Traffic::new(Kind::Window(3), None);
    let prompt = |sequence, shared, own| Act::Prompt {
        sequence,
        text: 1,
        shared,
        own,
        answer: 1,
    };
    // Takes states on its way, and the second one a checkpoint, too.
    for act in [prompt(1, 50, 6), prompt(0, 30, 2), prompt(0, 55, 3)] {
        traffic.act(act);
    }
    let saved = traffic.saved.clone().unwrap().plain;
    assert!(!saved.is_empty() && traffic.plain[0].starts_with(&saved));
    assert!(traffic.memory.loads.get() > 1);
    traffic.act(Act::Rewind(0));
    assert_eq!(traffic.plain[0].len(), saved.len());
    assert_eq!(
        traffic.memory.get(0).tokens.len(),
        saved.len(),
        "it is there"
    );
    traffic.act(Act::Save(0));
    assert!(!traffic.is_lost());
}
