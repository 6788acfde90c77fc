//! Which adapters are applied, and which tasks name.

use crate::adapters::{Adapter, Blend, Compared, Named, Scale};
use crate::ids::{ContextId, TaskId};
use std::collections::{BTreeMap, HashMap};

/// Tasks that name adapters and may wait for a slot. Beyond that, the one with the lowest number is
/// forgotten.
const MOST_NAMED: usize = 4096;

/// What is known of all adapters.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    /// The adapters that are applied now, by context. `None`: not known, since events were lost.
    pub(super) in_force: HashMap<ContextId, Option<InForce>>,
    /// The adapters that tasks name, by task. Only tasks that were not launched yet.
    pub(super) named: BTreeMap<TaskId, Named>,
    /// The blend that was applied last for a request that names no adapters.
    pub(super) unnamed: Option<Blend>,
}

/// The adapters of the last [`Event::Adapters`] of a context.
#[derive(Debug)]
pub(super) struct InForce {
    pub(super) adapters: Vec<Adapter>,
    pub(super) blend: Blend,
    pub(super) compared: Compared,
}

impl InForce {
    pub(super) fn compared(&self) -> Compared {
        self.compared
    }

    /// The blend for a request that names one adapter, by its index, at scale 1.
    pub(super) fn blend_of_one(&self, place: usize) -> Option<Blend> {
        let adapter = self.adapters.get(place)?;
        Some(Blend::from_adapters([(adapter, Scale::new(1.0))]))
    }

    /// The blend for a request that names these adapters.
    pub(super) fn blend_of(&self, named: &[(i32, Scale)]) -> Blend {
        let scale = |index: usize| {
            let mut named = named.iter().rev();
            let found = named.find(|(named, _)| usize::try_from(*named) == Ok(index));
            found.map_or(Scale::default(), |(_, scale)| *scale)
        };
        let adapters = self.adapters.iter().enumerate();
        Blend::from_adapters(adapters.map(|(index, adapter)| (adapter, scale(index))))
    }
}

impl Adapters {
    pub(super) fn name(&mut self, task: TaskId, scales: Named) {
        if scales.is_empty() {
            return;
        }
        self.named.insert(task, scales);
        if self.named.len() > MOST_NAMED {
            self.named.pop_first();
        }
    }

    pub(super) fn named(&self, task: TaskId) -> Option<&Named> {
        self.named.get(&task)
    }

    pub(super) fn take_named(&mut self, task: TaskId) -> Option<Named> {
        self.named.remove(&task)
    }

    /// The blend that was applied last for a request that names no adapters.
    pub(super) fn unnamed(&self) -> Option<Blend> {
        self.unnamed
    }

    pub(super) fn forget_context(&mut self, context: ContextId) {
        self.in_force.remove(&context);
    }

    /// Events were lost: which adapters are applied is not known any more. What tasks name is kept:
    /// it is told before a task is launched.
    pub(super) fn desync(&mut self) {
        self.unnamed = None;
        for in_force in self.in_force.values_mut() {
            *in_force = None;
        }
    }
}
