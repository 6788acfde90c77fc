//! Writes the words that the survey found, and those of objects that were loaded since.

use std::ffi::c_void;
use std::ops::{Range, RangeInclusive};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::survey::{Import, Survey};
use crate::attach::elf::{Object, objects};
use crate::attach::original::ROWS;
use crate::attach::replacement;
use crate::attach::row::Row;

/// The keys of the objects that were loaded when the library attached.
static KNOWN: OnceLock<Vec<usize>> = OnceLock::new();

impl Survey {
    /// Points the words of each `wanted` row to its replacement.
    ///
    /// # Errors
    /// The name of a required function whose words cannot be written. Then all words are as
    /// before.
    ///
    /// # Safety
    /// The slots are set, and do not change any more.
    pub(in crate::attach) unsafe fn patch(
        self,
        wanted: impl Fn(&Row) -> bool,
    ) -> Result<(), &'static str> {
        let is_patched = |import: &&Import| {
            let row = &ROWS[import.row];
            // A function that is hooked inline needs no patched words.
            let leads_to_it = self.chosen[import.row] == Some(import.definition);
            leads_to_it && !row.places.is_inline() && wanted(row)
        };
        let patched: Vec<&Import> = self.imports.iter().filter(is_patched).collect();
        let mut written: Vec<(&Import, &Row)> = Vec::new();
        let mut failed = None;
        let mut pages = Pages::default();
        // They stand in the order of their addresses.
        for of_object in patched.chunk_by(|a, b| a.object == b.object) {
            let last = of_object.last().map_or(0, |import| import.at);
            for &import in of_object {
                let row = &ROWS[import.row];
                let replacement = replacement::all()[import.row].address();
                let object = &self.objects[import.object];
                // SAFETY: the replacement has the signature of what the word held, by the table.
                if unsafe { pages.write(object, import.at..=last, replacement) } {
                    written.push((import, row));
                } else if !row.is_optional() {
                    failed = Some(row.name);
                }
            }
        }
        if let Some(name) = failed {
            for (import, _) in written {
                let address = self.definitions[import.definition].address;
                let object = &self.objects[import.object];
                // SAFETY: the address that the word held, or would have held after lazy binding.
                unsafe { pages.write(object, import.at..=import.at, address) };
            }
            return Err(name);
        }
        written
            .iter()
            .for_each(|(_, row)| row.places.count_patched());
        let keys = self.objects.iter().map(Object::key).collect();
        let _ = KNOWN.set(keys);
        Ok(())
    }
}

/// Patches objects that were loaded since the library attached, such as plugins of the engine.
/// Other threads may run meanwhile: a word is written in one piece, and the replacement calls the
/// function that the word led to.
pub(crate) fn patch_late() {
    let Some(known) = KNOWN.get() else {
        return;
    };
    for object in objects()
        .iter()
        .filter(|object| !known.contains(&object.key()))
    {
        for word in object.words() {
            let now = word.at.load(Ordering::Relaxed);
            // For a word that is not bound yet, the definition is certain only for functions of the
            // engine: a plugin may have its own C++ runtime.
            let is_lazy = word.may_be_lazy && object.contains(now);
            let row = ROWS.iter().position(|row| {
                let leads = if is_lazy {
                    row.is_engines()
                } else {
                    row.slot.get().is_some_and(|f| f.addr().get() == now)
                };
                row.places.patched() > 0
                    && !row.places.is_inline()
                    && leads
                    && row.slot.c_name() == word.name()
            });
            if let Some(row) = row {
                ROWS[row].places.add_word();
                let at = std::ptr::from_ref(word.at).addr();
                // SAFETY: the replacement has the signature of what the word held, by the table.
                if unsafe { write(object, at, replacement::all()[row].address()) } {
                    ROWS[row].places.count_patched();
                }
            }
        }
    }
}

/// Writes a word, reads it back, and returns whether it holds `value`.
///
/// # Safety
/// `at` is a word of the object that holds a function's address, and `value` is the address of a
/// function with the same signature.
pub(in crate::attach) unsafe fn write(object: &Object, at: usize, value: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { Pages::default().write(object, at..=at, value) }
}

/// Pages that the dynamic linker made read-only after relocation, and to which words are written. They stay readable while
/// they are writable, and no other code writes to them any more. Those of an object that are written to are opened at once: at
/// the start of a server that takes 14 system calls, where a page at a time took 36. The others stay as they are: 19 of 178
/// become writable there.
#[derive(Default)]
struct Pages {
    /// Those that are writable now.
    open: Option<Range<usize>>,
}

impl Pages {
    /// Writes the first of `words`; more up to the last one are about to be written.
    ///
    /// # Safety
    /// As for [`write`].
    unsafe fn write(
        &mut self,
        object: &Object,
        words: RangeInclusive<usize>,
        value: usize,
    ) -> bool {
        let at = *words.start();
        // SAFETY: the caller's promise. The dynamic linker may write to the word too, in one piece.
        let word = unsafe { &*std::ptr::with_exposed_provenance::<AtomicUsize>(at) };
        if object.is_relro(word) && !self.open(object.relro_with(words)) {
            return false;
        }
        word.store(value, Ordering::Relaxed);
        word.load(Ordering::Relaxed) == value
    }

    fn open(&mut self, pages: Range<usize>) -> bool {
        let has = |open: &Range<usize>| open.start <= pages.start && pages.end <= open.end;
        if self.open.as_ref().is_some_and(has) {
            return true;
        }
        self.close();
        let is_open = protect(&pages, libc::PROT_READ | libc::PROT_WRITE);
        self.open = is_open.then_some(pages);
        is_open
    }

    fn close(&mut self) {
        if let Some(pages) = self.open.take() {
            // If this fails, they stay writable, which does no harm.
            protect(&pages, libc::PROT_READ);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.close();
    }
}

/// Changes the protection of pages.
fn protect(pages: &Range<usize>, protection: i32) -> bool {
    let first: *mut c_void = std::ptr::with_exposed_provenance_mut(pages.start);
    // SAFETY: mapped pages, which stay readable.
    unsafe { libc::mprotect(first, pages.len(), protection) == 0 }
}
