//! What there is in this process to attach to.

use std::ffi::{OsStr, OsString};
use std::fmt;

use contextpilot_settings::Settings;

use crate::connections;
use crate::imports;
use crate::inside::Inside;
use crate::original::{self, ROWS, has, has_any, plain};
use crate::table::{
    FORGOTTEN, HOST_CACHE, LAUNCH, MEMORY, NUMBERS, UNCACHED, is_called, newest, ties_by_prompts,
};
use crate::{log, prompts};

/// Where the host has its engine.
pub(crate) enum Host {
    /// In libraries: calls come to us by name.
    Libraries,
    /// Linked into it.
    Executable(Box<Inside>),
}

impl Host {
    /// If this process is a llama-server. Quick where it has libraries or is stripped, as
    /// everything is that a server and the scripts around it start.
    pub(crate) fn find() -> Option<Self> {
        if has_any(MEMORY) {
            return (has_server() || executable_is_llama_server()).then_some(Self::Libraries);
        }
        let inside = Inside::with_engine()?;
        (inside.has_server() || executable_is_llama_server())
            .then(|| Self::Executable(Box::new(inside)))
    }
}

/// The parts of the host that were found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attached {
    /// The engine is linked into the executable.
    inside: bool,
    /// All required functions of the engine's memory, with one way or other to evaluate.
    memory: bool,
    /// A required function that is missing.
    missing: Option<&'static str>,
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
    /// Gets everything into place.
    ///
    /// # Errors
    /// Why nothing was changed, as the rest of a line.
    ///
    /// # Safety
    /// From the library's constructor only.
    pub(crate) unsafe fn to(host: Host) -> Result<Self, String> {
        let Host::Executable(inside) = host else {
            // SAFETY: the caller's promise.
            let tls = unsafe { attach_to_servers_own() };
            let attached = Self::look(false);
            return match attached.missing {
                Some(missing) => Err(lacks(missing)),
                // SAFETY: the caller's promise.
                None => Ok(unsafe { attached.finished(tls) }),
            };
        };
        let ready = inside
            .prepare_all()
            .map_err(|refused| format!("in this llama-server, {refused}; {USE_SHARED}"))?;
        let attached = Self::look(true);
        if let Some(obstacle) = attached.obstacle_inside() {
            ready.abandon();
            return Err(obstacle);
        }
        let tls = ready.tls;
        // SAFETY: the caller's promise.
        unsafe { ready.install() }
            .map_err(|refused| format!("the code of this llama-server {refused}; {USE_SHARED}"))?;
        // SAFETY: the caller's promise.
        Ok(unsafe { attached.finished(tls) })
    }

    /// `tls`: whether the server's OpenSSL is seen, where that is inside the executable. Then one
    /// that was loaded for somebody else is none of ours.
    ///
    /// # Safety
    /// From the library's constructor only.
    unsafe fn finished(self, tls: Option<bool>) -> Self {
        if self.by_prompts {
            prompts::engage();
        }
        // SAFETY: the caller's promise.
        let tls = tls.unwrap_or_else(|| unsafe { imports::redirect() });
        if newest(UNCACHED, has) == Some(FORGOTTEN) {
            connections::expect_forgetting();
        }
        Self { tls, ..self }
    }

    fn look(inside: bool) -> Self {
        let missing = ROWS
            .iter()
            .filter(|row| row.need == "required" && is_called(row.generation, has))
            .find(|row| !row.found())
            .map(|row| row.name);
        Self {
            inside,
            memory: missing.is_none(),
            missing,
            host_cache: plain::has(HOST_CACHE).then(|| {
                let saved = original::llama_state_seq_get_data_ext();
                saved.is_some() && original::_ZdlPvm().is_some()
            }),
            request_ids: has_any(NUMBERS),
            slots: has_any(LAUNCH),
            by_prompts: ties_by_prompts(has),
            tls: false,
        }
    }

    /// What makes it pointless to change the executable.
    fn obstacle_inside(&self) -> Option<String> {
        if let Some(missing) = self.missing {
            return Some(lacks(missing));
        }
        let function = match (self.request_ids, self.slots) {
            _ if self.by_prompts => return None,
            (true, true) => return None,
            (false, _) => "server_queue::get_new_id",
            (true, false) => "server_context::launch_slot_with_task",
        };
        Some(format!(
            "in this llama-server, {function} is no function of its own, so requests cannot be \
             told apart; nothing is reported to the index, use a newer llama.cpp"
        ))
    }

    /// The one line that says that we are here.
    pub(crate) fn announce(&self, settings: &Settings) {
        let endpoint = settings.index.as_ref().map(|index| index.endpoint(""));
        let (index, url) = match &endpoint {
            Some(url) => ("index ", url.trim_end_matches('/')),
            None => ("for observation only, as no index is set", ""),
        };
        log::line(format_args!(
            "Active: llama.cpp {}{}, attached: {self}; {index}{url}",
            Engine,
            if self.inside {
                ", inside the executable"
            } else {
                ""
            },
        ));
    }

    /// Whether copies in the host prompt cache are seen.
    pub(crate) fn sees_host_cache(&self) -> bool {
        self.host_cache == Some(true)
    }

    /// The same for programs.
    pub(crate) fn describe(&self) -> contextpilot_control::Engine {
        // SAFETY: no preconditions; a static text.
        let version = plain::text(unsafe { plain::version() });
        // SAFETY: as above.
        let build = plain::text(unsafe { plain::build() });
        let parts = self.parts();
        let found = parts.iter().filter(|(found, ..)| *found);
        let missing = parts.iter().filter(|(found, ..)| !found);
        contextpilot_control::Engine {
            name: "llama.cpp".to_owned(),
            version: version.map(str::to_owned),
            build: build.map(str::to_owned),
            inside_executable: self.inside,
            attached: found.map(|(_, name, _)| (*name).to_owned()).collect(),
            missing: missing
                .map(|(_, name, consequence)| format!("{name}: {consequence}"))
                .collect(),
        }
    }

    /// What there can be to attach to, whether it is there, and what follows if it is not.
    fn parts(&self) -> Vec<(bool, &'static str, &'static str)> {
        let unrecognised = "requests are not recognised";
        let mut parts = vec![(self.memory, "KV cache", "nothing is reported")];
        // Servers of before late 2025 have none.
        if let Some(found) = self.host_cache {
            parts.push((found, "host prompt cache", "prompts there count as gone"));
        }
        if self.by_prompts {
            parts.push((true, "requests tied by their prompts", ""));
            let images = ["mtmd_tokenize", "mtmd_helper_decode_image_chunk"];
            let limit = match images.into_iter().all(has) {
                true => "infill is not tracked",
                false => "infill and images are not tracked",
            };
            parts.push((false, "slot assignment", limit));
        } else {
            parts.push((self.request_ids, "request ids", unrecognised));
            parts.push((self.slots, "slot assignment", unrecognised));
        }
        // Of interest only where it is used.
        if serves_tls() {
            parts.push((self.tls, "TLS", "requests over https are not recognised"));
        }
        parts
    }
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts();
        let mut comma = "";
        for (_, name, _) in parts.iter().filter(|(found, ..)| *found) {
            write!(f, "{comma}{name}")?;
            comma = ", ";
        }
        for (_, name, consequence) in parts.iter().filter(|(found, ..)| !found) {
            write!(f, "; without {name}: {consequence}")?;
        }
        Ok(())
    }
}

/// Whether the server was asked to speak TLS.
fn serves_tls() -> bool {
    let asks = |argument: OsString| {
        let argument = argument.to_string_lossy().replace('_', "-");
        argument == "--ssl-cert-file"
    };
    std::env::args_os().any(asks) || std::env::var_os("LLAMA_ARG_SSL_CERT_FILE").is_some()
}

/// The engine's version, in its own words.
struct Engine;

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: no preconditions; a static text.
        let version = plain::text(unsafe { plain::version() });
        // SAFETY: as above.
        let build = plain::text(unsafe { plain::build() });
        match (version, build) {
            (Some(version), Some(build)) => write!(f, "{version} (build {build})"),
            (Some(version), None) => f.write_str(version),
            (None, Some(build)) => write!(f, "build {build}"),
            (None, None) => f.write_str("(version unknown)"),
        }
    }
}

/// What to do about an executable that cannot be hooked.
const USE_SHARED: &str = "nothing is reported to the index, use a build with shared libraries";

fn lacks(function: &str) -> String {
    format!("this llama.cpp lacks {function}; nothing is reported to the index")
}

/// Older servers with libraries for their engine have their own functions in the executable. Says
/// whether OpenSSL is seen, where that is there, too.
///
/// # Safety
/// From the library's constructor only.
unsafe fn attach_to_servers_own() -> Option<bool> {
    if has_server() {
        return None;
    }
    let ready = Inside::with_server().map(Inside::prepare_server)?;
    if !has_any(NUMBERS) || !has_any(LAUNCH) {
        // One without the other is of no use.
        ready.abandon();
        return None;
    }
    let tls = ready.tls;
    // SAFETY: the caller's promise. The banner says what could not be attached.
    match unsafe { ready.install() } {
        Ok(()) => tls,
        Err(_) => None,
    }
}

/// Whether one of the server's own functions is in a library.
fn has_server() -> bool {
    has_any(NUMBERS) || has_any(LAUNCH)
}

/// Asked last, where the engine is there but not the server's own functions.
fn executable_is_llama_server() -> bool {
    std::env::current_exe().is_ok_and(|path| {
        path.file_name()
            .and_then(OsStr::to_str)
            .is_some_and(|name| name.contains("llama-server"))
    })
}
