//! Calls from an engine's library to those that it was linked with. The engine is hooked inline, where it is; these
//! libraries may be others' as well, and may run.

use std::sync::atomic::Ordering;

use super::patch::write;
use crate::attach::elf::{Defined, Object, gnu_hash, objects};
use crate::attach::original::ROWS;
use crate::attach::replacement;
use crate::attach::row::Row;
use crate::attach::table::STRAIGHT;

/// Redirects the calls that the library with this key makes of the functions that the prefix store is only faster with, and those
/// that the library makes which has them: engines since b12032 at the latest hand all rows on at once, to a function there which
/// calls these. The dynamic linker is not asked: it may wait for us.
pub(in crate::attach) fn redirect_calls_of(library: usize) {
    let wanted = |row: &Row| row.generation == STRAIGHT && row.is_wanted();
    redirect(&[library], true, wanted);
}

/// The same of a server inside a program, and of its engine: what they call of the C library and of the C++ runtime.
pub(in crate::attach) fn redirect_calls_of_server(libraries: &[usize]) {
    redirect(libraries, false, |row| {
        matches!(row.generation, "libc" | "cxx")
    });
}

/// `within`: also the calls within the library that the calls of `libraries` lead to.
fn redirect(libraries: &[usize], within: bool, wanted: impl Fn(&Row) -> bool) {
    let objects = objects();
    let callers = || {
        let all = objects.iter();
        all.filter(|object| libraries.contains(&object.key()))
    };
    let rows = ROWS.iter().zip(replacement::all());
    let rows = rows.filter(|(row, _)| wanted(row));
    for (row, replacement) in rows.filter(|(row, _)| row.slot.get().is_none()) {
        let name = row.slot.c_name();
        let hash = gnu_hash(name);
        let defined = |object: &Object| match object.defined(name, hash) {
            Some(Defined::At(address)) => Some(address),
            Some(Defined::Chosen | Defined::Untyped) | None => None,
        };
        let definitions: Vec<usize> = objects.iter().filter_map(defined).collect();
        let definers = objects.iter().filter(|object| {
            within && !libraries.contains(&object.key()) && defined(object).is_some()
        });
        // The first ones say which definition it is.
        let all = callers().chain(definers);
        let words = all.flat_map(|object| object.words().map(move |word| (object, word)));
        for (object, word) in words.filter(|(_, word)| word.name() == name) {
            let now = word.at.load(Ordering::Relaxed);
            let is_lazy = word.may_be_lazy && object.contains(now);
            let leads_to = match (is_lazy, &definitions[..]) {
                (true, [only]) => Some(*only),
                // It is not known which.
                (true, _) => None,
                (false, all) => all.iter().copied().find(|address| *address == now),
            };
            // All words of a function lead to one definition.
            let known = row.slot.get().map(|known| known.addr().get());
            if known.is_none() && !libraries.contains(&object.key()) {
                continue;
            }
            let Some(address) =
                leads_to.filter(|address| known.is_none_or(|known| known == *address))
            else {
                continue;
            };
            row.slot.set(std::ptr::with_exposed_provenance(address));
            let at = std::ptr::from_ref(word.at).addr();
            // SAFETY: the replacement has the signature of what the word held, by the table, and calls that.
            if unsafe { write(object, at, replacement.code().addr()) } {
                row.places.add_word();
                row.places.count_patched();
            } else if known.is_none() {
                row.slot.set_missing();
            }
        }
    }
}
