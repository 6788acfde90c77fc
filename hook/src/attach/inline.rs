//! Inline hooking: functions that are linked into the executable are not called through the dynamic
//! linker, so they get a jump at their beginning. So do those of an engine's library that a program loads by
//! itself: it calls them through addresses that it has asked for.
//!
//! [`contextpilot_inline`] has the mechanism, and refuses functions that cannot be hooked. This module
//! decides which functions are hooked, and what follows if one is refused. The rest of the hook does
//! not see the difference: an [`AddressSlot`] holds the address of the original either way.

use contextpilot_inline::{Batch, Function, Image, ImageError, Refusal};

use super::evidence::Counts;
use super::original::ROWS;
use super::plain;
use super::replacement::{self, Replacement};
use super::row::Row;
use super::slot::AddressSlot;
use super::table::{
    ENCODER, MEMBER, MEMORY, PROMPTS, SESSIONS_SOCKET, STORE, STRAIGHT, is_called,
    is_seen_elsewhere, is_seen_in_program,
};

/// The functions of the table that are in the executable, or in one library.
pub(super) struct Inside {
    image: Image,
    /// In the order of [`ROWS`].
    rows: Vec<Option<Function>>,
    /// In the order of [`plain::SLOTS`].
    plain: Vec<Option<Function>>,
    /// Functions of [`MEMBER`] that it exports. Callers of these cannot know which registers they leave alone, as
    /// compilers do of functions that no other file may replace.
    members: Vec<&'static str>,
}

/// A row, its replacement, and the function in the executable.
type Candidate<'a> = (&'static Row, &'static Replacement, &'a Function);

impl Inside {
    /// `Some` if the executable contains an engine. For a stripped executable, this takes
    /// a tenth of a millisecond.
    pub(super) fn with_engine() -> Option<Self> {
        Self::with_any_of(is_anchor)
    }

    /// `Some` if the executable contains functions of the server.
    pub(super) fn with_server() -> Option<Self> {
        Self::with_any_of(Row::is_servers)
    }

    /// `Some` if the executable contains functions that release memory.
    pub(super) fn with_runtime() -> Option<Self> {
        Self::with_any_of(is_runtimes)
    }

    /// `Some` if the library that this address lies in contains an engine.
    ///
    /// # Errors
    /// Its functions cannot be looked for.
    pub(super) fn in_library(address: usize) -> Result<Option<Self>, ImageError> {
        let image = Image::of_library(address)?;
        Ok(Self::of(image, is_anchor))
    }

    /// `Some` if the library that this address lies in contains functions of the server.
    pub(super) fn server_in_library(address: usize) -> Option<Self> {
        Self::of(Image::of_library(address).ok()?, Row::is_servers)
    }

    /// The library is a module with llama.cpp inside, which may have copies of functions: those that such copies call are
    /// hooked, too, if it `exports` them.
    pub(super) fn with_members(mut self, exports: impl Fn(&str) -> bool) -> Self {
        let members = ROWS.iter().filter(|row| row.generation == MEMBER);
        let exported = members.map(|row| row.name).filter(|name| exports(name));
        self.members = exported.collect();
        self
    }

    fn with_any_of(wanted: impl Fn(&Row) -> bool) -> Option<Self> {
        Self::of(Image::of_self().ok()?, wanted)
    }

    /// Looks for all names at once, because reading the symbol table is what takes time.
    fn of(image: Image, wanted: impl Fn(&Row) -> bool) -> Option<Self> {
        let rows = ROWS.iter().map(|row| row.name);
        let plain = plain::SLOTS.iter().map(|slot| slot.name());
        let names: Vec<&str> = rows.chain(plain).collect();
        let mut rows = image.find(&names).ok()?;
        let plain = rows.split_off(ROWS.len());
        let mut found = ROWS.iter().zip(&rows);
        found
            .any(|(row, function)| wanted(row) && function.is_some())
            .then_some(Self {
                image,
                rows,
                plain,
                members: Vec::new(),
            })
    }

    /// Whether the executable contains one of the server's own functions.
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

    /// Prepares hooks for all functions, for a server that contains its engine.
    ///
    /// # Errors
    /// The function that cannot be hooked, and why, if the hook would miss something without it.
    pub(super) fn prepare_all(self) -> Result<Ready, String> {
        let mut ready = self.prepare_these(
            |row| !is_tls(row),
            |name, generation| is_seen_elsewhere(name, generation, |name| self.has(name)),
        )?;
        self.prepare_tls(&mut ready);
        Ok(ready)
    }

    /// As [`prepare_all`](Self::prepare_all), of the engine's functions alone. What is not there is not looked
    /// up elsewhere, so nothing asks the dynamic linker any more.
    pub(super) fn prepare_engine(self) -> Result<Ready, String> {
        let rows = ROWS.iter().map(|row| row.slot);
        let all = rows.chain(plain::SLOTS.iter().copied());
        all.for_each(AddressSlot::set_missing);
        let mut ready = self.prepare_these(Row::is_of_library, |name, generation| {
            is_seen_in_program(name, generation, |name| self.has(name))
        })?;
        self.prepare_members(&mut ready);
        Ok(ready)
    }

    /// Prepares hooks for the functions that copies call: all of them or none, since what one notes another one takes back.
    fn prepare_members(&self, ready: &mut Ready) {
        if !are_enough(&self.members) {
            return;
        }
        let before = ready.mark();
        let mut members = self
            .candidates()
            .filter(|(row, ..)| self.members.contains(&row.name));
        let all = members.all(|(row, replacement, function)| {
            ready.add(&self.image, row, function, replacement).is_ok()
        });
        if !all {
            ready.return_to(before);
        }
    }

    /// Prepares hooks for the rows that are `wanted`. `is_seen`: whether nothing is missed without the function of
    /// this name and generation.
    fn prepare_these(
        &self,
        wanted: impl Fn(&Row) -> bool,
        is_seen: impl Fn(&str, &str) -> bool,
    ) -> Result<Ready, String> {
        let mut ready = Ready::default();
        for (row, replacement, function) in self.candidates().filter(|(row, ..)| wanted(row)) {
            // If requests need not be tied by their prompts, this function is not hooked.
            if !row.is_wanted() || row.is_idle(is_called(PROMPTS.0, |name| self.has(name))) {
                continue;
            }
            if let Err(refusal) = ready.add(&self.image, row, function, replacement) {
                if matches!(row.generation, STRAIGHT | ENCODER) {
                    continue;
                }
                // The functions of the runtime may be called by others. The code that relies on
                // them checks whether the server calls them.
                let is_missed = !is_runtimes(row) && !is_seen(row.name, row.generation);
                if is_missed && row.generation != STORE {
                    ready.abandon();
                    return Err(format!("{} {refusal}", row.name));
                }
                // Without a function of the prefix store there is no such store, and nothing else follows. One that
                // does nothing need not be hooked.
                if is_missed && !self.image.does_nothing(function) {
                    ready.unstorable = Some(format!("{} {refusal}", row.name));
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
        Ok(ready)
    }

    /// Prepares hooks for OpenSSL's functions if OpenSSL is linked in: all of them or none.
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

    /// Prepares hooks for the server's own functions and OpenSSL's, for a server that has its engine in
    /// libraries. Functions that are refused are left out.
    pub(super) fn prepare_server(&self, ready: &mut Ready) {
        self.prepare_each(Row::is_servers, ready);
        self.prepare_tls(ready);
    }

    /// Prepares hooks for the server's own functions alone. Functions that are refused are left out.
    pub(super) fn prepare_server_alone(&self, ready: &mut Ready) {
        self.prepare_each(Row::is_servers, ready);
    }

    /// Prepares hooks for functions that release memory. Functions that are refused are left out.
    pub(super) fn prepare_runtime(&self, ready: &mut Ready) {
        self.prepare_each(is_runtimes, ready);
    }

    fn prepare_each(&self, wanted: impl Fn(&Row) -> bool, ready: &mut Ready) {
        for (row, replacement, function) in self.candidates().filter(|(row, ..)| wanted(row)) {
            let _ = ready.add(&self.image, row, function, replacement);
        }
    }
}

/// Whether copies of the engine's functions can do little without calling one of these. Most models have the plain
/// memory, and its functions are the ones that may be missing: those of the others tell nothing of it.
fn are_enough(members: &[&str]) -> bool {
    let ends = |end: &str| members.iter().any(|name| name.ends_with(end));
    let plain = [
        "_ZN14llama_kv_cache6seq_rmEiii",
        "_ZN14llama_kv_cache5clearEb",
    ];
    ends("llama_batch") && ends("D1Ev") && plain.iter().all(|name| members.contains(name))
}

fn is_tls(row: &Row) -> bool {
    row.generation == "openssl"
}

/// Whether it is a function that every engine has.
fn is_anchor(row: &Row) -> bool {
    MEMORY.iter().any(|(_, name)| *name == row.name)
}

fn is_runtimes(row: &Row) -> bool {
    row.generation == "cxx"
}

/// Prepared hooks, ready to be installed. The slots hold their trampolines already.
#[derive(Default)]
pub(super) struct Ready {
    batch: Batch,
    /// Slots that were set, and the address that each held before.
    slots: Vec<(&'static AddressSlot, *const ())>,
    /// Rows that are hooked, and their counts before.
    hooked: Vec<(&'static Row, Counts)>,
    /// Whether OpenSSL's functions are hooked; `None` if OpenSSL is not in the executable.
    pub(super) tls: Option<bool>,
    /// A function that the prefix store needs, and why it cannot be hooked.
    pub(super) unstorable: Option<String>,
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

    fn set(&mut self, slot: &'static AddressSlot, address: *const ()) {
        self.slots.push((slot, slot.raw()));
        slot.set(address);
    }

    /// Whether the release of a vector of bytes is hooked, if the executable contains that function.
    pub(super) fn has_runtime(&self) -> bool {
        self.hooked.iter().any(|(row, _)| row.name == "_ZdlPvm")
    }

    /// The numbers of slots and hooks so far.
    fn mark(&self) -> (usize, usize) {
        (self.slots.len(), self.hooked.len())
    }

    /// Undoes what was prepared since that mark.
    fn return_to(&mut self, (slots, hooked): (usize, usize)) {
        take_back(&self.slots.split_off(slots), &self.hooked.split_off(hooked));
        self.batch.truncate(hooked);
    }

    /// Installs all hooks.
    ///
    /// # Errors
    /// Why that is impossible. Then nothing was changed.
    ///
    /// # Safety
    /// From the library's constructor, or right after the functions were loaded: no thread may be in one of
    /// them.
    pub(super) unsafe fn install(self) -> Result<(), Refusal> {
        let Self {
            batch,
            slots,
            hooked,
            ..
        } = self;
        // SAFETY: the caller's promise, and the slots hold the trampolines.
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

/// Undoes in reverse order, so that each slot ends with the address that it held first.
fn take_back(slots: &[(&AddressSlot, *const ())], hooked: &[(&Row, Counts)]) {
    for (slot, before) in slots.iter().rev() {
        slot.set(*before);
    }
    for (row, before) in hooked.iter().rev() {
        row.places.restore(*before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_other_memories_do_not_stand_for_those_of_the_plain_one() {
        let context = [
            "_ZN13llama_context6decodeERK11llama_batch",
            "_ZN13llama_contextD1Ev",
        ];
        let with = |memory: [&'static str; 2]| [context, memory].concat();
        let plain = [
            "_ZN14llama_kv_cache6seq_rmEiii",
            "_ZN14llama_kv_cache5clearEb",
        ];
        assert!(are_enough(&with(plain)));
        let recurrent = [
            "_ZN22llama_memory_recurrent6seq_rmEiii",
            "_ZN22llama_memory_recurrent5clearEb",
        ];
        assert!(!are_enough(&with(recurrent)));
        assert!(!are_enough(&with([plain[0], recurrent[1]])));
    }
}
