//! Notices when the program has loaded an engine, or another one.
//!
//! A program that loads a library asks the dynamic linker for the address of a function in it before it calls
//! any. So the calls of `dlsym` are redirected, in all objects, to code that looks first whether there is something
//! new, and then *jumps* to `dlsym`: the dynamic linker looks which object called it, and finds the program. `dlopen` is
//! left alone, as it cannot be treated like that: what is to be seen comes after it.
//!
//! `dlsym` does not see a name that has an [`OwnFunction`]: the program gets one of our own functions. The library exports
//! nothing, so no program is bound to it by accident, and one that asks without the hook gets null.
//!
//! Another thread may be loading an object meanwhile. The dynamic linker lists an object before it has relocated
//! it, and then makes a part of it read-only. Before that it is left alone, and looked at again.
//!
//! This is done only with `CONTEXTPILOT_ENGINE=1`. A library that uses the engine in a constructor of its own,
//! and a program that compares addresses of `dlsym`, may see a difference.

use std::arch::global_asm;
use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_inline::Writable;

use super::elf::{Changes, Defined, Object, changes, gnu_hash, program, visit_objects};
use super::found::Embedded;
use super::got::write;
use super::hidden;
use super::replacement;
use super::served;
use super::table::MEMORY;
use crate::base::{environment, guard};

/// The program's `dlsym`.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

/// [`Changes::sum`] when the objects were looked at last.
static SEEN: AtomicU64 = AtomicU64::new(0);

static ANSWERS: OnceLock<&'static [OwnFunction]> = OnceLock::new();

static WATCH: Mutex<Watch> = Mutex::new(Watch {
    found: None,
    hidden: None,
    known: Vec::new(),
    unloaded: 0,
    engines: Vec::new(),
    others: Vec::new(),
    begun: false,
    patience: PATIENCE,
});

/// A function of ours that the program may ask for.
pub(crate) struct OwnFunction {
    pub(crate) name: &'static CStr,
    pub(crate) function: extern "C-unwind" fn(*mut c_void, i32, *const c_char) -> i32,
}

struct Watch {
    /// What to do with an engine.
    found: Option<fn(Result<Embedded, String>)>,
    /// What to do with the reason why an engine in a library is not followed.
    hidden: Option<fn(String)>,
    /// Keys of the objects that were looked at, since something was unloaded last: a key may be used again.
    known: Vec<usize>,
    /// [`Changes::unloaded`] at the last look.
    unloaded: u64,
    /// Keys and files of the objects that have an engine.
    engines: Vec<(usize, PathBuf)>,
    /// Files that have no engine's functions. Each is looked into once, however often it is loaded.
    others: Vec<PathBuf>,
    /// The objects that the program began with were looked at.
    begun: bool,
    /// How many more times an object may be looked at again because it is not ready.
    patience: u32,
}

/// Enough for any load. Where objects never become ready (no memory is ever made read-only), it ends.
const PATIENCE: u32 = 10_000;

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
    "test rax, rax",
    "jz 2f",
    "ret",
    "2:",
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
    "mov x17, x0",
    "ldp x0, x1, [sp, #16]",
    "ldp x29, x30, [sp], #32",
    ".cfi_adjust_cfa_offset -32",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "cbz x17, 2f",
    "mov x0, x17",
    "ret",
    "2:",
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

/// Calls `found` with each engine: now, or when the program has loaded it. Not with that of the program itself, if it
/// `contains_one`. The program gets the functions of `answers` by their names. Where `hidden` is to be told of libraries
/// with an engine that cannot be followed, files are looked into for one.
///
/// # Safety
/// From the library's constructor only.
pub(super) unsafe fn watch(
    answers: &'static [OwnFunction],
    found: fn(Result<Embedded, String>),
    hidden: Option<fn(String)>,
    contains_one: bool,
) {
    let _ = ANSWERS.set(answers);
    // SAFETY: a C string.
    let original = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr()) };
    ORIGINAL.store(original.expose_provenance(), Ordering::Release);
    if let Some(mut watch) = wait_for_watch() {
        if contains_one {
            let key = program().map_or(0, |program| program.key());
            watch.engines.push((key, PathBuf::new()));
        }
        watch.found = Some(found);
        watch.hidden = hidden;
    }
    look();
}

/// The program is about to call `dlsym` with these arguments. Returns the address of one of our functions, or null:
/// then `dlsym` is called.
extern "C" fn before_dlsym(_handle: *mut c_void, name: *const c_char) -> *const () {
    if changes().sum() != SEEN.load(Ordering::Acquire) {
        guard::compute(look);
    }
    if name.is_null() {
        return std::ptr::null();
    }
    // SAFETY: what `dlsym` may be called with: a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let mut answers = ANSWERS.get().into_iter().copied().flatten();
    let answer = answers.find(|answer| answer.name == name);
    answer.map_or(std::ptr::null(), |answer| answer.function as *const ())
}

/// Looks at the objects that were loaded since the last time.
fn look() {
    let Some(mut watch) = wait_for_watch() else {
        return;
    };
    let now = changes();
    if now.sum() == SEEN.load(Ordering::Acquire) {
        // Another thread has just looked.
        return;
    }
    let news = watch.look(now);
    if let Some(found) = watch.found {
        for (key, file) in &news.engines {
            found(Embedded::in_library(*key, file.clone()));
        }
    }
    if news.unready == 0 || watch.patience == 0 {
        SEEN.store(now.sum(), Ordering::Release);
    }
    watch.patience = watch.patience.saturating_sub(news.unready);
    let tell = watch.hidden;
    drop(watch);
    // Not before: this waits for the dynamic linker, and a thread that loads something may wait for us.
    for (_, file) in news.engines {
        stay_loaded(&file);
    }
    if let Some(file) = served::file() {
        stay_loaded(file);
    }
    // Not before, either: this reads whole files, and other threads of the program ask for functions meanwhile.
    if let Some(tell) = tell {
        let reasons = news.others.iter().filter_map(|file| hidden::reason(file));
        reasons.for_each(tell);
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

/// What was found among the objects.
#[derive(Default)]
struct News {
    /// Keys and files of engines.
    engines: Vec<(usize, PathBuf)>,
    /// Files of objects in which no engine's functions are found.
    others: Vec<PathBuf>,
    /// How many objects are not ready.
    unready: u32,
}

impl Watch {
    /// Redirects the calls of `dlsym` in objects that are new, and looks for an engine in them.
    fn look(&mut self, now: Changes) -> News {
        let mut news = News::default();
        if now.unloaded != self.unloaded {
            self.unloaded = now.unloaded;
            self.known.clear();
        }
        let own = replacement::all()
            .first()
            .map_or(0, |replacement| replacement.address());
        // Every program has the first ones. Their files are read only if it was run to be followed.
        let looks_within = self.hidden.is_some() && (self.begun || environment::is_run());
        let is_last_look = self.patience == 0;
        // Read when the list of objects is locked: until then, another object may take the place of one.
        let mut writable = None;
        visit_objects(|object| {
            if object.contains(own) || self.known.contains(&object.key()) {
                return;
            }
            let writable = writable.get_or_insert_with(Writable::now);
            if !is_last_look && !object.is_ready(writable) {
                news.unready += 1;
                return;
            }
            self.known.push(object.key());
            redirect(&object);
            if has_engine(&object) {
                self.note_engine(&object, &mut news);
            } else if looks_within {
                let file = object.file();
                if !self.others.contains(&file) {
                    self.others.push(file.clone());
                    news.others.push(file);
                }
            }
        });
        self.begun = true;
        news
    }

    fn note_engine(&mut self, object: &Object, news: &mut News) {
        let engine = (object.key(), object.file());
        let is_program =
            |known: &(usize, PathBuf)| known.0 == engine.0 && known.1.as_os_str().is_empty();
        if self
            .engines
            .iter()
            .any(|known| *known == engine || is_program(known))
        {
            return;
        }
        news.engines.push(engine.clone());
        self.engines.push(engine);
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
