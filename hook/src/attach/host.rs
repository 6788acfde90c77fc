//! Finds out whether this process is a llama-server, and attaches to it: prepares hooks for what it has,
//! and changes nothing if a required function is missing.

use super::attached::Attached;
use super::claims::{self, Claim};
use super::got::Survey;
use super::inline::{Inside, Ready};
use super::layout;
use super::original::{ROWS, has, has_any};
use super::plain;
use super::process::{self, Engine};
use super::replacement::{self, Replacement};
use super::row::Row;
use super::table::{
    FORGOTTEN, HOST_CACHE, LAUNCH, NUMBERS, SESSIONS_SOCKET, UNCACHED, is_called, newest,
    ties_by_prompts,
};

/// A llama-server: this process.
pub(crate) struct Host {
    engine: Engine,
    survey: Survey,
}

impl Host {
    /// `Some` if this process is a llama-server. Changes nothing. `replacements`: what is called in place
    /// of the host's functions, in the table's order.
    pub(crate) fn find(replacements: &'static [Replacement]) -> Option<Self> {
        replacement::set(replacements);
        let engine = Engine::find()?;
        let survey = Survey::take();
        let has_server = match &engine {
            Engine::Executable(inside) => inside.has_server(),
            Engine::Libraries => ROWS.iter().any(|row| row.is_servers() && row.is_there()),
        };
        process::is_llama_server(has_server).then_some(Self { engine, survey })
    }

    /// Hooks the host's functions.
    ///
    /// # Errors
    /// Why nothing was changed, as the rest of a message.
    ///
    /// # Safety
    /// From the library's constructor only: no thread may be in one of the functions, and the dynamic
    /// linker must have finished.
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
    let obstacle = missing().map(lacks).or_else(obstacle_inside);
    if let Some(obstacle) = obstacle.or_else(foreign) {
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
            // Hooks for request ids and for slots are of no use without each other.
            std::mem::take(&mut ready).abandon();
        }
    }
    let mut frees = survey.is_called_by_callers_of(SAVE, is_release);
    if frees == Some(false) && survey.is_called_by_executable(SAVE) {
        // The executable may contain a C++ runtime or an allocator, and call it directly.
        if let Some(inside) = Inside::with_runtime() {
            inside.prepare_runtime(&mut ready);
            frees = Some(ready.has_runtime());
        }
    }
    if let Some(obstacle) = missing().map(lacks).or_else(foreign) {
        ready.abandon();
        return Err(obstacle);
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

/// The function that saves a prompt to the host prompt cache.
const SAVE: &str = "llama_state_seq_get_data_ext";

/// Whether the server releases an entry of its host prompt cache with this function. An entry is a
/// vector of bytes: `operator delete`, with or without the size, depending on the compiler.
fn is_release(row: &Row) -> bool {
    matches!(row.name, "_ZdlPvm" | "_ZdlPv")
}

/// Patches calls between files. `frees`: whether the release of host buffers is seen, if it is inside the
/// executable. `tls`: whether the server's OpenSSL is hooked, if that is inside the executable. Then an
/// OpenSSL library that was loaded for something else is not patched.
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
        _ => row.is_wanted() && !row.is_idle(by_prompts),
    };
    // SAFETY: the slots were set by the survey and by what was hooked inline.
    unsafe { survey.patch(wanted) }.map_err(|name| {
        format!(
            "the calls of {name} in this llama-server cannot be redirected (its memory is sealed); \
             nothing is reported to the index"
        )
    })?;
    let attached = Attached {
        embedded: None,
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
    missing_of(|_| true).next()
}

/// All of them, of the rows that are wanted.
pub(super) fn missing_of(wanted: impl Fn(&Row) -> bool) -> impl Iterator<Item = &'static str> {
    let required = ROWS
        .iter()
        .filter(move |row| wanted(row) && !row.is_optional() && is_called(row.generation, has));
    required.filter(|row| !row.found()).map(|row| row.name)
}

/// A reason for which changing the executable would be pointless.
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

/// What a user can do about an executable that cannot be hooked.
const USE_SHARED: &str = "nothing is reported to the index, use a build with shared libraries";

/// What is not llama.cpp's in an engine that has the names of its functions.
fn foreign() -> Option<String> {
    let other = layout::obstacle()?;
    Some(format!(
        "this llama.cpp is another one: {other}; it is left alone, and nothing is reported to the index"
    ))
}

fn lacks(function: &str) -> String {
    format!("this llama.cpp lacks {function}; nothing is reported to the index")
}
