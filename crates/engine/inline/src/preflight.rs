//! Decides from its code whether a function can be hooked. Nothing is changed, and the code
//! may come from a file or from memory.
//!
//! The whole function is decoded, because a branch anywhere in it may lead back to
//! the bytes that the jump displaces. Such a branch was seen to crash, and so was a `call` that was moved.

// Pure, and so tested on any machine.
#[cfg(any(target_arch = "aarch64", test))]
mod aarch64;
mod code;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as machine;
#[cfg(target_arch = "x86_64")]
use x86_64 as machine;

pub use code::{Code, Displaced, Extent};

use std::fs::File;
use std::path::Path;

use contextpilot_inspect::elf::{Elf, Entry, Source};

use crate::Refusal;

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
