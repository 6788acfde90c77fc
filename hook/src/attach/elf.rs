//! Reads from memory what the dynamic linker has loaded: which functions an object defines, and
//! through which words (GOT entries, and tables of functions) it calls functions of other objects.
//!
//! This module opens and changes nothing. elf(5) and the processor supplements of the System V ABI
//! describe the structures. It runs in a constructor or later, so the dynamic linker has finished all
//! relocations.

use std::ffi::{CStr, c_char};
use std::ops::{ControlFlow, Range};
use std::slice;
use std::sync::atomic::AtomicUsize;

use contextpilot_inline::visit_loaded;

/// A loaded object: the executable or a library. Objects that were loaded with the
/// process are never unloaded. Objects that were loaded later are used during one call only.
pub(super) struct Object {
    /// What to add to an address in the file to get the address in memory.
    bias: usize,
    /// Its range of addresses in memory.
    extent: Range<usize>,
    /// The pages that the dynamic linker makes read-only after relocation.
    relro: Range<usize>,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    /// `DT_GNU_HASH`; null if there is none.
    hash: *const u32,
    /// `DT_HASH`, the older kind of table; null if there is none.
    older_hash: *const u32,
    /// `DT_JMPREL` and `DT_RELA`.
    relocations: [Table; 2],
    /// Linked with `-Bsymbolic`: finds its own functions before those of other objects.
    pub(super) symbolic: bool,
}

/// The address of a table of relocations, and its length in bytes.
#[derive(Clone, Copy, Default)]
struct Table {
    address: usize,
    size: usize,
}

/// A word that holds, or will hold, the address of a function of some object.
pub(super) struct Word<'a> {
    pub(super) at: &'a AtomicUsize,
    /// Lazy binding: the dynamic linker may fill in the word at the first call, and until then it
    /// points back into the object.
    pub(super) may_be_lazy: bool,
    object: &'a Object,
    symbol: &'a libc::Elf64_Sym,
}

impl Word<'_> {
    /// The function's name.
    pub(super) fn name(&self) -> &CStr {
        // SAFETY: the symbol is one of the object's.
        unsafe { self.object.name(self.symbol) }
    }
}

/// `Elf64_Dyn`
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// `Elf64_Rela`
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_SYMBOLIC: i64 = 16;
const DT_PLTREL: i64 = 20;
const DT_JMPREL: i64 = 23;
const DT_FLAGS: i64 = 30;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DF_SYMBOLIC: u64 = 2;

/// `JUMP_SLOT`: the only kind of relocation that may be lazy.
const JUMP_SLOT: u32 = if cfg!(target_arch = "aarch64") {
    1026
} else {
    7
};

/// The kinds of relocation that hold a function's address: `JUMP_SLOT`, `GLOB_DAT`, and the
/// absolute address in a table of functions (`R_X86_64_64`, `R_AARCH64_ABS64`).
const CALLS: [u32; 3] = if cfg!(target_arch = "aarch64") {
    [JUMP_SLOT, 1025, 257]
} else {
    [JUMP_SLOT, 6, 1]
};

const STV_INTERNAL: u8 = 1;
const STV_HIDDEN: u8 = 2;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// A function that an object defines.
pub(super) enum Defined {
    /// At this address.
    At(usize),
    /// At an unknown address: a resolver of the object (IFUNC) chose one of several implementations.
    Chosen,
}

/// All objects in the dynamic linker's order: the executable, preloaded libraries, needed libraries,
/// and those that were loaded later.
pub(super) fn objects() -> Vec<Object> {
    let mut objects = Vec::new();
    visit_loaded(|info| {
        // SAFETY: the object is loaded.
        objects.extend(unsafe { Object::new(info) });
        ControlFlow::Continue(())
    });
    objects
}

/// The executable.
pub(super) fn program() -> Option<Object> {
    let mut program = None;
    visit_loaded(|info| {
        // SAFETY: the object is loaded.
        program = unsafe { Object::new(info) };
        ControlFlow::Break(())
    });
    program
}

impl Object {
    /// `None` if it lacks the usual tables.
    ///
    /// # Safety
    /// `info` describes a loaded object.
    unsafe fn new(info: &libc::dl_phdr_info) -> Option<Self> {
        if info.dlpi_phdr.is_null() {
            return None;
        }
        let bias = info.dlpi_addr as usize;
        // SAFETY: the program headers are mapped, and `dlpi_phnum` is their number.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let range = |header: &libc::Elf64_Phdr| {
            let start = bias.wrapping_add(header.p_vaddr as usize);
            start..start.wrapping_add(header.p_memsz as usize)
        };
        let of = |kind| headers.iter().filter(move |header| header.p_type == kind);
        let extent = of(libc::PT_LOAD)
            .map(range)
            .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))?;
        let mut object = Self {
            bias,
            relro: of(libc::PT_GNU_RELRO)
                .map(range)
                .map(|part| down_to_page(part.start)..down_to_page(part.end))
                .next()
                .unwrap_or(0..0),
            symbols: std::ptr::null(),
            names: std::ptr::null(),
            hash: std::ptr::null(),
            older_hash: std::ptr::null(),
            relocations: [Table::default(); 2],
            symbolic: false,
            extent,
        };
        let mut at = range(of(libc::PT_DYNAMIC).next()?).start as *const Dynamic;
        loop {
            // SAFETY: within the dynamic section, which ends with the tag that ends this loop.
            let entry = unsafe { &*at };
            let address = object.address(entry.value as usize);
            match entry.tag {
                DT_NULL => break,
                DT_SYMTAB => object.symbols = address as *const libc::Elf64_Sym,
                DT_STRTAB => object.names = address as *const c_char,
                DT_GNU_HASH => object.hash = address as *const u32,
                DT_HASH => object.older_hash = address as *const u32,
                DT_JMPREL => object.relocations[0].address = address,
                DT_PLTRELSZ => object.relocations[0].size = entry.value as usize,
                DT_RELA => object.relocations[1].address = address,
                DT_RELASZ => object.relocations[1].size = entry.value as usize,
                DT_SYMBOLIC => object.symbolic = true,
                DT_FLAGS => object.symbolic |= entry.value & DF_SYMBOLIC != 0,
                DT_PLTREL if entry.value != DT_RELA as u64 => return None,
                _ => {}
            }
            // SAFETY: this entry was not the last, so there is another one.
            at = unsafe { at.add(1) };
        }
        (!object.symbols.is_null() && !object.names.is_null()).then_some(object)
    }

    /// Identifies the object among all loaded objects.
    pub(super) fn key(&self) -> usize {
        self.extent.start
    }

    pub(super) fn contains(&self, address: usize) -> bool {
        self.extent.contains(&address)
    }

    pub(super) fn is_relro(&self, word: &AtomicUsize) -> bool {
        self.relro.contains(&std::ptr::from_ref(word).addr())
    }

    /// The address in memory. The dynamic linker has replaced some of the file's addresses by addresses
    /// in memory, but not all.
    fn address(&self, value: usize) -> usize {
        match self.contains(value) {
            true => value,
            false => self.bias.wrapping_add(value),
        }
    }

    /// The function of this name that the object exports. `hash` is [`gnu_hash`] of the name.
    pub(super) fn defined(&self, name: &CStr, hash: u32) -> Option<Defined> {
        if self.hash.is_null() {
            return self.defined_by_older(name);
        }
        const BITS: u32 = u64::BITS;
        // SAFETY: the header of a hash table: number of buckets, first symbol, words of the filter, shift.
        let [buckets, first, words, shift] = unsafe { *self.hash.cast::<[u32; 4]>() };
        if buckets == 0 || words == 0 {
            return None;
        }
        // SAFETY: the header has four words; the filter follows.
        let filter = unsafe { self.hash.add(4) }.cast::<u64>();
        let at = (hash / BITS) & (words - 1);
        // SAFETY: the number of words is a power of two, and the index is reduced to it.
        let word = unsafe { element(filter, at) };
        let wanted = 1_u64 << (hash % BITS) | 1_u64 << ((hash >> (shift & 31)) % BITS);
        if word & wanted != wanted {
            return None;
        }
        // SAFETY: the buckets follow the filter, the chains the buckets.
        let bucket = unsafe { filter.add(words as usize) }.cast::<u32>();
        // SAFETY: as above.
        let chains = unsafe { bucket.add(buckets as usize) };
        // SAFETY: one of the buckets.
        let mut index = unsafe { element(bucket, hash % buckets) };
        if index < first {
            return None;
        }
        loop {
            // SAFETY: each symbol from the first on has a word in the chains; the last word of a
            // chain is odd.
            let chained = unsafe { element(chains, index - first) };
            if chained | 1 == hash | 1 {
                // SAFETY: the table has a symbol for each word of the chains.
                let symbol = unsafe { self.symbol(index) };
                // SAFETY: one of the object's symbols.
                if unsafe { self.name(symbol) } == name {
                    return self.definition(symbol);
                }
            }
            if chained & 1 == 1 {
                return None;
            }
            index += 1;
        }
    }

    /// The same with the older kind of table.
    fn defined_by_older(&self, name: &CStr) -> Option<Defined> {
        if self.older_hash.is_null() {
            return None;
        }
        // SAFETY: the header of a hash table: number of buckets, number of chained symbols.
        let [buckets, count] = unsafe { *self.older_hash.cast::<[u32; 2]>() };
        if buckets == 0 {
            return None;
        }
        // SAFETY: the buckets follow the header, the chains the buckets.
        let bucket = unsafe { self.older_hash.add(2) };
        // SAFETY: as above.
        let chains = unsafe { bucket.add(buckets as usize) };
        // SAFETY: one of the buckets.
        let mut index = unsafe { element(bucket, sysv_hash(name) % buckets) };
        while index != 0 && index < count {
            // SAFETY: the table has a symbol for each element of the chains.
            let symbol = unsafe { self.symbol(index) };
            // SAFETY: one of the object's symbols.
            if unsafe { self.name(symbol) } == name {
                return self.definition(symbol);
            }
            // SAFETY: one of the chains' elements.
            index = unsafe { element(chains, index) };
        }
        None
    }

    fn definition(&self, symbol: &libc::Elf64_Sym) -> Option<Defined> {
        let is_offered = !matches!(symbol.st_other & 3, STV_INTERNAL | STV_HIDDEN);
        match symbol.st_info & 0xf {
            _ if symbol.st_shndx == 0 || !is_offered => None,
            STT_FUNC => Some(Defined::At(
                self.bias.wrapping_add(symbol.st_value as usize),
            )),
            STT_GNU_IFUNC => Some(Defined::Chosen),
            _ => None,
        }
    }

    /// Every word of the object that holds the address of a named function.
    pub(super) fn words(&self) -> impl Iterator<Item = Word<'_>> {
        self.relocations
            .into_iter()
            .flat_map(|table| self.relocations_in(table))
            .filter_map(|relocation| self.word(relocation))
    }

    fn relocations_in(&self, table: Table) -> &[Relocation] {
        let end = table.address.wrapping_add(table.size);
        let is_inside = self.contains(table.address) && end <= self.extent.end;
        match table.size / size_of::<Relocation>() {
            count if count > 0 && is_inside && end >= table.address => {
                // SAFETY: the table is mapped, and nobody changes it or takes it away.
                unsafe { slice::from_raw_parts(table.address as *const Relocation, count) }
            }
            _ => &[],
        }
    }

    fn word(&self, relocation: &Relocation) -> Option<Word<'_>> {
        let kind = relocation.info as u32;
        let symbol = (relocation.info >> 32) as u32;
        let at = self.bias.wrapping_add(relocation.offset as usize);
        let is_sound = self.contains(at) && at % align_of::<usize>() == 0;
        if !CALLS.contains(&kind) || symbol == 0 || relocation.addend != 0 || !is_sound {
            return None;
        }
        // SAFETY: the relocation's number is that of one of the object's symbols.
        let symbol = unsafe { self.symbol(symbol) };
        Some(Word {
            // SAFETY: the word of the relocation stays mapped as long as the
            // object. The dynamic linker may write to it too, in one piece.
            at: unsafe { &*(at as *const AtomicUsize) },
            may_be_lazy: kind == JUMP_SLOT,
            object: self,
            symbol,
        })
    }

    /// # Safety
    /// The object has a symbol of this number.
    unsafe fn symbol(&self, number: u32) -> &libc::Elf64_Sym {
        // SAFETY: the caller's promise.
        let symbol = unsafe { self.symbols.add(number as usize) };
        // SAFETY: the table is mapped as long as the object is, and nobody changes it.
        unsafe { &*symbol }
    }

    /// # Safety
    /// It is one of the object's symbols.
    unsafe fn name(&self, symbol: &libc::Elf64_Sym) -> &CStr {
        // SAFETY: the symbol's name is in the object's table of names.
        let name = unsafe { self.names.add(symbol.st_name as usize) };
        // SAFETY: names in the table end with a zero byte.
        unsafe { CStr::from_ptr(name) }
    }
}

/// # Safety
/// The table has more than `index` elements.
unsafe fn element<T: Copy>(table: *const T, index: u32) -> T {
    // SAFETY: the caller's promise.
    let element = unsafe { table.add(index as usize) };
    // SAFETY: as above.
    unsafe { *element }
}

/// The start of the page that the address lies in.
pub(super) fn down_to_page(address: usize) -> usize {
    // SAFETY: no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    address & !(size - 1)
}

/// The hash of `DT_GNU_HASH`.
pub(super) fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381_u32, |hash, &byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(byte))
    })
}

/// The hash of `DT_HASH`.
fn sysv_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(0_u32, |hash, &byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dlsym(name: &CStr) -> usize {
        // SAFETY: a C string.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr()
    }

    #[test]
    fn a_function_is_found_at_the_address_that_dlsym_returns() {
        let objects = objects();
        for name in [c"recv", c"accept4", c"shutdown"] {
            let mut found = objects
                .iter()
                .filter_map(|object| object.defined(name, gnu_hash(name)));
            let Some(Defined::At(address)) = found.next() else {
                panic!("{name:?} is a function of the C library's");
            };
            assert_eq!(address, dlsym(name));
        }
        let name = c"contextpilot_no_such_function";
        let mut all = objects.iter();
        assert!(all.all(|object| object.defined(name, gnu_hash(name)).is_none()));
    }

    #[test]
    fn a_word_holds_the_address_of_the_function_it_is_named_after() {
        let objects = objects();
        let program = &objects[0];
        // This call makes the test's executable have such a word.
        // SAFETY: no descriptor has this number, so the call only fails.
        assert_eq!(unsafe { libc::shutdown(-1, libc::SHUT_RD) }, -1);
        let words: Vec<Word<'_>> = program
            .words()
            .filter(|word| word.name() == c"shutdown")
            .collect();
        assert!(!words.is_empty());
        for word in words {
            let value = word.at.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(value, dlsym(c"shutdown"));
        }
    }
}
