//! The turns of the server's loop (`update_slots`): what takes how long.

use super::{Phase, SimulatedServer};

impl SimulatedServer<'_> {
    /// Evaluates a batch of prompts, or generates until something comes. Returns false if there is nothing to do.
    pub(super) fn work(&mut self) -> bool {
        let has =
            |server: &Self, is: fn(&Phase) -> bool| server.slots.iter().any(|slot| is(&slot.phase));
        if has(self, |phase| matches!(phase, Phase::Prompt { .. })) {
            self.batch();
        } else if has(self, |phase| matches!(phase, Phase::Answer { .. })) {
            self.generate();
        } else {
            return false;
        }
        let over = |phase: &Phase| matches!(phase, Phase::Answer { left: 0, .. });
        let all = self.slots.iter().enumerate();
        let ended: Vec<usize> = all
            .filter(|(_, slot)| over(&slot.phase))
            .map(|(nth, _)| nth)
            .collect();
        self.release_all(&ended);
        true
    }

    /// One batch: a token for each answer, and then tokens of prompts, in the order of the slots.
    fn batch(&mut self) {
        self.load();
        let answers = self.advance(1);
        let mut room = self
            .setting
            .server
            .batch_size
            .saturating_sub(answers)
            .max(1);
        let (mut time, mut whole) = (0.0, None);
        let mut evaluated = Vec::new();
        for nth in 0..self.slots.len() {
            let (Phase::Prompt { at, loaded }, Some(job)) =
                (self.slots[nth].phase, self.slots[nth].job)
            else {
                continue;
            };
            let prompt = self.request(job).record.prompt;
            let to = prompt.min(at.saturating_add(room));
            room -= to - at;
            let from = at.max(loaded).min(to);
            let request = self.jobs[job].request;
            let computed = self.outcomes[request].map_or(0, |outcome| outcome.evaluated);
            if from < to {
                let (tokens, batch) = self.times.of_tokens(request, (from, to), computed);
                time += tokens;
                whole.get_or_insert(batch);
            }
            self.slots[nth].phase = Phase::Prompt { at: to, loaded };
            if to == prompt {
                evaluated.push((nth, job));
            }
            if room == 0 {
                break;
            }
        }
        time += whole.unwrap_or(0.0);
        self.now = self.now.saturating_add(time.round() as u64);
        for (nth, job) in evaluated {
            self.begin_answer(nth, self.jobs[job].request);
            for other in 0..self.slots.len() {
                let slot = &self.slots[other];
                if let (Phase::Waits { answer }, true) = (slot.phase, slot.job == Some(job)) {
                    self.begin_answer(other, answer);
                }
            }
        }
    }

    fn begin_answer(&mut self, nth: usize, request: usize) {
        let (left, step) = self.times.of_answer(request);
        self.slots[nth].phase = Phase::Answer { left, step };
    }

    /// Generates until an answer is complete, or something comes: all answers take part in each batch.
    fn generate(&mut self) {
        let answers = || {
            self.slots.iter().filter_map(|slot| match slot.phase {
                Phase::Answer { left, step } => Some((left, step)),
                _ => None,
            })
        };
        let shortest = answers().map(|(left, _)| left).min().unwrap_or(0);
        let step = answers().map(|(_, step)| step).sum::<u64>() / answers().count().max(1) as u64;
        let step = step.max(1);
        let until = self
            .next_arrival()
            .map(|next| next.saturating_sub(self.now));
        let steps = until.map_or(shortest, |until| until.div_ceil(step).max(1).min(shortest));
        self.advance(steps);
        // Answers of a damaged recording may be long, and slow.
        self.now = self.now.saturating_add(steps.saturating_mul(step));
    }

    /// Each answer goes on by so many tokens. How many answers there are.
    fn advance(&mut self, tokens: u64) -> u32 {
        let mut answers = 0;
        for slot in &mut self.slots {
            if let Phase::Answer { left, .. } = &mut slot.phase {
                *left = left.saturating_sub(tokens);
                answers += 1;
            }
        }
        answers
    }
}
