//! An engine that was found in a program that is not a llama-server, and is not attached to yet.

use std::ffi::CString;
use std::path::PathBuf;
use std::time::Instant;

use super::elf::{Defined, gnu_hash, objects};
use super::hidden::{AS_EVER, is_module};
use super::inline::Inside;
use crate::base::environment;

/// An engine of this program.
pub(crate) struct Embedded {
    pub(super) inside: Inside,
    /// The key of its library; `None`: it is in the program.
    pub(super) library: Option<usize>,
    /// The file that contains it.
    pub(crate) file: PathBuf,
    /// When it was found.
    pub(super) since: Instant,
}

impl Embedded {
    /// The engine in the program itself, if there is one.
    pub(super) fn in_program() -> Option<Self> {
        let since = Instant::now();
        Some(Self {
            inside: Inside::with_engine()?,
            library: None,
            file: environment::program(),
            since,
        })
    }

    /// The engine in the library that this address lies in, whose file is this.
    ///
    /// # Errors
    /// Why it cannot be hooked, as the rest of a message.
    pub(super) fn in_library(address: usize, file: PathBuf) -> Result<Self, String> {
        let since = Instant::now();
        let shown = file.display();
        match Inside::in_library(address) {
            Ok(Some(inside)) => Ok(Self {
                inside: if is_module(&file) {
                    inside.with_members(exported_by(address))
                } else {
                    inside
                },
                library: Some(address),
                file,
                since,
            }),
            Ok(None) => Err(format!(
                "the functions of {shown} cannot be found; {AS_EVER}"
            )),
            Err(error) => Err(format!("{shown} cannot be hooked: {error}; {AS_EVER}")),
        }
    }
}

/// Whether the object with this key exports a function.
fn exported_by(key: usize) -> impl Fn(&str) -> bool {
    let object = objects().into_iter().find(|object| object.key() == key);
    move |name| {
        let name = CString::new(name).unwrap_or_default();
        let found = object
            .as_ref()
            .and_then(|object| object.defined(&name, gnu_hash(&name)));
        matches!(found, Some(Defined::At(_)))
    }
}
