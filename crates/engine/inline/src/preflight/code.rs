//! What is looked at: code by its address, a function in it, and what a jump at its beginning displaces.

use std::fs::File;
use std::ops::Range;

use contextpilot_inspect::elf::Elf;

/// Something to read code and tables from, by address.
pub trait Code {
    /// `size` bytes at `address`, or `None` if not all of them exist.
    fn bytes(&self, address: u64, size: u64) -> Option<&[u8]>;
}

/// A file, with the bytes that would be in memory before relocation.
impl Code for Elf<'_, File> {
    fn bytes(&self, address: u64, size: u64) -> Option<&[u8]> {
        Elf::bytes(self, address, size)
    }
}

/// Where the code of a function is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The address of its first instruction.
    pub address: u64,
    /// The size in bytes.
    pub size: u64,
    /// Address and size of what the compiler moved elsewhere (`name.cold`).
    pub parts: Vec<(u64, u64)>,
}

/// The instructions that a jump at a function's beginning displaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Displaced {
    /// The addresses of these instructions.
    pub range: Range<u64>,
    /// The last of them, at the first address, calls the function at the second one.
    pub call: Option<(u64, u64)>,
}

#[cfg(target_arch = "x86_64")]
impl Extent {
    pub(super) fn contains(&self, address: u64) -> bool {
        let within = |start: u64, size: u64| address.wrapping_sub(start) < size;
        within(self.address, self.size)
            || self.parts.iter().any(|(start, size)| within(*start, *size))
    }
}
