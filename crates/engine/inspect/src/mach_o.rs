//! The parts of a Mach-O file that matter here, read by seeking. A universal file has a slice for
//! each machine.

use std::io::{Read, Seek};
use std::path::Path;

use object::macho::{self, MachHeader64};
use object::read::macho::{
    CodeSignature, FatArch, LoadCommandVariant, MachHeader, MachOFatFile32, MachOFatFile64,
    Section, Segment,
};
use object::read::{ReadCache, ReadRef};
use object::{BigEndian, Endianness};

use crate::{Error, Machine, Obstacle};

/// A program for one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Its instruction set.
    pub machine: Machine,
    /// For pointers that are signed, the kind of macOS's own programs: a library without them is not
    /// loaded there, and if it was to be inserted, the program ends.
    pub arm64e: bool,
    /// The libraries that it asks for (`LC_LOAD_DYLIB` and its like), in order.
    pub needed: Vec<String>,
    /// Has a section `__RESTRICT,__restrict`, for which dyld ignores its variables.
    pub restricted: bool,
    /// What it was signed for. On Intel it need not be signed at all.
    pub signature: Signature,
}

/// What a code signature says about libraries from elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signature {
    /// dyld drops its variables: the hardened runtime (`CS_RUNTIME`) or `CS_RESTRICT`, without the
    /// entitlement that lets the variables through.
    pub drops_variables: bool,
    /// Only libraries of the same signer are loaded: the hardened runtime or an explicit demand,
    /// without the entitlement that lifts it. Another one that is inserted ends the program.
    pub demands_signer: bool,
}

/// `com.apple.security.cs.…`, of which a signature has those that are set to true.
const ALLOWS_VARIABLES: &str = "com.apple.security.cs.allow-dyld-environment-variables";
const ALLOWS_LIBRARIES: &str = "com.apple.security.cs.disable-library-validation";

impl Slice {
    /// Whether the engine is a library of its own (`libllama.dylib`), asked for directly or through
    /// the server's library.
    pub fn needs_engine(&self) -> bool {
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut needed = self.needed.iter();
        needed.any(|path| name(path).starts_with("libllama"))
    }

    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        if self.arm64e {
            Some(Obstacle::Arm64e)
        } else if self.restricted || self.signature.drops_variables {
            Some(Obstacle::DropsVariables)
        } else if self.signature.demands_signer {
            Some(Obstacle::DemandsSigner)
        } else {
            None
        }
    }
}

/// Whether this is a program of macOS's own (System Integrity Protection): dyld drops its variables
/// there, and what it starts does not have them either.
pub(crate) fn is_protected(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let within = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    within(&["/bin", "/sbin", "/usr", "/System"]) && !within(&["/usr/local"])
}

/// The slices of a file for the machines that are known here. If two are for one machine, the one for arm64e
/// comes last: of programs that are not macOS's own, it is not what runs.
pub(crate) fn slices<R: Read + Seek>(file: R) -> Result<Vec<Slice>, Error> {
    let data = ReadCache::new(file);
    let magic = data.read_bytes_at(0, 4).unwrap_or_default();
    match magic {
        [0xca, 0xfe, 0xba, 0xbe] => each(&data, MachOFatFile32::parse(&data)?.arches()),
        [0xca, 0xfe, 0xba, 0xbf] => each(&data, MachOFatFile64::parse(&data)?.arches()),
        _ => Ok(slice(&data)?.into_iter().collect()),
    }
}

fn each<R: Read + Seek>(data: &ReadCache<R>, arches: &[impl FatArch]) -> Result<Vec<Slice>, Error> {
    let mut slices = Vec::new();
    for arch in arches {
        let (offset, size) = arch.file_range();
        slices.extend(slice(data.range(offset, size))?);
    }
    slices.sort_by_key(|slice| slice.arm64e);
    Ok(slices)
}

/// None for 32 bits and for other machines.
fn slice<'data>(data: impl ReadRef<'data>) -> Result<Option<Slice>, Error> {
    let Ok(header) = MachHeader64::<Endianness>::parse(data, 0) else {
        return Ok(None);
    };
    let endian = header.endian()?;
    let machine = match header.cputype(endian) {
        macho::CPU_TYPE_X86_64 => Machine::X86_64,
        macho::CPU_TYPE_ARM64 => Machine::Aarch64,
        _ => return Ok(None),
    };
    // The upper byte is for flags.
    let kind = header.cpusubtype(endian).0 & 0x00ff_ffff;
    let mut slice = Slice {
        machine,
        arm64e: machine == Machine::Aarch64 && kind == macho::CPU_SUBTYPE_ARM64E.0,
        needed: Vec::new(),
        restricted: false,
        signature: Signature::default(),
    };
    let mut commands = header.load_commands(endian, data, 0)?;
    while let Some(command) = commands.next()? {
        match command.variant()? {
            LoadCommandVariant::Dylib(library) => {
                let path = command.string(endian, library.dylib.name)?;
                slice
                    .needed
                    .push(String::from_utf8_lossy(path).into_owned());
            }
            LoadCommandVariant::Segment64(segment, sections) => {
                let sections = segment.sections(endian, sections)?;
                slice.restricted |= sections
                    .iter()
                    .any(|section| section.name() == b"__restrict")
                    && segment.name() == b"__RESTRICT";
            }
            LoadCommandVariant::LinkeditData(at) if command.cmd() == macho::LC_CODE_SIGNATURE => {
                slice.signature = Signature::of(&at.code_signature(endian, data)?)?;
            }
            _ => {}
        }
    }
    Ok(Some(slice))
}

impl Signature {
    fn of(signed: &CodeSignature<'_>) -> Result<Self, Error> {
        let mut flags = 0;
        let mut entitlements = String::new();
        for blob in signed.blobs() {
            let blob = blob?;
            if let Some(directory) = blob.code_directory()? {
                // One for each kind of hash; they agree.
                flags |= directory.header().flags.get(BigEndian).0;
            }
            if blob.slot() == macho::CSSLOT_ENTITLEMENTS {
                entitlements = String::from_utf8_lossy(blob.contents()).into_owned();
            }
        }
        let has = |any: macho::CsFlags| flags & any.0 != 0;
        let is_hardened = has(macho::CS_RUNTIME);
        Ok(Self {
            drops_variables: (is_hardened || has(macho::CS_RESTRICT))
                && !is_true(&entitlements, ALLOWS_VARIABLES),
            demands_signer: (is_hardened || has(macho::CS_REQUIRE_LV) || has(macho::CS_FORCED_LV))
                && !is_true(&entitlements, ALLOWS_LIBRARIES),
        })
    }
}

/// Whether a property list (XML) has `<key>` with `<true/>` behind it.
fn is_true(list: &str, key: &str) -> bool {
    let key = format!("<key>{key}</key>");
    list.split_once(&key)
        .is_some_and(|(_, rest)| rest.trim_start().starts_with("<true"))
}

#[cfg(test)]
mod tests;
