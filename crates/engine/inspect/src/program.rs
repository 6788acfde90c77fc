//! What a file is, from its first bytes and a few headers.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use crate::elf::{Dynamic, Elf, Source};
use crate::mach_o::{self, Slice};
use crate::obstacle::privilege_of;
use crate::{Error, Machine, Obstacle, Privilege, Script, script};

/// A file that is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The path, as it was given.
    pub path: PathBuf,
    /// What kind of file it is.
    pub format: Format,
    /// What gives it rights that we do not have.
    pub privilege: Option<Privilege>,
}

/// What kind of file it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// An ELF file of 64 bits.
    Elf(Executable),
    /// An ELF file of 32 bits, whatever its machine. Nothing more is read of it.
    Elf32(Machine),
    /// A script.
    Script(Script),
    /// macOS's format, thin or universal. Empty: for none of the machines known here, or damaged.
    MachO(Vec<Slice>),
    /// None of these.
    Other,
}

/// A 64-bit ELF program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executable {
    /// Its instruction set.
    pub machine: Machine,
    /// How it gets its libraries.
    pub linkage: Linkage,
    /// Loaded wherever there is room.
    pub position_independent: bool,
    /// Has a `.symtab`. Without one, functions inside cannot be found: it was stripped.
    pub has_symbols: bool,
    /// What it tells the dynamic linker.
    pub dynamic: Dynamic,
}

/// Whether a dynamic linker runs before the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Linkage {
    /// A dynamic linker runs.
    Dynamic {
        /// The dynamic linker: `PT_INTERP`.
        interpreter: String,
        /// The C library that the dynamic linker belongs to.
        libc: Libc,
    },
    /// No dynamic linker runs, and the program relocates itself.
    StaticPie,
    /// No dynamic linker runs.
    Static,
    /// It is no program: others load it.
    Library,
}

/// The C library that a dynamic linker belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Libc {
    /// GNU.
    Glibc,
    /// musl (Alpine), also where it stands in for glibc's under that one's name.
    Musl,
    /// Android's and any other.
    Other,
}

impl Program {
    /// Reads a few hundred bytes of the file, and its symbol tables not at all.
    ///
    /// # Errors
    /// [`Error::Unreadable`], which includes executables that may be run but not read;
    /// [`Error::Malformed`] for a damaged ELF file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        let mut start = Vec::with_capacity(64);
        Read::by_ref(&mut file).take(64).read_to_end(&mut start)?;
        let format = if start.starts_with(b"\x7fELF") {
            elf(file, &start)?
        } else if start.starts_with(b"#!") {
            file.take(script::EXAMINED).read_to_end(&mut start)?;
            Script::parse(&start).map_or(Format::Other, Format::Script)
        } else if is_mach_o(&start) {
            file.rewind()?;
            Format::MachO(mach_o::slices(file).unwrap_or_default())
        } else {
            Format::Other
        };
        // The bits of a script are without effect.
        let privilege = match format {
            Format::Script(_) => None,
            _ => privilege_of(path, &metadata),
        };
        Ok(Self {
            path: path.to_owned(),
            format,
            privilege,
        })
    }

    /// The ELF program, if it is one of 64 bits.
    pub fn executable(&self) -> Option<&Executable> {
        match &self.format {
            Format::Elf(executable) => Some(executable),
            _ => None,
        }
    }

    /// Why a library for `hook` (mostly [`Machine::OURS`]), preloaded on Linux with glibc, would
    /// not be loaded; the gravest first. A script has none of its own.
    pub fn obstacles(&self, hook: Machine) -> Vec<Obstacle> {
        let mut obstacles = Vec::new();
        let machine = match &self.format {
            Format::Elf(executable) => Some(executable.machine),
            Format::Elf32(machine) => Some(*machine),
            Format::Script(_) => None,
            Format::MachO(_) => {
                obstacles.push(Obstacle::MachO);
                None
            }
            Format::Other => {
                obstacles.push(Obstacle::UnknownFormat);
                None
            }
        };
        if let Some(server) = machine.filter(|server| *server != hook) {
            obstacles.push(Obstacle::Machine { server, hook });
        }
        match self.executable().map(|executable| &executable.linkage) {
            Some(Linkage::Static | Linkage::StaticPie) => obstacles.push(Obstacle::Static),
            Some(Linkage::Library) => obstacles.push(Obstacle::Library),
            Some(Linkage::Dynamic { interpreter, libc }) => {
                match libc {
                    Libc::Glibc => {}
                    Libc::Musl => obstacles.push(Obstacle::Musl),
                    Libc::Other => obstacles.push(Obstacle::ForeignLinker(interpreter.clone())),
                }
                // Under emulation the other machine's linker may be elsewhere.
                if machine == Some(hook) && !Path::new(interpreter).exists() {
                    obstacles.push(Obstacle::NoLinker(interpreter.clone()));
                }
            }
            None => {}
        }
        obstacles.extend(self.privilege.map(Obstacle::Privileged));
        obstacles
    }
}

impl Program {
    /// Why a library for `hook`, inserted on macOS, would not be loaded; the gravest first.
    pub fn obstacles_on_macos(&self, hook: Machine) -> Vec<Obstacle> {
        let mut obstacles = Vec::new();
        match &self.format {
            Format::Elf(_) | Format::Elf32(_) => obstacles.push(Obstacle::Elf),
            Format::Other => obstacles.push(Obstacle::UnknownFormat),
            Format::Script(script) => {
                if mach_o::is_protected(&script.interpreter) {
                    let interpreter = script.interpreter.clone();
                    obstacles.push(Obstacle::ProtectedInterpreter(interpreter));
                }
                return obstacles;
            }
            Format::MachO(slices) => match slices.iter().find(|slice| slice.machine == hook) {
                Some(slice) => obstacles.extend(slice.obstacle()),
                None => obstacles.extend(slices.first().map(|slice| Obstacle::Machine {
                    server: slice.machine,
                    hook,
                })),
            },
        }
        if mach_o::is_protected(&self.path) {
            obstacles.push(Obstacle::Protected);
        }
        obstacles.extend(self.privilege.map(Obstacle::Privileged));
        obstacles
    }

    /// What runs on `machine`, if this is a Mach-O program.
    pub fn slice(&self, machine: Machine) -> Option<&Slice> {
        match &self.format {
            Format::MachO(slices) => slices.iter().find(|slice| slice.machine == machine),
            _ => None,
        }
    }
}

impl Executable {
    /// Whether the engine is a library of its own (`libllama.so`), as far as the program itself
    /// asks for it, directly or through the server's library. If not, it is inside the program,
    /// and can be hooked only if that [has symbols](Executable::has_symbols).
    ///
    /// A quick answer from the headers; the full one is [`Program::locate`].
    pub fn needs_engine(&self) -> bool {
        self.dynamic
            .needed
            .iter()
            .any(|name| name.starts_with("libllama"))
    }
}

fn elf(file: File, start: &[u8]) -> Result<Format, Error> {
    const CLASS_32: u8 = 1;
    const BIG_ENDIAN: u8 = 2;
    if let [_, _, _, _, CLASS_32, order, ..] = *start {
        let machine = start.get(18..20).unwrap_or(&[0, 0]);
        let machine = [machine[0], machine[1]];
        let little = order != BIG_ENDIAN;
        let machine = if little {
            u16::from_le_bytes(machine)
        } else {
            u16::from_be_bytes(machine)
        };
        return Ok(Format::Elf32(Machine::new(machine, 32, little)));
    }
    let source = Source::new(file);
    Ok(Format::Elf(executable(&source.elf()?)?))
}

fn executable(elf: &Elf<'_, File>) -> Result<Executable, Error> {
    let dynamic = elf.dynamic()?.unwrap_or_default();
    let linkage = match elf.interpreter() {
        Some(interpreter) => Linkage::Dynamic {
            libc: libc_of(&interpreter),
            interpreter,
        },
        None if !dynamic.pie && !dynamic.needed.is_empty() => Linkage::Library,
        None if elf.is_position_independent() => Linkage::StaticPie,
        None => Linkage::Static,
    };
    Ok(Executable {
        machine: elf.machine(),
        linkage,
        position_independent: elf.is_position_independent(),
        has_symbols: elf.has_symbols(),
        dynamic,
    })
}

fn libc_of(interpreter: &str) -> Libc {
    // Alpine's gcompat puts a link to its own linker where glibc's would be.
    let target = std::fs::canonicalize(interpreter).unwrap_or_else(|_| interpreter.into());
    let name = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let (given, real) = (name(Path::new(interpreter)), name(&target));
    let is_musl = |name: &str| name.contains("musl") || name.contains("gcompat");
    // In old glibc versions the link leads to ld-2.31.so.
    let is_glibc = |name: &str| {
        name.starts_with("ld-linux") || name.starts_with("ld64.so") || name.starts_with("ld-2.")
    };
    if is_musl(&given) || is_musl(&real) {
        Libc::Musl
    } else if is_glibc(&given) || is_glibc(&real) {
        Libc::Glibc
    } else {
        Libc::Other
    }
}

fn is_mach_o(start: &[u8]) -> bool {
    let Some(magic) = start.first_chunk::<4>() else {
        return false;
    };
    match u32::from_be_bytes(*magic) {
        0xfeed_face | 0xfeed_facf | 0xcefa_edfe | 0xcffa_edfe => true,
        // Java classes start alike; their next four bytes are a version, 45 and up.
        0xcafe_babe | 0xcafe_babf => start
            .get(4..8)
            .is_some_and(|count| count < &[0, 0, 0, 45][..]),
        _ => false,
    }
}
