//! How long the recorded server took for each token.
//!
//! A server evaluates the prompts of several slots in the same batches, so a request waits for tokens of others. What
//! can be known is how long the server was at work without a pause: a *period*, from the launch of a request to the
//! moment at which no prompt is left to be evaluated. From all periods follows what evaluating costs ([`Costs`]). What a
//! period took in truth, against that, is its *scale*. Within a period, each stretch between two moments that are known
//! has a scale of its own ([`course`]): with more clients than slots, a batch that ends a little too late or too early
//! can change which request comes next to which slot, and so everything after it.

use std::collections::HashSet;

use contextpilot_traffic::{RequestRecord, Traffic};

mod course;

use course::{Course, Piece};

/// Fewer tokens say more about the call than about a token.
const ENOUGH: u32 = 64;

#[derive(Debug)]
pub(crate) struct Times {
    costs: Costs,
    /// How many times as long as by the costs all prompts took that the engine evaluated, each with batches of its own.
    pace: f64,
    /// For each request of the recording.
    requests: Vec<Taken>,
    /// By request, and then by position.
    pieces: Vec<Piece>,
}

/// What a request took.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// Of its period.
    scale: f64,
    /// Tokens that were evaluated for it, and in its period.
    computed: u32,
    together: u64,
    /// Tokens of its answer that batches evaluated, and how long each took that had a batch without prompts:
    /// microseconds.
    steps: u64,
    step: u64,
}

/// What evaluating costs, microseconds. The part of a batch is what a server saves whose prompts have little to
/// evaluate each: without it, the recording of a server that reuses much would make others too slow, several times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Costs {
    /// Each batch, however many tokens it has.
    batch: f64,
    /// Each token at position 0.
    token: f64,
    /// More for each position: a token attends to those before it.
    position: f64,
}

/// A period: its batches, its tokens, and the sum of their positions.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    begin: u64,
    end: u64,
    batches: f64,
    tokens: f64,
    positions: f64,
}

impl Times {
    /// `batch`: the most tokens of a batch.
    pub(crate) fn new(traffic: &Traffic, batch: u32) -> Self {
        let periods = periods(traffic, batch);
        let busy = Busy::new(&periods);
        let costs = Costs::fit(&periods, usual_step(traffic, &busy));
        let scale = |period: &Period| {
            let modelled = costs.of_period(period);
            if modelled > 0.0 {
                (period.end - period.begin) as f64 / modelled
            } else {
                1.0
            }
        };
        let cost = |record: &RequestRecord, (from, to): (u32, u32)| {
            let first = record.prompt.saturating_sub(record.computed());
            costs.of_tokens((from.max(first).min(to), to))
        };
        let mut course = Course::new(&traffic.requests, batch, costs.batch, cost, |time| {
            at(&periods, time).map_or(1.0, scale)
        });
        course
            .pieces
            .sort_by_key(|piece| (piece.request, piece.from));
        course.ends.sort_unstable();
        let requests = traffic.requests.iter().map(|request| {
            let record = &request.record;
            let period = at(&periods, record.launched);
            let whole = record.ended.saturating_sub(record.prompted);
            let alone = whole.saturating_sub(busy.within(record.prompted, record.ended));
            // Batches with prompts of others have a token of the answer as well.
            let until = |time| course.ends.partition_point(|&end| end <= time) as u64;
            let shared = until(record.ended).saturating_sub(until(record.prompted));
            let steps = u64::from(request.generated());
            Taken {
                scale: period.map_or(1.0, scale),
                computed: record.computed(),
                together: period.map_or(0, |period| period.tokens as u64),
                steps,
                step: alone / steps.saturating_sub(shared).max(1),
            }
        });
        let served = traffic.requests.iter().map(|request| &request.record);
        let modelled: f64 = served
            .filter(|record| !record.child)
            .map(|record| costs.of_prompt(record.prompt, record.computed(), batch))
            .sum();
        let took = periods.iter().map(|period| period.end - period.begin);
        let took = took.sum::<u64>() as f64;
        Self {
            costs,
            pace: if modelled > 0.0 { took / modelled } else { 1.0 },
            requests: requests.collect(),
            pieces: course.pieces,
        }
    }

    /// The time to evaluate the tokens `[from, to)` of a prompt, microseconds; and what the batch that they begin takes
    /// in any case. `computed`: how many of the prompt are evaluated in all. What was evaluated in the recording takes as
    /// long as there. For the rest the scale of the period counts, if as much is evaluated as in the recording, or the
    /// recording says enough of the period.
    pub(crate) fn of_tokens(
        &self,
        request: usize,
        (from, to): (u32, u32),
        computed: u32,
    ) -> (f64, f64) {
        let costs = &self.costs;
        let taken = self.requests.get(request);
        let counts =
            |taken: &&Taken| taken.computed == computed || taken.together >= u64::from(ENOUGH);
        let Some(taken) = taken.filter(counts) else {
            return (costs.of_tokens((from, to)), costs.batch);
        };
        let begin = self
            .pieces
            .partition_point(|piece| (piece.request, piece.to) <= (request, from));
        let mut pieces = self.pieces[begin..]
            .iter()
            .take_while(|piece| piece.request == request && piece.from < to)
            .peekable();
        let first = pieces.peek().filter(|piece| piece.from <= from);
        let batch = costs.batch * first.map_or(taken.scale, |piece| piece.scale);
        let (mut at, mut time) = (from, 0.0);
        for piece in pieces {
            let (first, end) = (piece.from.max(at), piece.to.min(to));
            time += taken.scale * costs.of_tokens((at, first))
                + piece.scale * costs.of_tokens((first, end));
            at = end;
        }
        (time + taken.scale * costs.of_tokens((at, to)), batch)
    }

    /// The time to evaluate the last tokens of a prompt, as many as `computed`, microseconds, whatever else the machine does.
    pub(crate) fn of_prompt(&self, prompt: u32, computed: u32, batch: u32) -> f64 {
        self.pace * self.costs.of_prompt(prompt, computed, batch)
    }

    /// How many steps a request's answer takes, and how long each takes in a batch without prompts: microseconds.
    pub(crate) fn of_answer(&self, request: usize) -> (u64, u64) {
        let taken = self.requests.get(request);
        taken.map_or((0, 0), |taken| (taken.steps, taken.step.max(1)))
    }
}

impl Costs {
    /// By least squares, a period as uncertain as it should be long, so that in all they take as long as they took. Where
    /// periods are too much alike to tell the parts from each other, there are fewer. `most`: what a batch takes at most, where
    /// there are only a few: prompts of much the same length do not say what of their time is a batch's, and what their tokens'.
    fn fit(periods: &[Period], most: f64) -> Self {
        /// Weights follow from what is found: so often they are found again.
        const ROUNDS: usize = 8;
        const FEW: usize = 32;
        let all: [&[usize]; 4] = [&[0, 1, 2], &[0, 1], &[1, 2], &[1]];
        let evaluated = || periods.iter().filter(|period| period.tokens > 0.0);
        let tokens: f64 = evaluated().map(|period| period.tokens).sum();
        let took: f64 = evaluated()
            .map(|period| (period.end - period.begin) as f64)
            .sum();
        let first = Self {
            token: took / tokens.max(1.0),
            ..Self::default()
        };
        let fit_with = |parts: &[usize], batch: f64| {
            (0..ROUNDS).try_fold(first, |costs, _| {
                let rows = evaluated().map(|period| {
                    let took = (period.end - period.begin) as f64 - batch * period.batches;
                    let row = [period.batches, period.tokens, period.positions, took];
                    (row, costs.of_period(period).max(1.0))
                });
                let [more, token, position] = least_squares(rows, parts)?;
                let found = Self {
                    batch: batch + more,
                    token,
                    position,
                };
                (token > 0.0).then_some(found)
            })
        };
        let fit = |parts: &&[usize]| {
            let found = fit_with(parts, 0.0)?;
            if found.batch <= most || evaluated().count() >= FEW {
                return Some(found);
            }
            let others: Vec<usize> = parts.iter().copied().filter(|part| *part != 0).collect();
            fit_with(&others, most)
        };
        all.iter().find_map(fit).unwrap_or_default()
    }

    /// The tokens `[from, to)`, without the batch.
    fn of_tokens(&self, (from, to): (u32, u32)) -> f64 {
        let (from, to) = (f64::from(from), f64::from(to));
        let tokens = (to - from).max(0.0);
        self.token * tokens + self.position * tokens * (from + to - 1.0).max(0.0) / 2.0
    }

    /// The last tokens of a prompt, as many as `computed`, in batches of its own.
    fn of_prompt(&self, prompt: u32, computed: u32, batch: u32) -> f64 {
        let batches = computed.div_ceil(batch.max(1));
        let tokens = (prompt.saturating_sub(computed), prompt);
        self.batch * f64::from(batches) + self.of_tokens(tokens)
    }

    fn of_period(&self, period: &Period) -> f64 {
        self.batch * period.batches + self.token * period.tokens + self.position * period.positions
    }
}

/// What a step of an answer takes, which is a batch of one token: the median, microseconds. Without answers: no bound.
fn usual_step(traffic: &Traffic, busy: &Busy<'_>) -> f64 {
    let steps = traffic.requests.iter().filter_map(|request| {
        let record = &request.record;
        let alone = busy.within(record.prompted, record.ended) == 0;
        let took = record.ended.saturating_sub(record.prompted);
        let steps = request.generated();
        (alone && steps > 0 && took > 0).then(|| took as f64 / f64::from(steps))
    });
    let mut steps: Vec<f64> = steps.collect();
    steps.sort_by(f64::total_cmp);
    steps.get(steps.len() / 2).copied().unwrap_or(f64::INFINITY)
}

/// The factors of the chosen columns with whose sums rows come nearest to their last column. With each row comes its
/// variance. `None`: they do not follow from the rows, or one is negative.
fn least_squares(
    rows: impl Iterator<Item = ([f64; 4], f64)>,
    chosen: &[usize],
) -> Option<[f64; 3]> {
    let size = chosen.len();
    let mut matrix = [[0.0; 4]; 3];
    for (values, variance) in rows {
        for (row, &a) in chosen.iter().enumerate() {
            for (column, &b) in chosen.iter().enumerate() {
                matrix[row][column] += values[a] * values[b] / variance;
            }
            matrix[row][3] += values[a] * values[3] / variance;
        }
    }
    // Gauss, for a matrix that is symmetric and positive.
    let whole: [f64; 3] = std::array::from_fn(|row| matrix[row][row]);
    for pivot in 0..size {
        if matrix[pivot][pivot] <= 1e-6 * whole[pivot] {
            return None;
        }
        for row in 0..size {
            if row != pivot {
                let factor = matrix[row][pivot] / matrix[pivot][pivot];
                let subtracted = matrix[pivot].map(|value| factor * value);
                for (value, less) in matrix[row].iter_mut().zip(subtracted) {
                    *value -= less;
                }
            }
        }
    }
    let mut found = [0.0; 3];
    for (row, &part) in chosen.iter().enumerate() {
        found[part] = matrix[row][3] / matrix[row][row];
    }
    found.iter().all(|factor| *factor >= 0.0).then_some(found)
}

/// The time in which prompts were evaluated, and how many tokens that were.
pub(crate) fn of_prompts(traffic: &Traffic) -> (u64, u64) {
    let periods = periods(traffic, u32::MAX);
    let time = periods.iter().map(|period| period.end - period.begin).sum();
    let tokens = periods.iter().map(|period| period.tokens as u64).sum();
    (time, tokens)
}

/// All periods, in order. `batch`: the most tokens of a batch.
fn periods(traffic: &Traffic, batch: u32) -> Vec<Period> {
    let served = traffic.requests.iter().map(|request| &request.record);
    let mut served: Vec<&RequestRecord> = served.filter(|record| !record.child).collect();
    served.sort_by_key(|record| (record.launched, record.prompted));
    let mut periods: Vec<Period> = Vec::new();
    // When prompts of the last period ended: those that ended at once shared their last batch.
    let mut ends: HashSet<u64> = HashSet::new();
    for record in served {
        let (first, last) = (
            f64::from(record.prompt.saturating_sub(record.computed())),
            f64::from(record.prompt.saturating_sub(1)),
        );
        let tokens = f64::from(record.computed());
        let end = record.prompted.max(record.launched);
        let is_new = periods
            .last()
            .is_none_or(|last| record.launched >= last.end);
        if is_new {
            periods.push(Period {
                begin: record.launched,
                end,
                ..Period::default()
            });
            ends.clear();
        }
        if let Some(period) = periods.last_mut() {
            period.end = period.end.max(end);
            let pieces = course::pieces(record, batch).len();
            let shared = usize::from(!ends.insert(end));
            period.batches += pieces.saturating_sub(shared) as f64;
            period.tokens += tokens;
            period.positions += tokens * (first + last) / 2.0;
        }
    }
    periods
}

/// The period in which something happened.
fn at(periods: &[Period], time: u64) -> Option<&Period> {
    let behind = periods.partition_point(|period| period.begin <= time);
    periods.get(behind.checked_sub(1)?)
}

/// When prompts were evaluated: sums over periods.
struct Busy<'a> {
    periods: &'a [Period],
    /// The time of all periods before each.
    before: Vec<u64>,
}

impl<'a> Busy<'a> {
    fn new(periods: &'a [Period]) -> Self {
        let before = periods.iter().scan(0, |sum, period| {
            let before = *sum;
            *sum += period.end - period.begin;
            Some(before)
        });
        Self {
            before: before.collect(),
            periods,
        }
    }

    fn until(&self, time: u64) -> u64 {
        let behind = self.periods.partition_point(|period| period.begin <= time);
        behind.checked_sub(1).map_or(0, |last| {
            let period = &self.periods[last];
            self.before[last] + time.min(period.end) - period.begin
        })
    }

    fn within(&self, from: u64, to: u64) -> u64 {
        self.until(to).saturating_sub(self.until(from))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contextpilot_traffic::{Tokens, TrafficRequest};

    use super::*;
    use crate::made::row;

    /// Launch, the end of the prompt and of the answer in milliseconds; tokens reused and evaluated.
    fn request(times: (u64, u64, u64), reused: u32, evaluated: u32) -> TrafficRequest {
        let prompt = reused + evaluated;
        TrafficRequest {
            record: RequestRecord {
                launched: times.0 * 1000,
                prompted: times.1 * 1000,
                ended: times.2 * 1000,
                prompt,
                reused,
                evaluated,
                ..RequestRecord::default()
            },
            tokens: Arc::new(row(&[(0, prompt + 10)])),
            junction: Tokens::new(),
        }
    }

    #[test]
    fn what_is_evaluated_together_is_divided_by_its_tokens() {
        // A token takes 0.1 ms, and 0.1 µs more for each position; the third waits for the second.
        let traffic = Traffic {
            requests: vec![
                request((0, 150, 200), 0, 1000),
                request((1000, 1450, 1450), 0, 2000),
                request((1001, 1450, 1700), 900, 100),
                request((1500, 1520, 1600), 0, 200),
            ],
            ..Traffic::default()
        };
        let (time, tokens) = of_prompts(&traffic);
        assert_eq!((time, tokens), (620_000, 3300));
        let times = Times::new(&traffic, 4096);
        let both = |(tokens, batch): (f64, f64)| tokens + batch;
        let all = both(times.of_tokens(0, (0, 1000), 1000));
        assert!((all - 150_000.0).abs() < 1.0, "as recorded: {all}");
        // While the fourth prompt was evaluated, the third answer waited for one of its ten tokens.
        assert_eq!(times.of_answer(2), (10, 230_000 / 9));
        assert_eq!(times.of_answer(1), (10, 1));
        let time = |request, range, computed| times.of_tokens(request, range, computed).0;
        // In one batch.
        let both = both(times.of_tokens(1, (0, 2000), 2000)) + time(2, (900, 1000), 100);
        // They begin when both are taken on.
        assert!((both - 449_000.0).abs() < 1.0, "{both}");
        assert!(time(1, (1000, 2000), 2000) > time(1, (0, 1000), 2000));
    }

    /// Five milliseconds a batch, and 10 µs a token. From prompts that had little to evaluate it is known what one costs
    /// that has much.
    #[test]
    fn what_each_batch_takes_is_not_taken_for_what_tokens_take() {
        let all = (1..40).map(|nth| {
            let tokens = 20 + nth * 7 % 50;
            let (begin, took) = (u64::from(nth) * 100, 5000 + u64::from(tokens) * 10);
            let mut asked = request((begin, begin, begin + 50), 1000, tokens);
            asked.record.prompted = asked.record.launched + took;
            asked
        });
        let traffic = Traffic {
            requests: all.collect(),
            ..Traffic::default()
        };
        let times = Times::new(&traffic, 2048);
        let (tokens, batch) = times.of_tokens(5, (0, 1060), 1060);
        assert!((batch - 5000.0).abs() < 50.0, "{batch}");
        assert!((tokens - 10_600.0).abs() < 100.0, "{tokens}");
    }

    /// Times that vary a little say nothing of batches; steps of answers do: a batch takes no longer than one of these.
    #[test]
    fn a_batch_takes_no_longer_than_a_step_of_an_answer() {
        // 10 µs a token, more or less.
        let all = [
            (0, 169, 1720),
            (10, 167, 1650),
            (20, 132, 1600),
            (30, 169, 1690),
        ];
        let all = all.map(|(begin, tokens, took)| {
            let mut asked = request((begin, begin, begin), 0, tokens);
            asked.record.prompted = asked.record.launched + took;
            // Ten steps.
            asked.record.ended = asked.record.prompted + 200;
            asked
        });
        let traffic = Traffic {
            requests: all.into(),
            ..Traffic::default()
        };
        let times = Times::new(&traffic, 2048);
        assert!(times.costs.batch <= 20.0, "{:?}", times.costs);
        let per_token = (times.costs.of_tokens((0, 169)) + times.costs.batch) / 169.0;
        assert!((9.0..12.0).contains(&per_token), "{:?}", times.costs);
    }

    #[test]
    fn what_happened_belongs_to_the_period_that_began_before() {
        let period = |begin, end| Period {
            begin,
            end,
            ..Period::default()
        };
        let periods = [period(10, 20), period(30, 40)];
        let begin = |time| at(&periods, time).map(|found| found.begin);
        let found = [9, 10, 19, 25, 30, 50].map(begin);
        let (first, second) = (Some(10), Some(30));
        assert_eq!(found, [None, first, first, first, second, second]);
    }
}
