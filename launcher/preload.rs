//! The value of the variable that makes the dynamic loader load the hook first.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::HookError;

/// The variable's value with `library` in front of what is there already.
///
/// In front, because the first library that defines a function is called. A value that
/// begins with `library` already is left as it is.
///
/// # Errors
/// A path that the loader would split or expand. There is no way to escape such characters.
pub(crate) fn with_library(
    library: &Path,
    existing: Option<&OsStr>,
) -> Result<OsString, HookError> {
    check(library)?;
    let path = library.as_os_str();
    let mut value = path.to_owned();
    let Some(existing) = existing.filter(|v| !v.is_empty()) else {
        return Ok(value);
    };
    let first = existing.as_bytes().split(|b| is_separator(*b)).next();
    if first == Some(path.as_bytes()) {
        return Ok(existing.to_owned());
    }
    value.push(":");
    value.push(existing);
    Ok(value)
}

/// Whether the variable can express this path.
///
/// # Errors
/// The loader would split or expand it.
pub(crate) fn check(library: &Path) -> Result<(), HookError> {
    match library
        .as_os_str()
        .as_bytes()
        .iter()
        .find(|b| is_special(**b))
    {
        None => Ok(()),
        Some(&byte) => Err(HookError::Path {
            path: library.to_owned(),
            byte,
        }),
    }
}

/// glibc separates at colons and spaces, musl at colons and any white space,
/// dyld at colons only.
fn is_separator(byte: u8) -> bool {
    byte == b':' || (!cfg!(target_os = "macos") && byte.is_ascii_whitespace())
}

/// Separators, and glibc's `$ORIGIN`, `$LIB`, `$PLATFORM`.
fn is_special(byte: u8) -> bool {
    is_separator(byte) || (!cfg!(target_os = "macos") && byte == b'$')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(existing: &str) -> OsString {
        with_library(Path::new("/c/hook.so"), Some(OsStr::new(existing))).unwrap()
    }

    #[test]
    fn the_library_is_put_in_front() {
        assert_eq!(
            with_library(Path::new("/c/hook.so"), None).unwrap(),
            "/c/hook.so"
        );
        assert_eq!(value(""), "/c/hook.so");
        assert_eq!(value("/a.so"), "/c/hook.so:/a.so");
        assert_eq!(value("/a.so /b.so"), "/c/hook.so:/a.so /b.so");
        assert_eq!(value("/a.so:/c/hook.so"), "/c/hook.so:/a.so:/c/hook.so");
    }

    #[test]
    fn a_library_that_is_in_front_already_is_not_added() {
        assert_eq!(value("/c/hook.so"), "/c/hook.so");
        assert_eq!(value("/c/hook.so:/a.so"), "/c/hook.so:/a.so");
        assert_eq!(value("/c/hook.so.1"), "/c/hook.so:/c/hook.so.1");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        assert_eq!(value("/c/hook.so /a.so"), "/c/hook.so /a.so");
        for path in ["/a b/x.so", "/a:b/x.so", "/$LIB/x.so", "/a\nb/x.so"] {
            let error = with_library(Path::new(path), None).unwrap_err().to_string();
            assert!(error.contains("cannot express"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
