//! The second way in: functions that are linked into the executable, where the dynamic linker has
//! no say, are hooked by a jump at their beginning.
//!
//! The mechanism, and when it is refused, are [`contextpilot_inline`]'s. Here is which functions,
//! and what follows if one cannot be had. Nothing above the [table](super::table) knows the
//! difference: a slot holds what has to be called instead of our own function, either way.

use contextpilot_inline::{Batch, Function, Image, Refusal};

use super::evidence::Counts;
use super::original::{ROWS, Row, Slot, plain};
use super::replacement::{self, Replacement};
use super::table::{MEMORY, PROMPTS, SESSIONS_SOCKET, is_called, is_seen_elsewhere};

/// Functions of the table that are linked into the executable.
pub(super) struct Inside {
    image: Image,
    /// In the order of [`ROWS`].
    rows: Vec<Option<Function>>,
    /// In the order of [`plain::SLOTS`].
    plain: Vec<Option<Function>>,
}

/// A row, what is called in its place, and where it is.
type Candidate<'a> = (&'static Row, &'static Replacement, &'a Function);

impl Inside {
    /// If the executable contains an engine. For an executable that was stripped, the answer takes
    /// a tenth of a millisecond.
    pub(super) fn with_engine() -> Option<Self> {
        Self::with_any_of(|row| MEMORY.iter().any(|(_, name)| *name == row.name))
    }

    /// If the executable contains functions of the server's own.
    pub(super) fn with_server() -> Option<Self> {
        Self::with_any_of(Row::is_servers)
    }

    /// If the executable contains what releases memory.
    pub(super) fn with_runtime() -> Option<Self> {
        Self::with_any_of(is_runtimes)
    }

    /// All names at once: what takes time is to read the table.
    fn with_any_of(wanted: impl Fn(&Row) -> bool) -> Option<Self> {
        let image = Image::of_self().ok()?;
        let rows = ROWS.iter().map(|row| row.name);
        let plain = plain::SLOTS.iter().map(|slot| slot.name());
        let names: Vec<&str> = rows.chain(plain).collect();
        let mut rows = image.find(&names).ok()?;
        let plain = rows.split_off(ROWS.len());
        let mut found = ROWS.iter().zip(&rows);
        found
            .any(|(row, function)| wanted(row) && function.is_some())
            .then_some(Self { image, rows, plain })
    }

    /// Whether it contains one of the server's own functions, too.
    pub(super) fn has_server(&self) -> bool {
        self.candidates().any(|(row, ..)| row.is_servers())
    }

    fn has(&self, name: &str) -> bool {
        self.candidates().any(|(row, ..)| row.name == name)
    }

    fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        let rows = ROWS.iter().zip(replacement::all()).zip(&self.rows);
        rows.filter_map(|((row, replacement), function)| {
            function
                .as_ref()
                .map(|function| (row, replacement, function))
        })
    }

    /// Prepares all that there is, for a server that contains its engine.
    ///
    /// # Errors
    /// What cannot be hooked, and why, where that would make us miss something.
    pub(super) fn prepare_all(self) -> Result<Ready, String> {
        let mut ready = Ready::default();
        for (row, replacement, function) in self.candidates().filter(|(row, ..)| !is_tls(row)) {
            // In a server that does without, it is left as it is.
            if row.generation == PROMPTS.0 && !is_called(PROMPTS.0, |name| self.has(name)) {
                continue;
            }
            if let Err(refusal) = ready.add(&self.image, row, function, replacement) {
                // Others may call the runtime's functions by name; whether the server does is
                // looked at by whoever relies on it.
                let is_missed = !is_runtimes(row)
                    && !is_seen_elsewhere(row.name, row.generation, |name| self.has(name));
                if is_missed {
                    ready.abandon();
                    return Err(format!("{} {refusal}", row.name));
                }
                if !is_runtimes(row) {
                    ready.set(row.slot, function.address as *const ());
                }
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
        let tls = || self.candidates().filter(|(row, ..)| is_tls(row));
        if tls().next().is_none() {
            return;
        }
        let before = ready.mark();
        for (slot, function) in plain::SLOTS.iter().copied().zip(&self.plain) {
            if let Some(function) = function.as_ref().filter(|_| slot.name() == SESSIONS_SOCKET) {
                ready.set(slot, function.address as *const ());
            }
        }
        let wanted = ROWS.iter().filter(|row| is_tls(row)).count();
        let all = plain::has(SESSIONS_SOCKET)
            && tls().count() == wanted
            && tls().all(|(row, replacement, function)| {
                ready.add(&self.image, row, function, replacement).is_ok()
            });
        if !all {
            ready.return_to(before);
        }
        ready.tls = Some(all);
    }

    /// Prepares the server's own functions and OpenSSL's only, for one that has its engine in
    /// libraries. What is refused is done without.
    pub(super) fn prepare_server(&self, ready: &mut Ready) {
        self.prepare_each(Row::is_servers, ready);
        self.prepare_tls(ready);
    }

    /// Prepares what releases memory. What is refused is done without.
    pub(super) fn prepare_runtime(&self, ready: &mut Ready) {
        self.prepare_each(is_runtimes, ready);
    }

    fn prepare_each(&self, wanted: impl Fn(&Row) -> bool, ready: &mut Ready) {
        for (row, replacement, function) in self.candidates().filter(|(row, ..)| wanted(row)) {
            let _ = ready.add(&self.image, row, function, replacement);
        }
    }
}

fn is_tls(row: &Row) -> bool {
    row.generation == "openssl"
}

fn is_runtimes(row: &Row) -> bool {
    row.generation == "cxx"
}

/// Hooks that only need to be installed. Slots hold their trampolines already.
#[derive(Default)]
pub(super) struct Ready {
    batch: Batch,
    /// What was set, and what it held before.
    slots: Vec<(&'static Slot, *const ())>,
    /// What is hooked, and where it would have been without that.
    hooked: Vec<(&'static Row, Counts)>,
    /// Whether what OpenSSL does is seen, where it is inside.
    pub(super) tls: Option<bool>,
}

impl Ready {
    fn add(
        &mut self,
        image: &Image,
        row: &'static Row,
        function: &Function,
        replacement: &Replacement,
    ) -> Result<(), Refusal> {
        // SAFETY: the replacement has the function's signature, by the table, and lets exceptions
        // through.
        let trampoline = unsafe { self.batch.add(image, function, replacement.code()) }?;
        self.set(row.slot, trampoline.as_ptr());
        self.hooked.push((row, row.places.set_inline()));
        Ok(())
    }

    fn set(&mut self, slot: &'static Slot, address: *const ()) {
        self.slots.push((slot, slot.raw()));
        slot.set(address);
    }

    /// Whether the release of a vector of bytes is seen, if the executable does that itself.
    pub(super) fn has_runtime(&self) -> bool {
        self.hooked.iter().any(|(row, _)| row.name == "_ZdlPvm")
    }

    /// How many slots and hooks there are so far.
    fn mark(&self) -> (usize, usize) {
        (self.slots.len(), self.hooked.len())
    }

    /// Takes back what was prepared since.
    fn return_to(&mut self, (slots, hooked): (usize, usize)) {
        take_back(&self.slots.split_off(slots), &self.hooked.split_off(hooked));
        self.batch.truncate(hooked);
    }

    /// Hooks all of them.
    ///
    /// # Errors
    /// Why that is not possible. Then nothing was changed.
    ///
    /// # Safety
    /// From the library's constructor only: no thread may be in one of the functions.
    pub(super) unsafe fn install(self) -> Result<(), Refusal> {
        let Self {
            batch,
            slots,
            hooked,
            tls: _,
        } = self;
        // SAFETY: the caller's promise; the trampolines are in their slots.
        let installed = unsafe { batch.install() };
        if installed.is_err() {
            take_back(&slots, &hooked);
        }
        installed
    }

    /// Leaves the executable as it is.
    pub(super) fn abandon(self) {
        take_back(&self.slots, &self.hooked);
    }
}

/// The latest first, so that each slot ends with what it held at the beginning.
fn take_back(slots: &[(&Slot, *const ())], hooked: &[(&Row, Counts)]) {
    for (slot, before) in slots.iter().rev() {
        slot.set(*before);
    }
    for (row, before) in hooked.iter().rev() {
        row.places.restore(*before);
    }
}
