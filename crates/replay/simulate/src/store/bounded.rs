//! The store below a model whose cache cannot go back to any position: a load may end only where a state was stored.
//!
//! Where states are taken, what is loaded and what is evaluated again is decided by the store's own code
//! (`crates/store/kv-engine`), for an engine that has positions and no rows.

use std::cell::RefCell;

use contextpilot_kv_engine::{
    Bounds, Done, Engine, Host, HostBatch, Journal, Part, Record, Refusal, States, Supply, Tails,
    Wanted, batch, bounded, keep_checkpoint, synchronise,
};
use contextpilot_kv_store::{Conditions, Fingerprint, Piece, Run, Session, worth};
use contextpilot_traffic::TrafficRequest;

use super::{PrefixStore, StoreIndex, is_for_the_store, tokens_of};
use crate::checkpoints::Evaluated;
use crate::content::Content;
use crate::window::{Kept, Positions};

impl PrefixStore {
    /// Whether the context cannot go back to any position.
    pub(crate) fn is_bounded(&self) -> bool {
        self.bound.is_some()
    }

    fn at<'a>(&'a mut self, positions: &'a mut Positions) -> Context<'a> {
        Context {
            store: RefCell::new(self),
            positions: RefCell::new(positions),
            journal: RefCell::new(Journal::EMPTY),
        }
    }

    /// A slot keeps only its first `kept` tokens.
    pub(super) fn cut_bounded(&mut self, slot: usize, kept: u32, positions: &mut Positions) {
        let (sequence, length) = (slot as i32, kept as usize);
        let context = self.at(positions);
        if bounded::removes_only_pending(&context, sequence, length) {
            return;
        }
        context.save_if(sequence, length, 1);
        synchronise(&context, sequence);
        let lacking = match length {
            0 => Vec::new(),
            _ => bounded::about_to_go_back(&context, sequence, length),
        };
        context.positions.borrow_mut().cut(slot, kept);
        let from = i32::try_from(kept).unwrap_or(i32::MAX);
        context.record(|store| store.session.removed(sequence, from, -1));
        bounded::check_window(&context, sequence);
        let may_wait = context.record(|store| store.is_always_the_same());
        if !lacking.is_empty() && may_wait != Some(true) {
            bounded::complete(&context, sequence);
        }
    }

    /// The first and the last position of a slot that the server sees, where the engine holds fewer.
    pub(crate) fn ends(&self, slot: usize) -> Option<(i64, i64)> {
        let bounds = self.bound.as_ref()?.bounds;
        let believed = self.session.reach_if_pending(slot as i32)?;
        Some((bounds.first(believed) as i64, believed as i64 - 1))
    }

    /// The server takes a checkpoint of a slot: the positions in it, and what is known of its tokens.
    pub(crate) fn checkpoint(
        &mut self,
        slot: usize,
        positions: &mut Positions,
    ) -> (Kept, Option<Evaluated>) {
        let sequence = slot as i32;
        let context = self.at(positions);
        if let Some((kept, evaluated)) = context.shown(sequence) {
            return (kept, Some(evaluated));
        }
        synchronise(&context, sequence);
        let kept = context.positions.borrow().keep(slot);
        let mut part = Vec::new();
        context.save_part(sequence, &mut part);
        let evaluated = context.record(|store| {
            let held = store.session.copy_out(sequence)?;
            keep_checkpoint(store, sequence, &part);
            held.is_whole().then_some((held.conditions, held.first))
        });
        (kept, evaluated.flatten())
    }

    /// The server is about to go back to a checkpoint of a slot.
    pub(crate) fn about_to_rewind(&mut self, slot: usize, positions: &mut Positions) {
        let context = self.at(positions);
        synchronise(&context, slot as i32);
        context.save_if(slot as i32, 0, 1);
    }

    /// It has, and this was evaluated there. `None`: that is not known.
    pub(crate) fn rewound(&mut self, slot: usize, to: Option<&(Content, Evaluated)>) {
        match to {
            Some((content, (conditions, first))) => {
                let tokens = tokens_of(content.row(), 0, content.len());
                self.session
                    .rewound(slot as i32, &tokens, *conditions, *first);
            }
            None => self.session.overwritten(slot as i32),
        }
    }

    /// The server has copied what a slot holds.
    pub(super) fn copied(&mut self, slot: usize, positions: &mut Positions) {
        let context = self.at(positions);
        synchronise(&context, slot as i32);
        context.keep(slot as i32);
    }

    /// How many tokens of a slot's prompt were loaded. From now on, those of the next one are counted.
    pub(crate) fn take_loaded(&mut self, slot: usize) -> u32 {
        let bound = self.bound.as_mut();
        let loaded = bound.and_then(|bound| bound.loaded.remove(&(slot as i32)));
        u32::try_from(loaded.unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// Evaluates the tokens `[begin, end)` of a prompt, which are in one batch. `marks`: where messages begin.
    pub(crate) fn evaluate_batch(
        &mut self,
        slot: usize,
        request: &TrafficRequest,
        (begin, end): (u32, u32),
        marks: &[u32],
        positions: &mut Positions,
    ) {
        let record = &request.record;
        let conditions = self.conditions_of(record.adapters);
        if let Some(bound) = &mut self.bound {
            bound.applied = conditions;
            bound.is_uncached = record.uncached;
            bound.marks = marks.to_vec();
        }
        if !is_for_the_store(record) {
            self.session.obscure(slot as i32);
        }
        let tokens = tokens_of(&request.tokens, begin, end);
        // The last token of a prompt wants an output.
        let leading = tokens.len() - usize::from(end == record.prompt);
        self.at(positions)
            .evaluate_run(slot as i32, begin, tokens, leading);
    }

    /// A slot generates these tokens, from a position on.
    pub(super) fn generated(
        &mut self,
        slot: usize,
        first: u32,
        tokens: &[i32],
        conditions: Conditions,
        positions: &mut Positions,
    ) {
        if let Some(bound) = &mut self.bound {
            bound.applied = conditions;
        }
        let context = self.at(positions);
        for (at, token) in (first..).zip(tokens) {
            context.evaluate_run(slot as i32, at, vec![*token], 0);
        }
    }

    /// Whether there never were other adapters.
    fn is_always_the_same(&self) -> bool {
        self.adapters.len() <= 1
    }

    fn applied(&self) -> Conditions {
        let bound = self.bound.as_ref();
        bound.map_or(Conditions::default(), |bound| bound.applied)
    }
}

/// The store with the server's context, while a call of the server lasts.
struct Context<'a> {
    store: RefCell<&'a mut PrefixStore>,
    positions: RefCell<&'a mut Positions>,
    journal: RefCell<Journal>,
}

impl Context<'_> {
    /// So many tokens of a sequence were loaded.
    fn note_loaded(&self, sequence: i32, tokens: usize) {
        self.record(|store| {
            let loaded = &mut store.bound.as_mut()?.loaded;
            *loaded.entry(sequence).or_default() += tokens;
            Some(())
        });
    }

    /// Evaluates tokens of a sequence from a position on, which are all that is in a batch.
    fn evaluate_run(&self, sequence: i32, first: u32, tokens: Vec<i32>, leading: usize) {
        let entries = tokens.len();
        let parts = [Part {
            indexes: (0..).take(entries).collect(),
            follows: true,
            run: Run {
                sequence,
                first: i32::try_from(first).unwrap_or(i32::MAX),
                tokens,
                leading,
            },
            ..Part::default()
        }];
        let mut evaluation = Evaluation {
            context: self,
            sequence,
            range: (first as usize, first as usize + entries),
        };
        match batch::prepare(self, &parts, entries) {
            Ok(ready) => _ = batch::evaluate(self, &parts, entries, ready, &mut evaluation),
            // What has waited was meant for other adapters, and the server begins anew. Here it goes on, without the store.
            Err(_) => {
                evaluation.without(0);
                self.record(|store| store.session.obscure(sequence));
            }
        }
        self.save_behind(&parts[0].run);
    }

    /// What is copied out behind an evaluation, though nothing is about to be lost.
    fn save_behind(&self, run: &Run) {
        let is_due = self.record(|store| store.session.is_milestone(run, worth::STEPS));
        if is_due == Some(true) {
            self.save_if(run.sequence, 0, worth::MARGIN);
        }
        let goes_on = run.leading == run.tokens.len() && run.tokens.len() >= worth::LEAST_LOST;
        let is_far = || {
            self.of_stored(run.sequence, |tokens, fingerprint, index| {
                worth::midway(tokens.len(), index.last_state_in(fingerprint, tokens))
            })
        };
        if goes_on && is_far() == Some(true) {
            self.save_if(run.sequence, 0, worth::MARGIN);
        }
    }

    /// Runs `work` on what a sequence holds, under what that was evaluated, and what is stored. `None`: nothing of it can be
    /// stored.
    fn of_stored<R>(
        &self,
        sequence: i32,
        work: impl FnOnce(&[i32], &Fingerprint, &mut StoreIndex) -> R,
    ) -> Option<R> {
        let store = &mut **self.store.borrow_mut();
        let conditions = store.session.conditions(sequence)?;
        let fingerprint = store.fingerprint(conditions);
        let tokens = store.session.believed(sequence)?;
        Some(work(tokens, &fingerprint, &mut store.index))
    }

    /// Saves a sequence that is about to keep only its first `kept` tokens, if that is worth it: what is new must have taken
    /// `margin` times as long to evaluate as copying all of it takes.
    fn save_if(&self, sequence: i32, kept: usize, margin: usize) {
        self.keep_waiting(sequence);
        let is_draft = self.record(|store| store.session.is_draft(sequence, kept));
        let tail = self.part_size(sequence).unwrap_or(0);
        let is_worth = self.of_stored(sequence, |tokens, fingerprint, index| {
            let there = index.last_state_in(fingerprint, tokens);
            let is_worth = is_draft != Some(true)
                && worth::saving(tokens.len(), kept, there, index.ratio, margin)
                && index.tree.has_room(fingerprint, tokens, index.token_bytes);
            if is_worth {
                let rows = index.tree.find(fingerprint, tokens).tokens();
                index.note_copy(tokens.len(), rows, tail);
            }
            is_worth
        });
        if is_worth == Some(true) {
            self.keep(sequence);
        }
    }

    /// Keeps the state that a sequence has now, and the tails that have waited for its rows.
    fn keep(&self, sequence: i32) {
        let tail = self.part_size(sequence).unwrap_or(0);
        let length = self.length(sequence);
        self.of_stored(sequence, |tokens, fingerprint, index| {
            let is_there = index.last_state_in(fingerprint, tokens) == tokens.len();
            if !is_there && length == Some(tokens.len()) && index.keep(fingerprint, tokens) {
                index.keep_tail(fingerprint, tokens, tail);
            }
        });
        self.keep_waiting(sequence);
    }

    fn keep_waiting(&self, sequence: i32) {
        let store = &mut **self.store.borrow_mut();
        let waiting = store.tails.take_of(sequence);
        let Some(tokens) = store.session.believed(sequence) else {
            return waiting
                .into_iter()
                .for_each(|tail| store.tails.put_back(tail));
        };
        for tail in waiting {
            let fingerprint = store.fingerprint(tail.conditions);
            let is_of_these = tokens.starts_with(&tail.tokens);
            if is_of_these && !store.index.keep_tail(&fingerprint, &tail.tokens, tail.size) {
                store.tails.put_back(tail);
            }
        }
    }

    /// What a checkpoint gets from the store, of a sequence of which tokens are pending.
    fn shown(&self, sequence: i32) -> Option<(Kept, Evaluated)> {
        let store = &mut **self.store.borrow_mut();
        let believed = store.session.believed_if_pending(sequence)?;
        let conditions = store.applied();
        let fingerprint = store.fingerprint(conditions);
        let state = store
            .index
            .state_in(&fingerprint, store.session.believed(sequence)?)?;
        let is_shown = state.position == believed
            && !store.session.is_lost(sequence)
            && store.is_under_these(sequence);
        let tokens = u32::try_from(believed).ok().filter(|_| is_shown)?;
        store.index.tree.used(&[state.tail]);
        let first = store.bounds()?.first_row(believed);
        Some((self.positions.borrow().guess(tokens), (conditions, first)))
    }

    /// Copies another sequence out that holds a beginning of what is wanted for a run, and nothing else, and more than there is a
    /// state of.
    fn share(&self, run: &Run, wanted: &[i32]) {
        let better = self.record(|store| {
            let conditions = store.applied();
            let (other, shared) = store.session.sharing(run, wanted, conditions)?;
            let all = store.session.believed(other)?.len();
            let held = store.session.in_engine(run.sequence);
            if shared < all {
                return None;
            }
            let fingerprint = store.fingerprint(conditions);
            let stored = store.index.last_state_in(&fingerprint, wanted).max(held);
            worth::sharing(all, shared, stored, store.index.ratio).then_some(other)
        });
        if let Some(other) = better.flatten() {
            self.save_if(other, 0, 1);
        }
    }

    /// The engine evaluates these positions, at most `most` at a time.
    fn write(&self, sequence: i32, (from, to): (usize, usize), most: usize) {
        let [from, to, most] = [from, to, most].map(|at| u32::try_from(at).unwrap_or(u32::MAX));
        let mut positions = self.positions.borrow_mut();
        positions.write(sequence as usize, (from, to), most);
    }
}

/// These positions of a sequence are being evaluated.
struct Evaluation<'a, 'b> {
    context: &'a Context<'b>,
    sequence: i32,
    range: (usize, usize),
}

impl Evaluation<'_, '_> {
    /// Evaluates them, without the first `there`.
    fn without(&self, there: usize) {
        let (from, to) = self.range;
        let at_once = self.context.at_once().unwrap_or(1);
        self.context
            .write(self.sequence, (from + there, to), at_once);
    }
}

impl<R> HostBatch<R> for Evaluation<'_, '_> {
    fn leave_out(&mut self, _: &[u32]) {}

    fn evaluate(&mut self, left_out: &[u32]) -> i32 {
        self.without(left_out.len());
        0
    }

    fn loaded(&mut self, entries: &[u32]) {
        self.context.note_loaded(self.sequence, entries.len());
    }
}

impl Engine for Context<'_> {
    fn cut(&self, sequence: i32, from: usize) {
        let from = u32::try_from(from).unwrap_or(u32::MAX);
        self.positions.borrow_mut().cut(sequence as usize, from);
    }

    fn length(&self, sequence: i32) -> Option<usize> {
        let (_, last) = self.positions.borrow().range(sequence as usize);
        usize::try_from(last + 1).ok()
    }

    fn first(&self, sequence: i32) -> Option<usize> {
        let (first, _) = self.positions.borrow().range(sequence as usize);
        usize::try_from(first).ok()
    }

    /// Only sequences with media are put aside, and those are not for the store here.
    fn save(&self, _: i32, _: &mut Vec<u8>) -> bool {
        false
    }

    fn part_size(&self, sequence: i32) -> Option<usize> {
        let tokens = u32::try_from(self.length(sequence)?).ok()?;
        let store = self.store.borrow();
        Some(store.bound.as_ref()?.tail(tokens))
    }

    /// It has its size in place of its bytes.
    fn save_part(&self, sequence: i32, part: &mut Vec<u8>) -> bool {
        let size = self.part_size(sequence);
        *part = size.unwrap_or(0).to_le_bytes().to_vec();
        size.is_some()
    }

    fn load(&self, _: i32, _: &[u8]) -> bool {
        false
    }

    fn evaluate(
        &self,
        sequence: i32,
        from: usize,
        tokens: &[i32],
        most: usize,
    ) -> Result<(), Refusal> {
        self.write(sequence, (from, from + tokens.len()), most);
        Ok(())
    }
}

impl Record for PrefixStore {
    fn session(&self) -> &Session {
        &self.session
    }

    fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    fn conditions(&self, _: i32) -> Conditions {
        self.applied()
    }

    fn bounds(&self) -> Option<Bounds> {
        Some(self.bound.as_ref()?.bounds)
    }

    fn at_a_time(&self) -> usize {
        let at_once = self.bounds().and_then(|bounds| bounds.at_once);
        at_once.unwrap_or(self.batch).min(self.size()).max(1)
    }

    fn size(&self) -> usize {
        self.room.1
    }

    fn tails(&self) -> &Tails {
        &self.tails
    }

    fn tails_mut(&mut self) -> &mut Tails {
        &mut self.tails
    }

    fn tail_of<'a>(&self, part: &'a [u8]) -> Option<&'a [u8]> {
        Some(part)
    }

    fn size_of_tail(&self, tail: &[u8]) -> usize {
        tail.try_into().map_or(0, usize::from_le_bytes)
    }

    fn are_these(&self, conditions: Conditions) -> bool {
        conditions == self.applied()
    }

    fn has_embeddings(&self) -> bool {
        false
    }

    fn may_store(&self) -> bool {
        true
    }
}

/// A state that is stored.
struct State {
    /// Of so many tokens.
    position: usize,
    /// What its rows are in.
    rows: Vec<Piece>,
    tail: Piece,
    tail_bytes: u64,
}

impl StoreIndex {
    /// The state behind the most of these tokens.
    fn state_in(&self, fingerprint: &Fingerprint, tokens: &[i32]) -> Option<State> {
        let mut found = self.tree.find(fingerprint, tokens);
        let tail = self.tree.tails(&found).pop()?;
        let position = tail.piece.start;
        found.cut(position);
        Some(State {
            position,
            rows: found.pieces().to_vec(),
            tail: tail.piece,
            tail_bytes: tail.bytes,
        })
    }

    /// How many of these tokens that is; 0: there is none.
    fn last_state_in(&self, fingerprint: &Fingerprint, tokens: &[i32]) -> usize {
        let tails = self.tree.tails(&self.tree.find(fingerprint, tokens));
        tails.last().map_or(0, |tail| tail.piece.start)
    }

    /// Keeps a tail of these tokens. False: they are not there.
    pub(super) fn keep_tail(
        &mut self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        bytes: usize,
    ) -> bool {
        let is_there = self.tree.find(fingerprint, tokens).tokens() == tokens.len();
        if is_there {
            let missing = self.tree.missing_tail(fingerprint, tokens, bytes as u64);
            self.insert(missing.into_iter().collect());
        }
        is_there
    }
}

/// What is stored under one fingerprint.
struct Of<'a>(&'a StoreIndex, Fingerprint);

impl States for Of<'_> {
    fn length_of(&self, tokens: &[i32]) -> usize {
        self.0.tree.find(&self.1, tokens).tokens()
    }

    fn last_state_in(&self, tokens: &[i32]) -> usize {
        self.0.last_state_in(&self.1, tokens)
    }
}

/// A state that may be loaded.
struct Stored<'a, 'b> {
    context: &'a Context<'b>,
    wanted: Wanted<'a>,
    state: State,
}

impl Supply for Stored<'_, '_> {
    fn tokens(&self) -> &[i32] {
        self.wanted.tokens
    }

    fn lengths(&self) -> Vec<usize> {
        vec![self.state.position]
    }

    fn load(&mut self, _: usize) -> Option<usize> {
        let state = &self.state;
        let mut positions = self.context.positions.borrow_mut();
        let kept = positions.guess(u32::try_from(state.position).ok()?);
        positions.restore(self.wanted.sequence as usize, &kept);
        let index = &mut self.context.store.borrow_mut().index;
        let used: Vec<Piece> = state.rows.iter().copied().chain([state.tail]).collect();
        index.tree.used(&used);
        let rows = state.position.saturating_mul(index.token_bytes) as u64;
        index.copied = index
            .copied
            .saturating_add(rows.saturating_add(state.tail_bytes));
        Some(state.position)
    }

    fn is_aside(&self) -> bool {
        false
    }

    fn put_back(&mut self) -> bool {
        false
    }

    /// Tokens that the server had been told were evaluated were loaded now.
    fn finish(self, done: &Done) {
        let sequence = self.wanted.sequence;
        let reused = self.context.record(|store| store.session.reused(sequence));
        let loaded = self.wanted.loaded_now(done, reused.unwrap_or(0));
        self.context.note_loaded(sequence, loaded.len());
    }
}

impl Host for Context<'_> {
    type Record = PrefixStore;

    fn record<R>(&self, work: impl FnOnce(&mut PrefixStore) -> R) -> Option<R> {
        Some(work(&mut self.store.borrow_mut()))
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn journal<R>(&self, work: impl FnOnce(&mut Journal) -> R) -> Option<R> {
        Some(work(&mut self.journal.borrow_mut()))
    }

    fn find<'a>(&'a self, wanted: &Wanted<'a>) -> Option<impl Supply + 'a> {
        if let Some(run) = wanted.run {
            self.share(run, wanted.tokens);
        }
        let store = self.store.borrow();
        if !store.session.may_load(wanted.sequence) {
            return None;
        }
        let fingerprint = store.fingerprint(store.applied());
        let state = store.index.state_in(&fingerprint, wanted.tokens)?;
        let gained = state.position.saturating_sub(wanted.held);
        let new = state.position.saturating_sub(wanted.believed);
        let is_worth_it = gained >= worth::LEAST_GAINED
            && new <= store.room_for(wanted.believed)
            && worth::loading(wanted.held, state.position, store.index.ratio);
        is_worth_it.then_some(Stored {
            context: self,
            wanted: *wanted,
            state,
        })
    }

    fn is_uncached(&self, _: i32) -> bool {
        let store = self.store.borrow();
        store.bound.as_ref().is_some_and(|bound| bound.is_uncached)
    }

    fn may_wait(&self, run: &Run) -> bool {
        let store = self.store.borrow();
        let may = run.leading == run.tokens.len()
            && store.is_always_the_same()
            && store.session.may_load(run.sequence);
        let wanted = store.session.wanted(run);
        let believed = wanted.len() - run.leading;
        if !may || store.room_for(believed) < run.tokens.len() {
            return false;
        }
        let fingerprint = store.fingerprint(store.applied());
        let found = store.index.tree.find(&fingerprint, &wanted);
        let leads = found.tokens() == wanted.len() && store.index.tree.leads_to_tail(&found);
        let last = store.index.last_state_in(&fingerprint, &wanted);
        let there = last.max(store.session.in_engine(run.sequence));
        leads && wanted.len() - there <= worth::MOST_PENDING
    }

    fn at_once(&self) -> Option<usize> {
        Some(self.store.borrow().bound.as_ref()?.at_once)
    }

    fn with_states<R>(
        &self,
        _: i32,
        work: impl FnOnce(&PrefixStore, &dyn States) -> Option<R>,
    ) -> Option<R> {
        let store = &**self.store.borrow();
        let fingerprint = store.fingerprint(store.applied());
        work(store, &Of(&store.index, fingerprint))
    }

    /// Where the server makes checkpoints because messages of users begin. Which tokens are special is not recorded.
    fn last_message(&self, run: &Run) -> Option<usize> {
        let store = self.store.borrow();
        let first = usize::try_from(run.first).ok()?;
        let marks = store.bound.as_ref()?.marks.iter();
        let within = marks.filter_map(|at| (*at as usize).checked_sub(first));
        within.filter(|at| *at < run.leading).max()
    }

    fn about_to_reach(&self) {}

    fn note_refused_state(&self, _: usize) {}
}
