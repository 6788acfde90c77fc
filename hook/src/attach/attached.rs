//! What the library has attached to, and the same as text for the banner and for `/stats`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use contextpilot_control::{Engine, HookedFunction};
use contextpilot_settings::Settings;

use super::claims::{self, Claim};
use super::engines::{self, ENGINES, Entered};
use super::flags::flags;
use super::original::{ROWS, has};
use super::plain;
use super::row::Row;
#[cfg(target_os = "linux")]
use super::served::Served;
#[cfg(target_os = "linux")]
use super::table::{FORGOTTEN, UNCACHED, newest};
use super::version::{Version, version};
use crate::base::log;

/// If the engine has this function, we can ask it for the special tokens of `/infill` prompts.
const INFILL: &str = "llama_vocab_fim_pre";

/// What the library has attached to.
#[derive(Debug, Clone)]
pub(crate) struct Attached {
    /// In a program that is no llama-server: the file that has the engine, and how long attaching took.
    pub(super) embedded: Option<(PathBuf, Duration)>,
    /// The engine is linked into the executable.
    pub(super) inside: bool,
    /// Memory is released without a call that we see, so saved sequences cannot be followed.
    pub(super) hides_releases: bool,
    /// See [`UNCACHED`](super::table::UNCACHED).
    pub(super) forgets_uncached: bool,
    /// Whether the host prompt cache is followed. `None`: the engine has none.
    pub(super) host_cache: Option<bool>,
    pub(super) request_ids: bool,
    pub(super) slots: bool,
    /// Requests are tied to slots by their prompts, because `request_ids` or `slots` is missing.
    pub(super) by_prompts: bool,
    /// OpenSSL's functions are hooked.
    pub(super) tls: bool,
}

impl Attached {
    /// Attached to an engine in a program that is no llama-server.
    #[cfg(target_os = "linux")]
    pub(super) fn embedded(file: PathBuf, took: Duration, server: Option<Served>) -> Self {
        let serves = server.is_some();
        let host_cache = server.and_then(|server| server.host_cache);
        Self {
            embedded: Some((file, took)),
            inside: false,
            hides_releases: host_cache != Some(true),
            forgets_uncached: serves && newest(UNCACHED, has) == Some(FORGOTTEN),
            host_cache,
            request_ids: serves,
            slots: serves,
            by_prompts: false,
            tls: false,
        }
    }

    /// Whether memory is released without a call that we see.
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

    /// Whether the host prompt cache is followed.
    pub(crate) fn sees_host_cache(&self) -> bool {
        self.host_cache == Some(true)
    }

    /// Prints the banner: one line that says what is hooked.
    pub(crate) fn announce(&self, settings: &Settings, has_store: bool) {
        let index = match (&settings.index, &settings.index_in_front) {
            (Some(index), _) => format!("index {}", index.shown()),
            (None, Some(index)) => format!("the index at {} asks what is cached", index.shown()),
            (None, None) if settings.kv_events.is_some() => {
                "for routers, as no index is set".to_owned()
            }
            (None, None) if has_store => "with a prefix store; no index is set".to_owned(),
            (None, None) => "for observation only, as no index is set".to_owned(),
        };
        let patched = || ROWS.iter().map(|row| row.places.patched());
        if let Some((file, took)) = &self.embedded {
            // The program may have loaded a model with another engine.
            let _engine = Entered::new(0);
            let index = settings.index.as_ref().map(|_| format!("; {index}"));
            log::line(format_args!(
                "Attached: llama.cpp {} of {}{}, {} functions hooked in {:.1} ms{}; nothing evaluated yet",
                version(),
                file.display(),
                if self.request_ids {
                    " and the server in it"
                } else {
                    ""
                },
                patched().filter(|places| *places > 0).count(),
                took.as_secs_f64() * 1000.0,
                index.unwrap_or_default(),
            ));
            return;
        }
        log::line(format_args!(
            "Active: llama.cpp {}{}, hooked: {self} ({} functions in {} places); {index}",
            version(),
            if self.inside {
                ", inside the executable"
            } else {
                ""
            },
            patched().filter(|places| *places > 0).count(),
            patched().sum::<u32>(),
        ));
    }

    /// As [`announce`](Self::announce), of a further engine of the program, which the thread is in.
    pub(crate) fn announce_further(&self) {
        let hooked = ROWS.iter().filter(|row| row.places.patched() > 0).count();
        if let Some((file, took)) = &self.embedded {
            log::line(format_args!(
                "Attached, too: llama.cpp of {}, {hooked} functions hooked in {:.1} ms; nothing evaluated yet",
                file.display(),
                took.as_secs_f64() * 1000.0,
            ));
        }
    }

    /// What is hooked, for `/stats`.
    pub(crate) fn describe(&self) -> Engine {
        let Version { version, build } = version();
        let parts = self.parts();
        let found = parts.iter().filter(|(found, ..)| *found);
        Engine {
            name: "llama.cpp".to_owned(),
            version: version.map(str::to_owned),
            build: build.map(str::to_owned),
            inside_executable: self.inside,
            attached: found.map(|(_, name, _)| (*name).to_owned()).collect(),
            missing: self.missing(),
            seen: Some(claims::seen()),
            not_followed: claims::not_followed().map(str::to_owned),
            functions: functions(),
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
        if self.embedded.is_some() && !self.request_ids {
            return parts;
        }
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
        if flags().tls() {
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

/// Said of an engine in which copies of functions evaluate.
const NO_STORE: &str = "; it has no prefix store, as it has copies of llama_decode (link-time optimisation), whose results \
                        may be read unseen";

/// The file of each engine of a program.
static FILES: [OnceLock<PathBuf>; ENGINES] = [const { OnceLock::new() }; ENGINES];

/// Keeps the file of the engine that the thread is in.
#[cfg(target_os = "linux")]
pub(super) fn keep_file(file: &Path) {
    let _ = FILES[engines::current() % ENGINES].set(file.to_owned());
}

/// Says of each engine of a program that it evaluates, when that was seen for the first time. (Of a server the banner
/// says what is hooked, and claims are withdrawn that do not hold.)
/// `has_store`: there is a prefix store for engines that can have one.
pub(crate) fn say_evaluated(has_store: bool) {
    while let Some(engine) = claims::newly_evaluated() {
        let Some(file) = FILES[engine % ENGINES].get() else {
            continue;
        };
        let _engine = Entered::new(engine);
        log::line(format_args!(
            "Active: llama.cpp {} of {}: it evaluates, and is followed{}",
            version(),
            file.display(),
            if claims::has_copies() && has_store {
                NO_STORE
            } else {
                ""
            }
        ));
    }
}

/// What is known of each function that the host has.
fn functions() -> Vec<HookedFunction> {
    let there = ROWS
        .iter()
        .filter(|row| row.is_wanted() || row.places.patched() > 0)
        .filter(|row| row.slot.get().is_some());
    there
        .map(|row| HookedFunction {
            name: row.name.to_owned(),
            way: way(row).to_owned(),
            found: row.places.found(),
            patched: row.places.patched(),
            called: row.called.ever(),
        })
        .collect()
}

fn way(row: &Row) -> &'static str {
    if row.places.is_inline() {
        "inline"
    } else if row.places.found() == 0 {
        "none"
    } else {
        "import"
    }
}
