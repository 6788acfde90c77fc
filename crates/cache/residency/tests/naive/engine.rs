//! What the engine does to slots and host buffers.

use super::{InBatch, Left, Naive, media};
use contextpilot_residency::{
    Entry, Event, Place, Position, Reason, SequenceId, Token, unseen_token,
};

impl Naive {
    pub(super) fn engine(&mut self, event: &Event) {
        match *event {
            Event::Submitted { ref entries, .. } => self.submit(entries),
            Event::Evaluated { ref failed, .. } => self.evaluated(failed),
            Event::Removed {
                sequence, from, to, ..
            } => {
                if low(from) == 0 && high(to) == i64::MAX {
                    self.emptied(sequence);
                }
                for id in self.named(sequence) {
                    self.remove(id, low(from), high(to));
                }
            }
            Event::Kept { sequence, .. } => {
                if sequence >= 0 && self.unheard {
                    self.slot(sequence);
                }
                self.emptied(-1);
                for id in self.ids_of_slots() {
                    if id != sequence {
                        self.clear(id, Reason::Cleared);
                    }
                }
            }
            Event::Copied {
                source,
                target,
                from,
                to,
                ..
            } => self.copy(source, target, low(from), high(to)),
            Event::Shifted {
                sequence,
                from,
                to,
                delta,
                ..
            } => {
                if self.slots.contains_key(&sequence) {
                    self.shift(sequence, low(from), high(to), delta);
                }
            }
            Event::Obscured { sequence, .. } => {
                for id in self.named(sequence) {
                    self.obscure(id);
                }
            }
            Event::Cleared { .. } => {
                self.emptied(-1);
                for id in self.ids_of_slots() {
                    self.clear(id, Reason::Cleared);
                }
            }
            Event::Saved {
                sequence, buffer, ..
            } => {
                match self.content(sequence).to_vec() {
                    tokens if tokens.is_empty() => self.buffers.remove(&buffer.0),
                    tokens => self.buffers.insert(buffer.0, tokens),
                };
                self.lose(Reason::DroppedFromHost, Place::Host);
            }
            Event::Restored {
                sequence, buffer, ..
            } => match self.buffers.get(&buffer.0).cloned() {
                Some(tokens) => {
                    if self.slots.contains_key(&sequence) {
                        self.settle_set(sequence);
                    }
                    self.slot(sequence).unsettled = true;
                    self.replace(sequence, tokens);
                }
                None => {
                    self.obscure(sequence);
                    self.slot(sequence).unknown = self.stepped_out;
                }
            },
            Event::Replaced {
                sequence,
                ref tokens,
                ..
            } => self.replace(sequence, tokens.clone()),
            _ => unreachable!("not an event of the engine"),
        }
    }

    /// A whole slot was removed, or all if `id` is negative. So it is known to be empty, even if it had
    /// no event since events were lost.
    fn emptied(&mut self, id: SequenceId) {
        if id < 0 {
            self.unheard = false;
        } else if self.unheard {
            self.slot(id).unknown = false;
        }
    }

    /// Replaces the content of a slot.
    fn replace(&mut self, id: SequenceId, tokens: Vec<Token>) {
        // The new content counts before the old one goes, so what both have is not lost.
        self.arriving = Some((id, tokens));
        self.decide(id, Reason::Overwritten);
        let (_, arriving) = self.arriving.take().expect("set above");
        let slot = self.slot(id);
        slot.beyond.clear();
        slot.unknown = false;
        slot.tokens = arriving;
        self.lose(Reason::Overwritten, Place::Slot(id));
    }

    fn copy(&mut self, source: SequenceId, target: SequenceId, from: i64, to: i64) {
        if source == target || to <= from {
            return;
        }
        if from > 0 || !self.slots.contains_key(&source) {
            self.obscure(target);
            return;
        }
        let evaluated = self.slots[&source].launch.is_none();
        let set = self.slots[&source].set.clone();
        let slot = self.slot(target);
        slot.set = set;
        slot.unsettled = false;
        let mut tokens = self.content(source).to_vec();
        tokens.truncate(usize::try_from(to).unwrap_or(usize::MAX));
        self.replace(target, tokens);
        if evaluated {
            self.settle(target);
        }
    }

    pub(super) fn remove(&mut self, id: SequenceId, from: i64, to: i64) {
        if to <= from {
            return;
        }
        let slot = self.slots.get_mut(&id).expect("a slot that was seen");
        slot.unknown &= from > 0 || to < i64::MAX;
        slot.beyond.retain(|&p, _| p < from || p >= to);
        if from >= slot.tokens.len() as i64 {
            return;
        }
        let before = slot.tokens.clone();
        for (p, &token) in before.iter().enumerate().skip(from as usize) {
            if p as i64 >= to {
                slot.beyond.insert(p as i64, token);
            }
        }
        slot.tokens.truncate(from as usize);
        let left = slot.left.get_or_insert(Left {
            tokens: before,
            shifted: false,
        });
        left.shifted |= !slot.beyond.is_empty();
    }

    fn shift(&mut self, id: SequenceId, from: i64, to: i64, delta: Position) {
        let slot = self.slots.get_mut(&id).expect("a slot that was seen");
        if to <= from || delta == 0 {
            return;
        }
        // Takes out everything from `from` on, and puts it back at its new positions.
        let before = slot.tokens.clone();
        let mut taken = std::mem::take(&mut slot.beyond);
        taken.extend((0..).zip(before.iter().copied()).skip(from as usize));
        if from < before.len() as i64 {
            slot.tokens.truncate(from as usize);
            let left = slot.left.get_or_insert(Left {
                tokens: before,
                shifted: true,
            });
            left.shifted = true;
        }
        let mut unclear = false;
        for (position, token) in taken {
            let moved = (from..to).contains(&position);
            let position = position + if moved { i64::from(delta) } else { 0 };
            if position >= 0 {
                let taken = slot.beyond.insert(position, token).is_some();
                unclear |= taken || position < slot.tokens.len() as i64;
            }
        }
        if unclear {
            self.obscure(id);
            return;
        }
        let mut joined = Vec::new();
        while let Some(token) = slot
            .beyond
            .remove(&((slot.tokens.len() + joined.len()) as i64))
        {
            joined.push(token);
        }
        if !joined.is_empty() {
            self.append(id, &joined);
        }
    }

    /// Adds tokens at the end of a slot.
    fn append(&mut self, id: SequenceId, tokens: &[Token]) {
        let slot = self.slot(id);
        slot.tokens.extend_from_slice(tokens);
        let on_the_way = slot.left.as_ref().is_some_and(|left| {
            left.tokens.len() > slot.tokens.len() && left.tokens.starts_with(&slot.tokens)
        });
        if !on_the_way {
            self.decide(id, Reason::Overwritten);
        }
    }

    fn submit(&mut self, entries: &[Entry]) {
        let mut batch: Vec<InBatch> = Vec::new();
        for row in media::merged(entries) {
            let id = row.sequence;
            self.slot(id);
            let index = batch.iter().position(|b| b.slot == id).unwrap_or_else(|| {
                batch.push(InBatch {
                    slot: id,
                    entries: 0,
                    outputs: 0,
                    ends: false,
                    unclear: false,
                });
                batch.len() - 1
            });
            let here = &mut batch[index];
            here.entries += row.entries;
            here.outputs += row.outputs;
            here.ends = row.ends;
            if !here.unclear {
                here.unclear = !self.write(id, i64::from(row.position), &row.tokens);
            }
        }
        for here in &batch {
            let slot = self.slots.get_mut(&here.slot).expect("seen above");
            if let Some(launch) = &mut slot.launch {
                launch.every_output |= here.entries > 1 && here.outputs == here.entries;
                if launch.every_output {
                    continue;
                }
            }
            if here.ends {
                self.decide(here.slot, Reason::Overwritten);
            }
        }
        self.batch = Some(batch);
        let mut with_text: Vec<SequenceId> = Vec::new();
        for here in self.batch.as_ref().expect("set above") {
            let text = entries
                .iter()
                .any(|e| e.sequence == here.slot && e.token >= 0);
            with_text.extend(text.then_some(here.slot));
        }
        // An empty slot without a task stays empty: it will not write again what it has left.
        for id in self.ids_of_slots() {
            let slot = &self.slots[&id];
            if self.launches && slot.is_empty() && slot.launch.is_none() {
                self.decide(id, Reason::Cleared);
            }
        }
        self.work_under(&with_text);
    }

    /// Writes the rows of one position into a slot. Returns false if the tokens before are not known.
    fn write(&mut self, id: SequenceId, position: i64, rows: &[Token]) -> bool {
        let slot = self.slots.get_mut(&id).expect("a slot that was seen");
        slot.beyond.clear();
        let unseen = 1..=1 << 22;
        if std::mem::take(&mut slot.unknown) && slot.tokens.is_empty() && unseen.contains(&position)
        {
            // Placeholders, which equal no other tokens, stand for the unknown tokens before.
            self.unseen += 1;
            let token = |position| unseen_token(self.unseen, position as Position);
            slot.tokens = (0..position).map(token).collect();
        }
        let held = slot.tokens.len() as i64;
        let after = slot.tokens.last().copied().filter(|&token| token < 0);
        if position < 0
            || position > held + media::WIDEST_GAP
            || (position > held && after.is_none())
        {
            self.obscure(id);
            return false;
        }
        let mut token = media::fold(rows);
        if let (Some(before), true) = (after, rows[0] < 0 && position == held - 1) {
            token = rows.iter().fold(before, media::fold_two);
        }
        if let Some(number) = slot.forgotten {
            token = unseen_token(number, position as Position);
        }
        if position < held {
            self.remove(id, position, i64::MAX);
        }
        let mut tokens = vec![media::FILLER; (position - held).max(0) as usize];
        tokens.push(token);
        self.append(id, &tokens);
        true
    }

    fn evaluated(&mut self, failed: &[(SequenceId, Position)]) {
        let batch = self.batch.take().unwrap_or_default();
        if failed.is_empty() {
            for here in batch.iter().filter(|here| here.ends) {
                if here.unclear {
                    let slot = self.slots.get_mut(&here.slot).expect("seen in the batch");
                    let launch = slot.launch.take();
                    self.abandon(launch);
                } else {
                    self.settle(here.slot);
                }
            }
        }
        for &(id, last) in failed {
            let Some(slot) = self.slots.get(&id) else {
                continue;
            };
            let held = (i64::from(last) + 1).max(0);
            if held > slot.tokens.len() as i64 {
                self.obscure(id);
            } else {
                self.remove(id, held, i64::MAX);
            }
        }
    }
}

/// The first position of a range. Negative: from the beginning, as in the engine's API.
fn low(from: Position) -> i64 {
    i64::from(from.max(0))
}

/// One past the last position of a range. Negative: to the end.
fn high(to: Position) -> i64 {
    if to < 0 { i64::MAX } else { i64::from(to) }
}
