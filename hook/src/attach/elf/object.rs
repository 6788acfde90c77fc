//! A loaded object: the executable or a library, and where its tables are.

use std::ffi::{CStr, OsStr, c_char};
use std::ops::{ControlFlow, Range, RangeInclusive};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::slice;
use std::sync::atomic::AtomicUsize;

use contextpilot_inline::{Writable, visit_loaded};

/// A loaded object: the executable or a library. Objects that were loaded with the
/// process are never unloaded. Objects that were loaded later are used during one call only.
pub(in crate::attach) struct Object {
    /// What to add to an address in the file to get the address in memory.
    pub(super) bias: usize,
    /// Its range of addresses in memory.
    pub(super) extent: Range<usize>,
    /// The dynamic linker's name for it, which stays as long as the object.
    file: *const c_char,
    /// The pages that the dynamic linker makes read-only after relocation.
    relro: Range<usize>,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    /// `DT_GNU_HASH`; null if there is none.
    pub(super) hash: *const u32,
    /// `DT_HASH`, the older kind of table; null if there is none.
    pub(super) older_hash: *const u32,
    /// `DT_JMPREL`, and `DT_RELA` without the relocations that name no symbol.
    pub(super) relocations: [Table; 2],
    /// Linked with `-z now`: the dynamic linker binds all calls when it loads the object, and none at the first call.
    pub(super) binds_now: bool,
    /// Linked with `-Bsymbolic`: finds its own functions before those of other objects.
    pub(in crate::attach) symbolic: bool,
}

/// The address of a table of relocations, and its length in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Table {
    pub(super) address: usize,
    pub(super) size: usize,
}

impl Table {
    fn skip(&mut self, entries: usize) {
        let skipped = entries.saturating_mul(size_of::<Relocation>());
        let skipped = skipped.min(self.size);
        self.address = self.address.wrapping_add(skipped);
        self.size -= skipped;
    }
}

/// `Elf64_Rela`
#[repr(C)]
pub(super) struct Relocation {
    pub(super) offset: u64,
    pub(super) info: u64,
    pub(super) addend: i64,
}

/// `Elf64_Dyn`
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
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
const DT_BIND_NOW: i64 = 24;
const DT_FLAGS: i64 = 30;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_RELACOUNT: i64 = 0x6fff_fff9;
const DT_FLAGS_1: i64 = 0x6fff_fffb;
const DF_SYMBOLIC: u64 = 2;
const DF_BIND_NOW: u64 = 8;
const DF_1_NOW: u64 = 1;

/// All objects in the dynamic linker's order: the executable, preloaded libraries, needed libraries,
/// and those that were loaded later.
pub(in crate::attach) fn objects() -> Vec<Object> {
    let mut objects = Vec::new();
    visit_objects(|object| objects.push(object));
    objects
}

/// Whether these are all objects, and each function that one of them exports is [found](Object::defined) in its tables.
pub(in crate::attach) fn are_all(objects: &[Object]) -> bool {
    let mut count = 0;
    visit_loaded(|_| {
        count += 1;
        ControlFlow::Continue(())
    });
    count == objects.len() && objects.iter().all(Object::has_hash)
}

/// As [`objects`], one after the other. None is unloaded meanwhile. `work` must not panic, and must not load
/// or look up anything with the dynamic linker.
pub(in crate::attach) fn visit_objects(mut work: impl FnMut(Object)) {
    visit_loaded(|info| {
        // SAFETY: the object is loaded.
        if let Some(object) = unsafe { Object::new(info) } {
            work(object);
        }
        ControlFlow::Continue(())
    });
}

/// How many times an object was loaded or unloaded so far.
#[derive(Clone, Copy, Default)]
pub(in crate::attach) struct Changes {
    loaded: u64,
    pub(in crate::attach) unloaded: u64,
}

impl Changes {
    pub(in crate::attach) fn sum(self) -> u64 {
        self.loaded.wrapping_add(self.unloaded)
    }
}

/// The changes so far.
pub(in crate::attach) fn changes() -> Changes {
    let mut changes = Changes::default();
    visit_loaded(|info| {
        changes.loaded = info.dlpi_adds;
        changes.unloaded = info.dlpi_subs;
        ControlFlow::Break(())
    });
    changes
}

/// The executable.
pub(in crate::attach) fn program() -> Option<Object> {
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
            file: info.dlpi_name,
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
            binds_now: false,
            symbolic: false,
            extent,
        };
        let mut relative = 0;
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
                DT_RELACOUNT => relative = entry.value as usize,
                DT_SYMBOLIC => object.symbolic = true,
                DT_BIND_NOW => object.binds_now = true,
                DT_FLAGS => {
                    object.symbolic |= entry.value & DF_SYMBOLIC != 0;
                    object.binds_now |= entry.value & DF_BIND_NOW != 0;
                }
                DT_FLAGS_1 => object.binds_now |= entry.value & DF_1_NOW != 0,
                DT_PLTREL if entry.value != DT_RELA as u64 => return None,
                _ => {}
            }
            // SAFETY: this entry was not the last, so there is another one.
            at = unsafe { at.add(1) };
        }
        // They are most of all relocations, and come first.
        object.relocations[1].skip(relative);
        (!object.symbols.is_null() && !object.names.is_null()).then_some(object)
    }

    /// Whether its functions are found by name.
    pub(super) fn has_hash(&self) -> bool {
        !self.hash.is_null() || !self.older_hash.is_null()
    }

    /// Identifies the object among all loaded objects.
    pub(in crate::attach) fn key(&self) -> usize {
        self.extent.start
    }

    /// Its file, by the name under which it was loaded. Empty for the executable.
    pub(in crate::attach) fn file(&self) -> PathBuf {
        if self.file.is_null() {
            return PathBuf::new();
        }
        // SAFETY: a C string that lives as long as the object.
        let name = unsafe { CStr::from_ptr(self.file) };
        OsStr::from_bytes(name.to_bytes()).into()
    }

    #[inline]
    pub(in crate::attach) fn contains(&self, address: usize) -> bool {
        self.extent.contains(&address)
    }

    /// Whether the dynamic linker has relocated it: at the end of that, it makes a part read-only. `writable` is
    /// of now: read within [`visit_objects`]. An object without such a part counts as ready.
    pub(in crate::attach) fn is_ready(&self, writable: &Writable) -> bool {
        self.relro.is_empty() || !writable.may_be(self.relro.start)
    }

    /// The pages with these words that the dynamic linker made read-only after relocation.
    pub(in crate::attach) fn relro_with(&self, words: RangeInclusive<usize>) -> Range<usize> {
        let end = down_to_page(*words.end()).saturating_add(page_size());
        down_to_page(*words.start())..end.min(self.relro.end)
    }

    pub(in crate::attach) fn is_relro(&self, word: &AtomicUsize) -> bool {
        self.relro.contains(&std::ptr::from_ref(word).addr())
    }

    /// The address in memory. The dynamic linker has replaced some of the file's addresses by addresses
    /// in memory, but not all.
    fn address(&self, value: usize) -> usize {
        if self.contains(value) {
            value
        } else {
            self.bias.wrapping_add(value)
        }
    }

    /// The symbol of this number.
    ///
    /// # Safety
    /// The object has a symbol of this number.
    pub(super) unsafe fn symbol(&self, number: u32) -> &libc::Elf64_Sym {
        // SAFETY: the caller's promise.
        let symbol = unsafe { self.symbols.add(number as usize) };
        // SAFETY: the table is mapped as long as the object is, and no code changes it.
        unsafe { &*symbol }
    }

    /// The symbol's name.
    ///
    /// # Safety
    /// It is one of the object's symbols.
    pub(super) unsafe fn name(&self, symbol: &libc::Elf64_Sym) -> &CStr {
        // SAFETY: the symbol's name is in the object's table of names.
        let name = unsafe { self.names.add(symbol.st_name as usize) };
        // SAFETY: names in the table end with a zero byte.
        unsafe { CStr::from_ptr(name) }
    }
}

fn page_size() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The start of the page that the address lies in.
fn down_to_page(address: usize) -> usize {
    address & !(page_size() - 1)
}
