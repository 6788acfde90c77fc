//! A real llama-server whose own functions nobody can see or hook, as in an executable that was
//! stripped, or anywhere on macOS: a copy in which their names are hidden.
//!
//! `STV_HIDDEN` in the dynamic symbol table does it: the dynamic linker then binds the library's
//! own calls to its own functions, and answers nobody who asks for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::{Error, Result, engine::repository, llama_server};

/// What the hook would hook, mangled.
const OWN_FUNCTIONS: [&str; 2] = [
    "_ZN12server_queue10get_new_idEv",
    "_ZN19server_context_impl21launch_slot_with_taskER11server_slotO11server_task",
];
/// What has them in Debian's package.
const LIBRARY: &str = "libllama-server-impl.so";

/// Such a copy of [`llama_server`], below `target/`. `None`: that one is not built like Debian's.
///
/// # Errors
/// It cannot be made.
pub fn unseen_server() -> Result<Option<PathBuf>> {
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
    let home = parent.join(format!("unseen-{version}"));
    if !home.is_dir() {
        fs::create_dir_all(&parent)?;
        let new = tempfile::tempdir_in(&parent)?;
        copy(folder, new.path())?;
        // Another test may have been faster.
        if fs::rename(new.path(), &home).is_ok() {
            let _ = new.keep();
        }
    }
    Ok(Some(home.join(name)))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for file in fs::read_dir(from)? {
        let file = file?;
        let (old, new) = (file.path(), to.join(file.file_name()));
        if file.file_name() == LIBRARY {
            let mut bytes = fs::read(&old)?;
            if hide(&mut bytes, &OWN_FUNCTIONS) != Some(OWN_FUNCTIONS.len()) {
                let path = old.display();
                return Err(Error::new(format!(
                    "{path} has not the functions to be hidden"
                )));
            }
            fs::write(new, bytes)?;
        } else if file.file_type()?.is_file() && fs::hard_link(&old, &new).is_err() {
            fs::copy(old, new)?;
        }
    }
    Ok(())
}

/// Hides names in a 64-bit little-endian ELF file; returns how many. `None`: it is no such file.
fn hide(file: &mut [u8], names: &[&str]) -> Option<usize> {
    const DYNAMIC_SYMBOLS: usize = 11;
    const HIDDEN: u8 = 2;
    let number = |file: &[u8], at: usize, size: usize| {
        let bytes = file.get(at..at + size)?;
        let number = |all: usize, byte: &u8| all << 8 | usize::from(*byte);
        Some(bytes.iter().rev().fold(0, number))
    };
    let (table, size) = (number(file, 0x28, 8)?, number(file, 0x3a, 2)?);
    let count = number(file, 0x3c, 2)?;
    let section = |index: usize| table + index * size;
    let mut hidden = 0;
    for index in 0..count {
        let header = section(index);
        if number(file, header + 4, 4)? != DYNAMIC_SYMBOLS {
            continue;
        }
        let strings = number(file, section(number(file, header + 40, 4)?) + 24, 8)?;
        let (start, length) = (number(file, header + 24, 8)?, number(file, header + 32, 8)?);
        for symbol in (start..start + length).step_by(24) {
            let name = file.get(strings + number(file, symbol, 4)?..)?;
            let end = name.iter().position(|byte| *byte == 0)?;
            if names.iter().any(|wanted| wanted.as_bytes() == &name[..end]) {
                *file.get_mut(symbol + 5)? |= HIDDEN;
                hidden += 1;
            }
        }
    }
    Some(hidden)
}
