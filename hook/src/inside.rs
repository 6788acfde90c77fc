//! Functions that are linked into the executable, where the dynamic linker has no say: hooked by
//! a jump at their beginning.
//!
//! The mechanism, and when it is refused, are [`contextpilot_inline`]'s. Here is which functions,
//! and what follows if one cannot be had. Nothing above the [table](crate::table) knows the
//! difference: a slot holds what has to be called instead of our own function, either way.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use contextpilot_inline::{Batch, Function, Image, Refusal};

use crate::hooks::replacements::{self, REPLACEMENTS};
use crate::original::{ROWS, Row, Slot, plain, redirected};
use crate::table::{
    Generations, LAUNCH, MEMORY, NUMBERS, PROMPTS, SESSIONS_SOCKET, is_called, is_seen_elsewhere,
};

/// Functions of the table that are linked into the executable.
pub(crate) struct Inside {
    image: Image,
    /// In the order of [`ROWS`].
    rows: Vec<Option<Function>>,
    /// OpenSSL's, in the order of [`redirected::ROWS`].
    tls: Vec<Option<Function>>,
    /// In the order of [`plain::SLOTS`].
    plain: Vec<Option<Function>>,
}

impl Inside {
    /// If the executable contains an engine. For an executable that was stripped, the answer takes
    /// a tenth of a millisecond.
    pub(crate) fn with_engine() -> Option<Self> {
        Self::with_any_of(&MEMORY.iter().map(|(_, name)| *name).collect::<Vec<_>>())
    }

    /// If the executable contains the server's own functions.
    pub(crate) fn with_server() -> Option<Self> {
        let rows = ROWS.iter().filter(|row| is_servers(row));
        Self::with_any_of(&rows.map(|row| row.name).collect::<Vec<_>>())
    }

    /// All names at once: what takes time is to read the table.
    fn with_any_of(wanted: &[&str]) -> Option<Self> {
        let image = Image::of_self().ok()?;
        let rows = ROWS.iter().chain(redirected::ROWS).map(|row| row.name);
        let plain = plain::SLOTS.iter().map(|slot| slot.name());
        let mut names: Vec<&str> = rows.chain(plain).collect();
        let ours = names.len();
        names.extend(wanted);
        let mut rows = image.find(&names).ok()?;
        if rows.split_off(ours).iter().all(Option::is_none) {
            return None;
        }
        let plain = rows.split_off(ROWS.len() + redirected::ROWS.len());
        let tls = rows.split_off(ROWS.len());
        Some(Self {
            image,
            rows,
            tls,
            plain,
        })
    }

    /// Whether it contains one of the server's own functions, too.
    pub(crate) fn has_server(&self) -> bool {
        let mut rows = ROWS.iter().zip(&self.rows);
        rows.any(|(row, function)| is_servers(row) && function.is_some())
    }

    fn has(&self, name: &str) -> bool {
        let mut rows = ROWS.iter().zip(&self.rows);
        rows.any(|(row, function)| row.name == name && function.is_some())
    }

    /// Prepares all that there is, for a server that contains its engine.
    ///
    /// # Errors
    /// What cannot be hooked, and why, where that would make us miss something.
    pub(crate) fn prepare_all(self) -> Result<Ready, String> {
        let mut ready = Ready::default();
        for ((row, replacement), function) in ROWS.iter().zip(REPLACEMENTS).zip(&self.rows) {
            let Some(function) = function else {
                continue;
            };
            // In a server that does without, it is left as it is.
            if row.generation == PROMPTS.0 && !is_called(PROMPTS.0, |name| self.has(name)) {
                continue;
            }
            if let Err(refusal) = ready.add(&self.image, row, function, (replacement.code)()) {
                if !is_seen_elsewhere(row.name, row.generation, |name| self.has(name)) {
                    ready.abandon();
                    return Err(format!("{} {refusal}", row.name));
                }
                ready.set(row.slot, function.address as *const ());
            }
        }
        for (slot, function) in plain::SLOTS.iter().copied().zip(&self.plain) {
            if let Some(function) = function {
                ready.set(slot, function.address as *const ());
            }
        }
        self.prepare_tls(&mut ready);
        Ok(ready)
    }

    /// Prepares OpenSSL's functions, where it is linked in, too: all of them or none.
    fn prepare_tls(&self, ready: &mut Ready) {
        if self.tls.iter().all(Option::is_none) {
            return;
        }
        let before = ready.mark();
        for (slot, function) in plain::SLOTS.iter().copied().zip(&self.plain) {
            if let Some(function) = function.as_ref().filter(|_| slot.name() == SESSIONS_SOCKET) {
                ready.set(slot, function.address as *const ());
            }
        }
        let rows = redirected::ROWS
            .iter()
            .zip(replacements::redirected::REPLACEMENTS)
            .zip(&self.tls);
        let mut all = plain::has(SESSIONS_SOCKET);
        for ((row, replacement), function) in rows {
            all = all
                && function.as_ref().is_some_and(|function| {
                    let code = (replacement.code)();
                    ready.add(&self.image, row, function, code).is_ok()
                });
        }
        if !all {
            ready.return_to(before);
        }
        ready.tls = Some(all);
    }

    /// Prepares the server's own functions and OpenSSL's only, for one that has its engine in
    /// libraries. What is refused is done without.
    pub(crate) fn prepare_server(self) -> Ready {
        let mut ready = Ready::default();
        for ((row, replacement), function) in ROWS.iter().zip(REPLACEMENTS).zip(&self.rows) {
            if let Some(function) = function.as_ref().filter(|_| is_servers(row)) {
                let _ = ready.add(&self.image, row, function, (replacement.code)());
            }
        }
        self.prepare_tls(&mut ready);
        ready
    }
}

/// The functions that were hooked, by name.
static HOOKED: OnceLock<Vec<&'static str>> = OnceLock::new();

/// A function that was hooked and should have been called by now, but was not: the compiler has
/// put copies of it into its callers (link-time optimisation does), which nobody can hook.
pub(crate) fn bypassed() -> Option<&'static str> {
    // Each request takes this way: it gets a number, then a slot, which makes room for it.
    if !was_called(LAUNCH)? {
        return None;
    }
    [
        (NUMBERS, "server_queue::get_new_id"),
        (MEMORY, "llama_memory_seq_rm"),
    ]
    .into_iter()
    .find(|(generations, _)| was_called(generations) == Some(false))
    .map(|(_, name)| name)
}

/// None if no such function was hooked.
fn was_called(generations: Generations) -> Option<bool> {
    let hooked = HOOKED.get()?;
    let calls = ROWS
        .iter()
        .zip(REPLACEMENTS)
        .filter(|(row, _)| generations.iter().any(|(_, name)| *name == row.name))
        .filter(|(row, _)| hooked.contains(&row.name))
        .map(|(_, replacement)| replacement.called.load(Ordering::Relaxed));
    calls.reduce(|one, other| one || other)
}

/// Whether it is one of the server's own functions.
fn is_servers(row: &Row) -> bool {
    row.generation.starts_with("server")
}

/// Hooks that only need to be installed. Slots hold their trampolines already.
#[derive(Default)]
pub(crate) struct Ready {
    batch: Batch,
    slots: Vec<&'static Slot>,
    hooked: Vec<&'static str>,
    /// Whether what OpenSSL does is seen, where it is inside.
    pub(crate) tls: Option<bool>,
}

impl Ready {
    fn add(
        &mut self,
        image: &Image,
        row: &Row,
        function: &Function,
        replacement: *const (),
    ) -> Result<(), Refusal> {
        if replacement.addr() == function.address {
            return Err(Refusal::Other("has taken the place of our own".into()));
        }
        // SAFETY: the replacement has the function's signature, by the table, and lets exceptions
        // through.
        let trampoline = unsafe { self.batch.add(image, function, replacement) }?;
        self.set(row.slot, trampoline.as_ptr());
        self.hooked.push(row.name);
        Ok(())
    }

    fn set(&mut self, slot: &'static Slot, address: *const ()) {
        slot.set(address);
        self.slots.push(slot);
    }

    /// How many slots and hooks there are so far.
    fn mark(&self) -> (usize, usize) {
        (self.slots.len(), self.hooked.len())
    }

    /// Takes back what was prepared since.
    fn return_to(&mut self, (slots, hooked): (usize, usize)) {
        take_back(&self.slots.split_off(slots));
        self.hooked.truncate(hooked);
        self.batch.truncate(hooked);
    }

    /// Hooks all of them.
    ///
    /// # Errors
    /// Why that is not possible. Then nothing was changed.
    ///
    /// # Safety
    /// From the library's constructor only: no thread may be in one of the functions.
    pub(crate) unsafe fn install(self) -> Result<(), Refusal> {
        let Self {
            batch,
            slots,
            hooked,
            tls: _,
        } = self;
        // SAFETY: the caller's promise; the trampolines are in their slots.
        let installed = unsafe { batch.install() };
        match installed {
            Ok(()) => drop(HOOKED.set(hooked)),
            Err(_) => take_back(&slots),
        }
        installed
    }

    /// Leaves the executable as it is.
    pub(crate) fn abandon(self) {
        take_back(&self.slots);
    }
}

fn take_back(slots: &[&Slot]) {
    slots.iter().for_each(|slot| slot.unset());
}
