//! How the library gets in front of the host's functions, and what is known of each.
//!
//! The library exports nothing. Once it has seen that this process is a llama-server
//! ([`process`]), it takes the place of the functions of its [`table`] in one of three ways:
//!
//! | way | for | where |
//! |---|---|---|
//! | import | calls from file to file, in ELF files: the words that hold the functions' addresses | [`got`], on what [`elf`] reads |
//! | inline | functions inside the executable: a jump at their beginning | [`inline`] |
//! | interpose pair | calls from file to file on macOS, by dyld | `dyld` |
//!
//! The rest of the hook does not know which way it was: it calls what is behind a function
//! through [`original`], and tells which functions are called in place of the host's ([`Replacement`]).
//!
//! *Found*, *patched* and *called* are told apart ([`evidence`]). The banner states the first two;
//! a claim that hangs on calls which do not come is withdrawn ([`claims`]).
//!
//! **Objects that come later.** Plugins of the engine (`libggml-cpu-*.so` and the like) are loaded
//! while the server starts. What they call is patched when the first model is about to be used
//! ([`patch_late`]). `dlopen` itself is left alone: it looks for libraries on behalf of its caller,
//! which would be us. A program that loads its whole engine so is not recognised as a llama-server;
//! none is known.

#[macro_use]
pub(crate) mod table;

pub(crate) mod claims;
#[cfg(target_os = "linux")]
mod elf;
pub(crate) mod evidence;
#[cfg_attr(not(target_os = "linux"), path = "got_elsewhere.rs")]
mod got;
#[cfg_attr(not(target_os = "linux"), path = "inline_elsewhere.rs")]
mod inline;
#[cfg_attr(target_os = "macos", path = "dyld.rs")]
mod linker;
pub(crate) mod original;
mod parts;
mod process;
mod replacement;

use self::claims::Claim;
use self::got::Survey;
use self::inline::{Inside, Ready};
use self::original::{ROWS, Row, has, has_any, plain};
use self::process::Engine;
use self::table::{
    FORGOTTEN, HOST_CACHE, LAUNCH, NUMBERS, PROMPTS, SESSIONS_SOCKET, UNCACHED, is_called, newest,
    ties_by_prompts,
};

pub(crate) use self::got::patch_late;
pub(crate) use self::parts::ask_version;
pub(crate) use self::replacement::Replacement;

/// What was attached to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attached {
    /// The engine is linked into the executable.
    inside: bool,
    /// Memory is released where nobody sees it: nothing that is saved there can be followed.
    hides_releases: bool,
    /// See [`table::UNCACHED`].
    forgets_uncached: bool,
    /// None where the engine has none.
    host_cache: Option<bool>,
    request_ids: bool,
    slots: bool,
    /// In place of the last two, if one is missing: by their prompts.
    by_prompts: bool,
    /// OpenSSL.
    tls: bool,
}

impl Attached {
    /// Whether memory is released where nobody sees it.
    pub(crate) fn hides_releases(&self) -> bool {
        self.hides_releases
    }

    /// Whether the server forgets prompts that it evaluated with `"cache_prompt": false`.
    pub(crate) fn forgets_uncached(&self) -> bool {
        self.forgets_uncached
    }

    /// Whether requests are tied to slots by their prompts.
    pub(crate) fn ties_by_prompts(&self) -> bool {
        self.by_prompts
    }
}

/// A llama-server: this process.
pub(crate) struct Host {
    engine: Engine,
    survey: Survey,
}

impl Host {
    /// If this process is one. Changes nothing. `replacements`: what is to be called in place of its
    /// functions, in the table's order.
    pub(crate) fn find(replacements: &'static [Replacement]) -> Option<Self> {
        replacement::set(replacements);
        let engine = Engine::find()?;
        let survey = Survey::take();
        let has_server = match &engine {
            Engine::Executable(inside) => inside.has_server(),
            Engine::Libraries => ROWS
                .iter()
                .any(|row| row.is_servers() && linker::is_there(row)),
        };
        process::is_llama_server(has_server).then_some(Self { engine, survey })
    }

    /// Gets in front of its functions.
    ///
    /// # Errors
    /// Why nothing was changed, as the rest of a line.
    ///
    /// # Safety
    /// From the library's constructor only: nobody may be calling, and the dynamic linker is done.
    pub(crate) unsafe fn attach(self) -> Result<Attached, String> {
        match self.engine {
            // SAFETY: the caller's promise.
            Engine::Executable(inside) => unsafe { attach_inside(*inside, self.survey) },
            // SAFETY: the caller's promise.
            Engine::Libraries => unsafe { attach_to_libraries(self.survey) },
        }
    }
}

/// # Safety
/// As for [`Host::attach`].
unsafe fn attach_inside(inside: Inside, survey: Survey) -> Result<Attached, String> {
    let ready = inside
        .prepare_all()
        .map_err(|refused| format!("in this llama-server, {refused}; {USE_SHARED}"))?;
    if let Some(obstacle) = missing().map(lacks).or_else(obstacle_inside) {
        ready.abandon();
        return Err(obstacle);
    }
    let frees = Some(ready.has_runtime() || survey.is_called_by_executable("_ZdlPvm"));
    let tls = ready.tls;
    // SAFETY: the caller's promise.
    unsafe { ready.install() }
        .map_err(|refused| format!("the code of this llama-server {refused}; {USE_SHARED}"))?;
    // SAFETY: the caller's promise.
    unsafe { finish(survey, true, frees, tls) }
}

/// # Safety
/// As for [`Host::attach`].
unsafe fn attach_to_libraries(survey: Survey) -> Result<Attached, String> {
    // Older servers have their own functions in the executable.
    let mut ready = Ready::default();
    if !has_any(NUMBERS) && !has_any(LAUNCH) {
        if let Some(inside) = Inside::with_server() {
            inside.prepare_server(&mut ready);
        }
        if !has_any(NUMBERS) || !has_any(LAUNCH) {
            // One without the other is of no use.
            std::mem::take(&mut ready).abandon();
        }
    }
    let mut frees = survey.is_called_by_callers_of(SAVE, is_release);
    if frees == Some(false) && survey.is_called_by_executable(SAVE) {
        // A C++ runtime or an allocator that is linked into the executable, which calls it there.
        if let Some(inside) = Inside::with_runtime() {
            inside.prepare_runtime(&mut ready);
            frees = Some(ready.has_runtime());
        }
    }
    if let Some(missing) = missing() {
        ready.abandon();
        return Err(lacks(missing));
    }
    let tls = ready.tls;
    // SAFETY: the caller's promise.
    let installed = unsafe { ready.install() }.is_ok();
    // SAFETY: the caller's promise. The banner says what could not be attached.
    unsafe {
        finish(
            survey,
            false,
            frees.map(|frees| frees && installed),
            tls.filter(|_| installed),
        )
    }
}

/// How the server saves a prompt to its host cache.
const SAVE: &str = "llama_state_seq_get_data_ext";

/// Whether it is how the server releases an entry of its host cache, a vector of bytes: by its
/// size, or without where the compiler does not tell that.
fn is_release(row: &Row) -> bool {
    matches!(row.name, "_ZdlPvm" | "_ZdlPv")
}

/// Patches what is called from file to file. `frees`: whether the release of host buffers is seen,
/// if the server saves anything there. `tls`:
/// whether the server's OpenSSL is seen, where that is inside the executable; then one that was
/// loaded for somebody else is none of ours.
///
/// # Safety
/// As for [`Host::attach`].
unsafe fn finish(
    survey: Survey,
    inside: bool,
    frees: Option<bool>,
    tls: Option<bool>,
) -> Result<Attached, String> {
    let by_prompts = ties_by_prompts(has);
    let mut tls_rows = ROWS.iter().filter(|row| row.generation == "openssl");
    let tls_by_words = tls.is_none()
        && tls_rows.all(|row| row.found() && row.places.found() > 0)
        && plain::set(SESSIONS_SOCKET, |name| survey.beside("SSL_read", name));
    let wanted = |row: &Row| match row.generation {
        "openssl" => tls_by_words,
        generation => generation != PROMPTS.0 || by_prompts,
    };
    // SAFETY: the slots were set by the survey and by what was hooked inline.
    unsafe { survey.patch(wanted) }.map_err(|name| {
        format!(
            "the calls of {name} in this llama-server cannot be redirected (its memory is sealed); \
             nothing is reported to the index"
        )
    })?;
    let attached = Attached {
        inside,
        hides_releases: frees == Some(false),
        forgets_uncached: newest(UNCACHED, has) == Some(FORGOTTEN),
        host_cache: frees.filter(|_| plain::has(HOST_CACHE) && has(SAVE)),
        request_ids: has_any(NUMBERS),
        slots: has_any(LAUNCH),
        by_prompts,
        tls: tls.unwrap_or(tls_by_words),
    };
    claims::make(Claim::KvCache);
    if attached.host_cache == Some(true) {
        claims::make(Claim::HostCache);
    }
    if attached.request_ids && attached.slots {
        claims::make(Claim::Requests);
    }
    Ok(attached)
}

/// A required function that is missing.
fn missing() -> Option<&'static str> {
    let mut required = ROWS
        .iter()
        .filter(|row| !row.is_optional() && is_called(row.generation, has));
    required.find(|row| !row.found()).map(|row| row.name)
}

/// What makes it pointless to change the executable.
fn obstacle_inside() -> Option<String> {
    let function = match (has_any(NUMBERS), has_any(LAUNCH)) {
        (true, true) => return None,
        _ if ties_by_prompts(has) => return None,
        (false, _) => "server_queue::get_new_id",
        (true, false) => "server_context::launch_slot_with_task",
    };
    Some(format!(
        "in this llama-server, {function} is no function of its own, so requests cannot be \
         told apart; nothing is reported to the index, use a newer llama.cpp"
    ))
}

/// What to do about an executable that cannot be hooked.
const USE_SHARED: &str = "nothing is reported to the index, use a build with shared libraries";

fn lacks(function: &str) -> String {
    format!("this llama.cpp lacks {function}; nothing is reported to the index")
}
