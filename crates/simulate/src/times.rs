//! How long the recorded server took for each token.
//!
//! A server evaluates the prompts of several slots in the same batches, so a request waits for tokens of others. What
//! can be known is how long the server was at work without a pause: a *period*, from the launch of a request to the
//! moment at which no prompt is left to be evaluated. From the tokens of all periods follows what a token costs: a
//! part that is the same for all, and one that grows with its position, because it attends to those before it. What a
//! period took in truth, against that, is its *scale*. Within a period, each stretch between two moments that are known
//! has a scale of its own ([`course`]): with more clients than slots, a batch that ends a little too late or too early
//! can change which request comes next to which slot, and so everything after it.

use contextpilot_traffic::{RequestRecord, Traffic};

mod course;

use course::{Course, Piece};

/// Fewer tokens say more about the call than about a token.
const ENOUGH: u32 = 64;

#[derive(Debug)]
pub(crate) struct Times {
    /// Microseconds for a token at position 0, and more for each position.
    token: f64,
    position: f64,
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

/// A period, with its tokens and the sum of their positions.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    begin: u64,
    end: u64,
    tokens: f64,
    positions: f64,
}

impl Times {
    /// `batch`: the most tokens of a batch.
    pub(crate) fn of(traffic: &Traffic, batch: u32) -> Self {
        let periods = periods(traffic);
        let (token, position) = costs(&periods);
        let scale = |one: &Period| {
            let modelled = token * one.tokens + position * one.positions;
            match modelled > 0.0 {
                true => (one.end - one.begin) as f64 / modelled,
                false => 1.0,
            }
        };
        let cost = |record: &RequestRecord, (from, to): (u32, u32)| {
            let first = record.prompt.saturating_sub(record.computed());
            modelled(token, position, (from.max(first).min(to), to))
        };
        let mut course = Course::of(&traffic.requests, batch, cost, |time| {
            at(&periods, time).map_or(1.0, scale)
        });
        course
            .pieces
            .sort_by_key(|piece| (piece.request, piece.from));
        course.ends.sort_unstable();
        let busy = Busy::of(&periods);
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
                together: period.map_or(0, |one| one.tokens as u64),
                steps,
                step: alone / steps.saturating_sub(shared).max(1),
            }
        });
        Self {
            token,
            position,
            requests: requests.collect(),
            pieces: course.pieces,
        }
    }

    /// The time to evaluate the tokens `[from, to)` of a prompt, microseconds. `computed`: how many of it are
    /// evaluated in all. What was evaluated in the recording takes as long as there. For the rest the scale of the
    /// period counts, if as much is evaluated as in the recording, or the recording says enough of the period.
    pub(crate) fn of_tokens(&self, request: usize, (from, to): (u32, u32), computed: u32) -> f64 {
        let taken = self.requests.get(request);
        let counts =
            |taken: &&Taken| taken.computed == computed || taken.together >= u64::from(ENOUGH);
        let Some(taken) = taken.filter(counts) else {
            return modelled(self.token, self.position, (from, to));
        };
        let begin = self
            .pieces
            .partition_point(|piece| (piece.request, piece.to) <= (request, from));
        let pieces = self.pieces[begin..].iter();
        let pieces = pieces.take_while(|piece| piece.request == request && piece.from < to);
        let (mut at, mut time) = (from, 0.0);
        let part = |range: (u32, u32)| modelled(self.token, self.position, range);
        for piece in pieces {
            let (first, end) = (piece.from.max(at), piece.to.min(to));
            time += taken.scale * part((at, first)) + piece.scale * part((first, end));
            at = end;
        }
        time + taken.scale * part((at, to))
    }

    /// How many steps a request's answer takes, and how long each takes in a batch without prompts: microseconds.
    pub(crate) fn of_answer(&self, request: usize) -> (u64, u64) {
        let taken = self.requests.get(request);
        taken.map_or((0, 0), |taken| (taken.steps, taken.step.max(1)))
    }
}

/// How long the tokens `[from, to)` take by the model, microseconds.
fn modelled(token: f64, position: f64, (from, to): (u32, u32)) -> f64 {
    let (from, to) = (f64::from(from), f64::from(to));
    let tokens = (to - from).max(0.0);
    token * tokens + position * tokens * (from + to - 1.0).max(0.0) / 2.0
}

/// The time in which prompts were evaluated, and how many tokens that were.
pub(crate) fn of_prompts(traffic: &Traffic) -> (u64, u64) {
    let periods = periods(traffic);
    let time = periods.iter().map(|one| one.end - one.begin).sum();
    let tokens = periods.iter().map(|one| one.tokens as u64).sum();
    (time, tokens)
}

/// All periods, in order.
fn periods(traffic: &Traffic) -> Vec<Period> {
    let served = traffic.requests.iter().map(|request| &request.record);
    let mut served: Vec<&RequestRecord> = served.filter(|record| !record.child).collect();
    served.sort_by_key(|record| (record.launched, record.prompted));
    let mut periods: Vec<Period> = Vec::new();
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
        }
        if let Some(period) = periods.last_mut() {
            period.end = period.end.max(end);
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

/// Microseconds for a token at position 0, and for each position: by least squares.
fn costs(periods: &[Period]) -> (f64, f64) {
    let enough = periods
        .iter()
        .filter(|period| period.tokens >= f64::from(ENOUGH));
    let (mut nn, mut np, mut pp, mut nd, mut pd) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for period in enough {
        let took = (period.end - period.begin) as f64;
        let (n, p) = (period.tokens, period.positions);
        nn += n * n;
        np += n * p;
        pp += p * p;
        nd += n * took;
        pd += p * took;
    }
    let determinant = nn * pp - np * np;
    let token = (nd * pp - pd * np) / determinant;
    let position = (nn * pd - np * nd) / determinant;
    // Periods that are all alike do not tell the two parts from each other.
    if determinant > 1e-6 * nn * pp && token > 0.0 && position >= 0.0 {
        return (token, position);
    }
    let time: u64 = periods.iter().map(|period| period.end - period.begin).sum();
    let tokens: f64 = periods.iter().map(|period| period.tokens).sum();
    (
        if tokens > 0.0 {
            time as f64 / tokens
        } else {
            0.0
        },
        0.0,
    )
}

/// When prompts were evaluated: sums over periods.
struct Busy<'a> {
    periods: &'a [Period],
    /// The time of all periods before each.
    before: Vec<u64>,
}

impl<'a> Busy<'a> {
    fn of(periods: &'a [Period]) -> Self {
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
        let times = Times::of(&traffic, 4096);
        let all = times.of_tokens(0, (0, 1000), 1000);
        assert!((all - 150_000.0).abs() < 1.0, "as recorded: {all}");
        // While the fourth prompt was evaluated, the third answer waited for one of its ten tokens.
        assert_eq!(times.of_answer(2), (10, 230_000 / 9));
        assert_eq!(times.of_answer(1), (10, 1));
        let both = times.of_tokens(1, (0, 2000), 2000) + times.of_tokens(2, (900, 1000), 100);
        // They begin when both are taken on.
        assert!((both - 449_000.0).abs() < 1.0, "{both}");
        assert!(times.of_tokens(1, (1000, 2000), 2000) > times.of_tokens(1, (0, 1000), 2000));
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
