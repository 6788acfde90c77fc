//! Whether the structures that pass through hooks by value are those of llama.cpp.
//!
//! A fork may have other structures under the same names: ik_llama.cpp's `llama_batch` has 72 bytes where llama.cpp's has
//! 56. What a hook does not understand it would note wrongly, and what it does not pass on the engine would miss. So the
//! engine is asked before anything is hooked: it returns such structures into room that is larger than any of them, and
//! what it has written there must be what we read. An engine that cannot be asked is left alone.

use std::fmt;

use super::original::ROWS;
use super::plain;
use crate::base::abi::{Batch, ContextParams, Pointer};

/// The structure of this engine that is not llama.cpp's, as the rest of a message; `None`: all of them are.
/// Call this when the slots are filled in, and before anything is hooked.
pub(super) fn obstacle() -> Option<String> {
    let checks: [Check; 4] = [
        (&["llama_decode"], "llama_batch", batch),
        (
            &["llama_init_from_model", "llama_new_context_with_model"],
            "llama_context_params",
            context_params,
        ),
        (
            &["llama_model_load_from_file"],
            "llama_model_params",
            model_params,
        ),
        (
            &["mtmd_init_from_file"],
            "mtmd_context_params",
            media_params,
        ),
    ];
    let is_there = |name: &&str| {
        let mut rows = ROWS.iter();
        rows.any(|row| row.name == *name && row.slot.get().is_some())
    };
    let mut used = checks
        .into_iter()
        .filter(|(functions, ..)| functions.iter().any(is_there));
    used.find_map(|(_, structure, check)| {
        let why = check().err()?;
        Some(format!("its {structure} is not the known one ({why})"))
    })
}

/// Functions that take a structure, its name, and whether it is the known one.
type Check = (
    &'static [&'static str],
    &'static str,
    fn() -> Result<(), Doubt>,
);

/// Why a structure may be another one.
#[derive(Debug, PartialEq)]
enum Doubt {
    /// The engine has no function that returns one.
    NobodyToAsk,
    /// Bytes that the engine writes, and those that are known.
    Longer(usize, usize),
    /// The engine has written something else than is expected.
    Other,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NobodyToAsk => f.write_str("no function returns one"),
            Self::Longer(theirs, ours) => write!(f, "{theirs} bytes, not {ours}"),
            Self::Other => f.write_str("its parts are others"),
        }
    }
}

/// The arguments are never looked at, only returned: a batch of these tokens. What comes behind is what the function had
/// until 2024, and what it has in forks.
fn batch() -> Result<(), Doubt> {
    const TOKENS: usize = 0x7e57_0000;
    const LEN: usize = 7;
    if let Some(get_one) = plain::address("llama_batch_get_one") {
        // SAFETY: it takes tokens, which it does not read, and numbers.
        let written = unsafe { Written::by(get_one, [TOKENS, LEN, 3, 5]) };
        written.within(size_of::<Batch>() - Batch::BEYOND)?;
        let is_known = written.number(0) as u32 == LEN as u32
            && written.number(1) == TOKENS
            && (2..7).all(|at| written.number(at) == 0);
        return is_known.then_some(()).ok_or(Doubt::Other);
    }
    // A server that does not call it may be linked without it.
    let make = plain::address("llama_batch_init").ok_or(Doubt::NobodyToAsk)?;
    // SAFETY: it takes three numbers. Room for two tokens of one sequence; it leaks 50 bytes if it is another structure.
    let written = unsafe { Written::by(make, [2, 0, 1, 0]) };
    written.within(size_of::<Batch>() - Batch::BEYOND)?;
    let is_pointer = |at: usize| written.number(at) != 0 && written.number(at) % 4 == 0;
    let is_known = written.number(0) as u32 == 0
        && written.number(2) == 0
        && [1, 3, 4, 5, 6].into_iter().all(is_pointer);
    is_known.then_some(()).ok_or(Doubt::Other)
}

fn context_params() -> Result<(), Doubt> {
    let written = defaults_of("llama_context_default_params")?;
    let numbers =
        [written.number(0), written.number(1)].map(|word| [word as u32, (word >> 32) as u32]);
    let [[_, batch], [at_once, sequences]] = numbers;
    // Before 2024 a seed came first.
    let is_known = batch >= at_once && sequences <= batch.max(1);
    is_known.then_some(()).ok_or(Doubt::Other)
}

fn model_params() -> Result<(), Doubt> {
    defaults_of("llama_model_default_params").map(drop)
}

fn media_params() -> Result<(), Doubt> {
    defaults_of("mtmd_context_params_default").map(drop)
}

/// What this function returns, if hooks can pass it on.
fn defaults_of(function: &str) -> Result<Written, Doubt> {
    let function = plain::address(function).ok_or(Doubt::NobodyToAsk)?;
    // SAFETY: it takes no arguments.
    let written = unsafe { Written::by(function, [0; 4]) };
    written.within(size_of::<ContextParams>())?;
    Ok(written)
}

/// Larger than any structure that an engine returns.
const ROOM: usize = 512;

/// What a function has written into the room for its result.
struct Written {
    words: [usize; ROOM],
    /// Bytes up to the last one that was written.
    len: usize,
}

impl Written {
    /// Calls a function that returns a structure in memory, which is all that has more than two words.
    ///
    /// # Safety
    /// The function takes these arguments (or fewer) in registers for numbers, and throws nothing.
    unsafe fn by(function: Pointer, arguments: [usize; 4]) -> Self {
        /// Neither a zero nor the last byte of an address.
        const UNTOUCHED: u8 = 0xa5;
        const WORD: usize = usize::from_ne_bytes([UNTOUCHED; size_of::<usize>()]);
        let mut words = [WORD; ROOM];
        // SAFETY: the caller's promise, and there is room.
        unsafe { call_into(function, words.as_mut_ptr().cast(), arguments) };
        let touched = |word: &usize| {
            let last = |byte: &u8| *byte != UNTOUCHED;
            word.to_ne_bytes().iter().rposition(last)
        };
        let last = words.iter().rposition(|word| *word != WORD);
        let len = last
            .and_then(|at| Some(at * size_of::<usize>() + touched(&words[at])? + 1))
            .unwrap_or(0);
        Self { words, len }
    }

    /// # Errors
    /// It is longer than that, or nothing was written.
    fn within(&self, most: usize) -> Result<(), Doubt> {
        match self.len {
            0 => Err(Doubt::Other),
            len if len > most => Err(Doubt::Longer(len, most)),
            _ => Ok(()),
        }
    }

    fn number(&self, word: usize) -> usize {
        self.words[word]
    }
}

/// Calls `function`, which writes its result to `into`. The address for a result stands before the arguments there.
///
/// # Safety
/// The function takes these arguments (or fewer), throws nothing, and writes no more than there is room.
#[cfg(target_arch = "x86_64")]
unsafe fn call_into(function: Pointer, into: *mut u8, [a, b, c, d]: [usize; 4]) {
    // SAFETY: the caller's promise.
    let function = unsafe {
        std::mem::transmute::<
            Pointer,
            unsafe extern "C" fn(*mut u8, usize, usize, usize, usize) -> *mut u8,
        >(function)
    };
    // SAFETY: as above.
    unsafe { function(into, a, b, c, d) };
}

/// The same. Here it is in a register of its own.
///
/// # Safety
/// As there.
#[cfg(target_arch = "aarch64")]
unsafe fn call_into(function: Pointer, into: *mut u8, [a, b, c, d]: [usize; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        std::arch::asm!(
            "blr {function}",
            function = in(reg) function,
            in("x0") a,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x8") into,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Known([usize; 7]);

    #[repr(C)]
    struct Fork {
        batch: [usize; 7],
        all: [i32; 3],
    }

    extern "C" fn of_a_fork(token: usize, len: i32, position: i32, sequence: i32) -> Fork {
        Fork {
            batch: [len as usize, token, 0, 0, 0, 0, 0],
            all: [position, 1, sequence],
        }
    }

    extern "C" fn known(token: usize, len: i32) -> Known {
        Known([len as usize, token, 0, 0, 0, 0, 0])
    }

    #[test]
    fn what_a_function_writes_is_seen_to_its_last_byte() {
        let by = |function: *const ()| {
            // SAFETY: functions of these tests, which read numbers only.
            unsafe { Written::by(function.cast_mut().cast(), [48, 2, 3, 5]) }
        };
        let known = by(known as *const ());
        assert_eq!((known.len, known.number(0), known.number(1)), (56, 2, 48));
        assert_eq!(known.within(56), Ok(()));
        let fork = by(of_a_fork as *const ());
        assert_eq!(fork.within(56), Err(Doubt::Longer(68, 56)));
    }
}
