//! A copy of a real llama-server whose own (C++) functions cannot be hooked.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::{Error, Result, engine::repository, llama_server};

/// The functions that the hook would hook, with mangled names.
const OWN_FUNCTIONS: [&str; 2] = [
    "_ZN12server_queue10get_new_idEv",
    "_ZN19server_context_impl21launch_slot_with_taskER11server_slotO11server_task",
];
/// The library of Debian's package that contains these functions.
const LIBRARY: &str = "libllama-server-impl.so";

/// Why the functions cannot be hooked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// The functions have no names, as in a stripped executable, and as everywhere on macOS.
    ///
    /// The copy has other names and `STV_HIDDEN` in the dynamic symbol table. So the dynamic linker
    /// binds the library's own calls to its own functions without a look-up by name, and `dlsym` finds
    /// none of them.
    Nameless,
}

/// Makes such a copy of [`llama_server`] below `target/`. `None`: that server is not built like
/// Debian's.
///
/// # Errors
/// If the copy cannot be made.
pub fn unseen_server(why: Unseen) -> Result<Option<PathBuf>> {
    let server = llama_server();
    let (Some(folder), Some(name)) = (server.parent(), server.file_name()) else {
        return Ok(None);
    };
    let Ok(state) = fs::metadata(folder.join(LIBRARY)) else {
        return Ok(None);
    };
    let age = state.modified()?.duration_since(UNIX_EPOCH);
    let version = age.map_or(0, |age| age.as_millis()) ^ u128::from(state.len());
    let parent = repository().join("target/testbed");
    let home = parent.join(format!("{why:?}-{version}").to_lowercase());
    if !home.is_dir() {
        fs::create_dir_all(&parent)?;
        let new = tempfile::tempdir_in(&parent)?;
        copy(folder, new.path(), why)?;
        // Another test may have made the same copy meanwhile.
        if fs::rename(new.path(), &home).is_ok() {
            let _ = new.keep();
        }
    }
    Ok(Some(home.join(name)))
}

fn copy(from: &Path, to: &Path, why: Unseen) -> Result<()> {
    for file in fs::read_dir(from)? {
        let file = file?;
        let (old, new) = (file.path(), to.join(file.file_name()));
        if file.file_name() == LIBRARY {
            let mut bytes = fs::read(&old)?;
            let done = match why {
                Unseen::Nameless => hide(&mut bytes) == Some(OWN_FUNCTIONS.len()),
            };
            if !done {
                let path = old.display();
                return Err(Error::new(format!("{path} is not as expected")));
            }
            fs::write(new, bytes)?;
        } else if fs::metadata(&old)?.is_file() && fs::hard_link(&old, &new).is_err() {
            fs::copy(old, new)?;
        }
    }
    Ok(())
}

/// Hides the functions in a 64-bit little-endian ELF file and renames them. Returns how many were
/// hidden. `None`: the file is not of this kind.
fn hide(file: &mut [u8]) -> Option<usize> {
    const DYNAMIC_SYMBOLS: usize = 11;
    const HIDDEN: u8 = 2;
    let mut hidden = 0;
    for [start, length, strings] in sections(file, DYNAMIC_SYMBOLS)? {
        for symbol in (start..start + length).step_by(24) {
            let at = strings + number(file, symbol, 4)?;
            let name = file.get(at..)?;
            let end = name.iter().position(|byte| *byte == 0)?;
            let mut own = OWN_FUNCTIONS.iter();
            if own.any(|own| own.as_bytes() == &name[..end]) {
                *file.get_mut(symbol + 5)? |= HIDDEN;
                *file.get_mut(at)? = b'-';
                hidden += 1;
            }
        }
    }
    Some(hidden)
}

/// The offset and length of each section of a kind, and the offset of its string table.
fn sections(file: &[u8], kind: usize) -> Option<Vec<[usize; 3]>> {
    let (table, size) = (number(file, 0x28, 8)?, number(file, 0x3a, 2)?);
    let count = number(file, 0x3c, 2)?;
    let header = |index: usize| table + index * size;
    let of_kind = (0..count)
        .map(header)
        .filter(|header| number(file, header + 4, 4) == Some(kind));
    let extent = |at: usize| {
        let strings = header(number(file, at + 40, 4)?);
        Some([
            number(file, at + 24, 8)?,
            number(file, at + 32, 8)?,
            number(file, strings + 24, 8)?,
        ])
    };
    of_kind.map(extent).collect()
}

fn number(file: &[u8], at: usize, size: usize) -> Option<usize> {
    let bytes = file.get(at..at + size)?;
    let number = |all: usize, byte: &u8| all << 8 | usize::from(*byte);
    Some(bytes.iter().rev().fold(0, number))
}
