//! Which tokens were evaluated when.
//!
//! A recording says when requests were launched, when their prompts ended, and at which positions batches did. The
//! server fills a batch in the order of its slots. So its course can be played again: which pieces of which prompts
//! were evaluated between two known moments, a *stretch*. What a stretch took is divided among its pieces.

use std::collections::VecDeque;

use contextpilot_traffic::{RequestRecord, TrafficRequest};

/// Tokens of a prompt that one batch evaluated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) request: usize,
    /// The first position, and one past the last.
    pub(super) from: u32,
    pub(super) to: u32,
    /// How many times as long as modelled it took.
    pub(super) scale: f64,
}

/// The course of a recording.
#[derive(Debug, Default)]
pub(super) struct Course {
    pub(super) pieces: Vec<Piece>,
    /// When batches with prompts ended, microseconds.
    pub(super) ends: Vec<u64>,
}

/// A prompt that is being evaluated.
struct Open {
    slot: u32,
    request: usize,
    pieces: VecDeque<(u32, u32)>,
}

impl Course {
    /// `batch`: the most tokens of a batch. `each`: how long a batch takes in any case, and `cost`: tokens of a request,
    /// by the model; `scale`: how many times as long it was about then.
    pub(super) fn new(
        requests: &[TrafficRequest],
        batch: u32,
        each: f64,
        cost: impl Fn(&RequestRecord, (u32, u32)) -> f64,
        scale: impl Fn(u64) -> f64,
    ) -> Self {
        let mut coming: Vec<usize> = (0..requests.len()).collect();
        coming.retain(|&nth| {
            let record = &requests[nth].record;
            !record.child && !record.abandoned && record.prompted > record.launched
        });
        coming.sort_by_key(|&nth| (requests[nth].record.launched, requests[nth].record.order));
        let mut coming = coming.into_iter().peekable();
        let mut course = Self::default();
        let mut stretch = Stretch::default();
        let mut open: Vec<Open> = Vec::new();
        loop {
            let next = coming.peek().map(|&nth| requests[nth].record.launched);
            let filled = fill(&open, batch);
            let piece = |&nth: &usize| open[nth].pieces.front().copied();
            let costs = filled
                .iter()
                .filter_map(|nth| Some(cost(&requests[open[*nth].request].record, piece(nth)?)));
            let costs = each + costs.sum::<f64>();
            let ended = filled
                .iter()
                .filter(|nth| open[**nth].pieces.len() == 1)
                .map(|nth| requests[open[*nth].request].record.prompted)
                .min();
            let is_first = next.is_some_and(|next| match ended {
                _ if filled.is_empty() => true,
                Some(ended) => next < ended,
                // Between which batches it was launched, the model says.
                None => {
                    let scale = scale(stretch.begin);
                    let middle = (stretch.modelled + costs / 2.0) * scale;
                    next.saturating_sub(stretch.begin) as f64 <= middle
                }
            });
            if is_first {
                let Some(request) = coming.next() else { break };
                let record = &requests[request].record;
                course.close(&mut stretch, record.launched);
                let at = open.partition_point(|prompt| prompt.slot <= record.slot);
                let pieces = pieces(record, batch);
                let slot = record.slot;
                let prompt = Open {
                    slot,
                    request,
                    pieces,
                };
                open.insert(at, prompt);
                continue;
            }
            if filled.is_empty() {
                break;
            }
            for &nth in &filled {
                let prompt = &mut open[nth];
                let Some((from, to)) = prompt.pieces.pop_front() else {
                    continue;
                };
                course.pieces.push(Piece {
                    request: prompt.request,
                    from,
                    to,
                    scale: scale(stretch.begin),
                });
            }
            stretch.modelled += costs;
            stretch.batches.push(stretch.modelled);
            if let Some(ended) = ended {
                course.close(&mut stretch, ended);
            }
            open.retain(|prompt| !prompt.pieces.is_empty());
        }
        course
    }

    /// At this time the batches of a stretch had been evaluated.
    fn close(&mut self, stretch: &mut Stretch, at: u64) {
        let took = at.saturating_sub(stretch.begin) as f64;
        if stretch.modelled > 0.0 && took > 0.0 {
            let scale = took / stretch.modelled;
            for piece in &mut self.pieces[stretch.first..] {
                piece.scale = scale;
            }
            let ends = stretch.batches.iter();
            let ends = ends.map(|modelled| stretch.begin + (modelled * scale).round() as u64);
            self.ends.extend(ends);
        }
        *stretch = Stretch {
            begin: stretch.begin.max(at),
            first: self.pieces.len(),
            ..Stretch::default()
        };
    }
}

/// Since the last known moment.
#[derive(Debug, Default)]
struct Stretch {
    begin: u64,
    /// Its first piece.
    first: usize,
    /// What the model says of all its batches, and up to the end of each.
    modelled: f64,
    batches: Vec<f64>,
}

/// Which prompts the next batch has pieces of.
fn fill(open: &[Open], batch: u32) -> Vec<usize> {
    let mut room = batch;
    let mut filled = Vec::new();
    for (nth, prompt) in open.iter().enumerate() {
        let Some(&(from, to)) = prompt.pieces.front() else {
            continue;
        };
        // Whatever the recording says, one is always next.
        if to - from > room && !filled.is_empty() {
            break;
        }
        room = room.saturating_sub(to - from);
        filled.push(nth);
    }
    filled
}

/// The pieces in which a prompt was evaluated. The recording has a bound for their number.
pub(super) fn pieces(record: &RequestRecord, batch: u32) -> VecDeque<(u32, u32)> {
    let mut pieces = VecDeque::new();
    let mut at = record.reused.min(record.prompt.saturating_sub(1));
    let ends = record.breaks.iter().copied();
    for end in ends.filter(|&end| end <= record.prompt) {
        if end > at {
            pieces.push_back((at, end));
            at = end;
        }
    }
    while at < record.prompt {
        let end = record.prompt.min(at.saturating_add(batch.max(1)));
        pieces.push_back((at, end));
        at = end;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contextpilot_traffic::Tokens;

    use super::*;

    /// Slot, launch and end of the prompt; where its batches ended.
    fn request(slot: u32, (launched, prompted): (u64, u64), breaks: &[u32]) -> TrafficRequest {
        TrafficRequest {
            record: RequestRecord {
                slot,
                launched,
                prompted,
                ended: prompted,
                prompt: breaks.last().copied().unwrap_or(0),
                evaluated: breaks.last().copied().unwrap_or(0),
                breaks: breaks.to_vec(),
                ..RequestRecord::default()
            },
            tokens: Arc::new(Tokens::new()),
            junction: Tokens::new(),
        }
    }

    fn course(requests: &[TrafficRequest]) -> Course {
        let cost = |_: &RequestRecord, (from, to): (u32, u32)| f64::from(to - from);
        Course::new(requests, 100, 0.0, cost, |_| 2.0)
    }

    /// A batch of 100 tokens has what the first slot wants, and then of the second what fits. Each stretch has its
    /// own scale.
    #[test]
    fn batches_are_filled_in_the_order_of_slots_and_stretches_have_scales() {
        // Three batches: [0, 100) of the second slot; then the first slot comes: 60 of it and 40 of the second; and
        // the rest of the second.
        let requests = [
            request(1, (1000, 1500), &[100, 140, 150]),
            request(0, (1200, 1300), &[60]),
        ];
        let course = course(&requests);
        let seen: Vec<_> = course
            .pieces
            .iter()
            .map(|piece| (piece.request, piece.from, piece.to, piece.scale))
            .collect();
        assert_eq!(
            seen,
            [
                (0, 0, 100, 2.0),
                (1, 0, 60, 1.0),
                (0, 100, 140, 1.0),
                (0, 140, 150, 20.0)
            ]
        );
        assert_eq!(course.ends, [1200, 1300, 1500]);
    }

    /// Of two batches without a known end between them, each has its share.
    #[test]
    fn what_is_between_known_moments_is_divided_by_the_model() {
        let course = course(&[request(0, (0, 300), &[100, 150])]);
        let scales: Vec<f64> = course.pieces.iter().map(|piece| piece.scale).collect();
        assert_eq!(scales, [2.0, 2.0]);
        assert_eq!(course.ends, [200, 300]);
    }

    /// Whatever the recording says: it ends, and every piece is there once.
    #[test]
    fn impossible_recordings_are_played_to_their_end() {
        let requests = [
            request(0, (10, 20), &[500]),
            request(0, (10, 15), &[300, 200, 900]),
            request(0, (5, 400), &[]),
            request(3, (30, 31), &[50, 100]),
        ];
        let course = course(&requests);
        let total = |request| -> u32 {
            let of_it = course
                .pieces
                .iter()
                .filter(|piece| piece.request == request);
            of_it.map(|piece| piece.to - piece.from).sum()
        };
        assert_eq!([0, 1, 2, 3].map(total), [500, 900, 0, 100]);
        assert!(course.pieces.iter().all(|piece| piece.scale.is_finite()));
    }
}
