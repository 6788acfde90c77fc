//! What each thread keeps of where it is. Every hook reads it, some for every token.
//!
//! A library reaches a thread's own variables through a call of `__tls_get_addr`, as a compiler must expect that the library
//! is loaded after threads were started. This one is loaded with the process, so where the variable lies from the
//! thread's own pointer is known when the dynamic linker has relocated it (the *initial-exec* model), and two instructions have
//! its address. Rust has no stable way to ask for that. Elsewhere than on x86-64 such calls are not worth it: aarch64
//! makes none that saves registers.

use std::cell::Cell;

/// Zeroes say what is true of a new thread.
#[repr(C)]
pub(super) struct Flags {
    /// Our own code is running on this thread; on our own threads this is always true. Hooks that it
    /// reaches do nothing.
    pub(super) internal: Cell<bool>,
    /// The engine is running on this thread, called through a hook.
    pub(super) in_engine: Cell<bool>,
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
std::arch::global_asm!(
    ".pushsection .tbss.contextpilot_flags,\"awT\",@nobits",
    ".hidden contextpilot_flags",
    ".globl contextpilot_flags",
    ".type contextpilot_flags,@object",
    ".size contextpilot_flags, {size}",
    "contextpilot_flags:",
    ".zero {size}",
    ".popsection",
    size = const size_of::<Flags>(),
);

// The same for all other variables of threads, those of the standard library among them: the compiler's calls of
// `__tls_get_addr` come here, with the offset of a variable in the second word of what `rdi` points to. The function of the
// dynamic linker looks the library's part up in a table. It would also be all that we need of the dynamic linker's file, which
// a library that is preloaded and needs it puts in front of the server's own: every symbol of these would be looked for there.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
std::arch::global_asm!(
    ".pushsection .text.contextpilot_tls,\"ax\",@progbits",
    ".hidden __tls_get_addr",
    ".globl __tls_get_addr",
    ".type __tls_get_addr,@function",
    "__tls_get_addr:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + contextpilot_flags@GOTTPOFF]",
    "add rax, qword ptr fs:[0]",
    "add rax, qword ptr [rdi + 8]",
    "sub rax, offset contextpilot_flags@DTPOFF",
    "ret",
    ".cfi_endproc",
    ".size __tls_get_addr, . - __tls_get_addr",
    ".popsection",
);

/// The calling thread's flags.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[inline]
pub(super) fn flags() -> &'static Flags {
    let flags: *const Flags;
    // SAFETY: the first word that a thread's register points to is that address itself (the ABI's supplement on
    // thread-local storage), and the linker's word for the symbol says where from there the thread has it. A function runs
    // on one thread from its beginning to its end, so the result is the same for as long as it is used.
    unsafe {
        std::arch::asm!(
            "mov {flags}, qword ptr [rip + contextpilot_flags@GOTTPOFF]",
            "add {flags}, qword ptr fs:[0]",
            flags = out(reg) flags,
            // Not `pure`: it is asked for again rather than kept, which takes more.
            options(nomem, nostack),
        );
    }
    // SAFETY: zeroes are valid flags. They have no destructor and live as long as their thread, and the reference does not
    // leave it, since a `Cell` cannot be shared.
    unsafe { &*flags }
}

/// The calling thread is not in the engine any more. For what runs for every token: the flag's address is not needed.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[inline]
pub(super) fn leave_engine() {
    // SAFETY: as in `flags`: the flag at this address is the calling thread's, and no reference to what is in the cell exists.
    unsafe {
        std::arch::asm!(
            "mov {flags}, qword ptr [rip + contextpilot_flags@GOTTPOFF]",
            "mov byte ptr fs:[{flags} + {in_engine}], 0",
            flags = out(reg) _,
            in_engine = const std::mem::offset_of!(Flags, in_engine),
            options(nostack, preserves_flags),
        );
    }
}

/// The calling thread is not in the engine any more.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[inline]
pub(super) fn leave_engine() {
    flags().in_engine.set(false);
}

// A constant initialiser and no destructor: usable in the first and the last moments of a
// thread, without registering or allocating anything.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
thread_local! {
    static FLAGS: Flags = const {
        Flags { internal: Cell::new(false), in_engine: Cell::new(false) }
    };
}

/// The calling thread's flags. A hook asks for the address only once, because that may take a call.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[inline]
pub(super) fn flags() -> &'static Flags {
    FLAGS.with(|flags| {
        let flags: *const Flags = flags;
        // SAFETY: without a destructor, the flags live as long as their thread. The reference
        // does not leave the thread, since a `Cell` cannot be shared.
        unsafe { &*flags }
    })
}
