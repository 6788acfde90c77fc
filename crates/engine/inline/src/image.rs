//! The executable of this process, or one of its libraries: names are read from the file, code from memory.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::slice;

use contextpilot_inspect::Error;
use contextpilot_inspect::elf::Source;

use crate::maps;
use crate::preflight::{self, Code, Extent};

/// Whether each of `names` is a function in this file.
///
/// # Errors
/// It cannot be read, or is damaged.
pub fn functions_in(file: &Path, names: &[&str]) -> Result<Vec<bool>, ImageError> {
    let source = Source::new(File::open(file).map_err(|_| ImageError::NoFile)?);
    let found = preflight::functions(&source.elf()?, names)?;
    Ok(found.iter().map(Option::is_some).collect())
}

/// The executable that this process runs, or a library that it has loaded.
#[derive(Debug)]
pub struct Image {
    source: Source<File>,
    layout: Layout,
}

/// A function of an [`Image`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The name in the symbol table.
    pub name: String,
    /// The address in this process.
    pub address: usize,
    /// The size in bytes.
    pub size: usize,
    /// Its other parts of code in this process: see [`Extent::parts`].
    pub parts: Vec<(u64, u64)>,
}

/// Why the functions of an [`Image`] cannot be looked for.
#[derive(Debug)]
pub enum ImageError {
    /// Its file cannot be found, or was replaced since it was loaded.
    NoFile,
    /// Its file cannot be understood.
    File(Error),
}

/// Where the image was loaded.
#[derive(Debug, Default)]
struct Layout {
    /// What to add to an address in the file to get the address in memory.
    bias: usize,
    headers: Vec<u8>,
    /// Address of the program headers, which are in a mapping of the file.
    headers_at: usize,
    /// Segments that are not writable.
    constant: Vec<Range<usize>>,
    executable: Vec<Range<usize>>,
}

impl Image {
    /// Reads the headers. Symbols are read when they are needed.
    ///
    /// # Errors
    /// The file cannot be reached (no `/proc`), was replaced since the start, or is damaged.
    pub fn of_self() -> Result<Self, ImageError> {
        // The first object is the executable.
        let layout = Layout::of(|_| true);
        // The second path is for a program that was started through the dynamic linker
        // (`ld.so ./llama-server`): then the kernel takes the linker for the executable.
        let candidates = [
            Some("/proc/self/exe".into()),
            maps::file_at(layout.headers_at),
        ];
        Self::open(layout, candidates.into_iter().flatten())
    }

    /// The library that this address lies in. It must not be unloaded while this is used, or ever if one of
    /// its functions is patched.
    ///
    /// # Errors
    /// As for [`of_self`](Self::of_self); no library has the address.
    pub fn of_library(address: usize) -> Result<Self, ImageError> {
        let layout = Layout::of(|layout| {
            let mut all = layout.executable.iter().chain(&layout.constant);
            all.any(|segment| segment.contains(&address))
        });
        let candidates = maps::file_at(layout.headers_at);
        Self::open(layout, candidates.into_iter())
    }

    fn open(layout: Layout, candidates: impl Iterator<Item = PathBuf>) -> Result<Self, ImageError> {
        for path in candidates {
            let Ok(file) = File::open(path) else {
                continue;
            };
            let source = Source::new(file);
            let is_ours = source.elf()?.program_headers() == layout.headers;
            if is_ours {
                return Ok(Self { source, layout });
            }
        }
        Err(ImageError::NoFile)
    }

    /// Each of `names`, in their order, if it is a function in the image.
    ///
    /// # Errors
    /// The symbol table is damaged. A stripped table is no error: then only
    /// functions that the image exports are found.
    pub fn find(&self, names: &[&str]) -> Result<Vec<Option<Function>>, ImageError> {
        let elf = self.source.elf()?;
        let extents = preflight::functions(&elf, names)?;
        let function = |extent: Extent, name: &str| Function {
            name: name.to_owned(),
            address: self.layout.address(extent.address),
            size: extent.size as usize,
            parts: extent
                .parts
                .iter()
                .map(|(address, size)| (self.layout.address(*address) as u64, *size))
                .collect(),
        };
        Ok(extents
            .into_iter()
            .zip(names)
            .map(|(extent, name)| extent.map(|extent| function(extent, name)))
            .collect())
    }

    /// Whether the symbol table was removed.
    ///
    /// # Errors
    /// The file can no longer be read.
    pub fn is_stripped(&self) -> Result<bool, ImageError> {
        Ok(!self.source.elf()?.has_symbols())
    }

    /// Whether a function does nothing but return, with a result of 0 or without one.
    pub fn does_nothing(&self, function: &Function) -> bool {
        /// `endbr64`, where control flow is protected.
        const LANDING_PAD: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
        /// `xor eax, eax`
        const ZERO: [u8; 2] = [0x31, 0xc0];
        const RETURN: [u8; 1] = [0xc3];
        let Some(code) = self.bytes(function.address as u64, function.size as u64) else {
            return false;
        };
        let code = code.strip_prefix(&LANDING_PAD).unwrap_or(code);
        let code = code.strip_prefix(&ZERO).unwrap_or(code);
        cfg!(target_arch = "x86_64") && code == RETURN
    }

    /// Whether a function lies completely within code.
    pub(crate) fn is_code(&self, function: &Function) -> bool {
        let Some(end) = function.address.checked_add(function.size) else {
            return false;
        };
        self.layout
            .executable
            .iter()
            .any(|segment| segment.start <= function.address && end <= segment.end)
    }
}

impl Function {
    pub(crate) fn extent(&self) -> Extent {
        Extent {
            address: self.address as u64,
            size: self.size as u64,
            parts: self.parts.clone(),
        }
    }
}

impl Code for Image {
    fn bytes(&self, address: u64, size: u64) -> Option<&[u8]> {
        let start = usize::try_from(address).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        self.layout
            .constant
            .iter()
            .any(|segment| segment.start <= start && end <= segment.end)
            .then(|| {
                // SAFETY: within a segment of the executable, which stays mapped while the
                // process lives, or of a library that is not unloaded while this is used (see
                // `of_library`). It is readable, and no code may write to it. Our own patches
                // (`Batch::install`) come when no code holds this slice.
                unsafe { slice::from_raw_parts(start as *const u8, end - start) }
            })
    }
}

impl Layout {
    /// The first object that is wanted; empty if there is none.
    fn of(wanted: impl Fn(&Self) -> bool) -> Self {
        let mut found = Self::default();
        visit_loaded(|info| {
            let mut layout = Self::default();
            layout.read(info);
            if !wanted(&layout) {
                return ControlFlow::Continue(());
            }
            found = layout;
            ControlFlow::Break(())
        });
        found
    }

    /// Reads an object's description from `dl_iterate_phdr`.
    fn read(&mut self, info: &libc::dl_phdr_info) {
        if info.dlpi_phdr.is_null() {
            return;
        }
        // SAFETY: the program headers are mapped, as many as are told.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        // SAFETY: the same bytes; the structure has no padding.
        let bytes = unsafe {
            slice::from_raw_parts(
                headers.as_ptr().cast::<u8>(),
                std::mem::size_of_val(headers),
            )
        };
        self.bias = info.dlpi_addr as usize;
        self.headers = bytes.to_vec();
        self.headers_at = headers.as_ptr() as usize;
        for header in headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
        {
            let start = self.address(header.p_vaddr);
            let segment = start..start.wrapping_add(header.p_memsz as usize);
            if header.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R {
                self.constant.push(segment.clone());
            }
            if header.p_flags & libc::PF_X != 0 {
                self.executable.push(segment);
            }
        }
    }

    fn address(&self, in_file: u64) -> usize {
        self.bias.wrapping_add(in_file as usize)
    }
}

/// Calls `work` with the executable, and then with each library, until it returns that it has seen
/// enough. It must not panic.
pub fn visit_loaded<F: FnMut(&libc::dl_phdr_info) -> ControlFlow<()>>(mut work: F) {
    unsafe extern "C" fn show<F: FnMut(&libc::dl_phdr_info) -> ControlFlow<()>>(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: `dl_iterate_phdr` hands out a valid description for the time of the call.
        let info = unsafe { &*info };
        // SAFETY: what is handed over below, which no other code refers to meanwhile.
        let work = unsafe { &mut *data.cast::<F>() };
        work(info).is_break().into()
    }
    let data: *mut F = &mut work;
    // SAFETY: the callback has the signature that is asked for and gets `data`, which outlives
    // the call.
    unsafe { libc::dl_iterate_phdr(Some(show::<F>), data.cast()) };
}

impl From<Error> for ImageError {
    fn from(error: Error) -> Self {
        Self::File(error)
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => f.write_str("its file is not to be found, or was replaced"),
            Self::File(error) => write!(f, "its file {error}"),
        }
    }
}

impl std::error::Error for ImageError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn contextpilot_inline_a_function_of_the_test(argument: u64) -> u64 {
        std::hint::black_box(argument) * 3
    }

    #[test]
    fn a_function_of_this_program_is_found_at_its_address() {
        let name = "contextpilot_inline_a_function_of_the_test";
        let there = contextpilot_inline_a_function_of_the_test as extern "C" fn(u64) -> u64;
        assert_eq!(there(2), 6);
        let image = Image::of_self().unwrap();
        assert!(!image.is_stripped().unwrap());
        let found = image
            .find(&[name, "contextpilot_no_such_function"])
            .unwrap();
        let function = found[0].as_ref().unwrap();
        assert_eq!(function.address, there as usize);
        assert!(function.size > 0 && image.is_code(function));
        assert_eq!(found[1], None);
        // The code in memory equals the code in the file.
        let in_memory = image
            .bytes(function.address as u64, function.size as u64)
            .unwrap();
        let elf = image.source.elf().unwrap();
        let in_file = (function.address - image.layout.bias) as u64;
        assert_eq!(Some(in_memory), elf.bytes(in_file, function.size as u64));
    }

    #[test]
    fn a_function_of_a_library_is_found_at_its_address() {
        // SAFETY: a C string.
        let there = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getppid".as_ptr()) }.addr();
        let library = Image::of_library(there).unwrap();
        let found = library.find(&["getppid"]).unwrap();
        let function = found[0].as_ref().unwrap();
        assert_eq!(function.address, there);
        assert!(function.size > 0 && library.is_code(function));
        let nowhere = Box::new(0_u8);
        let outside = Image::of_library(std::ptr::from_ref(&*nowhere).addr());
        assert!(matches!(outside, Err(ImageError::NoFile)));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_function_that_only_returns_does_nothing() {
        #[unsafe(no_mangle)]
        extern "C" fn contextpilot_inline_returns_nothing() {}
        #[unsafe(no_mangle)]
        extern "C" fn contextpilot_inline_returns_its_argument(argument: u32) -> u32 {
            argument
        }
        std::hint::black_box(contextpilot_inline_returns_nothing as extern "C" fn());
        std::hint::black_box(contextpilot_inline_returns_its_argument as extern "C" fn(u32) -> u32);
        let image = Image::of_self().unwrap();
        let names = [
            "contextpilot_inline_returns_nothing",
            "contextpilot_inline_returns_its_argument",
            "contextpilot_inline_a_function_of_the_test",
        ];
        let found = image.find(&names).unwrap();
        let does_nothing = found.iter().flatten().map(|f| image.does_nothing(f));
        assert_eq!(does_nothing.collect::<Vec<_>>(), [true, false, false]);
    }

    #[test]
    fn reading_outside_of_the_program_gives_nothing() {
        let image = Image::of_self().unwrap();
        let outside = Box::new(0_u8);
        for address in [0, std::ptr::from_ref(&*outside) as u64, u64::MAX] {
            assert_eq!(image.bytes(address, 1), None);
        }
        let segment = image.layout.constant[0].clone();
        assert!(image.bytes(segment.end as u64 - 1, 1).is_some());
        assert_eq!(image.bytes(segment.end as u64 - 1, 2), None);
    }
}
