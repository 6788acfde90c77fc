//! Attaches to llama.cpp in a program that is not a llama-server, if it is asked to (`CONTEXTPILOT_ENGINE=1`).
//!
//! Such a program has the engine in a library that it loads by itself, or is linked with it, or contains it. It
//! calls functions through addresses that it has asked for, or directly, so all are hooked inline.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::attached::{self, Attached};
use super::claims::{self, Claim};
use super::elf::{Defined, gnu_hash, objects};
use super::engines::{self, ENGINES};
use super::got;
use super::hidden;
use super::host::missing_of;
use super::inline::Inside;
use super::layout;
use super::loading;
pub(crate) use super::loading::Answer;
use super::replacement::{self, Replacement};
use super::row::Row;
use super::served;
pub(crate) use super::served::serves_inside;
use crate::base::environment;

/// An engine of this program.
pub(crate) struct Embedded {
    inside: Inside,
    /// The key of its library; `None`: it is in the program.
    library: Option<usize>,
    /// The file that contains it.
    pub(crate) file: PathBuf,
    /// When it was found.
    since: Instant,
}

/// This program was attached to, and is no llama-server.
static EMBEDDED: AtomicBool = AtomicBool::new(false);

/// A function that the prefix store needs of each engine, and why it cannot be hooked.
static UNSTORABLE: [OnceLock<String>; ENGINES] = [const { OnceLock::new() }; ENGINES];

/// Why the engine that the thread is in can have no prefix store.
pub(crate) fn unstorable() -> Option<&'static str> {
    let why = UNSTORABLE[engines::current() % ENGINES].get();
    why.map(String::as_str)
}

/// Whether this process was attached to, and is no llama-server. It has no flags then.
pub(crate) fn is_embedded() -> bool {
    EMBEDDED.load(Ordering::Relaxed)
}

/// The same, if it has no [server inside](served) either. It has no requests then.
pub(crate) fn is_program() -> bool {
    is_embedded() && !serves_inside()
}

/// Calls `found` with each engine of this program: now, or when the program has loaded it.
/// `replacements`: what is called in place of the host's functions, in the table's order. `answers`: our functions
/// that the program may ask the dynamic linker for. `hidden` is called with the reason why an engine in a library that the
/// program has loaded is not followed: another one may come.
///
/// # Safety
/// From the library's constructor only.
pub(crate) unsafe fn watch(
    replacements: &'static [Replacement],
    answers: &'static [Answer],
    found: fn(Result<Embedded, String>),
    hidden: Option<fn(String)>,
) {
    replacement::set(replacements);
    let since = Instant::now();
    if let Some(inside) = Inside::with_engine() {
        let file = environment::program();
        found(Ok(Embedded {
            inside,
            library: None,
            file,
            since,
        }));
        // SAFETY: the caller's promise.
        return unsafe { loading::watch(answers, found, hidden, true) };
    }
    let program = environment::program();
    if let Some(why) = environment::is_run()
        .then(|| hidden::reason(&program))
        .flatten()
    {
        found(Err(why));
    }
    // SAFETY: the caller's promise.
    unsafe { loading::watch(answers, found, hidden, false) };
}

impl Embedded {
    /// The engine in the library that this address lies in, whose file is this.
    ///
    /// # Errors
    /// Why it cannot be hooked, as the rest of a message.
    pub(super) fn in_library(address: usize, file: PathBuf) -> Result<Self, String> {
        let since = Instant::now();
        let shown = file.display();
        match Inside::in_library(address) {
            Ok(Some(inside)) => Ok(Self {
                inside: if is_module(&file) {
                    inside.with_members(exported_by(address))
                } else {
                    inside
                },
                library: Some(address),
                file,
                since,
            }),
            Ok(None) => Err(format!(
                "the functions of {shown} cannot be found; {AS_EVER}"
            )),
            Err(error) => Err(format!("{shown} cannot be hooked: {error}; {AS_EVER}")),
        }
    }

    /// Hooks the engine's functions, of the engine that the thread has [entered](engines::enter_next).
    ///
    /// # Errors
    /// Why nothing was changed, as the rest of a message.
    ///
    /// # Safety
    /// No thread may be in one of the functions: from the library's constructor, or before any code was told of
    /// an address in the library.
    pub(crate) unsafe fn attach(self) -> Result<Attached, String> {
        let shown = self.file.display().to_string();
        let ready = self
            .inside
            .prepare_engine()
            .map_err(|refused| format!("in {shown}, {refused}; {AS_EVER}"))?;
        let lacking: Vec<&str> = missing_of(Row::is_of_library).collect();
        if !lacking.is_empty() {
            ready.abandon();
            return Err(hidden::lacks(&self.file, &lacking));
        }
        if let Some(other) = layout::obstacle() {
            ready.abandon();
            return Err(format!(
                "the llama.cpp of {shown} is another one: {other}; {AS_EVER}"
            ));
        }
        let unstorable = ready.unstorable.clone();
        // SAFETY: the caller's promise.
        unsafe { ready.install() }
            .map_err(|refused| format!("the code of {shown} {refused}; {AS_EVER}"))?;
        if let Some(why) = unstorable {
            let _ = UNSTORABLE[engines::current() % ENGINES].set(why);
        }
        if let Some(library) = self.library {
            got::redirect_calls_of(library);
        }
        attached::keep_file(&self.file);
        engines::keep_next();
        EMBEDDED.store(true, Ordering::Relaxed);
        claims::make(Claim::KvCache);
        // SAFETY: the caller's promise.
        let server = |engine| unsafe { served::attach(engine) };
        // Slots and tasks are numbers of one server.
        let engine = self.library.filter(|_| engines::current() == 0);
        let served = engine.and_then(server);
        Ok(Attached::embedded(self.file, self.since.elapsed(), served))
    }
}

/// Whether it is more than llama.cpp: a module of Python or Node, which calls the llama.cpp inside.
pub(super) fn is_module(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    !name.starts_with("libllama")
}

/// Whether the object with this key exports a function.
fn exported_by(key: usize) -> impl Fn(&str) -> bool {
    let object = objects().into_iter().find(|object| object.key() == key);
    move |name| {
        let name = CString::new(name).unwrap_or_default();
        let found = object
            .as_ref()
            .and_then(|object| object.defined(&name, gnu_hash(&name)));
        matches!(found, Some(Defined::At(_)))
    }
}

/// What follows if the engine cannot be hooked.
pub(super) const AS_EVER: &str = "its prompts are evaluated as ever";
