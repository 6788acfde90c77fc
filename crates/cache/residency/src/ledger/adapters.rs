//! LoRA adapters: which of the slots that hold a prompt the server would use for it.
//!
//! There is one tree for all adapters, since the server looks for tokens only. Adapters decide which
//! slots count: each slot has the *blend* of adapters that it worked under last, and a request may
//! *want* a blend. For such a request a slot of another blend counts as empty. Host entries have no
//! blend: any slot can load them, whatever it worked under.
//!
//! For a request that wants no blend only the tree counts. If no adapter was ever applied, this
//! module does nothing.

use super::Ledger;
use super::in_force::InForce;
use crate::adapters::{Adapter, AppliedAdapter, Blend, Compared, Named, Scale, Wanted, activation};
use crate::fact::{Fact, Place, Reason};
use crate::ids::{ContextId, SequenceId, TaskId};
use crate::requests::{Label, RequestKey};
use crate::sequence::{Launch, Sequence};
use crate::tree::Holder;

impl Ledger {
    /// The adapters that are applied to the primary context. `None`: none ever were. `Some(None)`:
    /// not known.
    pub(super) fn in_force(&self) -> Option<Option<&InForce>> {
        let primary = self.contexts.primary()?;
        self.adapters.in_force.get(&primary).map(Option::as_ref)
    }

    /// The adapters that are applied to the primary context, without those at a scale of 0. `None`: not known.
    pub(crate) fn applied_adapters(&self) -> Option<Vec<AppliedAdapter>> {
        let Some(in_force) = self.in_force() else {
            return Some(Vec::new());
        };
        let InForce {
            adapters, compared, ..
        } = in_force?;
        let all = (0..).zip(adapters).map(|(place, adapter)| AppliedAdapter {
            index: (*compared == Compared::WhenNamed).then_some(place),
            scale: adapter.scale,
        });
        Some(
            all.filter(|adapter| adapter.scale != Scale::default())
                .collect(),
        )
    }

    /// The blend of a slot that had no event yet. `None`: not known.
    pub(super) fn first_blend(&self) -> Option<Blend> {
        let lost = self.gap.unheard && self.in_force().is_some();
        (!lost).then(Blend::default)
    }

    pub(super) fn apply_adapters(
        &mut self,
        context: ContextId,
        adapters: Vec<Adapter>,
        compared: Compared,
        facts: &mut Vec<Fact>,
    ) {
        let first = !self.adapters.in_force.contains_key(&context);
        let in_force = InForce {
            blend: Blend::from_adapters(adapters.iter().map(|adapter| (adapter, adapter.scale))),
            adapters,
            compared,
        };
        self.adapters.in_force.insert(context, Some(in_force));
        if first && compared == Compared::Always && self.contexts.is_primary(context) {
            // So far no adapter was applied, and this server compares adapters for all requests.
            for name in self.requests.live() {
                self.want(name, Wanted::Blend(Blend::default()), facts);
            }
        }
    }

    /// A slot took a task. `before`: the slot's former task, if its prompt was never evaluated
    /// completely.
    pub(super) fn adapt_to_launch(
        &mut self,
        id: SequenceId,
        named: Option<Named>,
        before: Option<&Launch>,
        facts: &mut Vec<Fact>,
    ) {
        let Some(in_force) = self.in_force() else {
            self.expect_named(id, named);
            return;
        };
        let compared = in_force.map(|in_force| in_force.compared);
        let wanted = match (&named, in_force) {
            (Some(named), Some(in_force)) => Some(in_force.blend_of(named)),
            _ => None,
        };
        if let Some(before) = before.filter(|launch| !launch.submitted && !launch.blend_settled) {
            let blend = self.after(self.sequences[&id].blend, before);
            self.change_blend(id, blend, false, facts);
        }
        match (compared, wanted) {
            (Some(Compared::Always), _) => {
                if named.is_some() {
                    self.sequence(id).mark_named();
                }
            }
            (Some(Compared::WhenNamed), Some(wanted)) => {
                if let Some(name) = self.task_of(id) {
                    self.want(name, Wanted::Blend(wanted), facts);
                }
                let sequence = self.sequence(id);
                let before = sequence.blend;
                sequence.mark_named();
                let cleared = before.is_some_and(|before| !before.keeps_for(wanted));
                if cleared {
                    // The server empties the slot without a call that could be hooked.
                    self.remove(id, 0, i64::MAX, facts);
                }
                // An adapter that is activated by tokens is not applied if they are missing.
                let decided = cleared || before == Some(wanted);
                self.change_blend(id, Some(wanted), !decided, facts);
            }
            _ => self.expect_named(id, named),
        }
    }

    /// Keeps the named adapters in the slot's launch: what they are will be known when adapters are
    /// applied.
    fn expect_named(&mut self, id: SequenceId, named: Option<Named>) {
        if named.is_none() {
            return;
        }
        let sequence = self.sequence(id);
        sequence.mark_named();
        if let Some(launch) = &mut sequence.launch {
            launch.named = named;
        }
    }

    /// The request whose task a slot works on.
    fn task_of(&self, id: SequenceId) -> Option<RequestKey> {
        self.sequences.get(&id)?.launch.as_ref()?.request
    }

    /// Notes which adapters a request wants. Evicts it if one of its evaluated prompts is not cached
    /// for these.
    fn want(&mut self, name: RequestKey, wanted: Wanted, facts: &mut Vec<Fact>) {
        if self.requests.want(name, wanted) && !self.is_wholly_served(name) {
            self.end(name, Reason::AdaptersChanged, Place::Nowhere, facts);
        }
    }

    /// A batch was submitted: its slots now work under the adapters that are applied. Slots with
    /// media only in this batch do not change: the server evaluates media before it applies the
    /// adapters of their task.
    pub(super) fn take_on_blend(&mut self, facts: &mut Vec<Fact>) {
        let Some(in_force) = self.in_force() else {
            return;
        };
        let blend = in_force.map(|in_force| in_force.blend);
        let mut unnamed = self.adapters.unnamed;
        for index in 0..self.batch.in_flight.len() {
            let flight = &self.batch.in_flight[index];
            let id = flight.sequence;
            if !flight.has_text {
                continue;
            }
            let sequence = self.sequence(id);
            if let Some(launch) = &mut sequence.launch {
                launch.submitted = true;
                if !launch.names_adapters {
                    unnamed = blend;
                }
            }
            if sequence.blend != blend || sequence.unsettled {
                self.change_blend(id, blend, false, facts);
            }
        }
        self.adapters.unnamed = unnamed;
    }

    /// A slot works under another blend. `None`: not known under which.
    fn change_blend(
        &mut self,
        id: SequenceId,
        blend: Option<Blend>,
        unsettled: bool,
        facts: &mut Vec<Fact>,
    ) {
        let sequence = self.sequence(id);
        sequence.blend = blend;
        sequence.unsettled = unsettled;
        let holders: Vec<Holder> = sequence.holders().collect();
        self.reaches.blend_changed(id);
        for holder in holders {
            let above = self.wanting_above(holder);
            self.review_wanting(&above, Reason::AdaptersChanged, Place::Slot(id), facts);
        }
    }

    /// The blend of a slot after `launch`, a task of which nothing was evaluated. `None`: not known.
    ///
    /// If the task named adapters, the slot took on their blend at the launch, unless the server
    /// compares adapters always. If it named none, the slot's blend is known only if it is the one
    /// that the server applied last for such a task.
    fn after(&self, blend: Option<Blend>, launch: &Launch) -> Option<Blend> {
        let in_force = self.in_force().flatten();
        let always = in_force.is_none_or(|in_force| in_force.compared == Compared::Always);
        let known = if launch.names_adapters {
            !always
        } else {
            self.adapters.unnamed == blend
        };
        blend.filter(|_| known || launch.submitted)
    }

    /// A task is over, and it is not known whether a slot took it. Any slot may have taken it and
    /// now work under the task's adapters, unless it did before. If the server compares adapters for
    /// this task, it may also have emptied the slot.
    pub(super) fn untied(&mut self, task: TaskId, facts: &mut Vec<Fact>) {
        let named = self.adapters.take_named(task);
        let Some(in_force) = self.in_force() else {
            return;
        };
        let always = in_force.is_none_or(|in_force| in_force.compared == Compared::Always);
        let blend = match (&named, in_force) {
            (Some(named), Some(in_force)) if !always => Some(in_force.blend_of(named)),
            (Some(_), _) => None,
            (None, _) => self.adapters.unnamed,
        };
        for id in self.sequences.keys().copied().collect::<Vec<_>>() {
            let sequence = &self.sequences[&id];
            if blend.is_some() && sequence.blend == blend {
                continue;
            }
            let keeps = |next| {
                sequence
                    .blend
                    .is_some_and(|blend: Blend| blend.keeps_for(next))
            };
            if (named.is_some() || always) && !blend.is_some_and(keeps) {
                self.obscure(id, facts);
                self.sequence(id).unknown = true;
            }
            self.change_blend(id, None, false, facts);
        }
    }

    /// Whether the next batch decides under which adapters a slot goes on.
    pub(super) fn has_unsettled_blend(&self, sequence: &Sequence) -> bool {
        let blend = sequence.blend;
        let launch = sequence.launch.as_ref();
        let changes = launch
            .is_some_and(|launch| !launch.blend_settled && self.after(blend, launch) != blend);
        (sequence.unsettled || changes) && self.in_force().is_some()
    }

    /// Decides the adapters of a slot whose task ended before a batch could decide them.
    pub(super) fn settle_blend(&mut self, id: SequenceId, facts: &mut Vec<Fact>) {
        let Some(sequence) = self.sequences.get(&id) else {
            return;
        };
        let unsettled = self.has_unsettled_blend(sequence);
        let blend = match &sequence.launch {
            Some(launch) => self.after(sequence.blend, launch),
            None => sequence.blend,
        };
        if let Some(launch) = self.sequence(id).launch.as_mut() {
            launch.blend_settled = true;
        }
        if unsettled {
            self.change_blend(id, blend, false, facts);
        }
    }

    /// The prompt of a request has been evaluated in a slot: notes which adapters the request wants.
    /// Returns how many tokens of the prompt the server could ever reuse.
    pub(super) fn reusable(
        &mut self,
        id: SequenceId,
        name: RequestKey,
        named: Option<Named>,
    ) -> u32 {
        let Some(sequence) = self.sequences.get(&id) else {
            return 0;
        };
        let (holder, blend) = (sequence.holder, sequence.blend);
        // The last token of a prompt is always evaluated again, so the prompt counts as cached if
        // all tokens before it are. A prompt of one token counts with that token.
        let all = self.tree.depth(holder).saturating_sub(1).max(1);
        let Some(in_force) = self.in_force() else {
            return all;
        };
        let applied = blend.map_or(Wanted::Unknown, Wanted::Blend);
        let wanted = match (in_force, named) {
            (Some(in_force), _) if in_force.compared == Compared::Always => Some(applied),
            (Some(in_force), Some(named)) => Some(Wanted::Blend(in_force.blend_of(&named))),
            (None, Some(_)) => Some(Wanted::Unknown),
            (_, None) => None,
        };
        let activated = in_force
            .filter(|in_force| in_force.blend.is_invoked())
            .and_then(|in_force| activation(&in_force.adapters, &self.tree.read(holder, 0)));
        if let Some(wanted) = wanted {
            self.requests.want(name, wanted);
        }
        match activated {
            Some(at @ 1..) => at as u32 - 1,
            _ => all,
        }
    }

    /// A request has claimed the evaluation of a stand-in: notes which adapters the request wants.
    pub(super) fn want_as_claimed(
        &mut self,
        name: RequestKey,
        stand_in: RequestKey,
        named: Option<Named>,
    ) {
        let wanted = match (self.in_force(), named) {
            (None, _) => None,
            (Some(Some(in_force)), _) if in_force.compared == Compared::Always => {
                self.requests.get(stand_in).map(|request| request.adapters)
            }
            (Some(Some(in_force)), Some(named)) => Some(Wanted::Blend(in_force.blend_of(&named))),
            (Some(None), Some(_)) => Some(Wanted::Unknown),
            (Some(_), None) => None,
        };
        if let Some(wanted) = wanted {
            self.requests.want(name, wanted);
        }
    }

    /// Whether the prompt of a task that was not launched yet can be evaluated under the adapters
    /// that are applied now. A task that names none can be evaluated under any. An adapter that is
    /// activated by tokens is not applied to the tokens before the activation, so its task can, too.
    pub(crate) fn can_be_evaluated(&self, task: TaskId) -> bool {
        match (self.in_force(), self.adapters.named(task)) {
            (Some(Some(in_force)), Some(named)) => {
                let blend = in_force.blend_of(named);
                blend.is_invoked() || blend == in_force.blend
            }
            _ => true,
        }
    }

    /// Whether all of these tasks, not launched yet, name the same adapters, or none at all.
    pub(crate) fn are_alike(&self, tasks: &[TaskId]) -> bool {
        let named = |&task: &TaskId| self.adapters.named(task);
        tasks.windows(2).all(|two| named(&two[0]) == named(&two[1]))
    }

    /// The marks that a holder keeps, if any request wants particular adapters; else nothing.
    pub(super) fn wanting_above(&self, holder: Holder) -> Vec<Label> {
        if !self.requests.want_adapters() {
            return Vec::new();
        }
        self.tree.labels_above(holder).copied().collect()
    }

    /// Evicts the requests of these marks that are no longer served by a slot or host entry.
    pub(super) fn review_wanting(
        &mut self,
        labels: &[Label],
        reason: Reason,
        place: Place,
        facts: &mut Vec<Fact>,
    ) {
        for &label in labels {
            if !self.is_served(label.request, label.nth()) {
                self.end(label.request, reason, place, facts);
            }
        }
    }

    /// Whether all evaluated prompts of a request are served.
    pub(super) fn is_wholly_served(&self, name: RequestKey) -> bool {
        let Some(request) = self.requests.get(name) else {
            return true;
        };
        // Most requests name no adapters. One of them may have very many prompts.
        if request.adapters == Wanted::Any {
            return true;
        }
        (0..request.marks().len()).all(|nth| self.is_served(name, nth))
    }

    /// Whether a slot or host entry holds a prompt, and the server would use it for the prompt's
    /// request. True for a mark that is lost or gone: that is handled elsewhere.
    fn is_served(&self, name: RequestKey, nth: usize) -> bool {
        let request = self.requests.get(name);
        let mark = request.and_then(|request| request.mark(nth));
        // The request is over, or its mark was lost with its tokens.
        let (Some(request), Some(mark)) = (request, mark) else {
            return true;
        };
        let wanted = request.adapters;
        let covers = |holder| self.tree.covers(holder, mark);
        let slots = || {
            self.sequences
                .values()
                .filter(|sequence| sequence.suits(wanted))
        };
        wanted == Wanted::Any
            || slots().any(|sequence| sequence.holders().any(covers))
            || self.buffers.values().any(|&holder| covers(holder))
    }
}
