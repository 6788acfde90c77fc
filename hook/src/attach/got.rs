//! GOT patching: writes the addresses of our replacements into the words through which loaded objects
//! call functions of other objects. These are entries of the global offset table, and of tables of
//! functions in data.
//!
//! The library exports nothing for this, so it has no effect in other processes. Within a llama-server
//! it changes only words that hold the definition that the server itself calls. A
//! process may have several definitions of a name: a C++ runtime in each file, two OpenSSLs. Callers of
//! other definitions are left alone.
//!
//! [`Survey::take`] finds the words and changes nothing. [`Survey::patch`] writes them and reads
//! them back. [`patch_late`] does the same for objects that were loaded by `dlopen` since.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::elf::{Defined, Object, Word, down_to_page, gnu_hash, objects};
use super::evidence::Counts;
use super::original::ROWS;
use super::replacement;
use super::row::Row;

/// One definition of a row's function.
struct Definition {
    row: usize,
    address: usize,
    /// The index of the object that has it.
    object: usize,
}

/// A word that leads to a definition, or will lead to it after lazy binding.
struct Import {
    row: usize,
    object: usize,
    /// The index of the definition.
    definition: usize,
    /// The word's address.
    at: usize,
}

/// All words that could be patched.
pub(super) struct Survey {
    objects: Vec<Object>,
    definitions: Vec<Definition>,
    imports: Vec<Import>,
    /// For each row, the definition that the server calls.
    chosen: Vec<Option<usize>>,
}

/// The keys of the objects that were loaded when the library attached.
static KNOWN: OnceLock<Vec<usize>> = OnceLock::new();

impl Survey {
    /// Reads every object but our own. Sets the slot of each row to the definition that the
    /// server calls, and counts the words that lead to it.
    pub(super) fn take() -> Self {
        let mut survey = Self {
            objects: objects(),
            definitions: Vec::new(),
            imports: Vec::new(),
            chosen: Vec::new(),
        };
        survey.find_definitions();
        survey.find_imports();
        survey.choose();
        survey
    }

    fn find_definitions(&mut self) {
        for (row, entry) in ROWS.iter().enumerate() {
            let name = entry.slot.c_name();
            let hash = gnu_hash(name);
            let mut chosen_elsewhere = false;
            for (object, candidate) in self.objects.iter().enumerate() {
                match candidate.defined(name, hash) {
                    Some(Defined::At(address)) => self.definitions.push(Definition {
                        row,
                        address,
                        object,
                    }),
                    Some(Defined::Chosen) => chosen_elsewhere = true,
                    None => {}
                }
            }
            let none = self.definitions.last().is_none_or(|last| last.row != row);
            if chosen_elsewhere || none {
                self.definitions.extend(self.resolved(row, name));
            }
        }
    }

    /// The definition that the dynamic linker finds. For objects whose tables we cannot read.
    fn resolved(&self, row: usize, name: &CStr) -> Option<Definition> {
        // SAFETY: the name is a C string; dlsym may be called at any time.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr();
        let object = self.objects.iter().position(|o| o.contains(address))?;
        // If a non-PIE program takes the address of a function, that is the address of its PLT entry,
        // which jumps through the word that is to be patched.
        let imports = |word: Word<'_>| word.name() == name;
        (!self.objects[object].words().any(imports)).then_some(Definition {
            row,
            address,
            object,
        })
    }

    fn find_imports(&mut self) {
        let mut by_address: Vec<(usize, usize)> = self
            .definitions
            .iter()
            .enumerate()
            .map(|(index, definition)| (definition.address, index))
            .collect();
        by_address.sort_unstable();
        let own = replacement::all()[0].address();
        for (object, candidate) in self.objects.iter().enumerate() {
            if candidate.contains(own) {
                continue;
            }
            for word in candidate.words() {
                if let Some(definition) = self.leads_to(&word, object, &by_address) {
                    self.imports.push(Import {
                        row: self.definitions[definition].row,
                        object,
                        definition,
                        at: std::ptr::from_ref(word.at).addr(),
                    });
                }
            }
        }
        self.imports.sort_unstable_by_key(|import| import.at);
        self.imports.dedup_by_key(|import| import.at);
    }

    /// The definition that a word leads to.
    fn leads_to(
        &self,
        word: &Word<'_>,
        object: usize,
        by_address: &[(usize, usize)],
    ) -> Option<usize> {
        let now = word.at.load(Ordering::Relaxed);
        let first = by_address.partition_point(|(address, _)| *address < now);
        let mut at_address = by_address[first..].iter().take_while(|(a, _)| *a == now);
        if at_address.clone().next().is_some() {
            // Two names may have the same address; then the word's name decides.
            let is_named = |(_, index): &&(usize, usize)| {
                let row = self.definitions[*index].row;
                ROWS[row].slot.c_name() == word.name()
            };
            return at_address.find(is_named).map(|(_, index)| *index);
        }
        if !word.may_be_lazy || !self.objects[object].contains(now) {
            return None;
        }
        let name = word.name();
        let row = ROWS.iter().position(|row| row.slot.c_name() == name)?;
        self.lookup(row, object)
    }

    /// The definition that the dynamic linker would find for an object: its own if it was linked
    /// with `-Bsymbolic`, else the first.
    fn lookup(&self, row: usize, object: usize) -> Option<usize> {
        let of_row = || {
            let all = self.definitions.iter().enumerate();
            all.filter(move |(_, definition)| definition.row == row)
        };
        let own = of_row().find(|(_, definition)| definition.object == object);
        let own = own.filter(|_| self.objects[object].symbolic);
        own.or_else(|| of_row().next()).map(|(index, _)| index)
    }

    /// Whether the object belongs to the server: it is the executable, or it calls or contains functions of
    /// the engine or the server.
    fn is_servers(&self, object: usize) -> bool {
        let is_engines = |row: usize| ROWS[row].is_engines();
        let defines = |one: &Definition| one.object == object && is_engines(one.row);
        let imports = |one: &Import| one.object == object && is_engines(one.row);
        object == 0 || self.definitions.iter().any(defines) || self.imports.iter().any(imports)
    }

    fn choose(&mut self) {
        let servers: Vec<bool> = (0..self.objects.len())
            .map(|object| self.is_servers(object))
            .collect();
        // Calls that a runtime makes of itself are not the server's.
        let definitions = &self.definitions;
        self.imports.retain(|import| {
            definitions[import.definition].object != import.object || servers[import.object]
        });
        for (row, entry) in ROWS.iter().enumerate() {
            let of_row = |import: &&Import| import.row == row;
            let weight = |definition: usize| {
                let imports = self.imports.iter().filter(of_row);
                let imports = imports.filter(|import| import.definition == definition);
                imports
                    .map(|import| 1 + 1000 * usize::from(servers[import.object]))
                    .sum::<usize>()
            };
            let candidates = self.definitions.iter().enumerate();
            let candidates = candidates.filter(|(_, definition)| definition.row == row);
            // On a tie the first, which the dynamic linker would choose.
            let chosen = candidates
                .map(|(index, _)| (weight(index), std::cmp::Reverse(index)))
                .max()
                .map(|(_, std::cmp::Reverse(index))| index);
            self.chosen.push(chosen);
            let Some(chosen) = chosen else {
                continue;
            };
            let imports = || self.imports.iter().filter(of_row);
            let found = imports()
                .filter(|import| import.definition == chosen)
                .count();
            let strays = imports().filter(|one| one.definition != chosen && servers[one.object]);
            let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            entry.places.set_words(Counts {
                found: count(found),
                strays: count(strays.count()),
            });
            entry.slot.set(std::ptr::with_exposed_provenance(
                self.definitions[chosen].address,
            ));
        }
    }

    /// The server's objects that call the function of this name. An object that defines the function
    /// calls it for its own purposes, so it does not count unless it also contains the server.
    fn callers(&self, name: &str) -> impl Iterator<Item = usize> {
        let has_server = |object: usize| {
            let mut definitions = self.definitions.iter();
            definitions.any(|one| one.object == object && ROWS[one.row].is_servers())
        };
        let of_name = self.imports.iter().filter(move |import| {
            let definer = self.definitions[import.definition].object;
            let is_engines_own = import.object == definer && !has_server(definer);
            ROWS[import.row].name == name && !is_engines_own
        });
        of_name.map(|import| import.object)
    }

    /// Whether each object that calls `caller` also calls a function of a `wanted` row, and
    /// only through words that we patch. `None` if no object calls `caller`.
    pub(super) fn is_called_by_callers_of(
        &self,
        caller: &str,
        wanted: impl Fn(&Row) -> bool,
    ) -> Option<bool> {
        let leads_to_us = |object: usize| {
            let mut imports = self
                .imports
                .iter()
                .filter(|import| import.object == object && wanted(&ROWS[import.row]))
                .peekable();
            imports.peek().is_some()
                && imports.all(|import| self.chosen[import.row] == Some(import.definition))
        };
        let mut callers = self.callers(caller).peekable();
        callers.peek()?;
        Some(callers.all(leads_to_us))
    }

    /// Whether the executable calls the function of this name in a library.
    pub(super) fn is_called_by_executable(&self, name: &str) -> bool {
        self.callers(name).any(|object| object == 0)
    }

    /// The function `name` in the object that defines the row's function.
    pub(super) fn beside(&self, row: &str, name: &CStr) -> Option<usize> {
        let row = ROWS.iter().position(|one| one.name == row)?;
        let object = self.definitions[self.chosen[row]?].object;
        match self.objects[object].defined(name, gnu_hash(name))? {
            Defined::At(address) => Some(address),
            Defined::Chosen => None,
        }
    }

    /// Points the words of each `wanted` row to its replacement.
    ///
    /// # Errors
    /// The name of a required function whose words cannot be written. Then all words are as
    /// before.
    ///
    /// # Safety
    /// The slots are set, and do not change any more.
    pub(super) unsafe fn patch(self, wanted: impl Fn(&Row) -> bool) -> Result<(), &'static str> {
        let mut written: Vec<(&Import, &Row)> = Vec::new();
        let mut failed = None;
        for import in &self.imports {
            let row = &ROWS[import.row];
            // A function that is hooked inline needs no patched words.
            let leads_to_it = self.chosen[import.row] == Some(import.definition);
            if !leads_to_it || row.places.is_inline() || !wanted(row) {
                continue;
            }
            let replacement = replacement::all()[import.row].address();
            let object = &self.objects[import.object];
            // SAFETY: the replacement has the signature of what the word held, by the table.
            match unsafe { write(object, import.at, replacement) } {
                true => written.push((import, row)),
                false if row.is_optional() => {}
                false => failed = Some(row.name),
            }
        }
        if let Some(name) = failed {
            for (import, _) in written {
                let address = self.definitions[import.definition].address;
                // SAFETY: the address that the word held, or would have held after lazy binding.
                unsafe { write(&self.objects[import.object], import.at, address) };
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
                let leads = match is_lazy {
                    true => row.is_engines(),
                    false => row.slot.get().is_some_and(|f| f.addr() == now),
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
unsafe fn write(object: &Object, at: usize, value: usize) -> bool {
    // SAFETY: the caller's promise. The dynamic linker may write to the word too, in one piece.
    let word = unsafe { &*std::ptr::with_exposed_provenance::<AtomicUsize>(at) };
    if !object.is_relro(word) {
        word.store(value, Ordering::Relaxed);
    } else {
        // The dynamic linker made this page read-only after relocation. It stays readable while it is
        // writable, and nobody else writes to it any more.
        if !protect(word, libc::PROT_READ | libc::PROT_WRITE) {
            return false;
        }
        word.store(value, Ordering::Relaxed);
        // If this fails, the page stays writable, which does no harm.
        protect(word, libc::PROT_READ);
    }
    word.load(Ordering::Relaxed) == value
}

/// Changes the protection of the page that the word lies in.
fn protect(word: &AtomicUsize, protection: i32) -> bool {
    let page = down_to_page(std::ptr::from_ref(word).addr());
    let page: *mut c_void = std::ptr::with_exposed_provenance_mut(page);
    // SAFETY: a mapped page, which stays readable.
    unsafe { libc::mprotect(page, 1, protection) == 0 }
}
