//! What is known of a context: its sequences, and what its KV depends on besides the tokens.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use contextpilot_kv_engine::{Bounds, Tails};
use contextpilot_kv_store::{
    self as kv, Conditions, Fingerprint, Held, Layout, Origin, Session, Shape, What,
};

use super::conditions::AllConditions;
use super::content::{self, Adapter, Content, Standing};
use super::engine::Context;
use super::figures;
use super::hidden_rows::Hidden;
use super::metadata::{self, Lengths};
use super::rates::Rates;
use super::surroundings;
use super::waiting::Aside;
use crate::attach::engines::{self, Entered};
use crate::attach::{original, plain};
use crate::base::abi::Pointer;
use crate::base::log;
use crate::capture::contexts;
use crate::capture::salts::Salt;

/// A state that the server has saved to its own memory.
pub(super) struct Saved {
    pub(super) held: Held,
    /// Made of the state's bytes: see [`super::state`].
    pub(super) sample: u64,
    /// Looks at the model's file before it was saved.
    look: u64,
}

/// A checkpoint that the server has taken: what is made of its bytes (see [`super::state`]), and of the tokens that it is of.
/// The server copies checkpoints to its host prompt cache and back, so their addresses say nothing.
pub(super) type Checkpoint = (u64, u64);

/// Under what the tokens of a checkpoint were evaluated.
struct Taken {
    conditions: Conditions,
    /// Where the rows of its windows begin: see [`Held::first`].
    first: usize,
    /// Looks at the model's file before it was taken.
    look: u64,
}

/// Saved states that are remembered. The server's host prompt cache has fewer entries as a rule.
const MOST_SAVED: usize = 4096;

/// Whether contexts that cannot go back to any position have a store: `CONTEXTPILOT_STORE_BOUNDED`.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Why such a context has no store.
const NOT_WANTED: &str = "its cache cannot go back to any position (sliding window, recurrent), and \
                                     CONTEXTPILOT_STORE_BOUNDED is 0";

/// Called when the store is started.
pub(super) fn want_bounded(wanted: bool) {
    WANTED.store(wanted, Ordering::Relaxed);
}

fn are_bounded_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// A context of the engine.
pub(crate) struct ContextStore {
    address: usize,
    /// The engine that it belongs to.
    engine: usize,
    pub(super) session: Session,
    pub(super) rates: Rates,
    /// Why this context has no store.
    refused: Option<String>,
    /// The layout of its states, once it was proven that they can be taken apart and put together.
    layout: Option<Layout>,
    /// The same of a context that cannot go back to any position, and how far it looks back.
    shape: Option<Shape>,
    pub(super) bounds: Option<Bounds>,
    /// Tails that the server has taken there.
    pub(super) tails: Tails,
    /// What has no name yet.
    pub(super) aside: Aside,
    /// What was made of the model's file; `None`: not asked yet.
    model: Option<Arc<Content>>,
    /// How often that file was in doubt.
    doubts: u32,
    conditions: AllConditions,
    /// The salt of the prompt that each sequence has, if it has one.
    salts: BTreeMap<i32, Salt>,
    /// Embeddings are asked for: every token of a batch may be needed.
    embeddings: bool,
    /// Hidden states that are to be stored. `None`: the host does not ask for them.
    hidden: Option<Hidden>,
    /// What these are, for the name of what is stored.
    hidden_fact: Vec<u8>,
    /// Tokens do not see those behind them.
    pub(super) is_causal: bool,
    /// Sequences that were to be copied out when another thread had the index.
    pub(super) postponed: BTreeSet<i32>,
    /// Its [basis](Self::basis) may have changed.
    pub(super) has_news: bool,
    /// It was not seen to take the rows of a state in another way than [`super::flow`] knows.
    pub(super) flows: bool,
    /// For states. Kept, because fresh memory takes longer than the copy.
    pub(super) buffer: Vec<u8>,
    saved: HashMap<usize, Saved>,
    checkpoints: HashMap<Checkpoint, Taken>,
    /// Looks at the model's file that found it as it was.
    looks: u64,
    /// Tokens of the whole context, and of one sequence; 0: not known.
    pub(super) size: usize,
    pub(super) size_of_one: usize,
    /// What KV depends on of how long the context is.
    length: Vec<u8>,
    /// What the context was created with, where that does not follow from a server's flags.
    params: Option<Vec<u8>>,
}

/// What a sequence holds, as far as it can be stored.
#[derive(Clone, Copy)]
pub(super) struct Prefix<'a> {
    pub(super) tokens: &'a [i32],
    /// Under what they were evaluated.
    pub(super) conditions: Conditions,
    /// Under which name they are stored. `None`: it is not known, or not yet.
    pub(super) fingerprint: Option<Fingerprint>,
}

/// What the engine says of a context.
pub(super) struct Facts {
    model: Option<usize>,
    size: usize,
    size_of_one: usize,
    lengths: Lengths,
    /// Why KV is not a matter of the tokens before.
    unfit: Option<&'static str>,
    recurrent: bool,
    window: usize,
}

impl Facts {
    /// Do not call this within the guard.
    pub(super) fn of(context: Context<'_>) -> Self {
        let context = context.pointer();
        let number = |number: Option<u32>| number.and_then(|n| usize::try_from(n).ok());
        // SAFETY: the context is in use by this thread, here and below.
        let model = unsafe { plain::get_model(context) };
        // SAFETY: see above.
        let size = number(unsafe { plain::context_size(context) }).unwrap_or(0);
        // SAFETY: see above.
        let sequences = number(unsafe { plain::sequences(context) }).unwrap_or(1);
        // SAFETY: see above.
        let size_of_one = number(unsafe { plain::context_size_of_one(context) });
        // SAFETY: the model of a living context.
        let lengths = model.map(|model| unsafe { Lengths::of(model) });
        // SAFETY: see above, here and below.
        let recurrent = model.and_then(|model| unsafe { plain::is_recurrent(model) });
        // SAFETY: see above.
        let hybrid = model.and_then(|model| unsafe { plain::is_hybrid(model) });
        // SAFETY: see above.
        let window = model.and_then(|model| unsafe { plain::window(model) });
        // SAFETY: see above.
        let encodes = model.and_then(|model| unsafe { plain::has_encoder(model) });
        // SAFETY: see above.
        let is_causal = model.is_none_or(|model| unsafe { metadata::is_causal(model) });
        let unfit = match (encodes, is_causal) {
            (Some(true), _) => Some("the model has an encoder, on whose text all depends"),
            (_, false) => Some("attention that is not causal"),
            _ => None,
        };
        Self {
            unfit,
            recurrent: recurrent == Some(true) || hybrid == Some(true),
            window: window.and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
            model: model.map(|model| model.addr()),
            size,
            size_of_one: size_of_one.unwrap_or(size / sequences.max(1)),
            lengths: lengths.unwrap_or_default(),
        }
    }
}

impl ContextStore {
    /// Keeps memory for states, if it is more than there is.
    pub(super) fn keep_buffer(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > self.buffer.capacity() {
            self.buffer = buffer;
        }
    }

    /// On a thread that is in the context's engine.
    pub(super) fn new(address: usize) -> Self {
        Self {
            address,
            engine: engines::current(),
            session: Session::default(),
            rates: Rates::default(),
            refused: None,
            layout: None,
            shape: None,
            bounds: None,
            tails: Tails::default(),
            aside: Aside::default(),
            model: None,
            doubts: 0,
            conditions: AllConditions::new(),
            salts: BTreeMap::new(),
            embeddings: false,
            hidden: None,
            hidden_fact: Vec::new(),
            is_causal: true,
            postponed: BTreeSet::new(),
            has_news: true,
            flows: true,
            buffer: Vec::new(),
            saved: HashMap::new(),
            checkpoints: HashMap::new(),
            looks: 0,
            size: 0,
            size_of_one: 0,
            length: Vec::new(),
            params: None,
        }
    }

    pub(super) fn pointer(&self) -> Pointer {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    /// Whether the engine was asked for its facts.
    pub(super) fn is_described(&self) -> bool {
        self.size > 0
    }

    pub(super) fn describe(&mut self, facts: &Facts) {
        self.has_news = true;
        self.size = facts.size.max(1);
        self.size_of_one = facts.size_of_one;
        self.length = facts.lengths.fact(facts.size_of_one);
        if let Some(why) = facts.unfit {
            self.refuse(why);
        }
        match facts.model.and_then(content::of_model) {
            Some(content) => {
                self.doubts = content.doubts();
                self.model = Some(content);
            }
            None => self.refuse("the file of the model is not known"),
        }
    }

    /// The context cannot go back to any position.
    pub(super) fn bind(&mut self, facts: &Facts) {
        if !are_bounded_wanted() {
            return self.refuse(NOT_WANTED);
        }
        if original::llama_state_seq_get_size_ext().is_none() {
            return self.refuse("this engine has no partial states (sliding window, recurrent)");
        }
        let window = if facts.recurrent { 0 } else { facts.window };
        let at_once = contexts::at_once_in(self.pointer()).map(|count| count as usize);
        if facts.window > 0 && at_once.is_none() {
            return self
                .refuse("how many tokens it computes at once is not known (sliding window)");
        }
        let at_once = at_once.filter(|_| facts.window > 0);
        self.has_news = true;
        self.bounds = Some(Bounds { window, at_once });
        self.session.bind();
    }

    /// The layout of its states.
    pub(super) fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    pub(super) fn set_layout(&mut self, layout: Layout) {
        self.expect_numbers(&layout);
        self.has_news = true;
        self.layout = Some(layout);
    }

    /// The same of a context that cannot go back to any position.
    pub(super) fn shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    pub(super) fn set_shape(&mut self, shape: Shape) {
        if let Some(layout) = shape.dense() {
            self.expect_numbers(layout);
        }
        self.has_news = true;
        self.shape = Some(shape);
    }

    /// Whether values are numbers cannot be seen of keys and values of a new type.
    fn expect_numbers(&mut self, layout: &Layout) {
        if !layout.has_known_numbers() {
            self.refuse("keys or values are of a type that is not known");
        }
    }

    /// Whether embeddings are asked for: every token of a batch may be needed.
    pub(super) fn has_embeddings(&self) -> bool {
        self.embeddings
    }

    /// Returns whether they were asked for before.
    pub(super) fn set_embeddings(&mut self, value: bool) -> bool {
        self.has_news |= value != self.embeddings;
        std::mem::replace(&mut self.embeddings, value)
    }

    pub(super) fn hidden(&self) -> Option<&Hidden> {
        self.hidden.as_ref()
    }

    pub(super) fn hidden_mut(&mut self) -> Option<&mut Hidden> {
        self.hidden.as_mut()
    }

    /// From now on its prompts are loaded as far as there are hidden states of them, if any are given.
    pub(super) fn want_hidden(&mut self, hidden: Option<Hidden>) {
        self.has_news = true;
        self.hidden_fact = hidden.as_ref().map(Hidden::fact).unwrap_or_default();
        self.hidden = hidden;
    }

    /// Puts back what was [taken](Self::take_hidden).
    pub(super) fn set_hidden(&mut self, hidden: Hidden) {
        self.hidden = Some(hidden);
    }

    /// Until they are [set](Self::set_hidden) again.
    pub(super) fn take_hidden(&mut self) -> Option<Hidden> {
        self.hidden.take()
    }

    pub(super) fn set_params(&mut self, params: Vec<u8>) {
        self.has_news = true;
        self.params = Some(params);
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Whether its states are understood.
    pub(super) fn is_proven(&self) -> bool {
        self.layout.is_some() || self.shape.is_some()
    }

    /// Whether all of its tokens were evaluated under the same conditions so far.
    pub(super) fn is_always_the_same(&self) -> bool {
        self.conditions.are_always_the_same()
    }

    /// This context has no store, and needs none.
    pub(super) fn exclude(&mut self, why: &str) {
        self.has_news = true;
        self.refused.get_or_insert_with(|| why.to_owned());
    }

    /// From now on this context has no store. The first reason stays.
    pub(super) fn refuse(&mut self, why: &str) {
        self.refuse_newly(why);
    }

    /// The same, said once for each reason.
    pub(super) fn refuse_aloud(&mut self, why: &str) {
        if self.refuse_newly(why) {
            log::line(format_args!(
                "Prefix store: none for this model: {why}; its prompts are evaluated as ever"
            ));
        }
    }

    /// True if no context had this reason before.
    fn refuse_newly(&mut self, why: &str) -> bool {
        if self.refused.is_some() {
            return false;
        }
        self.has_news = true;
        self.refused = Some(why.to_owned());
        figures::note_refusal(why)
    }

    /// These adapters are applied from now on.
    pub(super) fn set_adapters(&mut self, applied: Vec<(Adapter, u32)>) {
        self.has_news |= self.conditions.apply(applied);
    }

    /// The conditions under which tokens of a sequence are evaluated now, its salt included.
    pub(super) fn conditions(&self, sequence: i32) -> Conditions {
        let salt = self.salts.get(&sequence).copied();
        self.conditions.now_with(salt.unwrap_or_default())
    }

    /// Whether these are the adapters that are applied now.
    pub(super) fn are_these(&self, conditions: Conditions) -> bool {
        self.conditions.are_now(conditions)
    }

    /// A sequence has a prompt of this salt now. True if what it holds so far has another salt in the store.
    pub(super) fn set_salt(&mut self, sequence: i32, salt: Salt) -> bool {
        self.conditions.remember(salt);
        match salt {
            Salt::None => self.salts.remove(&sequence),
            _ => self.salts.insert(sequence, salt),
        };
        let under = self.session.under(sequence);
        self.are_these(under) && under != self.conditions(sequence)
    }

    /// What a sequence holds is the beginning of the prompt that it has now: the client that sent that knows it.
    pub(super) fn pass_on(&mut self, sequence: i32) {
        let conditions = self.conditions(sequence);
        self.session.relabel(sequence, conditions);
    }

    /// Whether the model's file is what it was, where it is known.
    fn standing(&mut self) -> Option<Standing> {
        let model = self.model.as_ref()?;
        let (standing, doubts) = (model.standing(), model.doubts());
        if std::mem::replace(&mut self.doubts, doubts) != doubts {
            // What was evaluated since it was last looked at may be of what a process has written into the file.
            let renamed = self.conditions.begin_anew();
            let now = |before| {
                let mut renamed = renamed.iter();
                renamed.find_map(|&(old, new)| (old == before).then_some(new))
            };
            self.session.doubt(now);
            for saved in self
                .saved
                .values_mut()
                .filter(|saved| saved.look < self.looks)
            {
                saved.held.conditions = now(saved.held.conditions).unwrap_or(saved.held.conditions);
            }
            let taken = self.checkpoints.values_mut();
            for taken in taken.filter(|taken| taken.look < self.looks) {
                taken.conditions = now(taken.conditions).unwrap_or(taken.conditions);
            }
        }
        if let Standing::Spoiled(why) = standing {
            self.refuse(why);
        }
        Some(standing)
    }

    /// Looks whether what was evaluated so far is of the model that is in its file. All of it must have been noted.
    pub(super) fn look_at_model(&mut self) {
        if self.standing() == Some(Standing::Same) {
            self.session.vouch();
            self.looks += 1;
        }
    }

    /// What the KV of tokens depends on that were evaluated under these conditions; `None`: that is not known,
    /// or not yet.
    pub(super) fn fingerprint(&mut self, conditions: Conditions) -> Option<Fingerprint> {
        if self.standing() == Some(Standing::InDoubt) {
            return None;
        }
        if self.refused.is_some() {
            return None;
        }
        let under = self.conditions.get(conditions)?;
        let made = self.conditions.fingerprint(conditions);
        if made.is_none() {
            let mut adapters = under.adapters.iter();
            if !adapters.all(|&(adapter, _)| content::may_know(adapter)) {
                figures::note_refusal("an adapter whose file is not known, or cannot be read");
                return None;
            }
            let made = self.facts(conditions)?.fingerprint();
            self.conditions.set_fingerprint(conditions, made);
            figures::used(made);
            return Some(made);
        }
        made
    }

    /// The same of hidden states, which are not KV.
    pub(super) fn fingerprint_of_hidden(&mut self, conditions: Conditions) -> Option<Fingerprint> {
        // Also looks whether the model's file is as it was.
        self.fingerprint(conditions)?;
        self.hidden_beside_kv(conditions)
    }

    /// The same, of a caller that has the fingerprint of the KV.
    pub(super) fn hidden_beside_kv(&self, conditions: Conditions) -> Option<Fingerprint> {
        Some(self.facts_of_hidden(conditions)?.fingerprint())
    }

    /// The fingerprints of all that a prompt needs: of its KV, and of its hidden states if the host asks for these.
    pub(super) fn fingerprints(
        &mut self,
        conditions: Conditions,
    ) -> Option<impl Iterator<Item = Fingerprint> + use<>> {
        let of_kv = self.fingerprint(conditions)?;
        let of_rows = match self.hidden {
            Some(_) => Some(self.hidden_beside_kv(conditions)?),
            None => None,
        };
        Some([Some(of_kv), of_rows].into_iter().flatten())
    }

    /// What a sequence holds, and the record from which that is borrowed. `None`: nothing of it can be stored.
    pub(super) fn prefix(&mut self, sequence: i32) -> Option<(&Self, Prefix<'_>)> {
        let conditions = self.session.conditions(sequence)?;
        let fingerprint = self.fingerprint(conditions);
        let record = &*self;
        let prefix = Prefix {
            tokens: record.session.believed(sequence)?,
            // If the model's file was in doubt, these have another number now.
            conditions: record.session.conditions(sequence)?,
            fingerprint,
        };
        Some((record, prefix))
    }

    /// What hidden states depend on, of what KV of the same tokens depends on.
    fn facts_of_hidden(&self, conditions: Conditions) -> Option<kv::Facts> {
        let mut facts = self.facts(conditions)?;
        facts.push(What::Rows, self.hidden_fact.clone());
        Some(facts)
    }

    /// What a request that names no adapters depends on here. Not known if there are any, as a server may apply some to
    /// such requests.
    pub(super) fn basis(&self) -> Option<Basis> {
        let known = self.conditions.are_always_none();
        if !known || self.embeddings || self.is_refused() {
            return None;
        }
        Some(Basis {
            engine: self.engine,
            model: Arc::clone(self.model.as_ref()?),
            layout: self.layout_digest(),
            rows: self.layout_of_rows().cloned(),
            hidden: self.hidden.as_ref().map(|_| self.hidden_fact.clone()),
            goes_back: self.bounds.is_none(),
            length: self.length.clone(),
            params: self.params.clone(),
            made: OnceLock::new(),
        })
    }

    /// `None`: no state of this context was seen yet.
    fn layout_digest(&self) -> Option<Vec<u8>> {
        let digest = match &self.shape {
            Some(shape) => shape.digest(),
            None => self.layout.as_ref()?.digest(),
        };
        Some(digest.to_vec())
    }

    /// `None`: it has none that can be divided, or that is not known yet.
    pub(super) fn layout_of_rows(&self) -> Option<&Layout> {
        match &self.shape {
            Some(shape) => shape.dense(),
            None => self.layout.as_ref(),
        }
    }

    /// What the fingerprint under these conditions is made of; `None`: that is not known, or not yet.
    fn facts(&self, conditions: Conditions) -> Option<kv::Facts> {
        let layout = self.layout_digest()?;
        let under = self.conditions.get(conditions)?;
        let params = self.params.as_ref();
        let model = self.model.as_ref()?;
        let mut facts = facts_without_adapters(model, layout, self.length.clone(), params)?;
        for &(adapter, scale) in &under.adapters {
            let content = content::of_adapter(adapter)?;
            facts.push(What::Adapter, content.digest()?.to_vec());
            facts.push(What::Scale, scale.to_le_bytes().to_vec());
        }
        if let Salt::Of(digest) = self.conditions.salt_of(conditions) {
            facts.push(What::Salt, digest.to_vec());
        }
        Some(facts)
    }

    /// The same for other processes that read the store, with the layout of rows.
    pub(super) fn origin(&self, conditions: Conditions) -> Option<Origin> {
        Some(Origin::new(
            self.model_name(conditions),
            &self.facts(conditions)?,
            self.layout_of_rows().cloned(),
        ))
    }

    /// The same of hidden states.
    pub(super) fn origin_of_hidden(&self, conditions: Conditions) -> Option<Origin> {
        let name = hidden_name(&self.model_name(conditions));
        Some(Origin::new(name, &self.facts_of_hidden(conditions)?, None))
    }

    /// What people call the model with the adapters that these conditions apply.
    pub(super) fn model_name(&self, conditions: Conditions) -> String {
        let under = self.conditions.get(conditions);
        let adapters = under.into_iter().flat_map(|under| &under.adapters);
        let adapters = adapters.filter_map(|&(adapter, _)| content::of_adapter(adapter));
        let parts = self.model.iter().cloned().chain(adapters);
        let names: Vec<String> = parts.map(|part| part.name.clone()).collect();
        names.join(" + ")
    }

    /// The tokens that fit into the context beside what it holds. A context whose sequences share it has
    /// room for all of them together.
    pub(super) fn room(&self, sequence: usize) -> usize {
        let whole = self.size.saturating_sub(self.session.held());
        if self.size_of_one < self.size {
            self.size_of_one.saturating_sub(sequence)
        } else {
            whole
        }
    }

    /// The server has saved a state into this memory, of which that is known, and whose bytes have this sample.
    pub(super) fn remember(&mut self, buffer: usize, held: Option<Held>, sample: u64) {
        match held {
            Some(held) => {
                if self.saved.len() >= MOST_SAVED {
                    self.saved.clear();
                }
                let look = self.looks;
                self.saved.insert(buffer, Saved { held, sample, look });
            }
            None => {
                self.saved.remove(&buffer);
            }
        }
    }

    /// The server has taken a checkpoint of tokens that were evaluated under these conditions. `first`: where the rows of its windows begin.
    pub(super) fn remember_checkpoint(
        &mut self,
        checkpoint: Checkpoint,
        conditions: Conditions,
        first: usize,
    ) {
        if self.checkpoints.len() >= MOST_SAVED {
            self.checkpoints.clear();
        }
        let look = self.looks;
        let taken = Taken {
            conditions,
            first,
            look,
        };
        self.checkpoints.insert(checkpoint, taken);
    }

    /// Under what the tokens of a checkpoint were evaluated, and where the rows of its windows begin. `None`: it is not known.
    pub(super) fn checkpoint(&self, checkpoint: Checkpoint) -> Option<(Conditions, usize)> {
        let taken = self.checkpoints.get(&checkpoint)?;
        Some((taken.conditions, taken.first))
    }

    pub(super) fn saved(&self, buffer: usize) -> Option<&Saved> {
        self.saved.get(&buffer)
    }
}

/// What people call the hidden states of a model.
fn hidden_name(model: &str) -> String {
    format!("{model}, hidden states")
}

/// What the KV of a request that names no adapters depends on in a context: what threads of ours may know of it.
pub(super) struct Basis {
    engine: usize,
    model: Arc<Content>,
    /// The digest of the layout. `None`: no state of this context was seen yet.
    layout: Option<Vec<u8>>,
    rows: Option<Layout>,
    /// What hidden states are, if nothing is loaded without.
    hidden: Option<Vec<u8>>,
    /// The context can go back to any position.
    goes_back: bool,
    length: Vec<u8>,
    params: Option<Vec<u8>>,
    made: OnceLock<Fingerprint>,
}

impl Basis {
    /// Before the first prompt, when no state of the context was seen yet, it is that of an earlier server whose
    /// origin differs in nothing else, if there is just one. `None`: not known, or not yet.
    pub(super) fn fingerprint(&self, origins: &[Origin]) -> Option<Fingerprint> {
        if let Some(made) = self.made.get() {
            return Some(*made);
        }
        if let Some(layout) = &self.layout {
            let made = self.facts(layout.clone())?.fingerprint();
            return Some(*self.made.get_or_init(|| made));
        }
        let mut alike = origins.iter().filter_map(|origin| {
            let facts = self.facts(origin.layout_digest()?.to_vec())?;
            Some(facts.fingerprint()).filter(|made| *made == origin.fingerprint)
        });
        alike.next().filter(|_| alike.next().is_none())
    }

    /// The same of hidden states. `None` also if nothing depends on them.
    pub(super) fn fingerprint_of_hidden(&self) -> Option<Fingerprint> {
        let hidden = self.hidden.clone()?;
        let mut facts = self.facts(self.layout.clone()?)?;
        facts.push(What::Rows, hidden);
        Some(facts.fingerprint())
    }

    /// Whether a prompt can be loaded as far as it is stored. Else it is loaded up to a state that lies on its way.
    pub(super) fn goes_back(&self) -> bool {
        self.goes_back
    }

    /// The same for other processes that read the store: of KV, and of hidden states if anything depends on them. Empty: not
    /// known yet.
    pub(super) fn origins(&self) -> Vec<Origin> {
        let layout = || self.layout.clone();
        let Some(mut facts) = layout().and_then(|layout| self.facts(layout)) else {
            return Vec::new();
        };
        let name = &self.model.name;
        let mut all = vec![Origin::new(name.clone(), &facts, self.rows.clone())];
        if let Some(hidden) = &self.hidden {
            facts.push(What::Rows, hidden.clone());
            all.push(Origin::new(hidden_name(name), &facts, None));
        }
        all
    }

    fn facts(&self, layout: Vec<u8>) -> Option<kv::Facts> {
        // Threads of ours are in no engine.
        let _engine = Entered::new(self.engine);
        let length = self.length.clone();
        facts_without_adapters(&self.model, layout, length, self.params.as_ref())
    }
}

/// On a thread that is in the context's engine.
fn facts_without_adapters(
    model: &Content,
    layout: Vec<u8>,
    length: Vec<u8>,
    params: Option<&Vec<u8>>,
) -> Option<kv::Facts> {
    let model = *model.digest()?;
    let mut facts = kv::Facts::default();
    facts.push(What::Program, surroundings::all()?);
    facts.push(What::Layout, layout);
    facts.push(What::Model, model.to_vec());
    facts.push(What::Context, length);
    if let Some(params) = params {
        facts.push(What::Parameters, params.clone());
    }
    Some(facts)
}
