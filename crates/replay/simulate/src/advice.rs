//! Which change would have gained most, and which tokens no flag saves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use contextpilot_traffic::{Memory, Traffic, TrafficRequest};

use crate::client::{Client, suffix_first, without_swaps};
use crate::point::Point;
use crate::prefixes::Prefixes;
use crate::replay::Replay;
use crate::seen::Seen;
use crate::setting::Setting;
use crate::simulate::COURSES;
use crate::sizes::Sizes;
use crate::whole::{more_of_context, with_whole_windows};

/// A change must gain this share of all prompt tokens to be advised: the simulation is not more exact.
pub const LEAST_GAIN: f64 = 0.02;
/// Prompts that share fewer tokens are two prompts, if more differ then: what they share is the template's.
const SHARED: u32 = 32;
/// The most slots that are tried.
const MOST_SLOTS: u32 = 32;

/// What other flags would have brought.
#[derive(Clone, Debug)]
pub struct Advice {
    /// What the engine did, by its own figures ([`Replay::engine`]).
    pub recorded: Point,
    /// A replay of the recorded flags ([`Replay::as_recorded`] if several clients asked).
    pub replayed: Point,
    /// At most two: one change of flags, and that one together with another. Each gains at least
    /// [`LEAST_GAIN`] over the setting before it, also if clients ask in another order ([`Replay::spread`]). Empty: no
    /// change would have helped for sure. Where times are known, each takes less time than the engine took.
    pub changes: Vec<Change>,
    /// The best of each kind by itself, if it gains [`LEAST_GAIN`]: slots, the host prompt cache, the prefix store, the context,
    /// windows, the order of infill prompts, and what clients can do. What saves most comes first.
    pub alone: Vec<Change>,
    /// The tokens of all prompts, by whether they were sent before.
    pub tokens: Repeated,
}

/// What was tried by itself.
#[derive(Clone, Debug)]
pub struct Trials {
    /// As in [`Advice::recorded`].
    pub recorded: Point,
    /// As in [`Advice::replayed`].
    pub replayed: Point,
    /// The simulation of the recorded setting: what changes are compared with, request by request.
    pub simulated: Point,
    /// The changes that gain at least [`LEAST_GAIN`] over that, all requests together, also if clients ask in another
    /// order ([`Replay::spread`]). Of a kind, what takes less memory comes first.
    pub helpful: Vec<Change>,
    /// How many changes were tried, or cannot gain so much.
    pub tried: usize,
}

impl Trials {
    /// The change that gains most. `None`: nothing would have helped.
    #[must_use]
    pub fn best(&self) -> Option<&Change> {
        let mut best: Option<&Change> = None;
        for change in &self.helpful {
            if best.is_none_or(|best| Bar::of(&best.point).is_cleared(&change.point)) {
                best = Some(change);
            }
        }
        best
    }
}

/// A change, and what it would have brought.
#[derive(Clone, Debug)]
pub struct Change {
    /// What it is about.
    pub kind: Kind,
    /// What to add to the command line. A flag and its value are two entries.
    pub flags: Vec<String>,
    /// The prefix store's budget, bytes (`CONTEXTPILOT_STORE_GB`). `None`: as recorded.
    pub store_limit: Option<u64>,
    /// What clients do otherwise.
    pub client: Option<Client>,
    /// The simulation of it.
    pub point: Point,
}

impl Change {
    fn from_tried((candidate, point): &Tried) -> Self {
        Self {
            kind: candidate.kind,
            flags: candidate.flags.clone(),
            store_limit: candidate.store_limit,
            client: candidate.client,
            point: point.clone(),
        }
    }

    /// Answers may be others than without it.
    #[must_use]
    pub fn changes_answers(&self) -> bool {
        self.moves_chunks() || self.kind == Kind::Infill
    }

    /// What is moved was evaluated behind something else.
    #[must_use]
    pub fn moves_chunks(&self) -> bool {
        self.flags.iter().any(|flag| flag == "--cache-reuse")
            || self.client == Some(Client::FlagsChunks)
    }
}

/// The tokens of all prompts, by what could have saved their evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeated {
    /// Tokens in the prefix that the prompt shares with an earlier request. Flags decide whether they are
    /// reused.
    pub prefix: u64,
    /// Tokens that were in an earlier request, but follow a difference in this one. Only the client can
    /// save them, by sending them before what differs.
    pub behind_a_difference: u64,
    /// Tokens that were in an earlier request, of embeddings and rerankings: the server reuses nothing for these.
    pub not_wanted: u64,
    /// Tokens that were in no earlier request. They have to be evaluated.
    pub never_sent: u64,
    /// Where prompts differ first from earlier ones: the median position, in tokens. Counts only prompts
    /// of which more than a quarter is repeated behind a difference, and not those that have only the template's first
    /// tokens in common with any earlier one: a request for a title is another prompt. `None`: there is no such prompt.
    pub differs_at: Option<u32>,
}

/// Does so many pieces of work, by their numbers: in any order, and side by side if it likes. Each is a simulation.
pub type Each<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// Tries single changes, and then each of them together with the best one.
#[must_use]
pub fn advise(traffic: &Traffic, recorded: &Setting) -> Advice {
    let replay = Replay::new(traffic);
    advise_with(&replay, recorded, &|count, work| (0..count).for_each(work))
}

/// As [`advise`], with another way to do its work.
#[must_use]
pub fn advise_with(replay: &Replay<'_>, recorded: &Setting, each: Each<'_>) -> Advice {
    advise_by(replay, recorded, each, true)
}

/// What of all that can be tried would have helped, each by itself: what [`advise_with`] begins with.
#[must_use]
pub fn trials_with(replay: &Replay<'_>, recorded: &Setting, each: Each<'_>) -> Trials {
    let many = &mut |settings: &[Setting]| points_with(replay, settings, each);
    let traffic = replay.traffic;
    let tokens = repeated(&traffic.requests, traffic.gram.max(1));
    let first = First::new(replay, recorded, many);
    let bar = first.bar();
    let round = Round::new(traffic, recorded, bar, &tokens, many, true)
        .with_other_prompts(traffic, recorded);
    let helpful: Vec<&Tried> = round.helpful(bar).collect();
    Trials {
        helpful: sure(replay, helpful, bar, each, true)
            .into_iter()
            .map(Change::from_tried)
            .collect(),
        tried: round.candidates,
        replayed: first.replayed().clone(),
        recorded: first.recorded,
        simulated: first.simulated,
    }
}

/// `is_thrifty`: what cannot be better is not simulated.
fn advise_by(replay: &Replay<'_>, recorded: &Setting, each: Each<'_>, is_thrifty: bool) -> Advice {
    let many = &mut |settings: &[Setting]| {
        if is_thrifty {
            points_with(replay, settings, each)
        } else {
            simulated(replay, &settings.iter().collect::<Vec<_>>(), each)
        }
    };
    let traffic = replay.traffic;
    let tokens = repeated(&traffic.requests, traffic.gram.max(1));
    let first = First::new(replay, recorded, many);
    let bar = first.bar();
    let round = Round::new(traffic, recorded, bar, &tokens, many, is_thrifty)
        .with_other_prompts(traffic, recorded);
    let kinds = [
        Kind::Slots,
        Kind::HostCache,
        Kind::Store,
        Kind::Context,
        Kind::Windows,
        Kind::Infill,
        Kind::Models,
        Kind::Client,
    ];
    let alone: Vec<&Tried> = kinds
        .into_iter()
        .filter_map(|kind| {
            let of_kind = round
                .tried
                .iter()
                .filter(|(candidate, _)| candidate.kind == kind);
            best_of(of_kind, bar)
        })
        .collect();
    let best = round.best_flags(bar);
    let is_best = |attempt: &Tried| best.is_some_and(|best| std::ptr::eq(attempt, best));
    let other = best.filter(|_| !alone.iter().any(|attempt| is_best(attempt)));
    let sure_ones = sure(
        replay,
        alone.into_iter().chain(other).collect(),
        bar,
        each,
        is_thrifty,
    );
    let mut changes: Vec<Change> = Vec::new();
    if let Some(best) = sure_ones.iter().find(|attempt| is_best(attempt)) {
        let best = Change::from_tried(best);
        let base = &best.point;
        let bar = Bar::of(base);
        // With other traffic, or other sizes, what else would help is not known.
        let is_other = best.kind.changes_traffic() || best.kind == Kind::Windows;
        let goes_on = !is_other && (!is_thrifty || may_any_gain(bar, &tokens));
        let round =
            goes_on.then(|| Round::new(traffic, &base.setting, bar, &tokens, many, is_thrifty));
        let second = round.as_ref().and_then(|round| round.best_flags(bar));
        let second = second.into_iter().collect();
        let second = sure(replay, second, bar, each, is_thrifty);
        let both = second.into_iter().map(|second| {
            let second = Change::from_tried(second);
            Change {
                flags: [best.flags.clone(), second.flags].concat(),
                store_limit: second.store_limit.or(best.store_limit),
                ..second
            }
        });
        let both: Vec<Change> = both.collect();
        changes.push(best);
        changes.extend(both);
    }
    let alone = sure_ones.into_iter().filter(|attempt| match other {
        Some(other) => !std::ptr::eq(*attempt, other),
        None => true,
    });
    let mut alone: Vec<Change> = alone.map(Change::from_tried).collect();
    alone.sort_by(|one, other| taken(&one.point).total_cmp(&taken(&other.point)));
    Advice {
        replayed: first.replayed().clone(),
        recorded: first.recorded,
        changes,
        alone,
        tokens,
    }
}

/// The recorded setting.
struct First {
    simulated: Point,
    /// Of several clients: what the server did, in the order in which they asked.
    followed: Option<Point>,
    /// What the engine did.
    recorded: Point,
}

impl First {
    fn new(
        replay: &Replay<'_>,
        recorded: &Setting,
        many: &mut dyn FnMut(&[Setting]) -> Vec<Point>,
    ) -> Self {
        let simulated = simulate_one(recorded.clone(), many);
        let followed = replay.is_of_many().then(|| replay.as_recorded(recorded));
        Self {
            recorded: replay.engine(followed.as_ref().unwrap_or(&simulated)),
            simulated,
            followed,
        }
    }

    fn replayed(&self) -> &Point {
        self.followed.as_ref().unwrap_or(&self.simulated)
    }

    /// What changes must beat: what the engine did, and its replay. The courses of changes are simulated, and a course of several
    /// clients may by chance spare more than theirs did: so it is the better of both. Where the replay does not do what the engine
    /// did, a change may be as far off as it is.
    fn bar(&self) -> Bar {
        let replayed = Bar::of(self.replayed());
        let simulated = Bar::of(&self.simulated);
        let base = if replayed.gain > simulated.gain {
            replayed
        } else {
            simulated
        };
        let engine = self.recorded.spared_share();
        let least = engine + error_of_replay(&self.recorded, self.replayed()).unwrap_or(0.0);
        let copies = replayed.spared - replayed.gain;
        Bar {
            gain: base.gain.max(least - copies),
            spared: base.spared.max(least),
            taken: taken(&self.recorded),
            ..base
        }
    }
}

/// How far the share that a replay spares is from that which the engine spared. `None`: no further than a simulation is off
/// anyway.
#[must_use]
pub fn error_of_replay(engine: &Point, replayed: &Point) -> Option<f64> {
    let error = (engine.spared_share() - replayed.spared_share()).abs();
    Some(error).filter(|error| *error > LEAST_GAIN)
}

/// What a change must beat.
#[derive(Clone, Copy, Debug)]
struct Bar {
    /// As [`gain`] says.
    gain: f64,
    /// The share of tokens that is spared.
    spared: f64,
    /// As [`taken`] says.
    taken: f64,
    refused: u64,
    prompt_tokens: u64,
}

impl Bar {
    /// What another change must beat beside the one that was simulated as `point`.
    fn of(point: &Point) -> Self {
        Self {
            gain: gain(point),
            spared: point.spared_share(),
            taken: taken(point),
            refused: point.refused,
            prompt_tokens: point.prompt_tokens,
        }
    }

    /// The change gains enough and, where times are known, saves some.
    fn is_cleared(&self, point: &Point) -> bool {
        let is_timed = self.taken > 0.0;
        gain(point) >= self.gain + LEAST_GAIN && (!is_timed || taken(point) < self.taken)
    }
}

/// The time that evaluating prompts takes, with copies for the prefix store, seconds.
fn taken(point: &Point) -> f64 {
    point.prompt_seconds + point.store_seconds
}

/// A candidate with its simulation.
type Tried = (Candidate, Point);

/// Candidates with their simulations.
struct Round {
    tried: Vec<Tried>,
    /// With those that were not simulated, as they cannot be better.
    candidates: usize,
}

impl Round {
    /// Flags and the store, beside a setting.
    fn new(
        traffic: &Traffic,
        setting: &Setting,
        bar: Bar,
        tokens: &Repeated,
        many: &mut dyn FnMut(&[Setting]) -> Vec<Point>,
        is_thrifty: bool,
    ) -> Self {
        let (mut promising, holds_all) = candidates(setting, traffic, many);
        let holds_all = holds_all.filter(|_| is_thrifty);
        let candidates = promising.len();
        promising.retain(|candidate| !is_thrifty || may_gain(&candidate.setting, bar, tokens));
        // A store that lets nothing go does what one without a limit does.
        let known = |candidate: &Candidate| {
            let all = holds_all.as_ref()?;
            let limit = candidate
                .store_limit
                .filter(|limit| *limit >= all.store_bytes);
            limit.map(|_| Point {
                setting: candidate.setting.clone(),
                ..all.clone()
            })
        };
        let tried = try_all(promising, &known, many, is_thrifty);
        Self { tried, candidates }
    }

    /// As well as what changes the recording: what clients can do, another order of infill prompts, and larger states.
    fn with_other_prompts(mut self, traffic: &Traffic, setting: &Setting) -> Self {
        let candidate = |kind, flags: &[&str], client| Candidate {
            kind,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            store_limit: None,
            client,
            setting: setting.clone(),
        };
        // Chunks of a state that cannot be moved are never advised.
        let moves = setting.server.cache_reuse > 0 && setting.server.memory != Memory::Full;
        let of_clients = Client::that_apply(traffic)
            .filter(move |client| !moves || *client != Client::FlagsChunks);
        let of_clients = of_clients.map(|client| {
            let changed = client.applied(traffic);
            (candidate(Kind::Client, &[], Some(client)), changed)
        });
        let infill = suffix_first(traffic)
            .map(|changed| (candidate(Kind::Infill, &["--spm-infill"], None), changed));
        let models = without_swaps(traffic).map(|(models, changed)| {
            let flags = ["--models-max", &models.to_string()];
            (candidate(Kind::Models, &flags, None), changed)
        });
        let whole = with_whole_windows(traffic, setting).map(|(whole, changed)| {
            let candidate = candidate(Kind::Windows, &["--swa-full"], None);
            let with_it = Candidate {
                setting: whole,
                ..candidate
            };
            (with_it, changed)
        });
        for (candidate, changed) in of_clients.chain(infill).chain(models).chain(whole) {
            self.candidates += 1;
            let mut point = Replay::new(&changed).simulate(&candidate.setting);
            if candidate.kind == Kind::Windows {
                point.context_bytes += more_of_context(traffic, setting);
            }
            self.tried.push((candidate, point));
        }
        self
    }

    fn helpful(&self, bar: Bar) -> impl Iterator<Item = &Tried> {
        let helps =
            move |(_, point): &&Tried| point.refused <= bar.refused && bar.is_cleared(point);
        self.tried.iter().filter(helps)
    }

    fn best_flags(&self, bar: Bar) -> Option<&Tried> {
        let of_server = |attempt: &&Tried| attempt.0.kind != Kind::Client;
        best_of(self.tried.iter().filter(of_server), bar)
    }
}

/// Whether a change can gain enough, with all that it could reuse at best. What is no prefix of an earlier request is reused
/// only if it is moved.
fn may_gain(setting: &Setting, bar: Bar, tokens: &Repeated) -> bool {
    match setting.server.cache_reuse {
        0 => may_reuse(tokens.prefix, bar, tokens),
        _ => may_any_gain(bar, tokens),
    }
}

/// The same, if chunks are moved: more cannot be reused.
fn may_any_gain(bar: Bar, tokens: &Repeated) -> bool {
    may_reuse(tokens.prefix + tokens.behind_a_difference, bar, tokens)
}

/// The same, if so many tokens could be reused at best.
fn may_reuse(most: u64, bar: Bar, tokens: &Repeated) -> bool {
    /// In what order requests come differs a little between settings, and so does what comes first.
    const SLACK: f64 = LEAST_GAIN / 4.0;
    let repeated = tokens.prefix + tokens.behind_a_difference + tokens.not_wanted;
    let all = repeated + tokens.never_sent;
    // With other requests refused, shares are of other tokens.
    if bar.refused > 0 || bar.prompt_tokens != all || all == 0 {
        return true;
    }
    most as f64 / all as f64 + SLACK >= bar.gain + LEAST_GAIN
}

/// Simulates one.
fn simulate_one(setting: Setting, many: &mut dyn FnMut(&[Setting]) -> Vec<Point>) -> Point {
    let mut points = many(std::slice::from_ref(&setting)).into_iter();
    points.next().expect("a point for each setting")
}

/// Simulates them, but for those of which it is `known` what comes of it. Of host caches no larger ones are tried once one
/// lets nothing go.
fn try_all(
    candidates: Vec<Candidate>,
    known: &dyn Fn(&Candidate) -> Option<Point>,
    many: &mut dyn FnMut(&[Setting]) -> Vec<Point>,
    is_thrifty: bool,
) -> Vec<Tried> {
    /// So many sizes of the host cache at a time.
    const SIZES: usize = 4;
    let is_size = |nth: &usize| candidates[*nth].kind == Kind::HostCache;
    let (sizes, others): (Vec<usize>, Vec<usize>) = (0..candidates.len()).partition(is_size);
    let mut points: Vec<Option<Point>> = candidates.iter().map(known).collect();
    let mut next = others;
    next.retain(|&nth| points[nth].is_none());
    let mut left = sizes.chunks(SIZES).peekable();
    let mut last: Option<usize> = None;
    while !next.is_empty() || left.peek().is_some() {
        let some = left.next().unwrap_or_default();
        next.extend(some);
        let settings: Vec<Setting> = next
            .iter()
            .map(|&nth| candidates[nth].setting.clone())
            .collect();
        for (nth, point) in next.drain(..).zip(many(&settings)) {
            points[nth] = Some(point);
        }
        let of = |nth: usize| points[nth].as_ref();
        let ends: Vec<&Point> = last
            .into_iter()
            .chain(some.iter().copied())
            .filter_map(of)
            .collect();
        let is_enough = ends.windows(2).any(|two| is_same_cache(two[0], two[1]));
        if is_thrifty && is_enough {
            break;
        }
        last = some.last().copied();
    }
    let points = candidates.into_iter().zip(points);
    points
        .filter_map(|(candidate, point)| Some((candidate, point?)))
        .collect()
}

/// Whether a host cache twice as large held the same, and did the same: then neither let anything go.
fn is_same_cache(one: &Point, other: &Point) -> bool {
    let of = |point: &Point| {
        (
            point.host_bytes,
            point.reused_tokens,
            point.evaluated_tokens,
            point.loaded_tokens,
            point.refused,
        )
    };
    of(one) == of(other) && one.outcomes == other.outcomes
}

/// The best of these. A later one must be better by [`LEAST_GAIN`] than the best so far. Those that take more memory or
/// more slots come later, so the cheaper ones win.
fn best_of<'a>(tried: impl Iterator<Item = &'a Tried>, bar: Bar) -> Option<&'a Tried> {
    let mut best: Option<&Tried> = None;
    for attempt in tried {
        let known = best.map_or(bar, |(_, point)| Bar::of(point));
        if attempt.1.refused <= bar.refused && known.is_cleared(&attempt.1) {
            best = Some(attempt);
        }
    }
    best
}

/// Those that gain enough whichever client asks first: in all courses that [`Replay::spread`] looks at. `is_thrifty`: where
/// the first courses leave no doubt, in these.
fn sure<'a>(
    replay: &Replay<'_>,
    tried: Vec<&'a Tried>,
    bar: Bar,
    each: Each<'_>,
    is_thrifty: bool,
) -> Vec<&'a Tried> {
    let least = bar.spared + LEAST_GAIN;
    // Other traffic has courses of its own.
    let has_courses =
        |(candidate, _): &&Tried| replay.is_of_many() && !candidate.kind.changes_traffic();
    let checked = tried.iter().copied().filter(has_courses);
    let checked: Vec<Checked<'_>> = checked.map(|(_, point)| Checked::new(point)).collect();
    let first = if is_thrifty { FIRST_COURSES } else { 0 };
    each(checked.len() * first, &|nth| {
        let (candidate, course) = (&checked[nth / first], nth % first);
        if !candidate.fails() {
            candidate.note(replay.share(&candidate.point.setting, course), least);
        }
    });
    let open: Vec<&Checked<'_>> = checked
        .iter()
        .filter(|candidate| candidate.is_open(least))
        .collect();
    let others = COURSES - first;
    each(open.len() * others, &|nth| {
        let (candidate, course) = (open[nth / others], first + nth % others);
        if !candidate.fails() && !replay.spares(&candidate.point.setting, course, least) {
            candidate.fails.store(true, Ordering::Relaxed);
        }
    });
    let mut checked = checked.iter();
    let mut tried = tried;
    tried.retain(|attempt| {
        !has_courses(attempt) || checked.next().is_some_and(|candidate| !candidate.fails())
    });
    tried
}

/// So many courses are looked at first.
const FIRST_COURSES: usize = 4;

/// A change that is looked at in several courses.
struct Checked<'a> {
    /// What it brings if clients ask as they did.
    point: &'a Point,
    fails: AtomicBool,
    /// The shares that were spared in the first courses.
    shares: Mutex<Vec<f64>>,
}

impl<'a> Checked<'a> {
    fn new(point: &'a Point) -> Self {
        Self {
            point,
            fails: AtomicBool::new(false),
            shares: Mutex::default(),
        }
    }

    fn fails(&self) -> bool {
        self.fails.load(Ordering::Relaxed)
    }

    fn note(&self, share: f64, least: f64) {
        if share < least {
            self.fails.store(true, Ordering::Relaxed);
        }
        self.shares
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(share);
    }

    /// Whether other courses may still spare too little. Not if the first spare far more, and differ by little.
    fn is_open(&self, least: f64) -> bool {
        /// How many times as far above the least as they differ.
        const TIMES: f64 = 4.0;
        let shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let all = || shares.iter().copied().chain([self.point.spared_share()]);
        let (lowest, highest) = (
            all().fold(f64::INFINITY, f64::min),
            all().fold(0.0, f64::max),
        );
        let is_clear = lowest - least >= LEAST_GAIN.max(TIMES * (highest - lowest));
        !self.fails() && (shares.is_empty() || !is_clear)
    }
}

/// What happens with each of these settings. Of those that differ by their host cache, the largest are simulated first: what these
/// show to be large enough is not simulated.
#[must_use]
pub fn points_with(replay: &Replay<'_>, settings: &[Setting], each: Each<'_>) -> Vec<Point> {
    let is_largest = |nth: &usize| {
        let setting = &settings[*nth];
        let larger = |other: &Setting| {
            other.cache_ram() > setting.cache_ram() && setting.differs_by_host_cache(other)
        };
        !settings.iter().any(larger)
    };
    let (largest, others): (Vec<usize>, Vec<usize>) = (0..settings.len()).partition(is_largest);
    let mut points: Vec<Option<Point>> = vec![None; settings.len()];
    let simulate = |which: Vec<usize>, points: &mut Vec<Option<Point>>| {
        let these: Vec<&Setting> = which.iter().map(|&nth| &settings[nth]).collect();
        for (nth, point) in which.into_iter().zip(simulated(replay, &these, each)) {
            points[nth] = Some(point);
        }
    };
    simulate(largest.clone(), &mut points);
    for &nth in &others {
        let mut known = largest.iter().filter_map(|&large| points[large].as_ref());
        points[nth] = known.find_map(|large| large.with_smaller_host_cache(&settings[nth]));
    }
    let unknown = others.into_iter().filter(|&nth| points[nth].is_none());
    simulate(unknown.collect(), &mut points);
    points.into_iter().flatten().collect()
}

/// The simulations of these settings.
fn simulated(replay: &Replay<'_>, settings: &[&Setting], each: Each<'_>) -> Vec<Point> {
    let points: Vec<OnceLock<Point>> = settings.iter().map(|_| OnceLock::new()).collect();
    each(settings.len(), &|nth| {
        points[nth].get_or_init(|| replay.simulate(settings[nth]));
    });
    let made = points.into_iter().zip(settings);
    made.map(|(point, setting)| {
        point
            .into_inner()
            .unwrap_or_else(|| replay.simulate(setting))
    })
    .collect()
}

/// The share of prompt tokens that need not be evaluated, less what copies for the prefix store cost: the time of
/// these as tokens that could be evaluated in it.
fn gain(point: &Point) -> f64 {
    let whole =
        point.prompt_seconds / (point.evaluated_tokens.max(1) as f64) * point.prompt_tokens as f64;
    let copies = if whole > 0.0 {
        point.store_seconds / whole
    } else {
        0.0
    };
    point.spared_share() - copies
}

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--parallel`
    Slots,
    /// `--cache-ram`
    HostCache,
    /// `CONTEXTPILOT_STORE_GB`
    Store,
    /// `--slot-prompt-similarity`
    Similarity,
    /// `--cache-reuse`
    Chunks,
    /// `--ctx-checkpoints`
    Checkpoints,
    /// `--cache-idle-slots`
    IdleSlots,
    /// `--ctx-size`
    Context,
    /// `--swa-full`
    Windows,
    /// `--spm-infill`
    Infill,
    /// `--models-max`, of the router that started the server.
    Models,
    /// What clients do.
    Client,
}

impl Kind {
    /// What comes to the server is other than it was: the server's own flags stay as they are.
    fn changes_traffic(self) -> bool {
        matches!(self, Self::Infill | Self::Models | Self::Client)
    }
}

struct Candidate {
    kind: Kind,
    flags: Vec<String>,
    store_limit: Option<u64>,
    client: Option<Client>,
    setting: Setting,
}

/// With them, the simulation of a prefix store without a limit, if stores are among them.
fn candidates(
    setting: &Setting,
    traffic: &Traffic,
    many: &mut dyn FnMut(&[Setting]) -> Vec<Point>,
) -> (Vec<Candidate>, Option<Point>) {
    let server = &setting.server;
    let mut all = Vec::new();
    let mut holds_all = None;
    let mut add = |flags: &[&str], setting: Setting| {
        let kind = match flags.first() {
            Some(&"--parallel") => Kind::Slots,
            Some(&"--cache-ram") => Kind::HostCache,
            Some(&"--slot-prompt-similarity") => Kind::Similarity,
            Some(&"--cache-reuse") => Kind::Chunks,
            Some(&"--ctx-checkpoints") => Kind::Checkpoints,
            Some(&"--ctx-size") => Kind::Context,
            Some(_) => Kind::IdleSlots,
            None => Kind::Store,
        };
        all.push(Candidate {
            kind,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            store_limit: (kind == Kind::Store).then_some(setting.store_limit),
            client: None,
            setting,
        });
    };
    for share in [0.0, 0.01, 0.05, 0.1, 0.25, 0.5] {
        if share != server.slot_prompt_similarity {
            let (share, changed) = with_similarity(setting, share);
            add(&["--slot-prompt-similarity", &share], changed);
        }
    }
    if server.memory == Memory::Full && !traffic.has_projector() && server.cache_reuse == 0 {
        for chunk in [256, 64] {
            let mut changed = setting.clone();
            changed.server.cache_reuse = chunk;
            let chunk = chunk.to_string();
            add(&["--cache-reuse", &chunk], changed.clone());
            // A prompt that lacks what follows its first tokens is similar to hardly any slot. So it gets
            // the slot that has the chunks only if little similarity is enough.
            for share in [0.05, 0.01] {
                if share < server.slot_prompt_similarity {
                    let (share, changed) = with_similarity(&changed, share);
                    let similar = ["--slot-prompt-similarity", &share];
                    add(
                        &[&["--cache-reuse", &chunk], &similar[..]].concat(),
                        changed,
                    );
                }
            }
        }
    }
    if server.memory != Memory::Full {
        for (checkpoints, step) in [(32, 8192), (128, 1024)] {
            if checkpoints > server.ctx_checkpoints {
                let mut changed = setting.clone();
                changed.server.ctx_checkpoints = checkpoints;
                changed.server.checkpoint_min_step = step;
                let (checkpoints, step) = (checkpoints.to_string(), step.to_string());
                let flags = [
                    "--ctx-checkpoints",
                    &checkpoints,
                    "--checkpoint-min-step",
                    &step,
                ];
                add(&flags, changed);
            }
        }
    }
    // The last checkpoint but one lies such a batch before the end of a prompt. `--batch-size` is not tried: a smaller one
    // does no more than bound this, and without checkpoints it decides only how many batches evaluate the same tokens.
    if server.memory == Memory::Recurrent && server.ubatch_size > 64 {
        let mut changed = setting.clone();
        changed.server.ubatch_size = 64;
        add(&["--ubatch-size", "64"], changed);
    }
    if server.cache_ram.is_some() && !server.cache_idle_slots {
        let mut changed = setting.clone();
        changed.server.cache_idle_slots = true;
        add(&["--cache-idle-slots"], changed);
    }
    if server.sleep_idle_seconds.is_some() {
        let mut changed = setting.clone();
        changed.server.sleep_idle_seconds = None;
        add(&["--sleep-idle-seconds", "-1"], changed);
    }
    if setting.can_have_store() && Sizes::new(&traffic.sizes).are_known() {
        let endless = Setting {
            store_limit: u64::MAX,
            ..setting.clone()
        };
        let endless = simulate_one(endless, many);
        for limit in store_limits(endless.store_bytes, setting.store_limit) {
            let mut changed = setting.clone();
            changed.store_limit = limit;
            add(&[], changed);
        }
        holds_all = Some(endless);
    }
    // Slots that share a context may have no room in it together. Where a slot's part was full, tokens were shifted out.
    let was_full = traffic
        .requests
        .iter()
        .any(|request| request.record.gone > 0);
    if server.kv_unified && server.parallel > 1 || was_full {
        for times in [2, 4] {
            let changed = setting
                .clone()
                .with_context(server.context.saturating_mul(times));
            let context = changed.server.context.to_string();
            add(&["--ctx-size", &context], changed);
        }
    }
    if setting.cache_ram() >= 0 {
        let base = setting.cache_ram().max(1);
        let sizes = (1..12).map(|doublings| base << doublings);
        for mib in sizes.filter(|&mib| mib <= 262_144) {
            if let Ok(changed) = setting.clone().with_cache_ram(mib) {
                add(&["--cache-ram", &mib.to_string()], changed);
            }
        }
    }
    let mut slots = server.parallel + 1;
    while slots <= MOST_SLOTS {
        let text = slots.to_string();
        if !server.kv_unified || server.auto_parallel {
            add(
                &["--parallel", &text],
                setting.clone().with_slots(slots, false),
            );
        }
        let flags = ["--parallel", &text, "--kv-unified"];
        add(&flags, setting.clone().with_slots(slots, true));
        slots = (slots + 1).next_power_of_two();
    }
    (all, holds_all)
}

/// Budgets that are worth a try: more than now, up to the first that holds all bytes.
fn store_limits(all: u64, now: u64) -> impl Iterator<Item = u64> {
    const GB: u64 = 1_000_000_000;
    let sizes = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].map(|gb| gb * GB);
    let fewer = sizes.into_iter().filter(move |limit| *limit < all);
    let first = sizes.into_iter().find(|limit| *limit >= all);
    fewer.chain(first).filter(move |limit| *limit > now)
}

/// The flag's value, and the setting with it.
fn with_similarity(setting: &Setting, share: f32) -> (String, Setting) {
    let mut changed = setting.clone();
    changed.server.slot_prompt_similarity = share;
    (share.to_string(), changed)
}

/// `gram`: how many tokens decide about an identity. A prompt that has an identity has all of them.
fn repeated(requests: &[TrafficRequest], gram: u32) -> Repeated {
    let mut sum = Repeated::default();
    let mut differ = Vec::new();
    let mut rows = Prefixes::new();
    let mut seen = Seen::default();
    for (nth, request) in requests.iter().enumerate() {
        let record = &request.record;
        if record.child {
            continue;
        }
        let (prefix, _) = rows.find(&request.tokens, record.prompt);
        let prefix = match record.loaded {
            0 => prefix,
            // The prefix store may have had it since before the recording.
            loaded => prefix.max(record.prompt.min(record.reused + loaded)),
        };
        let (behind, goes_on) = seen.behind(request, gram, prefix);
        let behind = u64::from(behind);
        rows.insert(&request.tokens, request.tokens.len(), nth);
        seen.add(&request.tokens);
        sum.never_sent += u64::from(record.prompt)
            .saturating_sub(u64::from(prefix))
            .saturating_sub(behind);
        if record.embedding {
            sum.not_wanted += u64::from(prefix) + behind;
            continue;
        }
        sum.prefix += u64::from(prefix);
        sum.behind_a_difference += behind;
        let is_another = prefix < SHARED && goes_on.saturating_sub(prefix) > SHARED;
        if behind > u64::from(record.prompt / 4) && !is_another {
            differ.push(prefix);
        }
    }
    differ.sort_unstable();
    sum.differs_at = differ.get(differ.len() / 2).copied();
    sum
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use contextpilot_traffic::Setup;

    use super::*;
    use crate::made::{self, request, row};

    /// What is not simulated would not have been advised: in recordings of a real server.
    #[test]
    fn advice_is_the_same_with_fewer_simulations() {
        let recordings: [&[u8]; 3] = [
            include_bytes!("../tests/recordings/small-store"),
            include_bytes!("../tests/recordings/two-clients"),
            include_bytes!("../tests/recordings/six-clients"),
        ];
        for bytes in recordings {
            let traffic = contextpilot_traffic::read(bytes);
            let recorded = Setting::recorded(&traffic).expect("it says what server it is of");
            let replay = Replay::new(&traffic);
            let by = |is_thrifty| {
                let count = Cell::new(0);
                let each = |more: usize, work: &(dyn Fn(usize) + Sync)| {
                    count.set(count.get() + more);
                    (0..more).for_each(work);
                };
                let advice = advise_by(&replay, &recorded, &each, is_thrifty);
                let said = |change: &Change| {
                    let point = &change.point;
                    let figures = (point.evaluated_tokens, point.host_bytes, point.store_bytes);
                    (change.flags.clone(), change.store_limit, figures)
                };
                let [changes, alone] = [&advice.changes, &advice.alone]
                    .map(|all| all.iter().map(said).collect::<Vec<_>>());
                (count.get(), changes, alone)
            };
            let (few, all) = (by(true), by(false));
            assert_eq!((&few.1, &few.2), (&all.1, &all.2));
            assert!(few.0 + 15 <= all.0, "{} of {}", few.0, all.0);
        }
    }

    #[test]
    fn the_first_courses_are_enough_where_they_leave_no_doubt() {
        let traffic = traffic(Memory::Full);
        let point = Point {
            prompt_tokens: 100,
            reused_tokens: 90,
            loaded_tokens: 0,
            ..crate::simulate(&traffic, &made::recorded(&traffic))
        };
        let is_open = |shares: &[f64], least| {
            let checked = Checked::new(&point);
            shares.iter().for_each(|&share| checked.note(share, least));
            (checked.is_open(least), checked.fails())
        };
        assert_eq!(is_open(&[0.9, 0.91], 0.8), (false, false));
        assert_eq!(is_open(&[], 0.8), (true, false), "none was looked at");
        assert_eq!(is_open(&[0.9, 0.93], 0.8), (true, false), "they differ");
        assert_eq!(is_open(&[0.9, 0.9], 0.89), (true, false), "by too little");
        assert_eq!(is_open(&[0.9, 0.79], 0.8), (false, true), "one fails");
    }

    #[test]
    fn what_was_loaded_was_sent_before_although_the_recording_has_not_seen_it() {
        let mut prompt = request(0, row(&[(0, 100)]));
        let tokens = |prompt: &TrafficRequest| {
            let found = repeated(std::slice::from_ref(prompt), 1);
            (found.prefix, found.behind_a_difference, found.never_sent)
        };
        assert_eq!(tokens(&prompt), (0, 0, 100));
        (prompt.record.reused, prompt.record.loaded) = (10, 50);
        assert_eq!(tokens(&prompt), (60, 0, 40));
    }

    /// A prompt of 100 tokens.
    fn traffic(memory: Memory) -> Traffic {
        let prompt = request(0, row(&[(0, 100)]));
        let setup = Setup {
            memory,
            cache_ram: Some(0),
            ctx_checkpoints: 8,
            ..Setup::default()
        };
        made::traffic(setup, vec![prompt])
    }

    /// Two prompts in turn, in one slot.
    #[test]
    fn where_the_replay_is_wrong_a_change_must_help_more_than_it_is_wrong() {
        let prompt = |order| request(order, row(&[(1000 * (order % 2), 100)]));
        let setup = Setup {
            parallel: 1,
            cache_ram: Some(0),
            ..Setup::default()
        };
        let mut traffic = made::traffic(setup, (0..4).map(prompt).collect());
        let advised = |traffic: &Traffic| advise(traffic, &made::recorded(traffic));
        let right = advised(&traffic);
        assert_eq!(right.recorded.spared_share(), 0.0);
        assert!(!right.changes.is_empty());
        // The engine had it, whatever from: half of what two slots would bring.
        for request in &mut traffic.requests[2..] {
            (request.record.reused, request.record.evaluated) = (60, 40);
        }
        let wrong = advised(&traffic);
        let shares = [&wrong.recorded, &wrong.replayed].map(Point::spared_share);
        assert_eq!(shares, [0.3, 0.0]);
        assert!(wrong.changes.is_empty() && wrong.alone.is_empty());
    }

    #[test]
    fn checkpoints_are_tried_for_models_that_make_some() {
        let tried = |memory| {
            let traffic = traffic(memory);
            let recorded = made::recorded(&traffic);
            let replay = Replay::new(&traffic);
            let mut many = |settings: &[Setting]| {
                settings
                    .iter()
                    .map(|setting| replay.simulate(setting))
                    .collect()
            };
            let (all, _) = candidates(&recorded, &traffic, &mut many);
            all.iter()
                .any(|candidate| candidate.kind == Kind::Checkpoints)
        };
        assert!(tried(Memory::Recurrent) && tried(Memory::Window(64)));
        assert!(!tried(Memory::Full));
    }

    /// So `--batch-size` is none of the changes.
    #[test]
    fn the_size_of_batches_decides_over_no_token() {
        let evaluated = |memory, batch_size, ubatch_size| {
            let talk = |nth: u64| row(&[(0, 1500), (10_000 * (nth % 3 + 1), 900)]);
            let mut requests: Vec<_> = (0..9).map(|nth| request(nth, talk(nth))).collect();
            for request in &mut requests {
                request.record.prompted = request.record.launched + 300_000;
                request.record.ended = request.record.prompted;
            }
            let setup = Setup {
                memory,
                batch_size,
                ubatch_size,
                parallel: 2,
                cache_ram: Some(0),
                ..Setup::default()
            };
            let traffic = made::traffic(setup, requests);
            let point = Replay::new(&traffic).simulate(&made::recorded(&traffic));
            point.evaluated_tokens
        };
        for memory in [Memory::Full, Memory::Window(64), Memory::Recurrent] {
            let usual = evaluated(memory, 2048, 512);
            assert!(usual > 2400 && usual <= 9 * 2400, "{usual}");
            assert_eq!(evaluated(memory, 600, 512), usual, "{memory:?}");
            assert_eq!(evaluated(memory, 4096, 512), usual, "{memory:?}");
        }
        assert_eq!(
            evaluated(Memory::Full, 32, 32),
            evaluated(Memory::Full, 2048, 512)
        );
    }
}
