//! Reads the parts of a 64-bit ELF file that are needed here, by seeking.

use std::collections::HashMap;
use std::fmt;
use std::io::{Read, Seek};

use object::Endianness;
use object::elf::{
    self, FileHeader64, ProgramHeader64, Rela64, SectionHeader64, SectionType, Sym64,
};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Rela, SectionHeader, SectionTable, Sym};

use crate::Error;

/// The instruction set of an ELF file, by its `e_machine` and its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Machine {
    /// `EM_X86_64`, 64 bits.
    X86_64,
    /// `EM_AARCH64`, 64 bits, little-endian.
    Aarch64,
    /// Anything else: `e_machine` and the number of bits (32 or 64).
    Other(u16, u8),
}

impl Machine {
    /// What this crate was compiled for, and a hook beside it too. On anything but the two that
    /// are known, no file is like us.
    pub const OURS: Self = if cfg!(target_arch = "x86_64") {
        Self::X86_64
    } else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
        Self::Aarch64
    } else {
        Self::Other(0, 0)
    };

    pub(crate) fn new(e_machine: u16, bits: u8, little_endian: bool) -> Self {
        match (e_machine, bits, little_endian) {
            (62, 64, true) => Self::X86_64,
            (183, 64, true) => Self::Aarch64,
            _ => Self::Other(e_machine, bits),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X86_64 => f.write_str("x86-64"),
            Self::Aarch64 => f.write_str("aarch64"),
            Self::Other(3, _) => f.write_str("x86 (32 bits)"),
            Self::Other(40, _) => f.write_str("arm (32 bits)"),
            Self::Other(243, bits) => write!(f, "riscv{bits}"),
            Self::Other(machine, bits) => write!(f, "machine {machine} ({bits} bits)"),
        }
    }
}

type Header = FileHeader64<Endianness>;

/// A table that claims to be larger is not read: a static server with all of its CUDA kernels has
/// tens of megabytes of symbols and names.
const LARGEST_TABLE: u64 = 1 << 30;

const fn is_too_large(size: u64) -> bool {
    size > LARGEST_TABLE
}

/// A file, and the parts of it that were read. [`Elf`] borrows from it.
#[derive(Debug)]
pub struct Source<R: Read + Seek>(ReadCache<R>);

impl<R: Read + Seek> Source<R> {
    /// Reads nothing yet.
    pub fn new(file: R) -> Self {
        Self(ReadCache::new(file))
    }

    /// # Errors
    /// [`Error::Malformed`] unless this is a 64-bit ELF file with headers that hold together.
    pub fn elf(&self) -> Result<Elf<'_, R>, Error> {
        Elf::parse(&self.0)
    }
}

/// A 64-bit ELF file, of either byte order.
pub struct Elf<'data, R: Read + Seek> {
    data: &'data ReadCache<R>,
    endian: Endianness,
    header: &'data Header,
    segments: &'data [ProgramHeader64<Endianness>],
    sections: SectionTable<'data, Header, &'data ReadCache<R>>,
}

/// A part of a file that is loaded and never written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Constants {
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) has_code: bool,
}

/// A function or a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Its address in the file (`st_value`).
    pub address: u64,
    /// Its size in bytes (`st_size`); 0 if the assembler did not give it.
    pub size: u64,
    /// A function. Not an indirect function (`STT_GNU_IFUNC`), whose address is that of a
    /// resolver.
    pub is_function: bool,
}

/// The entry of a symbol table for a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// It is defined in this file.
    pub defined: Option<Symbol>,
    /// It is imported from another file.
    pub undefined: bool,
    /// Index in the table, for [`Elf::relocates`].
    index: u32,
}

/// The dynamic section: information for the dynamic linker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dynamic {
    /// `DT_NEEDED`, in order.
    pub needed: Vec<String>,
    /// `DT_RPATH`, `$ORIGIN` and the like not yet replaced.
    pub rpath: Option<String>,
    /// `DT_RUNPATH`; where it exists, `DT_RPATH` is without effect.
    pub runpath: Option<String>,
    /// `DT_SONAME`.
    pub soname: Option<String>,
    /// `DF_1_PIE`: an executable, not a library.
    pub pie: bool,
}

impl<'data, R: Read + Seek> Elf<'data, R> {
    fn parse(data: &'data ReadCache<R>) -> Result<Self, Error> {
        let header = Header::parse(data)?;
        let endian = header.endian()?;
        let segments = header.program_headers(endian, data)?;
        // Some tools remove the section headers altogether: such a file runs, and is stripped.
        let sections = header.sections(endian, data).unwrap_or_default();
        Ok(Self {
            data,
            endian,
            header,
            segments,
            sections,
        })
    }

    /// The instruction set.
    pub fn machine(&self) -> Machine {
        Machine::new(
            self.header.e_machine(self.endian).0,
            64,
            self.endian == Endianness::Little,
        )
    }

    /// `ET_DYN`: loaded at any address. Otherwise at the addresses in the file.
    pub fn is_position_independent(&self) -> bool {
        self.header.e_type(self.endian) == elf::ET_DYN
    }

    /// `PT_INTERP`: the dynamic linker, if there is one to be run.
    pub fn interpreter(&self) -> Option<String> {
        self.segments.iter().find_map(|segment| {
            let path = segment.interpreter(self.endian, self.data).ok()??;
            Some(String::from_utf8_lossy(path).into_owned())
        })
    }

    /// Whether there is a `.symtab`, the table that `strip` removes.
    pub fn has_symbols(&self) -> bool {
        self.table(elf::SHT_SYMTAB)
            .is_some_and(|table| table.sh_size(self.endian) > 0)
    }

    /// The dynamic section; `None` in a file that has none.
    ///
    /// # Errors
    /// [`Error::Malformed`] when it points outside of the file.
    pub fn dynamic(&self) -> Result<Option<Dynamic>, Error> {
        let mut entries = None;
        for segment in self.segments {
            if let Some(found) = segment.dynamic(self.endian, self.data)? {
                entries = Some(found);
            }
        }
        let Some(entries) = entries else {
            return Ok(None);
        };
        let value = |tag| {
            entries
                .iter()
                .take_while(|entry| entry.tag(self.endian) != elf::DT_NULL)
                .find(|entry| entry.tag(self.endian) == tag)
                .map(|entry| entry.val(self.endian))
        };
        let strings = match (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) {
            (Some(address), Some(size)) => self.bytes(address, size).unwrap_or_default(),
            _ => &[],
        };
        let string = |offset| text_at(strings, offset).map(str::to_owned);
        Ok(Some(Dynamic {
            needed: entries
                .iter()
                .take_while(|entry| entry.tag(self.endian) != elf::DT_NULL)
                .filter(|entry| entry.tag(self.endian) == elf::DT_NEEDED)
                .filter_map(|entry| string(entry.val(self.endian)))
                .collect(),
            rpath: value(elf::DT_RPATH).and_then(string),
            runpath: value(elf::DT_RUNPATH).and_then(string),
            soname: value(elf::DT_SONAME).and_then(string),
            pie: value(elf::DT_FLAGS_1).unwrap_or(0) & DF_1_PIE != 0,
        }))
    }

    /// What `.dynsym` says about each of `names`, in their order.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the table points outside of the file.
    pub fn dynamic_symbols(&self, names: &[&str]) -> Result<Vec<Entry>, Error> {
        self.look_up(elf::SHT_DYNSYM, names, |_, _, _| {})
    }

    /// What `.symtab` says about each of `names`, in their order.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the table points outside of the file.
    pub fn symbols(&self, names: &[&str]) -> Result<Vec<Entry>, Error> {
        self.look_up(elf::SHT_SYMTAB, names, |_, _, _| {})
    }

    /// The parts into which the compiler split each of `names`, or the copies that it made for
    /// certain arguments: symbols called `name.cold`, `name.part.0`, `name.constprop.0` and so
    /// on, in `.symtab`.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the table points outside of the file.
    pub fn variants(&self, names: &[&str]) -> Result<Vec<Vec<(String, Symbol)>>, Error> {
        Ok(self.symbols_and_variants(names)?.1)
    }

    /// [`symbols`](Self::symbols) and [`variants`](Self::variants), in one go.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the table points outside of the file.
    #[allow(clippy::type_complexity)]
    pub fn symbols_and_variants(
        &self,
        names: &[&str],
    ) -> Result<(Vec<Entry>, Vec<Vec<(String, Symbol)>>), Error> {
        let mut variants = vec![Vec::new(); names.len()];
        let symbols = self.look_up(elf::SHT_SYMTAB, names, |name, places, symbol| {
            let name = String::from_utf8_lossy(name).into_owned();
            for place in places {
                variants[*place].push((name.clone(), symbol));
            }
        })?;
        Ok((symbols, variants))
    }

    /// Whether this file binds a symbol of its `.dynsym` through the dynamic linker, so that a
    /// preload can replace it. `entry` is from [`Elf::dynamic_symbols`].
    pub fn relocates(&self, entry: &Entry) -> bool {
        let rela = |section: &SectionHeader64<Endianness>| {
            !is_too_large(section.sh_size(self.endian))
                && section
                    .rela(self.endian, self.data)
                    .ok()
                    .flatten()
                    .is_some_and(|(entries, _): (&[Rela64<Endianness>], _)| {
                        entries
                            .iter()
                            .any(|rela| rela.r_sym(self.endian, false) == entry.index)
                    })
        };
        self.sections.iter().any(rela)
    }

    /// `size` bytes at an address, within one segment.
    pub fn bytes(&self, address: u64, size: u64) -> Option<&'data [u8]> {
        if is_too_large(size) {
            return None;
        }
        self.segments
            .iter()
            .filter(|segment| segment.p_type(self.endian) == elf::PT_LOAD)
            .find_map(|segment| {
                let offset = address.checked_sub(segment.p_vaddr(self.endian))?;
                let end = offset.checked_add(size)?;
                (end <= segment.p_filesz(self.endian)).then_some(())?;
                let start = segment.p_offset(self.endian).checked_add(offset)?;
                object::ReadRef::read_bytes_at(self.data, start, size).ok()
            })
    }

    /// The text at an address, up to its zero byte, if that is within 256 bytes.
    pub fn text(&self, address: u64) -> Option<String> {
        const LONGEST: u64 = 256;
        // Near the end of a segment fewer bytes are there.
        let bytes = (0..9).find_map(|halvings| self.bytes(address, LONGEST >> halvings))?;
        text_at(bytes, 0).map(str::to_owned)
    }

    /// The pointer that stands at an address once the file is loaded at its own addresses. In a
    /// position-independent file it stands in a relocation.
    pub fn pointer(&self, address: u64) -> Option<u64> {
        let stored = self.bytes(address, 8)?.try_into().ok()?;
        let stored = match self.endian {
            Endianness::Little => u64::from_le_bytes(stored),
            Endianness::Big => u64::from_be_bytes(stored),
        };
        if stored != 0 {
            return Some(stored);
        }
        self.sections.iter().find_map(|section| {
            if is_too_large(section.sh_size(self.endian)) {
                return None;
            }
            let (entries, _) = section.rela(self.endian, self.data).ok()??;
            entries
                .iter()
                .find(|rela| rela.r_offset(self.endian) == address)
                .and_then(|rela| u64::try_from(rela.r_addend(self.endian)).ok())
        })
    }

    /// The parts that are loaded and never written.
    pub(crate) fn constants(&self) -> Vec<Constants> {
        let loaded = self.segments.iter().filter(|segment| {
            let flags = segment.p_flags(self.endian);
            segment.p_type(self.endian) == elf::PT_LOAD && !flags.contains(elf::PF_W)
        });
        loaded
            .map(|segment| Constants {
                offset: segment.p_offset(self.endian),
                size: segment.p_filesz(self.endian),
                has_code: segment.p_flags(self.endian).contains(elf::PF_X),
            })
            .collect()
    }

    /// The program headers as they stand in the file, to be compared with those in memory.
    pub fn program_headers(&self) -> &'data [u8] {
        object::bytes_of_slice(self.segments)
    }

    fn table(&self, kind: SectionType) -> Option<&'data SectionHeader64<Endianness>> {
        self.sections
            .iter()
            .find(|section| section.sh_type(self.endian) == kind)
    }

    /// `variant` is told of definitions whose name begins with one of `names` and a dot: the whole
    /// name, and the positions of its beginning in `names`.
    fn look_up(
        &self,
        table: SectionType,
        names: &[&str],
        mut variant: impl FnMut(&[u8], &[usize], Symbol),
    ) -> Result<Vec<Entry>, Error> {
        let wanted = positions(names);
        let mut found = vec![Entry::default(); names.len()];
        self.each_symbol(table, names, |index, name, symbol| {
            let definition = self.definition(symbol);
            if let (Some(dot), Some(definition)) =
                (name.iter().position(|byte| *byte == b'.'), definition)
            {
                if let Some(places) = wanted.get(&name[..dot]) {
                    variant(name, places, definition);
                }
            }
            let Some(places) = wanted.get(name) else {
                return;
            };
            // For the file's own use only, wherever it is still named.
            let hidden = matches!(symbol.st_visibility(), elf::STV_HIDDEN | elf::STV_INTERNAL);
            if table == elf::SHT_DYNSYM && hidden {
                return;
            }
            for place in places {
                let entry = &mut found[*place];
                match definition {
                    // Several files of a link may have a static function of one name each. These stand before
                    // the one that is visible to other files, if there is one.
                    Some(_) => {
                        entry.defined = definition;
                        entry.index = index;
                    }
                    None if !entry.undefined && entry.defined.is_none() => {
                        entry.undefined = true;
                        entry.index = index;
                    }
                    None => {}
                }
            }
        })?;
        Ok(found)
    }

    fn definition(&self, symbol: &Sym64<Endianness>) -> Option<Symbol> {
        (symbol.st_shndx(self.endian) != elf::SHN_UNDEF).then(|| Symbol {
            address: symbol.st_value(self.endian),
            size: symbol.st_size(self.endian),
            is_function: symbol.st_type() == elf::STT_FUNC,
        })
    }

    /// Calls `then` with the symbols that may have one of `names`, and with others.
    fn each_symbol(
        &self,
        table: SectionType,
        names: &[&str],
        mut then: impl FnMut(u32, &'data [u8], &'data Sym64<Endianness>),
    ) -> Result<(), Error> {
        let Some(section) = self.table(table) else {
            return Ok(());
        };
        let strings = self.sections.section(section.link(self.endian))?;
        if [section, strings]
            .iter()
            .any(|section| is_too_large(section.sh_size(self.endian)))
        {
            return Err(Error::Malformed("a symbol table of more than 1 GiB".into()));
        }
        let symbols: &[Sym64<Endianness>] = section.data_as_array(self.endian, self.data)?;
        // In one piece: name by name would be a system call each.
        let strings = strings.data(self.endian, self.data)?;
        // There are a hundred thousand long C++ names: most can be ruled out by their
        // first bytes.
        let beginnings = Beginnings::of(names);
        for (index, symbol) in (0..).zip(symbols) {
            let kind = symbol.st_type();
            if kind == elf::STT_SECTION || kind == elf::STT_FILE {
                continue;
            }
            let start = symbol.st_name(self.endian) as usize;
            let Some(rest) = strings.get(start..).filter(|_| start != 0) else {
                continue;
            };
            if !beginnings.may_hold(rest) {
                continue;
            }
            if let Some(end) = rest.iter().position(|byte| *byte == 0) {
                then(index, &rest[..end], symbol);
            }
        }
        Ok(())
    }
}

/// The linker's flag in `DT_FLAGS_1` (a GNU addition to the ELF specification).
const DF_1_PIE: u64 = 0x0800_0000;

/// The first bytes of some names, up to the dot before a suffix of the compiler's: enough to pass
/// most others by. A server has tens of thousands, and waits while they are looked at.
struct Beginnings {
    /// By [`slot`](Self::slot): whether there is one.
    slots: [bool; 1 << Self::BITS],
}

impl Beginnings {
    const BITS: u32 = 12;

    fn of(names: &[&str]) -> Self {
        let mut slots = [false; 1 << Self::BITS];
        for name in names {
            slots[Self::slot(name.as_bytes())] = true;
        }
        Self { slots }
    }

    /// False: the name is certainly not wanted. `rest`: the table from the name on.
    fn may_hold(&self, rest: &[u8]) -> bool {
        self.slots[Self::slot(rest)]
    }

    fn slot(name: &[u8]) -> usize {
        // An odd number of no pattern; the upper bits of a product depend on all bits.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let [first, second] = beginning(name);
        let mixed = first.wrapping_mul(SPREAD) ^ second;
        (mixed.wrapping_mul(SPREAD) >> (u64::BITS - Self::BITS)) as usize
    }
}

/// 16 bytes, with zeros from the name's end or its first dot on.
fn beginning(name: &[u8]) -> [u64; 2] {
    let mut bytes = [0; 16];
    match name.first_chunk() {
        Some(chunk) => bytes = *chunk,
        None => bytes[..name.len()].copy_from_slice(name),
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let (first, second) = (word(0), word(8));
    match (length(first), length(second)) {
        (8, 8) => [first, second],
        (8, length) => [first, second & below(length)],
        (length, _) => [first & below(length), 0],
    }
}

/// How many bytes there are before a zero or a dot, the lowest first: at most 8.
fn length(word: u64) -> u32 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOPS: u64 = ONES << 7;
    const DOTS: u64 = ONES * b'.' as u64;
    // The lowest byte that is zero is marked in its top bit; above it marks may be wrong.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & TOPS;
    (zeros(word) | zeros(word ^ DOTS)).trailing_zeros() / 8
}

/// A mask for the lowest `length` bytes, at most 7.
fn below(length: u32) -> u64 {
    (1 << (8 * length)) - 1
}

fn positions<'a>(names: &[&'a str]) -> HashMap<&'a [u8], Vec<usize>> {
    let mut positions: HashMap<&[u8], Vec<usize>> = HashMap::new();
    for (position, name) in names.iter().enumerate() {
        positions.entry(name.as_bytes()).or_default().push(position);
    }
    positions
}

fn text_at(strings: &[u8], offset: u64) -> Option<&str> {
    let rest = strings.get(usize::try_from(offset).ok()?..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_begins_before_its_end_or_a_dot() {
        let of = |text: &str| beginning(text.as_bytes());
        for (text, same) in [
            ("recv\0send\0accept4\0and more", "recv"),
            ("llama_decode.cold\0x", "llama_decode"),
            ("llama_decode.isra.0", "llama_decode.cold"),
            ("sixteen_bytes_it", "sixteen_bytes_it.part.0 and"),
            ("sixteen_bytes_it_and_more", "sixteen_bytes_it"),
            ("eight_by.x", "eight_by\0y"),
            ("", ".x"),
        ] {
            assert_eq!(of(text), of(same), "{text:?}");
        }
        for (text, other) in [
            ("recv", "recvfrom"),
            ("llama_decode", "llama_decodf"),
            ("a/b", "a.b"),
            ("\u{1}x", "\0x"),
        ] {
            assert_ne!(of(text), of(other), "{text:?}");
        }
    }

    #[test]
    fn the_largest_table_has_1_gib() {
        assert!(!is_too_large(0) && !is_too_large(1 << 30));
        assert!(is_too_large((1 << 30) + 1));
    }

    #[test]
    fn a_wanted_name_is_never_skipped() {
        let names = [
            "llama_process",
            "_ZdlPvm",
            "recv",
            "_ZN12server_queue10get_new_idEv",
        ];
        let beginnings = Beginnings::of(&names);
        for name in names {
            for end in ["", "\0", "\0next\0", ".cold\0"] {
                assert!(
                    beginnings.may_hold(format!("{name}{end}").as_bytes()),
                    "{name}{end}"
                );
            }
        }
        let others = (0..10_000).filter(|n| beginnings.may_hold(format!("_ZN{n}x").as_bytes()));
        assert!(others.count() < 100, "it would be of no use");
    }
}
