//! Patches all functions at once. This can be done once in a process, and is never undone.

use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Mappings that were writable and executable before.
    writable_code: Option<Vec<Range<usize>>>,
}

#[derive(Debug)]
struct Ready {
    name: String,
    displaced: Range<u64>,
    detour: RawDetour,
}

/// A batch was installed. The memory of the trampolines is no longer writable then, so there can be no
/// second batch.
static INSTALLED: AtomicBool = AtomicBool::new(false);

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
        if INSTALLED.load(Ordering::Acquire) {
            return Err(Refusal::Installed);
        }
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
        self.writable_code.get_or_insert_with(maps::writable_code);
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

    /// Patches all prepared functions, until the process ends. A process can do this once.
    ///
    /// # Errors
    /// Then none is patched, and the trampolines are gone.
    ///
    /// # Safety
    /// No thread may be in one of the functions: call this from the constructor of a library that
    /// was preloaded, or for a library whose functions nobody has been told of yet. The trampolines must be
    /// where the replacements look for them.
    pub unsafe fn install(self) -> Result<(), Refusal> {
        if self.hooks.is_empty() {
            return Ok(());
        }
        if INSTALLED.swap(true, Ordering::AcqRel) {
            return Err(Refusal::Installed);
        }
        if let Err(refusal) = self.calling.finish() {
            INSTALLED.store(false, Ordering::Release);
            return Err(refusal);
        }
        let mut transaction = Transaction::new();
        for hook in &self.hooks {
            transaction.enable(&hook.detour);
        }
        // Do not suspend threads: that would interrupt system calls, and no thread is in the functions.
        // SAFETY: our caller's promise.
        if let Err(error) = unsafe { transaction.commit(Threads::None) } {
            INSTALLED.store(false, Ordering::Release);
            return Err(error.into());
        }
        let trampolines = self.hooks.iter().map(|hook| hook.detour.trampoline());
        let trampolines: Vec<usize> = trampolines.map(<*const ()>::addr).collect();
        self.calling.keep();
        // Dropping them would remove the patches while threads may be in the trampolines.
        self.hooks
            .into_iter()
            .for_each(|hook| mem::forget(hook.detour));
        protect(&self.writable_code.unwrap_or_default(), &trampolines);
        Ok(())
    }
}

/// Makes the trampolines read-only. `detour` leaves them writable, in a process that reads from the
/// network. Best effort: without `/proc`, nothing is found and nothing is changed. Other threads may have
/// made such memory meanwhile, for code that they compile.
fn protect(before: &[Range<usize>], trampolines: &[usize]) {
    for new in maps::writable_code() {
        if before
            .iter()
            .any(|old| old.start < new.end && new.start < old.end)
        {
            // The mapping has merged with one that is not ours.
            continue;
        }
        if !trampolines.iter().any(|at| new.contains(at)) {
            continue;
        }
        let size = new.end - new.start;
        // SAFETY: memory that appeared since the first trampoline was written, with trampolines in
        // it. Nobody writes to them again.
        unsafe { libc::mprotect(new.start as *mut _, size, libc::PROT_READ | libc::PROT_EXEC) };
    }
}
