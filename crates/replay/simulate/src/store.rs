//! The prefix store (`CONTEXTPILOT_STORE`), below the server.
//!
//! What it has, what leaves it, what is worth a copy and what a sequence holds is decided by the store's own code
//! (`crates/store/kv-store`): here is only when it is asked. A chunk has no rows, and an identity stands for each token.

mod bounded;

use std::collections::BTreeMap;

use contextpilot_kv_engine::{Bounds, Tails};
use contextpilot_kv_store::{Chunk, Conditions, Fingerprint, Held, Run, Session, Store, worth};
use contextpilot_traffic::{Applied, Memory, RequestRecord, Tokens, Traffic, TrafficRequest};

use crate::checkpoints::Evaluated;
use crate::content::Content;
use crate::prefixes::Prefixes;
use crate::rates::Rates;
use crate::setting::{Setting, StoreSetting};
use crate::sizes::Sizes;
use crate::window::Positions;

/// What a state says of a token besides its rows, bytes.
const CELL: u64 = 12;

/// The store, and what it knows of the slots.
#[derive(Debug)]
pub(crate) struct PrefixStore {
    index: StoreIndex,
    /// A sequence for each slot.
    session: Session,
    /// The adapters of all requests so far, and what stands for them. The index is the number of the conditions.
    adapters: Vec<(Applied, Fingerprint)>,
    /// Bytes that are copied in a second.
    speed: u64,
    /// Tokens that a slot can hold, and all of them together.
    room: (usize, usize),
    batch: usize,
    /// Of the bytes that were copied, how many a request was charged with.
    charged: u64,
    /// What is known of a context that cannot go back to any position. `None`: this one can.
    bound: Option<Bound>,
    /// Tails that wait for their tokens' rows, of such a context.
    tails: Tails,
}

/// What the store has.
#[derive(Debug)]
struct StoreIndex {
    tree: Store,
    /// Bytes of the rows of a token.
    token_bytes: usize,
    /// How many times as long as copying a token evaluating it takes.
    ratio: usize,
    /// The most bytes that it ever had.
    peak: u64,
    /// Bytes that were copied out of the engine and in.
    copied: u64,
}

/// What the store knows of a context that cannot go back to any position, besides its sequences.
#[derive(Debug)]
struct Bound {
    bounds: Bounds,
    /// Tokens that the engine computes at once.
    at_once: usize,
    /// Under what tokens are evaluated now.
    applied: Conditions,
    /// The prompt that is evaluated gets nothing from the store.
    is_uncached: bool,
    /// Where messages begin in that prompt.
    marks: Vec<u32>,
    /// How many tokens of the last prompt of each sequence were loaded.
    loaded: BTreeMap<i32, usize>,
    sizes: Sizes,
}

impl Bound {
    /// `None`: the model can go back to any position.
    fn new(setting: &Setting, sizes: &Sizes) -> Option<Self> {
        let window = match setting.server.memory {
            Memory::Full => return None,
            Memory::Window(window) => window as usize,
            Memory::Recurrent => 0,
        };
        let at_once = setting.server.ubatch_size.min(setting.server.batch_size) as usize;
        Some(Self {
            bounds: Bounds {
                window,
                at_once: (window > 0).then_some(at_once),
            },
            at_once,
            applied: Conditions::default(),
            is_uncached: false,
            marks: Vec::new(),
            loaded: BTreeMap::new(),
            sizes: sizes.clone(),
        })
    }

    /// The size of the tail of so many tokens, bytes.
    fn tail(&self, tokens: u32) -> usize {
        usize::try_from(self.sizes.tail(tokens)).unwrap_or(usize::MAX)
    }
}

impl PrefixStore {
    /// `None`: the setting has none, or the model's cache is not for it.
    pub(crate) fn new(
        setting: &Setting,
        traffic: &Traffic,
        sizes: &Sizes,
        rates: Rates,
    ) -> Option<Self> {
        let StoreSetting { limit, speed } = setting.store()?;
        let speed = speed.max(1);
        let token_bytes = sizes
            .of_token_without_tail(setting.server.memory)
            .saturating_sub(CELL);
        let copied = match setting.server.memory {
            Memory::Full => token_bytes as f64,
            // A tail is copied as well.
            _ => {
                let prompts = traffic
                    .requests
                    .iter()
                    .map(|request| u64::from(request.record.prompt));
                let usual = prompts.sum::<u64>() / traffic.requests.len().max(1) as u64;
                let usual = u32::try_from(usual).unwrap_or(u32::MAX).max(1);
                token_bytes as f64 + sizes.tail(usual) as f64 / f64::from(usual)
            }
        };
        let copying = copied / speed as f64;
        let of_all = setting.server.context as usize;
        let mut store = Self {
            index: StoreIndex {
                tree: Store::without_files(limit),
                token_bytes: usize::try_from(token_bytes).unwrap_or(usize::MAX),
                ratio: worth::ratio(
                    Some(rates.prompt_token / 1e6).filter(|rate| *rate > 0.0),
                    Some(copying),
                ),
                peak: 0,
                copied: 0,
            },
            session: Session::default(),
            adapters: Vec::new(),
            speed,
            room: if setting.server.kv_unified {
                (of_all, of_all)
            } else {
                (setting.server.slot_context as usize, of_all)
            },
            batch: setting.server.batch_size as usize,
            charged: 0,
            bound: Bound::new(setting, sizes),
            tails: Tails::default(),
        };
        if store.bound.is_some() {
            store.session.bind();
        }
        if traffic
            .setup
            .as_ref()
            .is_some_and(|setup| setup.store.is_some())
        {
            store.fill(&traffic.requests);
        }
        Some(store)
    }

    /// What was loaded in the recording although no request before had it: the store had it from the start.
    fn fill(&mut self, requests: &[TrafficRequest]) {
        let mut rows = Prefixes::new();
        for (nth, request) in requests.iter().enumerate() {
            let record = &request.record;
            let given = record.reused + record.loaded;
            if record.loaded > 0 && rows.find(&request.tokens, given).0 < given {
                let tokens = tokens_of(&request.tokens, 0, given);
                let conditions = self.conditions_of(record.adapters);
                let fingerprint = self.fingerprint(conditions);
                self.index.keep(&fingerprint, &tokens);
                if let Some(bound) = &self.bound {
                    let tail = bound.tail(given);
                    self.index.keep_tail(&fingerprint, &tokens, tail);
                }
            }
            rows.insert(&request.tokens, request.tokens.len(), nth);
        }
    }

    /// A slot keeps only its first `kept` tokens.
    pub(crate) fn cut(&mut self, slot: usize, kept: u32, positions: &mut Positions) {
        if self.is_bounded() {
            return self.cut_bounded(slot, kept, positions);
        }
        let sequence = slot as i32;
        self.save(sequence, kept as usize, 1);
        let kept = i32::try_from(kept).unwrap_or(i32::MAX);
        self.session.removed(sequence, kept, -1);
    }

    /// What is known of a slot's tokens, if these are known.
    pub(crate) fn known(&self, slot: usize) -> Option<Evaluated> {
        let sequence = slot as i32;
        let conditions = self.session.conditions(sequence)?;
        Some((conditions, self.session.first(sequence)))
    }

    /// The server has copied a slot to its own memory: what is new in that costs nothing more.
    pub(crate) fn saved(&mut self, slot: usize, positions: &mut Positions) {
        if self.is_bounded() {
            return self.copied(slot, positions);
        }
        if let Some(conditions) = self.session.conditions(slot as i32) {
            self.session_without_ahead(slot as i32);
            let fingerprint = self.fingerprint(conditions);
            let tokens = self.session.believed(slot as i32).unwrap_or_default();
            self.index.keep(&fingerprint, tokens);
        }
    }

    /// The server replaces what a slot holds by what it had copied before. (Its positions are not those yet.)
    pub(crate) fn replaced(
        &mut self,
        slot: usize,
        content: &Content,
        known: Option<Evaluated>,
        positions: &mut Positions,
    ) {
        self.cut(slot, 0, positions);
        let tokens = tokens_of(content.row(), 0, content.len());
        match known {
            Some((conditions, first)) => {
                let mut held = Held::whole(tokens, conditions);
                held.first = first;
                self.session.replaced(slot as i32, held);
            }
            None => self.session.obscure(slot as i32),
        }
    }

    /// What a slot holds is not known any more, until it is emptied.
    pub(crate) fn obscure(&mut self, slot: usize) {
        self.session.obscure(slot as i32);
    }

    /// Slots evaluate the tokens of prompts, each from a position on, batch by batch. The prompts begin in the same batch: what
    /// is first evaluated there is found by none of them. Returns how many tokens of each are loaded.
    pub(crate) fn evaluate(&mut self, prompts: &[(usize, &TrafficRequest, u32)]) -> Vec<u32> {
        let begun: Vec<Option<Evaluating>> =
            prompts.iter().map(|prompt| self.begin(*prompt)).collect();
        let loaded = begun.into_iter().map(|evaluating| {
            let mut evaluating = evaluating?;
            self.session.evaluated(&evaluating.run);
            while let Some(next) = evaluating.next(self.batch) {
                evaluating.run = next;
                self.look(&mut evaluating);
                self.session.evaluated(&evaluating.run);
            }
            u32::try_from(evaluating.loaded).ok()
        });
        loaded.map(Option::unwrap_or_default).collect()
    }

    /// Looks for the first batch's part of a prompt. `None`: it is nothing for the store.
    fn begin(
        &mut self,
        (slot, request, past): (usize, &TrafficRequest, u32),
    ) -> Option<Evaluating> {
        let record = &request.record;
        let sequence = slot as i32;
        if !is_for_the_store(record) {
            self.session.obscure(sequence);
            return None;
        }
        let tokens = tokens_of(&request.tokens, 0, record.prompt);
        let run = run_of(&tokens, sequence, past as usize, self.batch)?;
        let mut evaluating = Evaluating {
            conditions: self.conditions_of(record.adapters),
            tokens,
            run,
            loaded: 0,
            may_find: !record.uncached,
            is_cached: !record.uncached,
        };
        self.look(&mut evaluating);
        Some(evaluating)
    }

    fn look(&mut self, evaluating: &mut Evaluating) {
        let advice =
            self.session
                .advise(&evaluating.run, evaluating.conditions, worth::LEAST_GAINED);
        if let Some(length) = advice.cut {
            self.session.cut(evaluating.run.sequence, length);
            evaluating.may_find = evaluating.is_cached;
        }
        if let Some(held) = advice.search.filter(|_| evaluating.may_find) {
            evaluating.may_find = self.search(&evaluating.run, held, evaluating.conditions);
        }
        evaluating.loaded += self.session.there(&evaluating.run);
    }

    /// The slot answers: `row` has the prompt and what is evaluated after it.
    pub(crate) fn answered(
        &mut self,
        slot: usize,
        request: &TrafficRequest,
        row: &Content,
        positions: &mut Positions,
    ) {
        let sequence = slot as i32;
        let prompt = request.record.prompt;
        self.session_without_ahead(sequence);
        let run = Run {
            sequence,
            first: i32::try_from(prompt).unwrap_or(i32::MAX),
            tokens: tokens_of(row.row(), prompt, row.len()),
            leading: 0,
        };
        if run.tokens.is_empty() {
            return;
        }
        let conditions = self.conditions_of(request.record.adapters);
        if self.is_bounded() {
            return self.generated(slot, prompt, &run.tokens, conditions, positions);
        }
        self.session.advise(&run, conditions, worth::LEAST_GAINED);
        self.session.evaluated(&run);
        let Some(known) = self.session.conditions(sequence) else {
            return;
        };
        let fingerprint = self.fingerprint(known);
        let all = self.session.believed(sequence).unwrap_or_default();
        for step in
            std::iter::once(1).chain((worth::STEPS..=run.tokens.len()).step_by(worth::STEPS))
        {
            let tokens = &all[..all.len().min(prompt as usize + step)];
            self.index.save_if(&fingerprint, tokens, 0, worth::MARGIN);
        }
    }

    /// The time that copies have taken since the last call, microseconds.
    pub(crate) fn time(&mut self) -> u64 {
        let copied = self.index.copied;
        let bytes = copied - std::mem::replace(&mut self.charged, copied);
        (bytes as f64 * 1e6 / self.speed as f64).round() as u64
    }

    /// The time that all copies took, seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.index.copied as f64 / self.speed as f64
    }

    /// The most bytes that it ever had.
    pub(crate) fn peak(&self) -> u64 {
        self.index.peak
    }

    /// Loads what there is of a run. Returns whether there was all of it.
    fn search(&mut self, run: &Run, held: usize, conditions: Conditions) -> bool {
        let wanted = self.session.wanted(run);
        let count = wanted.len();
        let fingerprint = self.fingerprint(conditions);
        let better = self.session.sharing(run, &wanted, conditions);
        let ratio = self.index.ratio;
        let mut found = self.index.tree.find(&fingerprint, &wanted);
        if let Some((other, shared)) =
            better.filter(|&(_, shared)| shared >= held + worth::LEAST_GAINED)
        {
            let stored = found.tokens().max(held);
            let all = self.session.believed(other).map_or(0, <[i32]>::len);
            if worth::sharing(all, shared, stored, ratio) {
                self.save(other, 0, 1);
                found = self.index.tree.find(&fingerprint, &wanted);
            }
        }
        let room = self.room_for(held);
        let there = found.tokens();
        let mut row = wanted;
        row.truncate(there);
        let more = room.saturating_sub(count.saturating_sub(held));
        if there == count && run.leading == run.tokens.len() && more > 0 {
            let (further, whole) = self.index.tree.continuation(&found, more);
            row.extend(further);
            found = whole;
        }
        let gained = there.saturating_sub(held);
        let is_worth_it = worth::loading(held, row.len(), ratio);
        if gained >= worth::LEAST_GAINED && gained <= room && is_worth_it {
            self.index.tree.used(found.pieces());
            self.index.copied += (row.len() as u64).saturating_mul(self.index.token_bytes as u64);
            self.session.loaded(run.sequence, row);
        }
        there == count
    }

    /// Saves a sequence that is about to keep only its first `kept` tokens, if that is worth it.
    fn save(&mut self, sequence: i32, kept: usize, margin: usize) {
        let Some(conditions) = self.session.conditions(sequence) else {
            return;
        };
        let fingerprint = self.fingerprint(conditions);
        let tokens = self.session.believed(sequence).unwrap_or_default();
        if self.index.save_if(&fingerprint, tokens, kept, margin) {
            self.session_without_ahead(sequence);
        }
    }

    /// Tokens that a sequence has room for that holds `held`.
    fn room_for(&self, held: usize) -> usize {
        match self.room {
            (own, all) if own < all => own.saturating_sub(held),
            (_, all) => all.saturating_sub(self.session.held()),
        }
    }

    fn session_without_ahead(&mut self, sequence: i32) {
        if let Some(believed) = self.session.ahead_of(sequence) {
            self.session.cut(sequence, believed);
        }
    }

    fn fingerprint(&self, conditions: Conditions) -> Fingerprint {
        self.adapters[conditions.0 as usize].1
    }

    fn conditions_of(&mut self, adapters: Applied) -> Conditions {
        let known = self
            .adapters
            .iter()
            .position(|(applied, _)| *applied == adapters);
        let nth = known.unwrap_or_else(|| {
            let fingerprint = Fingerprint::from_facts(&[&adapters.hash.to_le_bytes()]);
            self.adapters.push((adapters, fingerprint));
            self.adapters.len() - 1
        });
        Conditions(nth as u32)
    }
}

impl StoreIndex {
    /// Keeps what is new of these tokens, if that is worth the copy.
    fn save_if(
        &mut self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        kept: usize,
        margin: usize,
    ) -> bool {
        let is_worth_it = |there| worth::saving(tokens.len(), kept, there, self.ratio, margin);
        if !is_worth_it(0) {
            return false;
        }
        let there = self.tree.find(fingerprint, tokens).tokens();
        if !is_worth_it(there) {
            return false;
        }
        let missing = self.tree.missing(fingerprint, tokens, self.token_bytes);
        if missing
            .first()
            .is_some_and(|chunk| !self.tree.has_room_for(chunk))
        {
            return false;
        }
        self.note_copy(tokens.len(), there, 0);
        self.insert(missing);
        true
    }

    /// A sequence of so many tokens is copied out, of which the store has the first `there`. `tail`: its bytes.
    fn note_copy(&mut self, tokens: usize, there: usize, tail: usize) {
        let is_large = tokens.saturating_mul(self.token_bytes).saturating_add(tail) >= worth::LARGE;
        let copied = if is_large && worth::is_mostly_stored(tokens, there) {
            tokens - there
        } else {
            tokens
        };
        let bytes = copied.saturating_mul(self.token_bytes).saturating_add(tail);
        self.copied = self.copied.saturating_add(bytes as u64);
    }

    /// Keeps what is new of these tokens. Returns whether all of them are there now.
    fn keep(&mut self, fingerprint: &Fingerprint, tokens: &[i32]) -> bool {
        let missing = self.tree.missing(fingerprint, tokens, self.token_bytes);
        self.insert(missing)
    }

    fn insert(&mut self, missing: Vec<Chunk>) -> bool {
        let mut missing = missing.into_iter();
        let all = missing.all(|chunk| self.tree.insert(chunk).is_ok());
        self.peak = self.peak.max(self.tree.bytes());
        all
    }
}

/// A prompt that is evaluated batch by batch.
struct Evaluating {
    tokens: Vec<i32>,
    conditions: Conditions,
    /// The part in this batch.
    run: Run,
    loaded: usize,
    /// Whether a search can find more than the last one. A request that wants no cache gets nothing from the store.
    may_find: bool,
    is_cached: bool,
}

impl Evaluating {
    /// The part in the next batch.
    fn next(&self, batch: usize) -> Option<Run> {
        let at = usize::try_from(self.run.first).ok()? + self.run.tokens.len();
        run_of(&self.tokens, self.run.sequence, at, batch)
    }
}

/// The tokens of a prompt from a position on that are in one batch. `None`: there are none.
fn run_of(tokens: &[i32], sequence: i32, at: usize, batch: usize) -> Option<Run> {
    let end = tokens.len().min(at + batch);
    (at < end).then(|| Run {
        sequence,
        first: i32::try_from(at).unwrap_or(i32::MAX),
        // The last token of a prompt wants an output.
        leading: end - at - usize::from(end == tokens.len()),
        tokens: tokens[at..end].to_vec(),
    })
}

/// Whether the store takes part in a request at all.
fn is_for_the_store(record: &RequestRecord) -> bool {
    !record.embedding && record.media.is_empty() && record.activated_at.is_none()
}

/// The tokens `[from, to)` of a row. Two tokens are the same only if their identities are, unless these are some
/// 2³¹ apart, which no recording has in the same place.
fn tokens_of(row: &Tokens, from: u32, to: u32) -> Vec<i32> {
    const TOKENS: u64 = i32::MAX as u64;
    let mut tokens = Vec::with_capacity(to.min(row.len()).saturating_sub(from) as usize);
    for run in row.within(from, to) {
        // A run is counted up, and from 0 on again where the numbers of tokens end.
        let (mut first, mut left) = (run.first % TOKENS, u64::from(run.length));
        while left > 0 {
            let end = TOKENS.min(first + left);
            tokens.extend(first as i32..end as i32);
            (first, left) = (0, left - (end - first));
        }
    }
    tokens
}
