//! Telemetry: the control endpoint and the log file.
//!
//! ```text
//!  server's threads    worker thread                         our other threads
//!  events, notes ──► ledger ──► observer ──► [`Ring`] ─────► connections: GET /events
//!                                   │ ▲
//!                                   │ └─ queries ◄─────────► connections: everything else
//!                                   └─ lines ──────────────► log file
//! ```
//!
//! **Cost.** Without `CONTEXTPILOT_LISTEN` and `CONTEXTPILOT_LOG_FILE`: one relaxed load in a few
//! hooks. With one of them, the server's threads read the clock (without a system call) when a request was
//! received, an evaluation ended, or a request was answered. They send one more entry for each request and
//! each save. When a sequence is twice as long as any before, they also ask the engine for
//! the size of its state, which it computes without copying anything. Everything else happens on the
//! worker thread and on our other threads.
//!
//! Each of these threads is marked as ours ([`Library::enter_thread`]), because its calls reach our own
//! hooks of `accept`, `recv` and `send`. All signals are blocked on them.

mod answers;
mod ask;
mod control;
mod handover;
mod log_file;
mod own_file;
mod recording;
mod setup;
mod stream;
mod telemetry;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use contextpilot_delivery::Sender;
use contextpilot_http_server::Limits;
use contextpilot_kv_publisher::Watch;
use contextpilot_residency::Accounts;
use contextpilot_server_flags::ServerFlags;
use contextpilot_settings::{IndexUrl, Listen, Settings};

use crate::bounds::BODY;
use crate::commands::Commands;
use crate::library::Library;
use answers::Answers;
use log_file::{LogFile, Written};
use recording::{RecentTraffic, Recording};
use stream::Stream;
use telemetry::Facts;

pub(crate) use ask::Question;
pub(crate) use control::Endpoint;
pub(crate) use telemetry::Telemetry;

/// What has to be cleaned up at the end of the process.
#[derive(Default)]
pub(crate) struct Cleanup {
    endpoint: Option<Arc<Endpoint>>,
    log: Option<Written>,
}

impl Cleanup {
    /// Removes the file of the Unix socket.
    pub(crate) fn remove_socket(&self) {
        if let Some(endpoint) = &self.endpoint {
            endpoint.remove_socket();
        }
    }

    /// The control endpoint, for a worker that goes on with it.
    pub(crate) fn endpoint(&self) -> Option<Arc<Endpoint>> {
        self.endpoint.clone()
    }

    /// Whether all lines of the log file are written.
    pub(crate) fn log_is_written(&self) -> bool {
        let written = self.log.as_ref();
        written.is_none_or(|written| written.load(Ordering::SeqCst))
    }
}

/// Starts what the settings ask for. The caller has blocked all signals. `by_prompts`: requests are
/// tied to slots by their prompts. `earlier`: the control endpoint of a worker that has ended.
///
/// # Errors
/// A thread cannot be created; or a file cannot be used, and the settings are strict.
pub(crate) fn start(
    settings: &Settings,
    library: &'static dyn Library,
    commands: &Commands,
    index: Option<(Arc<Sender>, String)>,
    published: Option<Watch>,
    by_prompts: bool,
    earlier: Option<Arc<Endpoint>>,
) -> io::Result<(Option<Telemetry>, Cleanup)> {
    let mut cleanup = Cleanup::default();
    if !settings.observes() {
        return Ok((None, cleanup));
    }
    // Everything else goes on without the file, unless that was ruled out. Files come first: a server that ends
    // here must leave no socket behind.
    let unusable = |why: String, consequence: &str| {
        if settings.strict {
            Err(io::Error::other(why))
        } else {
            library.say(format_args!("{why}: {consequence}"));
            Ok(())
        }
    };
    let log = match &settings.log_file {
        Some(path) => {
            // Before there are requests, so that a wrong path is said at once.
            let file = match log_file::open(path) {
                Ok(file) => {
                    if let Err(error) = log_file::can_be_set_aside(path) {
                        let why = log_file::never_set_aside(path, &error);
                        unusable(why, log_file::LATER_CONSEQUENCE)?;
                    }
                    Some(file)
                }
                Err(error) => {
                    unusable(log_file::not_written(path, &error), log_file::CONSEQUENCE)?;
                    None
                }
            };
            let limit = settings.log_file_limit;
            let (file, written) = LogFile::start(library, path.clone(), file, limit)?;
            cleanup.log = Some(written);
            Some(file)
        }
        None => None,
    };
    let given = library.flags();
    let setup = setup::setup(given, &library.engine());
    let flags = setup::flags(&setup, given);
    let place = handover::HandoverFolder::new(library, given);
    // Only the control endpoint shows it.
    let recent = match settings.recent_limit.filter(|_| settings.listen.is_some()) {
        Some(limit) => Some(RecentTraffic::new(
            library,
            limit,
            setup.clone(),
            place.clone(),
        )?),
        None => None,
    };
    let recording = match &settings.traffic_file {
        Some(wanted) => match Recording::start(library, wanted, setup, place) {
            Ok(recording) => Some(recording),
            Err(error) => {
                unusable(error.to_string(), "no traffic is recorded")?;
                None
            }
        },
        None => None,
    };
    let epoch = epoch(library);
    let endpoint = match &settings.listen {
        Some(listen) => {
            let (asker, questions) = ask::questions(commands.clone());
            let stream = Arc::new(Stream::new(epoch.clone()));
            let answers = Answers {
                is_unix: listen.is_unix(),
                token: settings.listen_token.clone(),
                asker,
                stream: Arc::clone(&stream),
                library,
                sender: index.as_ref().map(|(sender, _)| Arc::clone(sender)),
                index_in_front: settings.index_in_front.as_ref().map(IndexUrl::shown),
                readers: Arc::default(),
                // The others are for single requests.
                most_readers: settings.listen_connections.div_ceil(2),
            };
            let limits = Limits {
                body: BODY,
                patience: settings.listen_timeout,
                whole_request: settings.listen_timeout,
                connections: settings.listen_connections,
            };
            cleanup.endpoint = Some(match earlier {
                Some(endpoint) => {
                    endpoint.replace(answers);
                    endpoint
                }
                None => control::start(library, listen.clone(), limits, answers, settings.strict)?,
            });
            Some((stream, questions))
        }
        None => None,
    };
    let reads = settings.listen.is_some() || settings.log_file.is_some();
    let shows_text = text_is_shown(settings, library);
    let accounts = settings.explain_limit.filter(|_| reads).map(|bytes| {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let rules = setup::rules(given, by_prompts);
        if shows_text {
            Accounts::new(rules, bytes).quoting()
        } else {
            Accounts::new(rules, bytes)
        }
    });
    let facts = Facts {
        library,
        model: setup::model(given),
        routed: given.router_port().is_some(),
        flags,
        host_limit: setup::host_limit(given, library.sees_host_cache()),
        started: Instant::now(),
        index,
        index_in_front: settings.index_in_front.as_ref().map(IndexUrl::shown),
        published,
    };
    let telemetry = Telemetry::new(epoch, accounts, facts, endpoint, log, recording, recent);
    Ok((Some(telemetry), cleanup))
}

/// The limit of the server's host prompt cache by its flags, in bytes; `None` if there is no
/// limit. `seen`: the host prompt cache is followed.
#[must_use]
pub fn host_limit(flags: &ServerFlags, seen: bool) -> Option<u64> {
    let (limit, _) = setup::host_limit(flags, seen);
    limit.filter(|bytes| *bytes > 0)
}

/// Whether text of prompts is kept and shown (`CONTEXTPILOT_EXPLAIN_TEXT`).
#[must_use]
pub fn shows_text(settings: &Settings) -> bool {
    settings.explain_text && obstacle_to_text(settings).is_none()
}

/// Whether text of prompts is shown. If the setting asks for it, a line says whether it is, and why not. The launcher has said
/// that without an endpoint it does nothing.
fn text_is_shown(settings: &Settings, library: &dyn Library) -> bool {
    if !settings.explain_text || settings.listen.is_none() {
        return false;
    }
    match obstacle_to_text(settings) {
        None => library.say(format_args!(
            "CONTEXTPILOT_EXPLAIN_TEXT: the control endpoint shows the first words of requests and, where \
             a prompt differs from an earlier one, some of the text of both, to this machine only"
        )),
        Some(why) => library.say(format_args!(
            "CONTEXTPILOT_EXPLAIN_TEXT is not followed, no text is shown: {why}"
        )),
    }
    shows_text(settings)
}

/// Why no text can be shown, and what to do.
fn obstacle_to_text(settings: &Settings) -> Option<&'static str> {
    if settings.explain_limit.is_none() {
        return Some("CONTEXTPILOT_EXPLAIN_MB is 0, so nothing is remembered");
    }
    match settings.listen.as_ref().map(Listen::is_local) {
        Some(true) => None,
        Some(false) => Some(
            "other machines can reach the control endpoint; set CONTEXTPILOT_LISTEN to 127.0.0.1, \
             [::1] or a Unix socket",
        ),
        None => Some("it would be shown at the control endpoint; set CONTEXTPILOT_LISTEN"),
    }
}

/// The epoch, which differs for each process. `RandomState` is seeded by the system.
fn epoch(library: &dyn Library) -> String {
    let time = library.now().unix_ms;
    let random = RandomState::new().hash_one((time, std::process::id()));
    format!("{random:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_only_if_no_other_machine_can_reach_the_endpoint() {
        let of = |listen: &str, megabytes: &str| {
            let (listen, megabytes) = (listen.to_owned(), megabytes.to_owned());
            let settings = Settings::from(|name| match name {
                "CONTEXTPILOT_LISTEN" => Some((&listen).into()),
                "CONTEXTPILOT_LISTEN_TOKEN" => Some("t0ken".into()),
                "CONTEXTPILOT_EXPLAIN_MB" => Some((&megabytes).into()),
                _ => None,
            });
            let mut settings = settings.unwrap();
            assert!(!shows_text(&settings), "nobody asks for it");
            settings.explain_text = true;
            assert_eq!(shows_text(&settings), obstacle_to_text(&settings).is_none());
            obstacle_to_text(&settings)
        };
        for local in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "[::1]:1",
            "unix:/run/s",
            "auto",
        ] {
            assert_eq!(of(local, "1"), None, "{local}");
        }
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            let why = of(open, "1").unwrap();
            assert!(why.starts_with("other machines"), "{open}: {why}");
        }
        assert!(of("", "1").unwrap().contains("set CONTEXTPILOT_LISTEN"));
        assert!(of("127.0.0.1:1", "0").unwrap().contains("EXPLAIN_MB is 0"));
    }
}
