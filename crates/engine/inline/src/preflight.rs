//! Decides from its code whether a function can be hooked. Nothing is changed, and the code
//! may come from a file or from memory.
//!
//! The whole function is decoded, because a branch anywhere in it may lead back to
//! the bytes that the jump displaces. Such a branch was seen to crash, and so was a `call` that was moved.

// Pure, and so tested on any machine.
#[cfg(any(target_arch = "aarch64", test))]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as machine;
#[cfg(target_arch = "x86_64")]
use x86_64 as machine;

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use contextpilot_inspect::elf::{Elf, Entry, Source};

use crate::Refusal;

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
    fn contains(&self, address: u64) -> bool {
        let within = |start: u64, size: u64| address.wrapping_sub(start) < size;
        within(self.address, self.size)
            || self.parts.iter().any(|(start, size)| within(*start, *size))
    }
}

/// The instructions that a jump at the function's beginning displaces.
///
/// # Errors
/// Why the function must be left alone.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn check(extent: &Extent, code: &impl Code) -> Result<Displaced, Refusal> {
    let bytes = code
        .bytes(extent.address, extent.size)
        .ok_or(Refusal::NotCode)?;
    let displaced = machine::displaced(extent, bytes)?;
    machine::check(extent, extent.address, bytes, &displaced.range, code)?;
    for (address, size) in &extent.parts {
        let bytes = code.bytes(*address, *size).ok_or(Refusal::NotCode)?;
        machine::check(extent, *address, bytes, &displaced.range, code)?;
    }
    Ok(displaced)
}

/// For each of `names` in a program that does not run, whether it can be hooked; `None` if
/// it is not a function of the program. Obstacles that exist only in a running process (a policy against
/// changing code, no free memory nearby) are not seen.
///
/// # Errors
/// Of the file.
pub fn of_file(
    path: &Path,
    names: &[&str],
) -> Result<Vec<Option<Result<(), Refusal>>>, contextpilot_inspect::Error> {
    let source = Source::new(File::open(path)?);
    let elf = source.elf()?;
    let functions = functions(&elf, names)?;
    let verdict = |extent: &Extent| check(extent, &elf).map(|_| ());
    Ok(functions
        .iter()
        .map(|extent| extent.as_ref().map(verdict))
        .collect())
}

/// How many bytes a function of this file writes of the structure that it returns in memory, up to the last one. `None`: the
/// file has no such function, or it does more than write. So far of x86-64 only.
///
/// # Errors
/// Of the file.
pub fn returned(path: &Path, name: &str) -> Result<Option<u64>, contextpilot_inspect::Error> {
    let source = Source::new(File::open(path)?);
    let elf = source.elf()?;
    let found = functions(&elf, &[name])?.into_iter().flatten().next();
    let code = found.and_then(|extent| elf.bytes(extent.address, extent.size));
    #[cfg(target_arch = "x86_64")]
    return Ok(code.and_then(machine::returned));
    #[cfg(not(target_arch = "x86_64"))]
    return Ok(code.and(None));
}

/// The location of each of `names` in the file, if it is a function there. In a stripped program only
/// exported functions are found.
pub(crate) fn functions(
    elf: &Elf<'_, File>,
    names: &[&str],
) -> Result<Vec<Option<Extent>>, contextpilot_inspect::Error> {
    let (symbols, variants) = elf.symbols_and_variants(names)?;
    let exports = elf.dynamic_symbols(names)?;
    let defined = |entry: &Entry| {
        entry
            .defined
            .filter(|symbol| symbol.is_function && symbol.address != 0)
    };
    let extent = |index: usize, name: &str| {
        let symbol = defined(&symbols[index]).or_else(|| defined(&exports[index]))?;
        let cold = variants[index]
            .iter()
            .filter(|(variant, _)| variant[name.len()..].starts_with(".cold"));
        Some(Extent {
            address: symbol.address,
            size: symbol.size,
            parts: cold.map(|(_, part)| (part.address, part.size)).collect(),
        })
    };
    Ok((0..)
        .zip(names)
        .map(|(index, name)| extent(index, name))
        .collect())
}

/// # Errors
/// Always an error: this machine's instructions are not supported.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn check(_: &Extent, _: &impl Code) -> Result<Displaced, Refusal> {
    Err(Refusal::Other("this machine is not supported".into()))
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
