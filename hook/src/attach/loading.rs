//! Notices when the program has loaded an engine.
//!
//! A program that loads a library asks the dynamic linker for the address of a function in it before it calls
//! any. So the calls of `dlsym` are redirected, in all objects, to code that looks first whether there is something
//! new, and then *jumps* to `dlsym`: the dynamic linker looks who called it, and finds the program. `dlopen` is
//! left alone, as it cannot be treated like that: what is to be seen comes after it.
//!
//! This is done only with `CONTEXTPILOT_ENGINE=1`. A library that uses the engine in a constructor of its own,
//! and a program that compares addresses of `dlsym`, may see a difference.

use std::arch::global_asm;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use super::elf::{Defined, Object, changes, gnu_hash, visit_objects};
use super::embedded::Embedded;
use super::got::write;
use super::replacement;
use super::table::MEMORY;
use crate::base::{guard, log};

/// The program's `dlsym`.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

/// [`changes`] when the objects were looked at last.
static SEEN: AtomicU64 = AtomicU64::new(0);

static WATCH: Mutex<Watch> = Mutex::new(Watch {
    found: None,
    known: Vec::new(),
    engine: None,
});

struct Watch {
    /// What to do with the engine.
    found: Option<fn(Result<Embedded, String>)>,
    /// Keys of the objects that were looked at.
    known: Vec<usize>,
    /// The key of the object that has the engine.
    engine: Option<usize>,
}

/// How long a thread waits while another one attaches, which takes some milliseconds.
const WAIT: Duration = Duration::from_secs(2);

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.contextpilot_dlsym,\"ax\",@progbits",
    ".p2align 4",
    ".hidden contextpilot_dlsym",
    ".globl contextpilot_dlsym",
    ".type contextpilot_dlsym,@function",
    "contextpilot_dlsym:",
    ".cfi_startproc",
    "endbr64",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {before}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "jmp qword ptr [rip + {original}]",
    ".cfi_endproc",
    ".size contextpilot_dlsym, .-contextpilot_dlsym",
    ".popsection",
    before = sym before_dlsym,
    original = sym ORIGINAL,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.contextpilot_dlsym,\"ax\",@progbits",
    ".p2align 4",
    ".hidden contextpilot_dlsym",
    ".globl contextpilot_dlsym",
    ".type contextpilot_dlsym,@function",
    "contextpilot_dlsym:",
    ".cfi_startproc",
    "hint #34",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_adjust_cfa_offset 32",
    ".cfi_rel_offset x29, 0",
    ".cfi_rel_offset x30, 8",
    "stp x0, x1, [sp, #16]",
    "bl {before}",
    "ldp x0, x1, [sp, #16]",
    "ldp x29, x30, [sp], #32",
    ".cfi_adjust_cfa_offset -32",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "adrp x16, {original}",
    "ldr x16, [x16, :lo12:{original}]",
    "br x16",
    ".cfi_endproc",
    ".size contextpilot_dlsym, .-contextpilot_dlsym",
    ".popsection",
    before = sym before_dlsym,
    original = sym ORIGINAL,
);

unsafe extern "C" {
    /// Called in place of `dlsym`.
    fn contextpilot_dlsym();
}

/// Calls `found` with the engine, once: now, or when the program has loaded it.
///
/// # Safety
/// From the library's constructor only.
pub(super) unsafe fn watch(found: fn(Result<Embedded, String>)) {
    // SAFETY: a C string.
    let original = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr()) };
    ORIGINAL.store(original.expose_provenance(), Ordering::Release);
    if let Some(mut watch) = wait_for_watch() {
        watch.found = Some(found);
    }
    look();
}

/// The program is about to call `dlsym`.
extern "C" fn before_dlsym() {
    if changes() != SEEN.load(Ordering::Acquire) {
        guard::compute(look);
    }
}

/// Looks at the objects that were loaded since the last time.
fn look() {
    let Some(mut watch) = wait_for_watch() else {
        return;
    };
    let now = changes();
    if now == SEEN.load(Ordering::Acquire) {
        // Another thread has just looked.
        return;
    }
    let news = watch.look();
    let engine = news.engine.filter(|_| watch.engine.is_none());
    if let Some(engine) = &engine {
        watch.engine = Some(engine.key);
        if let Some(found) = watch.found.take() {
            found(Embedded::in_library(engine.key, engine.file.clone()));
        }
    }
    SEEN.store(now, Ordering::Release);
    drop(watch);
    if let Some(second) = news.second {
        log::line(format_args!(
            "{} is a second llama.cpp in this program: only the first one is followed, and the prompts of this \
             one are evaluated as ever",
            second.display()
        ));
    }
    // Not before: this waits for the dynamic linker, and a thread that loads something may wait for us.
    if let Some(engine) = engine {
        stay_loaded(&engine.file);
    }
}

/// Locks what is known, unless another thread keeps it for too long (or was forked away with it).
fn wait_for_watch() -> Option<MutexGuard<'static, Watch>> {
    let until = Instant::now() + WAIT;
    loop {
        match WATCH.try_lock() {
            Ok(watch) => return Some(watch),
            Err(TryLockError::Poisoned(_)) => return None,
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// An object that has an engine.
struct Engine {
    key: usize,
    file: PathBuf,
}

/// What was found among the objects.
#[derive(Default)]
struct News {
    engine: Option<Engine>,
    /// The file of a further engine.
    second: Option<PathBuf>,
}

impl Watch {
    /// Redirects the calls of `dlsym` in objects that are new, and looks for an engine in them.
    fn look(&mut self) -> News {
        let mut news = News::default();
        let mut keys = Vec::with_capacity(self.known.len());
        let own = replacement::all()
            .first()
            .map_or(0, |replacement| replacement.address());
        visit_objects(|object| {
            keys.push(object.key());
            if object.contains(own) || self.known.contains(&object.key()) {
                return;
            }
            redirect(&object);
            if has_engine(&object) {
                let (key, file) = (object.key(), object.file());
                match self.engine.is_none() && news.engine.is_none() {
                    true => news.engine = Some(Engine { key, file }),
                    false => news.second = Some(file),
                }
            }
        });
        self.known = keys;
        news
    }
}

/// Redirects the object's calls of `dlsym`.
fn redirect(object: &Object) {
    let original = ORIGINAL.load(Ordering::Relaxed);
    for word in object.words() {
        let now = word.at.load(Ordering::Relaxed);
        let is_lazy = word.may_be_lazy && object.contains(now);
        if (now == original || is_lazy) && word.name() == c"dlsym" {
            let at = std::ptr::from_ref(word.at).addr();
            let ours = contextpilot_dlsym as unsafe extern "C" fn() as usize;
            // SAFETY: a function that behaves as `dlsym`, whose address the word held, or would have held.
            unsafe { write(object, at, ours) };
        }
    }
}

/// Whether the object exports functions that every engine has.
fn has_engine(object: &Object) -> bool {
    MEMORY.iter().any(|(_, name)| {
        let name = CString::new(*name).unwrap_or_default();
        let name: &CStr = &name;
        matches!(object.defined(name, gnu_hash(name)), Some(Defined::At(_)))
    })
}

/// The library is not unloaded any more, because its functions have been changed.
fn stay_loaded(file: &std::path::Path) {
    let file: &OsStr = file.as_os_str();
    let Ok(name) = CString::new(file.as_bytes()) else {
        return;
    };
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: loads nothing: the library is there.
    unsafe { libc::dlopen(name.as_ptr(), flags) };
}
