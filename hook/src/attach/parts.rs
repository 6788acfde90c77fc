//! What the library has attached to, as text for the banner and for `/stats`.

use std::ffi::OsString;
use std::fmt;
use std::sync::OnceLock;

use contextpilot_settings::Settings;

use super::claims::{self, Claim};
use super::original::{ROWS, has, plain};
use super::{Attached, evidence};
use crate::base::log;

/// If the engine has this function, we can ask it for the special tokens of `/infill` prompts.
const INFILL: &str = "llama_vocab_fim_pre";

impl Attached {
    /// Prints the banner: one line that says what is hooked.
    pub(crate) fn announce(&self, settings: &Settings) {
        let endpoint = settings.index.as_ref().map(|index| index.endpoint(""));
        let (index, url) = match &endpoint {
            Some(url) => ("index ", url.trim_end_matches('/')),
            None if settings.kv_events.is_some() => ("for routers, as no index is set", ""),
            None => ("for observation only, as no index is set", ""),
        };
        let patched = || ROWS.iter().map(|row| row.places.patched());
        log::line(format_args!(
            "Active: llama.cpp {}{}, hooked: {self} ({} functions in {} places); {index}{url}",
            Engine,
            if self.inside {
                ", inside the executable"
            } else {
                ""
            },
            patched().filter(|places| *places > 0).count(),
            patched().sum::<u32>(),
        ));
    }

    /// Whether the host prompt cache is followed.
    pub(crate) fn sees_host_cache(&self) -> bool {
        self.host_cache == Some(true)
    }

    /// The same for `/stats`.
    pub(crate) fn describe(&self) -> contextpilot_control::Engine {
        let Version { version, build } = version();
        let parts = self.parts();
        let found = parts.iter().filter(|(found, ..)| *found);
        contextpilot_control::Engine {
            name: "llama.cpp".to_owned(),
            version: version.map(str::to_owned),
            build: build.map(str::to_owned),
            inside_executable: self.inside,
            attached: found.map(|(_, name, _)| (*name).to_owned()).collect(),
            missing: self.missing(),
            functions: evidence::functions(),
        }
    }

    /// What is not followed, and the consequences.
    pub(crate) fn missing(&self) -> Vec<String> {
        let parts = self.parts().into_iter();
        let missing = parts.filter(|(found, ..)| !found);
        missing
            .map(|(_, name, consequence)| format!("{name}: {consequence}"))
            .collect()
    }

    /// What can be attached to: whether it was, its name, and the consequence if it was not.
    fn parts(&self) -> Vec<(bool, &'static str, &'static str)> {
        let unrecognised = "requests are not recognised";
        let mut parts = vec![(
            claims::holds(Claim::KvCache),
            "KV cache",
            "nothing counts as cached",
        )];
        // Servers from before late 2025 have no host prompt cache.
        if let Some(seen) = self.host_cache {
            let holds = seen && claims::holds(Claim::HostCache);
            parts.push((holds, "host prompt cache", "prompts there count as gone"));
        }
        if self.by_prompts {
            parts.push((true, "requests tied by their prompts", ""));
            let images = ["mtmd_tokenize", "mtmd_helper_decode_image_chunk"];
            let limit = match (plain::has(INFILL), images.into_iter().all(has)) {
                (true, true) => None,
                (false, true) => Some("infill is not tracked"),
                (true, false) => Some("images are not tracked"),
                (false, false) => Some("infill and images are not tracked"),
            };
            parts.extend(limit.map(|limit| (false, "slot assignment", limit)));
        } else {
            // Both are withdrawn together: one is of no use without the other.
            let holds = claims::holds(Claim::Requests) || !(self.request_ids && self.slots);
            parts.push((self.request_ids && holds, "request ids", unrecognised));
            parts.push((self.slots && holds, "slot assignment", unrecognised));
        }
        // Say this only if the server uses TLS.
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

/// Version texts of the engine, which it never frees.
#[derive(Clone, Copy, Default)]
struct Version {
    version: Option<&'static str>,
    build: Option<&'static str>,
}

static VERSION: OnceLock<Version> = OnceLock::new();

/// Asks the engine for its version, the first time. Do not call this within the
/// [guard](crate::base::guard).
pub(crate) fn ask_version() {
    if VERSION.get().is_some() {
        return;
    }
    // SAFETY: no preconditions; a static text.
    let version = plain::text(unsafe { plain::version() });
    // SAFETY: as above.
    let build = plain::text(unsafe { plain::build() });
    let _ = VERSION.set(Version { version, build });
}

fn version() -> Version {
    VERSION.get().copied().unwrap_or_default()
}

/// The engine's version, in its own words.
struct Engine;

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version { version, build } = version();
        match (version, build) {
            (Some(version), Some(build)) => write!(f, "{version} (build {build})"),
            (Some(version), None) => f.write_str(version),
            (None, Some(build)) => write!(f, "build {build}"),
            (None, None) => f.write_str("(version unknown)"),
        }
    }
}
