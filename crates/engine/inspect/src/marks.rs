//! Whether a file has llama.cpp in it, whatever became of its symbols: by texts that each build has.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use memchr::memmem::Finder;

use crate::Error;
use crate::elf::Source;

/// `llama_decode` says the first one when it fails (since 2023); the second one is a key in each model's file. Nothing
/// else in a program that only calls llama.cpp has both. They stand here backwards: else this file would be taken for one.
const BACKWARDS: [&str; 2] = [" = ter ,edoced ot deliaf", "erutcetihcra.lareneg"];

/// Why a program may lack functions of the llama.cpp in it, and what keeps them, as the end of a message.
pub const REMOVED: &str = "--gc-sections removes what a program does not call; this line of a Rust program's build.rs \
                           keeps it: println!(\"cargo:rustc-link-arg=-Wl,--export-dynamic-symbol=llama_*\");";

/// The most bytes of constants that are read of a file.
const MOST: u64 = 128 << 20;

/// In bytes.
const CHUNK: usize = 1 << 20;

/// Whether the constants of this ELF file have the texts of a llama.cpp.
///
/// # Errors
/// It cannot be read, or is no ELF file of 64 bits.
pub fn holds_engine(path: &Path) -> Result<bool, Error> {
    let source = Source::new(File::open(path)?);
    let mut constants = source.elf()?.constants();
    // Linkers put constants beside code, or apart from it.
    constants.sort_unstable_by_key(|constants| constants.has_code);
    let marks = BACKWARDS.map(|text| text.bytes().rev().collect::<Vec<u8>>());
    let finders = marks.each_ref().map(Finder::new);
    let mut found = [false; BACKWARDS.len()];
    let (mut file, mut left) = (File::open(path)?, MOST);
    let overlap = marks.iter().map(Vec::len).max().unwrap_or_default();
    let mut bytes = Vec::new();
    for part in constants {
        file.seek(SeekFrom::Start(part.offset))?;
        let mut rest = (&mut file).take(part.size.min(left));
        left -= rest.limit();
        bytes.clear();
        loop {
            // What may be the beginning of a text stays.
            bytes.drain(..bytes.len().saturating_sub(overlap));
            let read = (&mut rest).take(CHUNK as u64).read_to_end(&mut bytes)?;
            for (found, finder) in found.iter_mut().zip(&finders) {
                *found = *found || finder.find(&bytes).is_some();
            }
            if found == [true; BACKWARDS.len()] {
                return Ok(true);
            }
            if read == 0 {
                break;
            }
        }
    }
    Ok(false)
}
