//! Finds the functions of a table in a program and the libraries that it needs.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::elf::{Dynamic, Elf, Entry, Source, Symbol};
use crate::engine::Build;
use crate::search::{Finder, Search, Seeker};
use crate::{Error, Format, Program};

/// The most libraries that are visited, more than any real program needs. Each is visited once.
const MOST_LIBRARIES: usize = 512;

/// What was found for a table of functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// In the order of the table.
    pub functions: Vec<(String, FunctionPlace)>,
    /// Everything that the program needs, in the order in which the dynamic linker searches it.
    pub libraries: Vec<Library>,
    /// Which llama.cpp it is, if its files tell.
    pub build: Option<Build>,
}

/// A library that is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// The name in `DT_NEEDED`.
    pub name: String,
    /// Its path; `None` if it was not found, or cannot be read.
    pub path: Option<PathBuf>,
}

/// Where a function is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FunctionPlace {
    /// Found by the dynamic linker: a preload that defines it is called instead.
    Dynamic {
        /// The library that has it; `None` where that was not found.
        exporter: Option<PathBuf>,
        /// Which calls go through the dynamic linker.
        calls: Calls,
    },
    /// Inside the program, called directly: to be hooked at its address.
    Inside(Symbol),
    /// In no file that was read.
    Missing {
        /// Copies or parts of it that the compiler made and that are there, while the function
        /// itself is not: it was inlined or specialised.
        variants: Vec<String>,
    },
}

/// Which files call an exported function through a GOT entry, which can be patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Another file imports it.
    Imported,
    /// Only the library that defines it, which calls even its own functions through GOT entries.
    FromItself,
    /// No file: it is not used, or its own library calls it directly (`-Bsymbolic`, hidden
    /// visibility).
    Unseen,
}

/// The functions, sorted by how they can be hooked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hooking {
    /// Functions to hook by patching GOT entries.
    pub interposed: Vec<Interposed>,
    /// Functions to hook by patching their first instructions, if these allow it.
    pub inline: Vec<Inline>,
    /// Functions that cannot be hooked.
    pub missing: Vec<Missing>,
}

/// A function to be interposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interposed {
    /// The function's name.
    pub name: String,
    /// See [`FunctionPlace::Dynamic`].
    pub exporter: Option<PathBuf>,
    /// See [`FunctionPlace::Dynamic`].
    pub calls: Calls,
}

/// A function to be hooked inline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inline {
    /// The function's name.
    pub name: String,
    /// Address in the file and size in bytes.
    pub symbol: Symbol,
}

/// A function that cannot be hooked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The function's name.
    pub name: String,
    /// See [`FunctionPlace::Missing`].
    pub variants: Vec<String>,
}

impl Located {
    /// Sorts the functions by what can be done. Whether a preload is loaded at all is another
    /// question: [`Program::obstacles`].
    pub fn hooking(&self) -> Hooking {
        let mut hooking = Hooking::default();
        for (name, place) in &self.functions {
            let name = name.clone();
            match place.clone() {
                FunctionPlace::Dynamic { exporter, calls } => hooking.interposed.push(Interposed {
                    name,
                    exporter,
                    calls,
                }),
                FunctionPlace::Inside(symbol) => hooking.inline.push(Inline { name, symbol }),
                FunctionPlace::Missing { variants } => {
                    hooking.missing.push(Missing { name, variants })
                }
            }
        }
        hooking
    }

    /// Needed libraries that were not found: what is missing may be in them.
    pub fn unresolved(&self) -> impl Iterator<Item = &str> {
        let missing = self
            .libraries
            .iter()
            .filter(|library| library.path.is_none());
        missing.map(|library| library.name.as_str())
    }
}

impl Program {
    /// Where each of `functions` is. Reads the symbol tables of the program, and of the libraries
    /// that it needs as far as they are found.
    ///
    /// For anything but a 64-bit ELF program every function is missing.
    ///
    /// # Errors
    /// Of the program itself only; a library that cannot be read counts as not found.
    pub fn locate(&self, functions: &[&str], search: &Search) -> Result<Located, Error> {
        let Format::Elf(executable) = &self.format else {
            return Ok(Located {
                functions: functions
                    .iter()
                    .map(|name| {
                        (
                            (*name).to_owned(),
                            FunctionPlace::Missing {
                                variants: Vec::new(),
                            },
                        )
                    })
                    .collect(),
                libraries: Vec::new(),
                build: None,
            });
        };
        let names: Vec<&str> = functions.iter().chain(&Build::NAMES).copied().collect();
        let source = Source::new(File::open(&self.path)?);
        let elf = source.elf()?;
        // `$ORIGIN` of the program is where the file is, not a link to it.
        let real = self.path.canonicalize()?;
        let imports = elf.dynamic_symbols(&names)?;
        let symbols = elf.symbols(&names)?;

        let mut search = Walk {
            finder: Finder::new(search, executable.machine, folder_of(&real)),
            names: &names,
            wanted: functions.len(),
            findings: imports.iter().map(Finding::of_program).collect(),
            build: Build::default(),
            libraries: Vec::new(),
        };
        search
            .build
            .add(&elf, engine_symbols(&symbols, functions.len()));
        search
            .build
            .add(&elf, engine_symbols(&imports, functions.len()));
        search.walk(&real, &executable.dynamic);

        let inside = |at: usize| {
            let of = |entries: &[Entry]| entries[at].defined.filter(|symbol| symbol.is_function);
            of(&symbols).or_else(|| of(&imports))
        };
        let mut places = Vec::with_capacity(functions.len());
        for (at, finding) in search.findings.iter().take(functions.len()).enumerate() {
            places.push(match (inside(at), finding.place()) {
                // The program's own function comes before those of all libraries, preloaded or not.
                (Some(symbol), _) => FunctionPlace::Inside(symbol),
                (None, Some(place)) => place,
                (None, None) => FunctionPlace::Missing {
                    variants: Vec::new(),
                },
            });
        }
        name_variants(&elf, functions, &mut places)?;
        Ok(Located {
            functions: functions
                .iter()
                .map(|name| (*name).to_owned())
                .zip(places)
                .collect(),
            libraries: search.libraries,
            build: search.build.known(),
        })
    }
}

/// What is known of one function while the libraries are walked.
#[derive(Debug, Clone, Default)]
struct Finding {
    imported: bool,
    exporter: Option<PathBuf>,
    calls_itself: bool,
}

impl Finding {
    fn of_program(entry: &Entry) -> Self {
        Self {
            imported: entry.undefined,
            ..Self::default()
        }
    }

    fn place(&self) -> Option<FunctionPlace> {
        let calls = match (self.imported, self.calls_itself) {
            (true, _) => Calls::Imported,
            (false, true) => Calls::FromItself,
            (false, false) => Calls::Unseen,
        };
        (self.imported || self.exporter.is_some()).then(|| FunctionPlace::Dynamic {
            exporter: self.exporter.clone(),
            calls,
        })
    }
}

struct Walk<'a> {
    finder: Finder,
    names: &'a [&'a str],
    /// How many of the names are functions of the table; the others tell the build.
    wanted: usize,
    findings: Vec<Finding>,
    build: Build,
    libraries: Vec<Library>,
}

/// A file whose needed libraries are still to be visited.
struct Pending {
    origin: PathBuf,
    dynamic: Dynamic,
    inherited: Vec<PathBuf>,
}

impl Walk<'_> {
    /// Breadth first, as the dynamic linker does.
    fn walk(&mut self, program: &Path, dynamic: &Dynamic) {
        let mut seen: HashSet<String> = HashSet::new();
        let mut queue = VecDeque::from([Pending {
            origin: folder_of(program).to_owned(),
            dynamic: dynamic.clone(),
            inherited: Vec::new(),
        }]);
        while let Some(file) = queue.pop_front() {
            let mut inherited = self.finder.rpath(&file.origin, &file.dynamic);
            inherited.extend_from_slice(&file.inherited);
            for name in &file.dynamic.needed {
                if self.libraries.len() >= MOST_LIBRARIES || !seen.insert(name.clone()) {
                    continue;
                }
                let seeker = Seeker {
                    origin: &file.origin,
                    dynamic: &file.dynamic,
                    inherited: &file.inherited,
                };
                let path = self.finder.find(name, &seeker);
                let read = path.as_deref().and_then(|path| self.read(path).ok());
                self.libraries.push(Library {
                    name: name.clone(),
                    path: path.clone().filter(|_| read.is_some()),
                });
                if let (Some(path), Some(dynamic)) = (path, read) {
                    seen.extend(dynamic.soname.clone());
                    queue.push_back(Pending {
                        origin: folder_of(&path).to_owned(),
                        dynamic,
                        inherited: inherited.clone(),
                    });
                }
            }
        }
    }

    fn read(&mut self, path: &Path) -> Result<Dynamic, Error> {
        let source = Source::new(File::open(path)?);
        let elf = source.elf()?;
        let dynamic = elf.dynamic()?.unwrap_or_default();
        let entries = elf.dynamic_symbols(self.names)?;
        if !self.build.is_complete() {
            self.build.add(&elf, engine_symbols(&entries, self.wanted));
        }
        for (finding, entry) in self.findings.iter_mut().zip(&entries) {
            finding.imported |= entry.undefined;
            if finding.exporter.is_none() && entry.defined.is_some() {
                finding.exporter = Some(path.to_owned());
                finding.calls_itself = elf.relocates(entry);
            }
        }
        Ok(dynamic)
    }
}

fn engine_symbols(entries: &[Entry], wanted: usize) -> [Option<Symbol>; 3] {
    let mut symbols = entries.iter().skip(wanted).map(|entry| entry.defined);
    [(); 3].map(|()| symbols.next().flatten())
}

/// Only for what is missing: the names of a table of several generations mostly are, and then
/// nothing is found here either.
fn name_variants(
    elf: &Elf<'_, File>,
    functions: &[&str],
    places: &mut [FunctionPlace],
) -> Result<(), Error> {
    for (place, found) in places.iter_mut().zip(elf.variants(functions)?) {
        if let FunctionPlace::Missing { variants } = place {
            variants.extend(found.into_iter().map(|(name, _)| name));
        }
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}
