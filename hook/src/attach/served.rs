//! A llama-server inside another program: a module of Python that runs one on threads of its own (xllamacpp), or a
//! program that has loaded llama-server's library. Its requests, slots and host prompt cache are followed as those of a
//! llama-server. What only a command line says is not known: defaults are assumed.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::claims::{self, Claim};
use super::elf::{Defined, Object, gnu_hash, objects};
use super::got;
use super::inline::{Inside, Ready};
use super::original::{ROWS, has, has_any};
use super::plain;
use super::process;
use super::table::{Generations, HOST_CACHE, LAUNCH, NUMBERS};

/// What is followed of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// Whether releases of host buffers are seen. `None`: the engine has no host prompt cache.
    pub(super) host_cache: Option<bool>,
}

static SERVES: AtomicBool = AtomicBool::new(false);

/// The file of a server that is not in its engine's library.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Whether there is a server in this program whose requests are followed.
pub(crate) fn serves_inside() -> bool {
    SERVES.load(Ordering::Relaxed)
}

/// The file of the library that has the server's functions. It must not be unloaded.
pub(super) fn file() -> Option<&'static PathBuf> {
    FILE.get()
}

/// Follows the server of this program, if it has one with the engine in the library of this key. `None`: there is none, or its
/// requests cannot be followed.
///
/// # Safety
/// As for [`Embedded::attach`](super::embedded::Embedded::attach), right after the engine was attached to.
pub(super) unsafe fn attach(engine: usize) -> Option<Served> {
    if process::is_command_of_engine() {
        return None;
    }
    let library = find(engine)?;
    let inside = Inside::server_in_library(library.key())?;
    let mut ready = Ready::default();
    inside.prepare_server_alone(&mut ready);
    if !has_any(NUMBERS) || !has_any(LAUNCH) {
        ready.abandon();
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { ready.install() }.ok()?;
    got::redirect_calls_of_server(&[engine, library.key()]);
    let is_patched = |name: &str| {
        let mut rows = ROWS.iter();
        rows.any(|row| row.name == name && row.places.patched() > 0)
    };
    let hears = ["recv", "send", "shutdown"].into_iter().all(is_patched)
        && (is_patched("accept") || is_patched("accept4"));
    if !hears {
        return None;
    }
    let _ = FILE.set(library.file());
    SERVES.store(true, Ordering::Relaxed);
    // With the size, it may be a function of the library's own, which calls the other.
    let is_own = is_defined(&library, "_ZdlPvm");
    let frees = is_patched("_ZdlPvm") || is_own && is_patched("_ZdlPv");
    let has_cache = plain::has(HOST_CACHE) && has("llama_state_seq_get_data_ext");
    if has_cache && frees {
        claims::make(Claim::HostCache);
    }
    claims::make(Claim::Requests);
    Some(Served {
        host_cache: has_cache.then_some(frees),
    })
}

/// The library with the server's functions: the engine's own, if that has them.
fn find(engine: usize) -> Option<Object> {
    let objects = objects();
    let has_any = |object: &Object, generations: Generations| {
        let mut all = generations.iter();
        all.any(|(_, name)| is_defined(object, name))
    };
    let is_server = |object: &Object| has_any(object, NUMBERS) && has_any(object, LAUNCH);
    let mut servers: Vec<Object> = objects.into_iter().filter(is_server).collect();
    servers.sort_by_key(|object| object.key() != engine);
    servers.into_iter().next()
}

fn is_defined(object: &Object, name: &str) -> bool {
    let name = CString::new(name).unwrap_or_default();
    matches!(object.defined(&name, gnu_hash(&name)), Some(Defined::At(_)))
}
