//! Environment variables: the loader's, and reading them through a function that tests can replace.

use std::ffi::OsString;

/// The dynamic loader loads the libraries that this variable names before the program's own.
pub(crate) const PRELOAD: &str = if cfg!(target_os = "macos") {
    "DYLD_INSERT_LIBRARIES"
} else {
    "LD_PRELOAD"
};

/// Looks a variable up in this process's environment.
pub(crate) fn of_process(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// How the environment is looked up; tests bring their own.
pub(crate) trait Lookup: Fn(&str) -> Option<OsString> {
    /// The value, with empty as unset.
    fn non_empty(&self, name: &str) -> Option<OsString> {
        self(name).filter(|value| !value.is_empty())
    }

    /// The value as text, with empty as unset. What is not UTF-8 is replaced.
    fn text(&self, name: &str) -> Option<String> {
        let value = self.non_empty(name)?;
        Some(value.to_string_lossy().into_owned())
    }
}

impl<F: Fn(&str) -> Option<OsString>> Lookup for F {}
