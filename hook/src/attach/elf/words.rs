//! The words through which an object calls functions of other objects: GOT entries, and tables of
//! functions.

use std::ffi::CStr;
use std::slice;
use std::sync::atomic::AtomicUsize;

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
}

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

impl Object {
    /// Every word of the object that holds the address of a named function.
    pub(in crate::attach) fn words(&self) -> impl Iterator<Item = Word<'_>> {
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
                // SAFETY: the table is mapped, and no code changes it or takes it away.
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
}
