//! Finding the libraries that a program needs, in the dynamic linker's order (ld.so(8)).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Machine;
use crate::elf::{Dynamic, Source};

/// Where libraries are looked for, besides what the files themselves say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// `LD_LIBRARY_PATH`, as the server will see it.
    pub library_path: Option<OsString>,
    /// What `ldconfig` wrote. Mostly `/etc/ld.so.cache`.
    pub cache: PathBuf,
}

impl Default for Search {
    /// Without a library path, and with the system's cache.
    fn default() -> Self {
        Self {
            library_path: None,
            cache: "/etc/ld.so.cache".into(),
        }
    }
}

/// A file whose needs are to be found, and the `DT_RPATH`s of those through which it was needed.
pub(crate) struct Seeker<'a> {
    /// For `$ORIGIN`: the folder of the file.
    pub(crate) origin: &'a Path,
    pub(crate) dynamic: &'a Dynamic,
    /// Folders of the `DT_RPATH`s of the files before it, nearest first.
    pub(crate) inherited: &'a [PathBuf],
}

pub(crate) struct Finder {
    machine: Machine,
    library_path: Vec<PathBuf>,
    cached: HashMap<OsString, Vec<PathBuf>>,
    defaults: Vec<PathBuf>,
}

impl Finder {
    pub(crate) fn new(search: &Search, machine: Machine, program: &Path) -> Self {
        let library_path = search.library_path.as_deref().unwrap_or_default();
        let triplet = match machine {
            Machine::X86_64 => "x86_64-linux-gnu",
            Machine::Aarch64 => "aarch64-linux-gnu",
            Machine::Other(..) => "",
        };
        let defaults = [
            format!("/lib/{triplet}"),
            format!("/usr/lib/{triplet}"),
            "/lib64".into(),
            "/usr/lib64".into(),
            "/lib".into(),
            "/usr/lib".into(),
        ];
        Self {
            machine,
            library_path: folders(library_path, b":;", program, machine),
            cached: std::fs::read(&search.cache)
                .ok()
                .and_then(|cache| parse_cache(&cache))
                .unwrap_or_default(),
            defaults: defaults.map(PathBuf::from).into(),
        }
    }

    /// The folders of a file's `DT_RPATH`, which its libraries inherit.
    pub(crate) fn rpath(&self, origin: &Path, dynamic: &Dynamic) -> Vec<PathBuf> {
        match (&dynamic.rpath, &dynamic.runpath) {
            (Some(rpath), None) => folders(rpath.as_ref(), b":", origin, self.machine),
            _ => Vec::new(),
        }
    }

    /// The file that `name` stands for when `seeker` needs it.
    pub(crate) fn find(&self, name: &str, seeker: &Seeker<'_>) -> Option<PathBuf> {
        if name.contains('/') {
            let path = PathBuf::from(substitute(name.as_ref(), seeker.origin, self.machine)?);
            return self.fits(&path).then_some(path);
        }
        let rpath = self.rpath(seeker.origin, seeker.dynamic);
        let runpath = match &seeker.dynamic.runpath {
            Some(runpath) => folders(runpath.as_ref(), b":", seeker.origin, self.machine),
            None => Vec::new(),
        };
        // A file with a DT_RUNPATH is searched for by that one alone.
        let inherited = match seeker.dynamic.runpath {
            Some(_) => &[],
            None => seeker.inherited,
        };
        let before = rpath
            .iter()
            .chain(inherited)
            .chain(&self.library_path)
            .chain(&runpath)
            .map(|folder| folder.join(name));
        let cached = self.cached.get(OsStr::new(name)).into_iter().flatten();
        let defaults = self.defaults.iter().map(|folder| folder.join(name));
        before
            .chain(cached.cloned())
            .chain(defaults)
            .find(|path| self.fits(path))
    }

    /// Files for another machine are passed over.
    fn fits(&self, path: &Path) -> bool {
        let Ok(file) = std::fs::File::open(path) else {
            return false;
        };
        let source = Source::new(file);
        source.elf().is_ok_and(|elf| elf.machine() == self.machine)
    }
}

fn folders(list: &OsStr, separators: &[u8], origin: &Path, machine: Machine) -> Vec<PathBuf> {
    if list.is_empty() {
        return Vec::new();
    }
    list.as_bytes()
        .split(|byte| separators.contains(byte))
        .filter_map(|folder| match folder {
            // An empty entry is the working directory.
            b"" => Some(PathBuf::from(".")),
            folder => substitute(OsStr::from_bytes(folder), origin, machine).map(PathBuf::from),
        })
        .collect()
}

/// Replaces `$ORIGIN`, `$LIB` and `$PLATFORM`. `None` where that cannot be done.
fn substitute(path: &OsStr, origin: &Path, machine: Machine) -> Option<OsString> {
    let Some(text) = path.to_str().filter(|text| text.contains('$')) else {
        return Some(path.to_owned());
    };
    // Debian's linker says lib/<triplet>, others lib64; both are searched by default anyway.
    let (lib, platform) = match machine {
        Machine::X86_64 => ("lib/x86_64-linux-gnu", "x86_64"),
        Machine::Aarch64 => ("lib/aarch64-linux-gnu", "aarch64"),
        Machine::Other(..) => ("lib", ""),
    };
    let mut text = text.to_owned();
    for (name, value) in [
        ("ORIGIN", origin.to_str()?),
        ("LIB", lib),
        ("PLATFORM", platform),
    ] {
        text = text
            .replace(&format!("${{{name}}}"), value)
            .replace(&format!("${name}"), value);
    }
    Some(text.into())
}

/// The format that glibc has written since 2.2 (`glibc-ld.so.cache1.1`), in our byte order; older
/// caches have it behind a part of their own.
fn parse_cache(cache: &[u8]) -> Option<HashMap<OsString, Vec<PathBuf>>> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    let start = cache
        .windows(MAGIC.len())
        .position(|window| window == MAGIC)?;
    let cache = &cache[start..];
    let number = |at: usize| -> Option<usize> {
        let bytes = cache.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes) as usize)
    };
    let text = |at: usize| {
        let rest = cache.get(at..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some(OsStr::from_bytes(&rest[..end]))
    };
    let mut found: HashMap<_, Vec<_>> = HashMap::new();
    let count = number(MAGIC.len())?.min(cache.len() / ENTRY);
    for entry in (0..count).map(|index| HEADER + index * ENTRY) {
        let (key, value) = (text(number(entry + 4)?)?, text(number(entry + 8)?)?);
        found.entry(key.to_owned()).or_default().push(value.into());
    }
    Some(found)
}

#[cfg(test)]
mod tests;
