//! Points what the process's libraries import to us: the words through which they call functions
//! of other libraries, filled in by the dynamic linker.
//!
//! For functions that are not to be exported (see the [table](crate::table)). Other processes are
//! left alone, and within this one everybody who does not import a function by its name.

use std::ffi::{CStr, c_char, c_void};
use std::ops::{ControlFlow, Range};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use contextpilot_inline::visit_loaded;

use crate::hooks::replacements;
use crate::original::redirected::ROWS;

/// Has the functions of the second table called through ours. True if each is imported by
/// somebody and now is.
///
/// # Safety
/// From the library's constructor only: nobody may be calling, and the dynamic linker is done.
pub(crate) unsafe fn redirect() -> bool {
    let mut search = Search {
        functions: Vec::new(),
        providers: 0,
    };
    for (row, replacement) in ROWS.iter().zip(replacements::redirected::REPLACEMENTS) {
        // Called by us from now on; not looked for with the others, where an object that was
        // preloaded before us would not be found.
        let Some(original) = row.slot.set_to_everybodys() else {
            return false;
        };
        search.functions.push(Function {
            name: row.slot.c_name(),
            original: original.addr(),
            replacement: (replacement.code)().addr(),
            redirected: 0,
        });
    }
    visit_loaded(|info| {
        search.providers += usize::from(is_provider(info));
        ControlFlow::Continue(())
    });
    visit_loaded(|info| {
        // SAFETY: the object is loaded, and stays so during the call.
        let Some(object) = (unsafe { Object::new(info) }) else {
            return ControlFlow::Continue(());
        };
        let has_them = |one: &Function| object.extent.contains(&one.original);
        if !search.functions.iter().any(has_them) {
            // SAFETY: the caller's promise.
            unsafe { object.redirect(&mut search) };
        }
        ControlFlow::Continue(())
    });
    search.functions.iter().all(|one| one.redirected > 0)
}

/// Whether a library's function, which is at this address, is called by its name. A library that
/// was linked with `-Bsymbolic-functions` calls its own directly, though it exports them.
pub(crate) fn is_called_by_name(name: &CStr, address: usize) -> bool {
    let (mut called, mut exported) = (false, false);
    visit_loaded(|info| {
        // SAFETY: the object is loaded, and stays so during the call.
        let Some(object) = (unsafe { Object::new(info) }) else {
            return ControlFlow::Continue(());
        };
        let own = object.extent.contains(&address);
        exported |= own;
        // SAFETY: it is loaded.
        called = !(own && object.symbolic) && unsafe { object.imports(name) };
        match called {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    // What is in no file is our way to a function that was hooked in its place.
    called || !exported
}

struct Search {
    functions: Vec<Function>,
    /// Objects that have the functions, as far as their names tell.
    providers: usize,
}

struct Function {
    name: &'static CStr,
    original: usize,
    replacement: usize,
    /// Imports that were pointed to the replacement.
    redirected: usize,
}

/// Whether it has the functions, as far as its name tells.
fn is_provider(info: &libc::dl_phdr_info) -> bool {
    if info.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: a path, ended by a zero.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"libssl"))
}

/// What is loaded: the executable or a library.
struct Object {
    /// What to add to an address of its file.
    bias: usize,
    extent: Range<usize>,
    /// Made read-only by the dynamic linker when it was done.
    sealed: Range<usize>,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    relocations: [Table; 2],
    /// Finds its own functions before those of all others.
    symbolic: bool,
}

/// Where relocations are, and how many bytes of them.
#[derive(Clone, Copy, Default)]
struct Table {
    address: usize,
    size: usize,
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
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_PLTREL: i64 = 20;
const DT_SYMBOLIC: i64 = 16;
const DT_JMPREL: i64 = 23;
const DT_FLAGS: i64 = 30;
const DF_SYMBOLIC: u64 = 2;

/// The kinds of relocation that hold the address of an imported function: `GLOB_DAT` and
/// `JUMP_SLOT`.
const IMPORTS: [u32; 2] = if cfg!(target_arch = "aarch64") {
    [1025, 1026]
} else {
    [6, 7]
};

impl Object {
    /// None if it imports nothing in the usual way.
    ///
    /// # Safety
    /// It describes an object that is loaded.
    unsafe fn new(info: &libc::dl_phdr_info) -> Option<Self> {
        if info.dlpi_phdr.is_null() {
            return None;
        }
        let bias = info.dlpi_addr as usize;
        // SAFETY: the program headers are mapped, as many as are told.
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
            sealed: of(libc::PT_GNU_RELRO).map(range).next().unwrap_or(0..0),
            symbols: std::ptr::null(),
            names: std::ptr::null(),
            relocations: [Table::default(); 2],
            symbolic: false,
            extent,
        };
        let mut at = range(of(libc::PT_DYNAMIC).next()?).start as *const Dynamic;
        loop {
            // SAFETY: within the dynamic section, which ends with the tag that we end at.
            let entry = unsafe { &*at };
            let address = object.address(entry.value as usize);
            match entry.tag {
                DT_NULL => break,
                DT_SYMTAB => object.symbols = address as *const libc::Elf64_Sym,
                DT_STRTAB => object.names = address as *const c_char,
                DT_JMPREL => object.relocations[0].address = address,
                DT_PLTRELSZ => object.relocations[0].size = entry.value as usize,
                DT_RELA => object.relocations[1].address = address,
                DT_RELASZ => object.relocations[1].size = entry.value as usize,
                DT_SYMBOLIC => object.symbolic = true,
                DT_FLAGS => object.symbolic |= entry.value & DF_SYMBOLIC != 0,
                DT_PLTREL if entry.value != DT_RELA as u64 => return None,
                _ => {}
            }
            // SAFETY: there is one more, as this was not the last.
            at = unsafe { at.add(1) };
        }
        (!object.symbols.is_null() && !object.names.is_null()).then_some(object)
    }

    /// The dynamic linker replaces addresses of the file by those in memory, but not everywhere.
    fn address(&self, value: usize) -> usize {
        match self.extent.contains(&value) {
            true => value,
            false => self.bias.wrapping_add(value),
        }
    }

    /// # Safety
    /// As for [`redirect`].
    unsafe fn redirect(&self, search: &mut Search) {
        for table in self.relocations {
            // SAFETY: the object is loaded.
            for import in unsafe { self.imports_in(table) } {
                // SAFETY: an entry of the table.
                unsafe { self.consider(import, search) };
            }
        }
    }

    /// Whether it asks for a function of this name.
    ///
    /// # Safety
    /// The object is loaded.
    unsafe fn imports(&self, name: &CStr) -> bool {
        self.relocations.into_iter().any(|table| {
            // SAFETY: the caller's promise.
            let mut imports = unsafe { self.imports_in(table) };
            // SAFETY: an entry of the table.
            imports.any(|import| unsafe { self.name_of(import) } == name)
        })
    }

    /// # Safety
    /// The object is loaded.
    unsafe fn imports_in(&self, table: Table) -> impl Iterator<Item = &Relocation> {
        let end = table.address.wrapping_add(table.size);
        let is_inside = self.extent.contains(&table.address) && end <= self.extent.end;
        let is_sound = is_inside && end >= table.address;
        let count = match is_sound {
            true => table.size / size_of::<Relocation>(),
            false => 0,
        };
        let entries = match count {
            0 => &[],
            // SAFETY: the table is mapped, and nobody changes it or takes it away.
            _ => unsafe { slice::from_raw_parts(table.address as *const Relocation, count) },
        };
        entries
            .iter()
            .filter(|entry| IMPORTS.contains(&(entry.info as u32)))
    }

    /// # Safety
    /// The object is loaded, and the relocation one of its own.
    unsafe fn name_of(&self, import: &Relocation) -> &CStr {
        // SAFETY: the relocation's number is that of one of the object's symbols.
        let symbol = unsafe { self.symbols.add((import.info >> 32) as usize) };
        // SAFETY: as above.
        let name = unsafe { (*symbol).st_name } as usize;
        // SAFETY: the symbol's name stands in the object's table of names.
        let name = unsafe { self.names.add(name) };
        // SAFETY: it is a text, ended by a zero.
        unsafe { CStr::from_ptr(name) }
    }

    /// # Safety
    /// As for [`redirect`]; the relocation is one of this object's.
    unsafe fn consider(&self, import: &Relocation, search: &mut Search) {
        let at = self.bias.wrapping_add(import.offset as usize);
        if !self.extent.contains(&at) || at % align_of::<usize>() != 0 {
            return;
        }
        // SAFETY: the word that the relocation is about; the dynamic linker may write to it, too.
        let word = unsafe { &*(at as *const AtomicUsize) };
        let now = word.load(Ordering::Relaxed);
        // A word that was not needed so far leads back into the object, to code that looks the
        // function up. With several providers it would not be certain which it finds.
        let is_lazy = self.extent.contains(&now) && search.providers == 1;
        if !is_lazy && search.functions.iter().all(|one| one.original != now) {
            return;
        }
        // SAFETY: the relocation is one of this object's.
        let name = unsafe { self.name_of(import) };
        let wanted = search.functions.iter_mut().find(|one| one.name == name);
        if let Some(function) = wanted.filter(|one| is_lazy || one.original == now) {
            if self.write(word, function.replacement) {
                function.redirected += 1;
            }
        }
    }

    fn write(&self, word: &AtomicUsize, value: usize) -> bool {
        let at: *const AtomicUsize = word;
        if !self.sealed.contains(&at.addr()) {
            word.store(value, Ordering::Relaxed);
            return true;
        }
        let protect = |protection| {
            // SAFETY: no preconditions.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            let start = (at.addr() & !(page - 1)) as *mut c_void;
            // SAFETY: a page of data that was written to while the object was loaded, and that
            // nobody uses at this moment.
            unsafe { libc::mprotect(start, page, protection) == 0 }
        };
        if !protect(libc::PROT_READ | libc::PROT_WRITE) {
            return false;
        }
        word.store(value, Ordering::Relaxed);
        // Left open, it would still work.
        protect(libc::PROT_READ);
        true
    }
}
