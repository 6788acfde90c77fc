//! Requests: from the arrival of a task to the record of its request.

use contextpilot_residency::{
    Arrival, Entry, Ledger, SequenceId, TaskId, TokenCounts, UNTIED, activation,
};
use contextpilot_traffic::{ChangeKind, RequestRecord, Wished};

use super::slot::{Open, SlotRecord, count_rows, small};
use super::{MOST_WAITING, Posted, Recorder, append, infill, kept, micros};
use crate::note::Stamp;

impl Recorder {
    pub(super) fn posted(&mut self, arrival: Arrival, task: TaskId, at: Stamp) {
        let posted = self.task(task);
        posted.arrival = Some(arrival);
        posted.at = at;
    }

    /// Notes which other slots are idle and not empty when a task is launched.
    pub(super) fn note_idle(&mut self, launched: SequenceId, ledger: &Ledger) {
        if !self.clears_idle() {
            return;
        }
        let over = |slot: &SlotRecord| slot.open.as_ref().is_none_or(|open| open.over);
        let others = self.slots.iter().filter(|&(&id, _)| id != launched);
        let idle = others.filter(|(_, slot)| over(slot)).map(|(&id, _)| id);
        let held = idle.map(|id| (id, ledger.held(id)));
        self.idle = held.filter(|&(_, held)| held > 0).collect();
    }

    /// Whether the server empties idle slots when it launches a task, by its flags.
    pub(super) fn clears_idle(&self) -> bool {
        let setup = &self.setup;
        setup.cache_idle_slots && setup.kv_unified && setup.cache_ram.is_some_and(|mib| mib != 0)
    }

    /// Call when a prompt is evaluated. If a slot that was idle at the launch still has its content, the
    /// server does not empty idle slots (`--cache-idle-slots` is off).
    pub(super) fn check_idle(&mut self, ledger: &Ledger) {
        let mut idle = std::mem::take(&mut self.idle).into_iter();
        if idle.any(|(id, held)| ledger.held(id) == held) {
            self.setup.cache_idle_slots = false;
            let recorded = self.writer.setup(&self.setup);
            append(recorded, &mut self.out, &mut self.full);
        }
    }

    /// What is known of a task. When [`MOST_WAITING`] tasks are known, all are forgotten first.
    pub(super) fn task(&mut self, task: TaskId) -> &mut Posted {
        if self.tasks.len() >= MOST_WAITING {
            self.tasks.clear();
        }
        self.tasks.entry(task).or_default()
    }

    pub(super) fn launched(
        &mut self,
        sequence: SequenceId,
        task: TaskId,
        at: Stamp,
        ledger: &Ledger,
    ) {
        let posted = self.tasks.remove(&task).unwrap_or_default();
        let adapters = match &posted.named {
            Some(scales) if !self.compares_always => self.named(scales),
            _ => self.applied,
        };
        let noted = posted.arrival.and_then(|arrival| self.wishes.get(&arrival));
        let wishes = noted.copied().unwrap_or_default();
        let record = RequestRecord {
            order: self.launches,
            arrived: micros(if posted.at.0 > 0 { posted.at } else { at }),
            launched: micros(at),
            slot: u32::try_from(sequence).unwrap_or(0),
            id_slot: wishes.slot.and_then(|slot| u32::try_from(slot).ok()),
            uncached: posted.forgotten || wishes.uncached,
            names_adapters: posted.named.is_some() || self.compares_always,
            adapters,
            wished: Wished {
                cache_reuse: wishes.cache_reuse,
                keep: wishes.keep,
                discard: wishes.discard,
            },
            ..RequestRecord::default()
        };
        let untied = task == UNTIED;
        let slot = self.slots.get_mut(&sequence);
        let open = slot.and_then(|slot| slot.open.as_mut());
        if let Some(open) = open.filter(|open| open.untied && open.prompting && !untied) {
            // Its end has told which task this is.
            open.untied = false;
            open.arrival = posted.arrival;
            open.infill = wishes.infill;
            open.record = RequestRecord {
                order: open.record.order,
                launched: open.record.launched,
                prompted: open.record.prompted,
                ended: open.record.ended,
                breaks: std::mem::take(&mut open.record.breaks),
                ..record
            };
            return;
        }
        // Before the first launch it was a context to measure memory with.
        if let Some((lost, at)) = self.lost.take().filter(|_| self.launches > 0) {
            let order = (record.order, at.unwrap_or(record.arrived));
            self.write_change(sequence, lost, Vec::new(), order);
        }
        self.note_idle(sequence, ledger);
        self.close(sequence, ledger);
        let exchange = self.stage.launched(sequence, posted.arrival);
        self.launches += 1;
        self.slots.entry(sequence).or_default().open = Some(Open {
            record,
            arrival: posted.arrival,
            untied,
            prompting: true,
            whole: None,
            emptied: None,
            tokens: Vec::new(),
            surplus: 0,
            discarded: 0,
            over: false,
            flying: false,
            media: None,
            exchange,
            declined: false,
            infill: wishes.infill,
            kept: None,
        });
    }

    /// Call when the launch of a task in this slot has failed.
    pub(super) fn declined(&mut self, sequence: SequenceId) {
        let slot = self.slots.get_mut(&sequence);
        if let Some(open) = slot.and_then(|slot| slot.open.as_mut()) {
            open.declined = true;
        }
    }

    pub(super) fn submitted(&mut self, entries: &[Entry]) {
        for run in entries.chunk_by(|a, b| a.sequence == b.sequence) {
            let Some(slot) = run
                .first()
                .and_then(|entry| self.slots.get_mut(&entry.sequence))
            else {
                continue;
            };
            let Some(open) = &mut slot.open else { continue };
            open.flying = true;
            if open.prompting {
                open.record.adapters = self.applied;
                open.note_break(run);
                open.media = count_rows(run, open.media, &mut self.rows);
            } else {
                open.grow(run)
            }
        }
    }

    /// Call when entries of a batch were not evaluated, because the prefix store had them.
    pub(super) fn loaded(&mut self, sequence: SequenceId, entries: u32) {
        let slot = self.slots.get_mut(&sequence);
        let open = slot.and_then(|slot| slot.open.as_mut());
        if let Some(open) = open.filter(|open| open.prompting) {
            open.record.loaded = open.record.loaded.saturating_add(entries);
        }
    }

    pub(super) fn evaluated(&mut self, at: Stamp) {
        let open = self
            .slots
            .values_mut()
            .filter_map(|slot| slot.open.as_mut());
        for open in open.filter(|open| open.flying) {
            open.flying = false;
            open.record.ended = micros(at);
        }
    }

    /// A slot's prompt is evaluated to its end. `answers`: its outputs have told that.
    pub(super) fn prompt_evaluated(
        &mut self,
        sequence: SequenceId,
        counts: TokenCounts,
        answers: bool,
        ledger: &Ledger,
    ) {
        let slot = self.slots.get_mut(&sequence);
        let open = slot.and_then(|slot| slot.open.as_mut());
        let Some(open) = open.filter(|open| open.prompting) else {
            return;
        };
        if !answers {
            open.whole = Some(counts);
            return;
        }
        open.prompting = false;
        // For the server, what came from the prefix store was evaluated.
        let loaded = u64::from(open.record.loaded).min(counts.reused);
        open.record.loaded = small(loaded);
        open.record.reused = small(counts.reused - loaded);
        open.record.evaluated = small(counts.evaluated + loaded);
        open.set_prompt(ledger.tokens_in(sequence), &self.rows);
        open.kept = self.kept.take(open.arrival, open.record.prompt);
        if open.record.adapters.invoked {
            let prompt = open.tokens.get(..open.record.prompt as usize);
            let at = prompt.and_then(|prompt| activation(&self.adapters, prompt));
            open.record.activated_at = at.and_then(|at| u32::try_from(at).ok());
        }
        self.check_idle(ledger);
    }

    /// A further answer to a prompt (`n`) takes over the prompt of its parent.
    pub(super) fn took_over(&mut self, source: SequenceId, target: SequenceId) {
        let parent = self.slots.get(&source).and_then(|slot| {
            let open = slot.open.as_ref().filter(|open| !open.prompting)?;
            let prompt = open.record.prompt as usize;
            let tokens = open.tokens.get(..prompt)?.to_vec();
            Some((open.record.clone(), tokens, open.kept.clone()))
        });
        let slot = self.slots.get_mut(&target);
        let (Some((parent, tokens, kept)), Some(slot)) = (parent, slot) else {
            return;
        };
        let waits = |open: &&mut Open| open.prompting && open.record.breaks.is_empty();
        if let Some(open) = slot.open.as_mut().filter(waits) {
            open.prompting = false;
            open.tokens = tokens;
            open.kept = kept;
            open.record = RequestRecord {
                order: open.record.order,
                slot: open.record.slot,
                launched: open.record.launched,
                child: true,
                ended: parent.prompted,
                ..parent
            };
        }
    }

    pub(super) fn answered(&mut self, arrival: Arrival) {
        self.wishes.remove(&arrival);
        self.kept.forget(arrival);
        self.stage.answered(arrival);
        for slot in self.slots.values_mut() {
            if let Some(open) = &mut slot.open {
                open.over |= open.arrival == Some(arrival);
            }
        }
    }

    /// Writes the request that a slot has worked on last, if any.
    pub(super) fn close(&mut self, sequence: SequenceId, ledger: &Ledger) {
        let Some(slot) = self.slots.get_mut(&sequence) else {
            return;
        };
        let Some(mut open) = slot.open.take() else {
            return;
        };
        let expected = u64::from(open.record.reused) + u64::from(open.record.evaluated);
        if open.prompting {
            let counts = match (open.whole, ledger.unfinished(sequence)) {
                (Some(counts), _) => {
                    open.record.embedding = true;
                    counts
                }
                (None, Some(prompt)) if !prompt.untouched => {
                    open.record.embedding = prompt.whole;
                    open.record.abandoned = !prompt.whole;
                    prompt.counts
                }
                (None, _) => {
                    self.refused(sequence, &open, ledger);
                    return;
                }
            };
            open.record.reused = small(counts.reused);
            open.record.evaluated = small(counts.evaluated);
            let held = match &mut open.emptied {
                Some(emptied) => std::mem::take(&mut emptied.held),
                None => ledger.tokens_in(sequence),
            };
            open.set_prompt(held, &self.rows);
        } else if u64::from(open.record.prompt) != expected {
            self.skipped += 1;
            return;
        }
        let shift = open.shift();
        if let Some(tokens) = infill::suffix_first(&open, self.markers) {
            let recorded = self.writer.suffix_first(open.record.order, &tokens);
            append(recorded, &mut self.out, &mut self.full);
        }
        if let Some((kept, tokens)) = kept::canonical(&open) {
            let recorded = self.writer.kept(open.record.order, kept, &tokens);
            append(recorded, &mut self.out, &mut self.full);
        }
        let Open {
            record,
            tokens,
            emptied,
            ..
        } = open;
        let emptied = emptied.filter(|emptied| emptied.failed && !record.embedding);
        let shift = shift.map(|gone| (record.keep, gone));
        let recorded = self.writer.request(record, &tokens, shift);
        append(recorded, &mut self.out, &mut self.full);
        if let Some(emptied) = emptied {
            self.changed(sequence, ChangeKind::Erased, Vec::new(), emptied.at);
        }
    }
}
