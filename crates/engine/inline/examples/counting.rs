//! A library to be preloaded: hooks functions of the executable inline and counts the calls.
//!
//! `COUNTING_FUNCTIONS`: names, separated by spaces. `COUNTING_REPORT`: a file to which, at exit,
//! one line for each is written: name, calls, and what became of it, separated by tabs.
//! `COUNTING_BATCHES`: so many functions are hooked at once, then the next ones.
//! `COUNTING_FORBID`: first asks the kernel to forbid all changes of code.
//!
//! `COUNTING_FRAMES`: hooks `llama_process` as the real hook does, by a Rust function of its
//! signature, which has a frame that exceptions must pass through.
//!
//! The other replacements know no signatures: they count, and jump on with everything in its place.

#![cfg(target_os = "linux")]

use std::arch::global_asm;
use std::ffi::c_void;
use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use contextpilot_inline::{Batch, Image, Refusal};

const MOST: usize = 128;

static CALLS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static TRAMPOLINES: [AtomicPtr<()>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];

#[cfg(target_arch = "x86_64")]
const STRIDE: usize = 32;
#[cfg(target_arch = "aarch64")]
const STRIDE: usize = 64;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".p2align 5",
    "{first}:",
    ".set counting_index, 0",
    ".rept 128",
    ".p2align 5",
    "endbr64",
    "lock inc qword ptr [rip + {calls} + counting_index]",
    "jmp qword ptr [rip + {trampolines} + counting_index]",
    ".set counting_index, counting_index + 8",
    ".endr",
    first = sym counting_first,
    calls = sym CALLS,
    trampolines = sym TRAMPOLINES,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".p2align 6",
    "{first}:",
    ".set counting_index, 0",
    ".rept 128",
    ".p2align 6",
    "bti c",
    "adrp x16, {calls} + counting_index",
    "add x16, x16, :lo12:{calls} + counting_index",
    "ldr x17, [x16]",
    "add x17, x17, #1",
    "str x17, [x16]",
    "adrp x16, {trampolines} + counting_index",
    "add x16, x16, :lo12:{trampolines} + counting_index",
    "ldr x16, [x16]",
    "br x16",
    ".set counting_index, counting_index + 8",
    ".endr",
    first = sym counting_first,
    calls = sym CALLS,
    trampolines = sym TRAMPOLINES,
);

unsafe extern "C" {
    /// The first of the replacements, which lie [`STRIDE`] bytes apart.
    fn counting_first();
}

/// Index of `llama_process` in the names, where it is to be replaced by [`process`].
static PROCESS: OnceLock<usize> = OnceLock::new();

extern "C-unwind" fn process(context: *mut c_void, kind: i32, batch: *mut c_void) -> i32 {
    struct OnReturn(usize);
    impl Drop for OnReturn {
        fn drop(&mut self) {
            CALLS[self.0].fetch_add(1, Ordering::AcqRel);
        }
    }
    let Some(index) = PROCESS.get() else {
        return -1;
    };
    // Counts also when an exception passes.
    let _count = OnReturn(*index);
    let original = TRAMPOLINES[*index].load(Ordering::Acquire);
    // SAFETY: what was stored is the trampoline of the function of this signature.
    let original = unsafe {
        std::mem::transmute::<*mut (), extern "C-unwind" fn(*mut c_void, i32, *mut c_void) -> i32>(
            original,
        )
    };
    original(context, kind, batch)
}

/// Name and fate of each function.
static FATES: OnceLock<Vec<(String, Result<(), String>)>> = OnceLock::new();

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static ON_EXIT: extern "C" fn() = on_exit;

extern "C" fn on_load() {
    let Ok(names) = std::env::var("COUNTING_FUNCTIONS") else {
        return;
    };
    if std::env::var_os("COUNTING_FORBID").is_some() {
        const SET_MDWE: i32 = 65;
        const REFUSE_EXEC_GAIN: u64 = 1;
        // SAFETY: takes numbers only.
        let forbidden = unsafe { libc::prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0_u64, 0_u64, 0_u64) };
        if forbidden != 0 {
            return;
        }
    }
    let names: Vec<&str> = names.split_whitespace().take(MOST).collect();
    let size = std::env::var("COUNTING_BATCHES").map_or(MOST, |size| size.parse().unwrap_or(MOST));
    let batches = names.chunks(size).enumerate();
    let fates = batches.flat_map(|(nth, batch)| match hook(&names, nth * size, batch.len()) {
        Ok(fates) => fates,
        Err(why) => batch.iter().map(|_| Err(why.clone())).collect(),
    });
    let fates: Vec<_> = fates.collect();
    let names = names.iter().map(|name| (*name).to_owned());
    let _ = FATES.set(names.zip(fates).collect());
}

/// Hooks so many of the names, from the `first` one on.
fn hook(names: &[&str], first: usize, count: usize) -> Result<Vec<Result<(), String>>, String> {
    let image = Image::of_self().map_err(|error| error.to_string())?;
    let functions = image.find(names).map_err(|error| error.to_string())?;
    let mut batch = Batch::new();
    let mut fates: Vec<Result<(), String>> = Vec::new();
    for (index, function) in functions.iter().enumerate().skip(first).take(count) {
        let Some(function) = function else {
            fates.push(Err("missing".into()));
            continue;
        };
        let replacement =
            (counting_first as unsafe extern "C" fn() as usize + index * STRIDE) as *const ();
        let replacement = match std::env::var_os("COUNTING_FRAMES") {
            Some(_) if names[index] == "llama_process" && PROCESS.set(index).is_ok() => {
                process as *const ()
            }
            _ => replacement,
        };
        // SAFETY: the replacement takes whatever the function takes, and has no frame of its own.
        let added = unsafe { batch.add(&image, function, replacement) };
        let added = added.map(|original| {
            TRAMPOLINES[index].store(original.as_ptr().cast_mut(), Ordering::Release);
        });
        fates.push(added.map_err(|refusal: Refusal| refusal.to_string()));
    }
    // SAFETY: this is a constructor; the trampolines are stored.
    unsafe { batch.install() }.map_err(|refusal| refusal.to_string())?;
    Ok(fates)
}

extern "C" fn on_exit() {
    let (Some(fates), Some(path)) = (FATES.get(), std::env::var_os("COUNTING_REPORT")) else {
        return;
    };
    let mut report = String::new();
    for (index, (name, fate)) in fates.iter().enumerate() {
        let calls = CALLS[index].load(Ordering::Acquire);
        let fate = fate.as_ref().map_or_else(String::as_str, |()| "hooked");
        let _ = writeln!(report, "{name}\t{calls}\t{fate}");
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let open = maps.lines().filter(|line| line.contains(" rwx")).count();
    let _ = writeln!(report, "\t{open}\twritable code");
    let _ = std::fs::write(path, report);
}
