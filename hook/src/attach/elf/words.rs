//! The words through which an object calls functions of other objects: GOT entries, and tables of
//! functions.

use std::ffi::CStr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::definitions::STT_FUNC;
use super::object::{Object, Relocation, Table};

/// A word that holds, or will hold, the address of a function of some object.
pub(in crate::attach) struct Word<'a> {
    pub(in crate::attach) at: &'a AtomicUsize,
    /// Lazy binding: the dynamic linker may fill in the word at the first call, and until then it
    /// points back into the object.
    pub(in crate::attach) may_be_lazy: bool,
    object: &'a Object,
    symbol: &'a libc::Elf64_Sym,
}

impl Word<'_> {
    /// The function's name.
    pub(in crate::attach) fn name(&self) -> &CStr {
        // SAFETY: the symbol is one of the object's.
        unsafe { self.object.name(self.symbol) }
    }

    /// The address of the object's own function of this name, which is [found](Object::defined) in its tables. `None`: there
    /// may be none.
    pub(in crate::attach) fn own(&self) -> Option<usize> {
        let symbol = self.symbol;
        let is_own = symbol.st_shndx != 0 && symbol.st_info & 0xf == STT_FUNC;
        let address = self.object.bias.wrapping_add(symbol.st_value as usize);
        (is_own && self.object.has_hash()).then_some(address)
    }
}

/// `JUMP_SLOT`: the only kind of relocation that may be lazy.
const JUMP_SLOT: u32 = if cfg!(target_arch = "aarch64") {
    1026
} else {
    7
};

/// The other kinds of relocation that hold a function's address: `GLOB_DAT`, and the
/// absolute address in a table of functions (`R_X86_64_64`, `R_AARCH64_ABS64`).
const GLOB_DAT: u32 = if cfg!(target_arch = "aarch64") {
    1025
} else {
    6
};
const ABSOLUTE: u32 = if cfg!(target_arch = "aarch64") {
    257
} else {
    1
};

impl Object {
    /// Every word of the object that holds the address of a named function.
    pub(in crate::attach) fn words(&self) -> impl Iterator<Item = Word<'_>> {
        self.words_with(|_, _| true)
    }

    /// The words of which `is_wanted` says so, by what a word holds now and by whether it may be lazy.
    pub(in crate::attach) fn words_with(
        &self,
        is_wanted: impl Fn(usize, bool) -> bool,
    ) -> impl Iterator<Item = Word<'_>> {
        self.relocations
            .into_iter()
            .flat_map(|table| self.relocations_in(table))
            .filter_map(move |relocation| self.word(relocation, &is_wanted))
    }

    fn relocations_in(&self, table: Table) -> &[Relocation] {
        let end = table.address.wrapping_add(table.size);
        let is_inside = self.contains(table.address) && end <= self.extent.end;
        match table.size / size_of::<Relocation>() {
            count if count > 0 && is_inside && end >= table.address => {
                // SAFETY: the table is mapped, and no code changes it or takes it away.
                unsafe { slice::from_raw_parts(table.address as *const Relocation, count) }
            }
            _ => &[],
        }
    }

    /// Inlined, and what sorts most out comes first: a server has some twenty thousand, which are all looked at when it starts.
    #[inline(always)]
    fn word(
        &self,
        relocation: &Relocation,
        is_wanted: impl Fn(usize, bool) -> bool,
    ) -> Option<Word<'_>> {
        let kind = relocation.info as u32;
        if kind != JUMP_SLOT && kind != GLOB_DAT && kind != ABSOLUTE {
            return None;
        }
        let at = self.bias.wrapping_add(relocation.offset as usize);
        if !self.contains(at) || at % align_of::<usize>() != 0 {
            return None;
        }
        // SAFETY: the word of the relocation stays mapped as long as the
        // object. The dynamic linker may write to it too, in one piece.
        let at = unsafe { &*(at as *const AtomicUsize) };
        let may_be_lazy = kind == JUMP_SLOT && !self.binds_now;
        let symbol = (relocation.info >> 32) as u32;
        if !is_wanted(at.load(Ordering::Relaxed), may_be_lazy)
            || symbol == 0
            || relocation.addend != 0
        {
            return None;
        }
        Some(Word {
            at,
            may_be_lazy,
            object: self,
            // SAFETY: the relocation's number is that of one of the object's symbols.
            symbol: unsafe { self.symbol(symbol) },
        })
    }
}
