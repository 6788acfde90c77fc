//! LoRA adapters: a request cannot use what a slot has evaluated under other adapters.

use super::{Launch, Naive, NaiveSlot, Request, Serial};
use contextpilot_residency::{
    Adapter, Compared, ContextId, Place, Reason, Scale, SequenceId, TaskId, Token,
};

/// Adapters that are applied together, without those at scale 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Set {
    /// Address and scale of each, sorted by address.
    applied: Vec<(usize, f32)>,
    /// There is at least one adapter, and all are activated by tokens.
    by_tokens: bool,
}

impl Set {
    fn from_adapters(adapters: &[Adapter], scale: impl Fn(usize) -> Scale) -> Self {
        let mut set = Self::default();
        let mut all = true;
        for (index, adapter) in adapters.iter().enumerate() {
            let scale = scale(index).get();
            if scale != 0.0 {
                set.applied.push((adapter.address, scale));
                all &= !adapter.invocation.is_empty();
            }
        }
        set.by_tokens = all && !set.applied.is_empty();
        set.applied.sort_by_key(|&(address, _)| address);
        set
    }

    /// Whether a slot that worked under this keeps what it holds for a request under `next`.
    fn keeps_for(&self, next: &Self) -> bool {
        let none = !self.applied.iter().any(|&(_, scale)| scale > 0.0);
        self == next || next.by_tokens && (self.by_tokens || none)
    }
}

/// The adapters that a request wants of a slot.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Wants {
    /// Any adapters: the server would not compare them.
    #[default]
    Anything,
    Set(Set),
    /// Adapters that are not known. No slot counts.
    Unknown,
}

/// The adapters that were applied to a context last.
#[derive(Clone)]
pub(super) struct Applied {
    adapters: Vec<Adapter>,
    pub(super) compared: Compared,
}

impl Applied {
    fn set(&self) -> Set {
        Set::from_adapters(&self.adapters, |index| self.adapters[index].scale)
    }

    /// The adapter at an index, at scale 1. `None`: there is none, or it is activated by tokens.
    pub(super) fn at_full_scale(&self, place: usize) -> Option<Set> {
        let adapter = self.adapters.get(place)?;
        let named = [(place as i32, Scale::new(1.0))];
        let ordinary = adapter.invocation.is_empty();
        ordinary.then(|| self.named(&named))
    }

    /// The adapters that a request names.
    fn named(&self, named: &[(i32, Scale)]) -> Set {
        Set::from_adapters(&self.adapters, |index| {
            let mut last = Scale::new(0.0);
            for &(name, scale) in named {
                if name >= 0 && name as usize == index {
                    last = scale;
                }
            }
            last
        })
    }
}

impl NaiveSlot {
    /// Whether the server would use the slot's tokens for a request that wants these adapters.
    pub(super) fn suits(&self, wants: &Wants) -> bool {
        match wants {
            Wants::Anything => true,
            Wants::Unknown => false,
            Wants::Set(_) if self.unsettled => true,
            Wants::Set(wanted) => self.set.as_ref().is_some_and(|set| set.keeps_for(wanted)),
        }
    }
}

impl Naive {
    /// The adapters that are applied to the primary context. `None`: none ever were. `Some(None)`: not
    /// known.
    pub(super) fn applied(&self) -> Option<Option<Applied>> {
        self.applied.get(&self.contexts.first()?.0).cloned()
    }

    /// The adapters of a slot that had no event yet. `None`: not known.
    pub(super) fn first_set(&self) -> Option<Set> {
        let lost = self.unheard && self.applied().is_some();
        if lost { None } else { Some(Set::default()) }
    }

    pub(super) fn apply_adapters(
        &mut self,
        context: ContextId,
        adapters: &[Adapter],
        compared: Compared,
    ) {
        let applied = Applied {
            adapters: adapters.to_vec(),
            compared,
        };
        let before = self.applied.insert(context.0, Some(applied));
        if before.is_none() && compared == Compared::Always {
            if self.contexts.is_empty() {
                self.contexts.push(context);
            }
            if self.contexts[0] == context {
                for serial in self.requests.keys().copied().collect::<Vec<_>>() {
                    self.want(serial, Wants::Set(Set::default()));
                }
            }
        }
    }

    pub(super) fn name_adapters(&mut self, task: TaskId, scales: &[(i32, Scale)]) {
        if !scales.is_empty() {
            self.named.insert(task, scales.to_vec());
        }
    }

    /// A slot took a task. `before`: the slot's former task, if its prompt was never evaluated
    /// completely.
    pub(super) fn launch_with(
        &mut self,
        id: SequenceId,
        named: Option<Vec<(i32, Scale)>>,
        before: Option<&Launch>,
    ) {
        let applied = self.applied();
        let slot = self.slots.get_mut(&id).expect("it has a task");
        let launch = slot.launch.as_mut().expect("it has a task");
        launch.names = named.is_some();
        launch.named = named.clone();
        let Some(applied) = applied else { return };
        let set = slot.set.clone();
        if let Some(before) = before {
            if !before.submitted && !before.set_settled {
                let after = self.after(set, before);
                self.change(id, after, false);
            }
        }
        let (Some(applied), Some(named)) = (applied, named) else {
            return;
        };
        if applied.compared == Compared::Always {
            return;
        }
        let wanted = applied.named(&named);
        let slot = self.slots.get_mut(&id).expect("it has a task");
        let launch = slot.launch.as_mut().expect("it has a task");
        launch.named = None;
        if let Some(serial) = launch.request {
            self.want(serial, Wants::Set(wanted.clone()));
        }
        let set = self.slots[&id].set.clone();
        let emptied = set.as_ref().is_some_and(|set| !set.keeps_for(&wanted));
        if emptied {
            self.remove(id, 0, i64::MAX);
        }
        let decided = emptied || set.as_ref() == Some(&wanted);
        self.change(id, Some(wanted), !decided);
    }

    /// A task is over, and it is not known whether a slot took it: it may have been any.
    pub(super) fn untied(&mut self, task: TaskId) {
        let named = self.named.remove(&task);
        let Some(applied) = self.applied() else {
            return;
        };
        let always = applied
            .as_ref()
            .is_none_or(|applied| applied.compared == Compared::Always);
        let set = match (&named, &applied) {
            (None, _) => self.unnamed.clone(),
            (Some(named), Some(applied)) if !always => Some(applied.named(named)),
            _ => None,
        };
        for id in self.ids_of_slots() {
            let here = self.slots[&id].set.clone();
            if set.is_some() && here == set {
                continue;
            }
            let keeps = match (&here, &set) {
                (Some(here), Some(set)) => here.keeps_for(set),
                _ => false,
            };
            if !keeps && (named.is_some() || always) {
                self.obscure(id);
                self.slot(id).unknown = true;
            }
            self.change(id, None, false);
        }
    }

    /// Notes which adapters a request wants. Evicts it if one of its prompts is not cached for these.
    fn want(&mut self, serial: Serial, wants: Wants) {
        let Some(request) = self.requests.get_mut(&serial) else {
            return;
        };
        let before = std::mem::replace(&mut request.wants, wants.clone());
        if before != wants && !self.is_found_whole(serial) {
            self.end(serial, Reason::AdaptersChanged, Place::Nowhere);
        }
    }

    /// A batch with text of these slots was submitted: they now work under the applied adapters.
    pub(super) fn work_under(&mut self, slots: &[SequenceId]) {
        let Some(applied) = self.applied() else {
            return;
        };
        let set = applied.map(|applied| applied.set());
        for &id in slots {
            let slot = self.slots.get_mut(&id).expect("seen in the batch");
            if let Some(launch) = &mut slot.launch {
                launch.submitted = true;
                if !launch.names {
                    self.unnamed = set.clone();
                }
            }
            if slot.set != set || slot.unsettled {
                self.change(id, set.clone(), false);
            }
        }
    }

    fn change(&mut self, id: SequenceId, set: Option<Set>, unsettled: bool) {
        let slot = self.slot(id);
        slot.set = set;
        slot.unsettled = unsettled;
        self.lose(Reason::AdaptersChanged, Place::Slot(id));
    }

    /// The adapters of a slot after a task of which nothing was evaluated. `None`: not known.
    fn after(&self, set: Option<Set>, launch: &Launch) -> Option<Set> {
        let applied = self.applied().flatten();
        let known = if launch.names {
            applied.is_some_and(|applied| applied.compared == Compared::WhenNamed)
        } else {
            self.unnamed == set
        };
        if launch.submitted || known { set } else { None }
    }

    /// Whether the next batch decides under which adapters a slot goes on.
    pub(super) fn is_unsettled(&self, slot: &NaiveSlot) -> bool {
        let launch = slot.launch.as_ref();
        let changes = launch.is_some_and(|launch| {
            !launch.set_settled && self.after(slot.set.clone(), launch) != slot.set
        });
        self.applied().is_some() && (slot.unsettled || changes)
    }

    /// Decides the adapters of a slot whose task ended before a batch could decide them.
    pub(super) fn settle_set(&mut self, id: SequenceId) {
        let slot = &self.slots[&id];
        let (set, unsettled) = (slot.set.clone(), self.is_unsettled(slot));
        let set = match &slot.launch {
            Some(launch) => self.after(set, launch),
            None => set,
        };
        if let Some(launch) = &mut self.slot(id).launch {
            launch.set_settled = true;
        }
        if unsettled {
            self.change(id, set, false);
        }
    }

    /// The prompt of a request has been evaluated in a slot: notes which adapters the request wants.
    /// Returns how many tokens of the prompt the server could ever reuse.
    pub(super) fn usable(&mut self, id: SequenceId, serial: Serial) -> usize {
        let slot = self.slots.get_mut(&id).expect("it has a task");
        let all = (slot.tokens.len().max(1) - 1).max(1);
        let launch = slot.launch.as_mut().expect("it has a task");
        let named = launch.named.take();
        let (tokens, set) = (slot.tokens.clone(), slot.set.clone());
        let Some(applied) = self.applied() else {
            return all;
        };
        let Some(request) = self.requests.get_mut(&serial) else {
            return all;
        };
        match &applied {
            Some(applied) if applied.compared == Compared::Always => {
                request.wants = set.map_or(Wants::Unknown, Wants::Set);
            }
            Some(applied) => {
                if let Some(named) = named {
                    request.wants = Wants::Set(applied.named(&named));
                }
            }
            None => {
                if named.is_some() {
                    request.wants = Wants::Unknown;
                }
            }
        }
        match applied.and_then(|applied| begins_to_act(&applied, &tokens)) {
            Some(at) if at > 0 => at - 1,
            _ => all,
        }
    }

    /// A request has claimed the evaluation of a stand-in: notes which adapters the request wants.
    pub(super) fn want_as_claimed(
        &mut self,
        serial: Serial,
        stand_in: Serial,
        named: Option<Vec<(i32, Scale)>>,
    ) {
        let wants = match (self.applied(), named) {
            (Some(Some(applied)), _) if applied.compared == Compared::Always => {
                self.requests[&stand_in].wants.clone()
            }
            (Some(Some(applied)), Some(named)) => Wants::Set(applied.named(&named)),
            (Some(None), Some(_)) => Wants::Unknown,
            (Some(_), None) | (None, _) => return,
        };
        if let Some(request) = self.requests.get_mut(&serial) {
            request.wants = wants;
        }
    }

    /// Whether all evaluated prompts of a request are cached for it.
    pub(super) fn is_found_whole(&self, serial: Serial) -> bool {
        let request = &self.requests[&serial];
        let mut prompts = request.prompts.iter();
        prompts.all(|prompt| self.is_found(request, prompt))
    }

    /// Whether a slot or a host buffer holds the prompt, and the server would use it for the request.
    pub(super) fn is_found(&self, request: &Request, prompt: &[Token]) -> bool {
        let slots = self.slots.iter().filter(|(_, s)| s.suits(&request.wants));
        let mut in_slots = slots.flat_map(|(id, slot)| {
            let left = slot.left.as_ref().map(|left| left.tokens.as_slice());
            let on_the_way = self.arriving.as_ref().filter(|(to, _)| to == id);
            let arriving = on_the_way.map(|(_, tokens)| tokens.as_slice());
            [Some(slot.tokens.as_slice()), left, arriving]
        });
        let found = in_slots.any(|list| list.is_some_and(|list| list.starts_with(prompt)));
        found || self.buffers.values().any(|list| list.starts_with(prompt))
    }
}

/// The last index at which the prompt activates the adapter that is activated by tokens. `None`: not
/// exactly one is applied with a positive scale, an ordinary one is applied, too, or the prompt does
/// not contain its tokens.
fn begins_to_act(applied: &Applied, prompt: &[Token]) -> Option<usize> {
    if !applied.set().by_tokens {
        return None;
    }
    let enabled: Vec<_> = applied
        .adapters
        .iter()
        .filter(|adapter| adapter.scale.get() > 0.0)
        .collect();
    let [adapter] = enabled[..] else { return None };
    let tokens = &adapter.invocation;
    // The server's rule, which can miss an activation: after a token that does not match, it starts
    // again with the next token.
    let mut index = tokens.len() - 1;
    for at in (0..prompt.len()).rev() {
        if prompt[at] != tokens[index] {
            index = tokens.len() - 1;
        } else if index == 0 {
            return Some(at);
        } else {
            index -= 1;
        }
    }
    None
}
