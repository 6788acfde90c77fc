//! Finds the words that lead to functions of the table, and the definition of each that the server
//! calls. Changes no word.

use std::ffi::CStr;
use std::sync::atomic::Ordering;

use crate::attach::elf::{Defined, Object, Word, are_all, gnu_hash, objects};
use crate::attach::evidence::Counts;
use crate::attach::original::ROWS;
use crate::attach::replacement;
use crate::attach::row::Row;

/// One definition of a row's function.
pub(super) struct Definition {
    row: usize,
    pub(super) address: usize,
    /// The index of the object that has it.
    object: usize,
}

/// A word that leads to a definition, or will lead to it after lazy binding.
pub(super) struct Import {
    pub(super) row: usize,
    pub(super) object: usize,
    /// The index of the definition.
    pub(super) definition: usize,
    /// The word's address.
    pub(super) at: usize,
}

/// All words that could be patched.
pub(in crate::attach) struct Survey {
    pub(super) objects: Vec<Object>,
    pub(super) definitions: Vec<Definition>,
    pub(super) imports: Vec<Import>,
    /// For each row, the definition that the server calls.
    pub(super) chosen: Vec<Option<usize>>,
}

/// Where definitions are, and under which names. Nearly all of the words that are looked up here, some twenty thousand at each
/// start of a server, lead to none of them.
struct Definitions {
    /// Addresses, and the index of the definition, in order.
    addresses: Vec<(usize, usize)>,
    /// Names of rows that have a definition, in order.
    names: Vec<(&'static CStr, usize)>,
    seen_addresses: Sieve,
    seen_names: Sieve,
}

impl Definitions {
    fn of(definitions: &[Definition]) -> Self {
        let (mut addresses, mut names) = (Vec::new(), Vec::new());
        let (mut seen_addresses, mut seen_names) = (Sieve([0; 64]), Sieve([0; 64]));
        for (index, Definition { row, address, .. }) in definitions.iter().enumerate() {
            let name = ROWS[*row].slot.c_name();
            addresses.push((*address, index));
            names.push((name, *row));
            seen_addresses.add(of_address(*address));
            seen_names.add(of_name(name));
        }
        addresses.sort_unstable();
        names.sort_unstable();
        names.dedup();
        Self {
            addresses,
            names,
            seen_addresses,
            seen_names,
        }
    }

    /// False: no definition is at this address.
    #[inline]
    fn may_be_at(&self, address: usize) -> bool {
        self.seen_addresses.may_have(of_address(address))
    }

    /// The definitions at this address.
    fn at(&self, address: usize) -> impl Iterator<Item = &(usize, usize)> + Clone {
        let first = if self.may_be_at(address) {
            self.addresses.partition_point(|(at, _)| *at < address)
        } else {
            self.addresses.len()
        };
        let from_there = self.addresses[first..].iter();
        from_there.take_while(move |(at, _)| *at == address)
    }

    /// The row of this name, if it has a definition.
    fn row_of(&self, name: &CStr) -> Option<usize> {
        if !self.seen_names.may_have(of_name(name)) {
            return None;
        }
        let found = self.names.binary_search_by_key(&name, |(name, _)| name);
        found.ok().map(|at| self.names[at].1)
    }
}

/// Which numbers were added: all of those, and a few others.
struct Sieve([u64; 64]);

impl Sieve {
    fn add(&mut self, number: usize) {
        self.0[number / 64 % 64] |= 1 << (number % 64);
    }

    #[inline]
    fn may_have(&self, number: usize) -> bool {
        self.0[number / 64 % 64] & (1 << (number % 64)) != 0
    }
}

/// Functions begin at multiples of 16 as a rule.
fn of_address(address: usize) -> usize {
    (address >> 4) ^ (address >> 16)
}

/// Names of one library begin alike.
fn of_name(name: &CStr) -> usize {
    let name = name.to_bytes();
    let byte = |at: usize| usize::from(name.get(at).copied().unwrap_or(0));
    let (middle, last) = (byte(name.len() / 2), byte(name.len().saturating_sub(2)));
    name.len() + 67 * middle + 961 * last
}

impl Survey {
    /// Reads every object but our own. Sets the slot of each row to the definition that the
    /// server calls, and counts the words that lead to it.
    pub(in crate::attach) fn take() -> Self {
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
        let sees_all = are_all(&self.objects);
        for (row, entry) in ROWS.iter().enumerate() {
            let name = entry.slot.c_name();
            let hash = gnu_hash(name);
            let (mut chosen_elsewhere, mut untyped) = (false, !sees_all);
            for (object, candidate) in self.objects.iter().enumerate() {
                match candidate.defined(name, hash) {
                    Some(Defined::At(address)) => self.definitions.push(Definition {
                        row,
                        address,
                        object,
                    }),
                    Some(Defined::Chosen) => chosen_elsewhere = true,
                    Some(Defined::Untyped) => untyped = true,
                    None => {}
                }
            }
            let none = self.definitions.last().is_none_or(|last| last.row != row);
            // The dynamic linker takes two microseconds to say that it finds nothing.
            if chosen_elsewhere || none && untyped {
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
        let known = Definitions::of(&self.definitions);
        let own = replacement::all()[0].address();
        let mut imports = Vec::new();
        for (object, candidate) in self.objects.iter().enumerate() {
            if !candidate.contains(own) {
                self.find_imports_of(object, &known, &mut imports);
            }
        }
        self.imports = imports;
        self.imports.sort_unstable_by_key(|import| import.at);
        self.imports.dedup_by_key(|import| import.at);
    }

    /// A function of its own: there, what is asked of some twenty thousand words stays in registers.
    #[inline(never)]
    fn find_imports_of(&self, object: usize, known: &Definitions, imports: &mut Vec<Import>) {
        let candidate = &self.objects[object];
        let is_wanted = |now: usize, may_be_lazy: bool| {
            known.may_be_at(now) || may_be_lazy && candidate.contains(now)
        };
        // Not a `for` loop, which would ask first in which of the tables it is, each time.
        candidate.words_with(is_wanted).for_each(|word| {
            if let Some(definition) = self.leads_to(&word, object, known) {
                imports.push(Import {
                    row: self.definitions[definition].row,
                    object,
                    definition,
                    at: std::ptr::from_ref(word.at).addr(),
                });
            }
        });
    }

    /// The definition that a word leads to.
    #[inline(never)]
    fn leads_to(&self, word: &Word<'_>, object: usize, known: &Definitions) -> Option<usize> {
        let now = word.at.load(Ordering::Relaxed);
        let mut at_address = known.at(now);
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
        // Of a thousand such words of the C++ runtime nearly all lead to functions of its own. To read their names takes longer
        // than all else that is asked of a word.
        if word.own().is_some_and(|own| !known.may_be_at(own)) {
            return None;
        }
        self.lookup(known.row_of(word.name())?, object)
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

    /// For each object whether it belongs to the server: it is the executable, or it calls or contains functions of
    /// the engine or the server.
    fn servers(&self) -> Vec<bool> {
        let mut servers = vec![false; self.objects.len()];
        if let Some(executable) = servers.first_mut() {
            *executable = true;
        }
        let defined = self
            .definitions
            .iter()
            .map(|definition| (definition.object, definition.row));
        let imported = self
            .imports
            .iter()
            .map(|import| (import.object, import.row));
        for (object, row) in defined.chain(imported) {
            servers[object] |= ROWS[row].is_engines();
        }
        servers
    }

    fn choose(&mut self) {
        let servers = self.servers();
        // Calls that a runtime makes of itself are not the server's.
        let definitions = &self.definitions;
        self.imports.retain(|import| {
            definitions[import.definition].object != import.object || servers[import.object]
        });
        // Of each definition: words that lead to it, and those of the server's objects among them.
        let mut words = vec![(0_u32, 0_u32); self.definitions.len()];
        for import in &self.imports {
            let (all, of_server) = &mut words[import.definition];
            *all += 1;
            *of_server += u32::from(servers[import.object]);
        }
        let weight = |definition: usize| {
            let (all, of_server) = words[definition];
            u64::from(all) + 1000 * u64::from(of_server)
        };
        let mut behind = 0;
        for (row, entry) in ROWS.iter().enumerate() {
            // They stand in the order of their rows.
            let first = behind;
            let is_of_row = |definition: &&Definition| definition.row == row;
            behind += self.definitions[first..]
                .iter()
                .take_while(is_of_row)
                .count();
            let candidates = first..behind;
            // On a tie the first, which the dynamic linker would choose.
            let chosen = candidates.clone().rev().max_by_key(|index| weight(*index));
            self.chosen.push(chosen);
            let Some(chosen) = chosen else {
                continue;
            };
            let others = candidates.filter(|index| *index != chosen);
            entry.places.set_words(Counts {
                found: words[chosen].0,
                strays: others.map(|index| words[index].1).sum(),
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
            definitions
                .any(|definition| definition.object == object && ROWS[definition.row].is_servers())
        };
        let of_name = self.imports.iter().filter(move |import| {
            let definer = self.definitions[import.definition].object;
            ROWS[import.row].name == name && (import.object != definer || has_server(definer))
        });
        of_name.map(|import| import.object)
    }

    /// Whether each object that calls `caller` also calls a function of a `wanted` row, and
    /// only through words that we patch. `None` if no object calls `caller`.
    pub(in crate::attach) fn is_called_by_callers_of(
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
    pub(in crate::attach) fn is_called_by_executable(&self, name: &str) -> bool {
        self.callers(name).any(|object| object == 0)
    }

    /// The function `name` in the object that defines the row's function.
    pub(in crate::attach) fn beside(&self, row: &str, name: &CStr) -> Option<usize> {
        let row = ROWS.iter().position(|other| other.name == row)?;
        let object = self.definitions[self.chosen[row]?].object;
        match self.objects[object].defined(name, gnu_hash(name))? {
            Defined::At(address) => Some(address),
            Defined::Chosen | Defined::Untyped => None,
        }
    }
}
