//! Patches all functions of an image at once. This is never undone.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use detour::{RawDetour, Threads, Transaction};

use crate::calling::Calling;
use crate::image::{Function, Image};
use crate::preflight::Code;
use crate::{Refusal, maps, preflight};

/// What to call in place of the original function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trampoline(*const ());

impl Trampoline {
    /// A function with the original's signature. It may be called as soon as the batch is installed,
    /// until the process ends.
    pub fn as_ptr(self) -> *const () {
        self.0
    }
}

/// Functions that are ready to be patched.
#[derive(Debug, Default)]
pub struct Batch {
    hooks: Vec<Ready>,
    /// Trampolines of those that begin with a call.
    calling: Calling,
    /// `None` before the first function.
    opened: Option<Opened>,
}

#[derive(Debug)]
struct Ready {
    name: String,
    displaced: Range<u64>,
    detour: RawDetour,
}

/// What became of the memory of `detour`'s trampolines, which it uses again for the next ones.
static MEMORY: Mutex<Memory> = Mutex::new(Memory {
    pages: Vec::new(),
    hooks: Vec::new(),
    is_unknown: false,
});

struct Memory {
    /// The pages of all trampolines that were installed. `detour` has whole pages, in which nothing of others is.
    /// (Next to them may be, in the same line of `/proc/self/maps`: of a JIT compiler, or of valgrind.)
    pages: Vec<usize>,
    /// They are never dropped: that would remove the patches while threads may be in the trampolines.
    hooks: Vec<RawDetour>,
    /// Some were not seen to be writable and executable at once. There, `detour` would take the right to be executed
    /// from the old trampolines while it writes new ones.
    is_unknown: bool,
}

fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn page_size() -> usize {
    // SAFETY: takes a number only.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

impl Memory {
    /// These are installed. The memory of their trampolines is still open.
    fn add(&mut self, hooks: impl Iterator<Item = RawDetour>) {
        let first = self.hooks.len();
        self.hooks.extend(hooks);
        let size = page_size();
        let trampolines = self.hooks[first..].iter();
        let trampolines = trampolines.map(|hook| hook.trampoline().addr());
        self.pages.extend(trampolines.map(|at| at / size * size));
        self.pages.sort_unstable();
        self.pages.dedup();
        let writable = maps::writable_code();
        let is_open = |page: &usize| writable.iter().any(|range| range.contains(page));
        self.is_unknown = !self.pages.iter().all(is_open);
    }

    fn allow(&self, access: i32) -> Result<(), Refusal> {
        self.pages.iter().try_for_each(|page| allow(*page, access))
    }
}

/// The memory of the trampolines can be written to until this is dropped.
#[derive(Debug)]
struct Opened(());

impl Opened {
    /// Older trampolines stay executable: threads may be in them.
    fn new() -> Result<Self, Refusal> {
        let memory = memory();
        if memory.is_unknown {
            return Err(Refusal::Installed);
        }
        let result = memory.allow(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        drop(memory);
        // If that failed, dropping this closes the others again.
        let opened = Self(());
        result.map(|()| opened)
    }
}

impl Drop for Opened {
    /// Makes the trampolines read-only. `detour` leaves them writable, in a process that reads from the network.
    fn drop(&mut self) {
        let _ = memory().allow(libc::PROT_READ | libc::PROT_EXEC);
    }
}

/// Changes what may be done with a page that has our trampolines, and is executable in any case.
fn allow(page: usize, access: i32) -> Result<(), Refusal> {
    let at = std::ptr::with_exposed_provenance_mut(page);
    // SAFETY: a page that has our trampolines. A thread that runs in them goes on.
    match unsafe { libc::mprotect(at, page_size(), access) } {
        0 => Ok(()),
        _ => Err(Refusal::WriteForbidden(
            std::io::Error::last_os_error().to_string(),
        )),
    }
}

impl Batch {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prepares a function of `image`: writes its trampoline, and does not change the function.
    ///
    /// # Errors
    /// Why the function cannot be hooked. This does not affect others of the batch.
    ///
    /// # Safety
    /// `replacement` must be code that may be called wherever the function is: of the same
    /// signature and calling convention, and letting exceptions through that do pass there.
    pub unsafe fn add(
        &mut self,
        image: &Image,
        function: &Function,
        replacement: *const (),
    ) -> Result<Trampoline, Refusal> {
        if !image.is_code(function) {
            return Err(Refusal::NotCode);
        }
        let found = preflight::check(&function.extent(), image)?;
        let displaced = found.range;
        let shares = |other: &&Ready| {
            displaced.start < other.displaced.end && other.displaced.start < displaced.end
        };
        if let Some(other) = self.hooks.iter().find(shares) {
            let with = other.name.clone();
            return Err(Refusal::Shared { with });
        }
        if self.opened.is_none() {
            self.opened = Some(Opened::new()?);
        }
        // SAFETY: the target is a function of the image, by its symbol table; what the
        // replacement must be is our caller's promise.
        let detour = unsafe { RawDetour::new(function.address as *const (), replacement) }
            .map_err(|error| match Refusal::from(error) {
                Refusal::TooShort { .. } => Refusal::TooShort {
                    size: function.size as u64,
                },
                other => other,
            })?;
        let trampoline = match found.call {
            Some((call, callee)) => {
                let before = call - displaced.start;
                let before = image
                    .bytes(displaced.start, before)
                    .ok_or(Refusal::NotCode)?;
                self.calling.add(before, displaced.end, callee)?
            }
            None => detour.trampoline(),
        };
        let trampoline = Trampoline(trampoline);
        self.hooks.push(Ready {
            name: function.name.clone(),
            displaced,
            detour,
        });
        Ok(trampoline)
    }

    /// Drops all but the first `len`, with their trampolines.
    pub fn truncate(&mut self, len: usize) {
        self.hooks.truncate(len);
    }

    /// How many functions are prepared.
    pub fn len(&self) -> usize {
        self.hooks.len()
    }

    /// Whether no function is prepared.
    pub fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// Patches all prepared functions, until the process ends.
    ///
    /// # Errors
    /// Then none is patched, and the trampolines are gone.
    ///
    /// # Safety
    /// No thread may be in one of the functions: call this from the constructor of a library that
    /// was preloaded, or for a library whose functions no code has been told of yet. The trampolines must be
    /// where the replacements look for them.
    pub unsafe fn install(self) -> Result<(), Refusal> {
        if self.hooks.is_empty() {
            return Ok(());
        }
        self.calling.finish()?;
        let mut transaction = Transaction::new();
        for hook in &self.hooks {
            transaction.enable(&hook.detour);
        }
        // Do not suspend threads: that would interrupt system calls, and no thread is in the functions.
        // SAFETY: our caller's promise.
        unsafe { transaction.commit(Threads::None) }?;
        memory().add(self.hooks.into_iter().map(|hook| hook.detour));
        self.calling.keep();
        drop(self.opened);
        Ok(())
    }
}
