//! Trampolines of functions that begin with a call, such as `sub rsp, 8; call …`.
//!
//! `detour` moves a call like any other instruction. The callee would return into the trampoline, and an exception of
//! the callee would find there no function that it could be unwound through. So these trampolines do not call:
//!
//! ```text
//!   what comes before the call; push the address behind the original call; jmp callee
//! ```
//!
//! The callee then returns into the function itself, behind the bytes that our jump has overwritten, and everything is
//! as after the original call. A process with shadow stacks would end at that return. No process has them
//! with a preloaded library of ours, because Rust's objects are not marked for them.

use std::ptr;

use crate::Refusal;

/// Bytes of one trampoline.
const SIZE: usize = 64;

/// More functions than are ever hooked begin with a call.
const MOST: usize = 64;

/// `push [rip + …]`, of an address that stands behind both instructions
const PUSH: [u8; 6] = [0xff, 0x35, 6, 0, 0, 0];

/// `jmp [rip + …]`, of an address that stands behind that one
const JUMP: [u8; 6] = [0xff, 0x25, 8, 0, 0, 0];

/// Memory of the trampolines: writable first, and then executable, never both.
#[derive(Debug, Default)]
pub(crate) struct Calling {
    /// Null before the first one.
    memory: usize,
    count: usize,
}

impl Calling {
    /// Writes a trampoline: the instructions `before` the call, and then the call of `callee`, which returns to
    /// `behind`. It can be called after [`finish`](Self::finish).
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn add(
        &mut self,
        before: &[u8],
        behind: u64,
        callee: u64,
    ) -> Result<*const (), Refusal> {
        let code = [
            before,
            &PUSH,
            &JUMP,
            &behind.to_le_bytes(),
            &callee.to_le_bytes(),
        ]
        .concat();
        if self.count == MOST || code.len() > SIZE {
            return Err(Refusal::NotRelocatable);
        }
        if self.memory == 0 {
            self.memory = map()?;
        }
        let at: *mut u8 = ptr::with_exposed_provenance_mut(self.memory + self.count * SIZE);
        // SAFETY: within memory of ours, which is writable, and which no other code knows of yet.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), at, code.len()) };
        self.count += 1;
        Ok(at.cast_const().cast())
    }

    /// The memory becomes executable.
    ///
    /// # Errors
    /// The system forbids it.
    pub(crate) fn finish(&self) -> Result<(), Refusal> {
        if self.memory == 0 {
            return Ok(());
        }
        let at = ptr::with_exposed_provenance_mut(self.memory);
        // SAFETY: memory of ours, to which no code writes any more.
        let result = unsafe { libc::mprotect(at, SIZE * MOST, libc::PROT_READ | libc::PROT_EXEC) };
        match result {
            0 => Ok(()),
            _ => Err(forbidden()),
        }
    }

    /// The memory stays until the process ends.
    pub(crate) fn keep(mut self) {
        self.memory = 0;
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        if self.memory != 0 {
            let at = ptr::with_exposed_provenance_mut(self.memory);
            // SAFETY: memory of ours, of functions that were not patched.
            unsafe { libc::munmap(at, SIZE * MOST) };
        }
    }
}

fn map() -> Result<usize, Refusal> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let at = unsafe { libc::mmap(ptr::null_mut(), SIZE * MOST, access, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        Err(forbidden())
    } else {
        Ok(at.expose_provenance())
    }
}

fn forbidden() -> Refusal {
    Refusal::WriteForbidden(std::io::Error::last_os_error().to_string())
}
