//! The constructor, and the end of the process. What happens between them is in `running`.

mod embedded;
mod running;
mod unfollowed;
mod watcher;

use std::ffi::CStr;
use std::panic;
use std::time::{Duration, Instant};

use contextpilot_residency::Event;
use contextpilot_settings::Settings;

use self::running::{Prepared, RUNNING, arm, keep_environment};
use crate::attach::{self, Host, claims};
use crate::base::inactive::stay_inactive;
use crate::base::{environment, guard, log};
use crate::capture::{contexts, host_buffers, kept, prompts, requests, usage};
use crate::channel;
use crate::hooks::replacements::REPLACEMENTS;
use crate::library::HookLibrary;
use crate::store;

#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static ON_LOAD: extern "C" fn() = on_load;

/// On macOS the constructor registers it: dyld runs `__mod_term_func` for old binaries' sake, and not
/// at all in those for arm64e.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".fini_array")]
static ON_EXIT: extern "C" fn() = on_exit;

/// The constructor: attaches if this process is a llama-server. The preload variable is inherited by
/// everything that the server starts, and by the shell script that starts the server.
extern "C" fn on_load() {
    let wanted = is_set(c"CONTEXTPILOT_INDEX_URL")
        || is_set(c"CONTEXTPILOT_LISTEN")
        || is_set(c"CONTEXTPILOT_LOG_FILE")
        || is_set(c"CONTEXTPILOT_KV_EVENTS")
        || is_set(c"CONTEXTPILOT_TRAFFIC_FILE")
        || is_set(c"CONTEXTPILOT_STORE")
        || is_set(c"CONTEXTPILOT_KEEP_TOKENS");
    if !wanted {
        return;
    }
    let prepared = panic::catch_unwind(prepare);
    if prepared.is_err() {
        stay_inactive("an internal error; please report this");
    }
    if let Ok(Some(prepared)) = prepared {
        // SAFETY: the function is there as long as the process: the library is never unloaded.
        #[cfg(target_os = "macos")]
        unsafe {
            libc::atexit(on_exit)
        };
        arm(prepared);
    }
}

/// `None` if this process is not a llama-server, or cannot be hooked.
fn prepare() -> Option<Prepared> {
    environment::keep();
    let read = || Settings::from(environment::variable);
    let Some(host) = Host::find(REPLACEMENTS) else {
        if is_set(c"CONTEXTPILOT_ENGINE") {
            // SAFETY: this is called from the constructor.
            unsafe { embedded::watch(read()) };
        }
        return None;
    };
    environment::keep_folder();
    let settings = match read() {
        Ok(settings) if settings.is_engaged() => settings,
        Ok(_) => return None,
        Err(error) => {
            stay_inactive(error);
            return None;
        }
    };
    if settings.store.is_some() {
        attach::want_store();
    }
    if settings.wants_tokens() {
        attach::want_tokens();
    }
    if settings.keep_tokens {
        kept::engage(settings.keep_calls);
    }
    // SAFETY: this is called from the constructor.
    match unsafe { host.attach() } {
        Ok(attached) => {
            keep_environment(&settings);
            if attached.hides_releases() {
                host_buffers::refuse();
            }
            if attached.ties_by_prompts() {
                prompts::engage();
            }
            if attached.forgets_uncached() {
                requests::expect_forgetting();
            }
            if let Some(at) = &settings.store {
                store::engage();
                if at.usage && !prompts::are_engaged() {
                    usage::engage();
                }
            }
            let library = HookLibrary(attached);
            Some(Prepared { settings, library })
        }
        Err(why) => {
            stay_inactive(&why);
            unfollowed::listen(&settings, &why.to_string());
            None
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "while the constructor runs, nobody changes it"
)]
fn is_set(name: &CStr) -> bool {
    // SAFETY: the name is a C string, and constructors run before there are threads to change
    // the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a C string, if it is there.
    !value.is_null() && unsafe { *value } != 0
}

/// How much of the time at the end is kept for closing the journal: a moment, but on a busy machine the worker waits for a processor.
const CLOSING: Duration = Duration::from_millis(500);

/// The process ends, and its cache with it: reports all live ids as evicted, within
/// `CONTEXTPILOT_EXIT_DRAIN_MS`. The other threads still run meanwhile.
///
/// This also runs after an internal error, when live ids may still have to be reported.
extern "C" fn on_exit() {
    let Some(running) = RUNNING.get() else {
        unfollowed::remove_socket();
        embedded::say_nothing_ran();
        return;
    };
    // A forked child has no threads, and the files on disk are the parent's.
    if running.process != std::process::id() {
        return;
    }
    let worker = &running.worker;
    guard::guarded_at_end(|| worker.remove_socket());
    attach::say_evaluated(store::is_on());
    if let Some(why) = claims::never_evaluated() {
        log::line(format_args!("{why}"));
    }
    store::finish(Instant::now() + store::FLUSH);
    // Of what a server's store did, `stats` and `store` say more.
    if let Some(sum) = store::figures::sum().filter(|_| environment::is_run()) {
        log::line(format_args!("{sum}"));
    }
    let Some(longest) = running.exit_drain else {
        return;
    };
    guard::guarded_at_end(|| {
        let deadline = Instant::now() + longest;
        for context in contexts::all() {
            channel::push(Event::ContextFreed { context });
        }
        let drain_until = deadline - CLOSING.min(longest / 4);
        worker.leave(drain_until);
        kept::finish(drain_until);
        let left = drain_until.saturating_duration_since(Instant::now());
        let sender = running.sender.as_ref();
        let untold = sender.map_or(0, |sender| sender.drain(left).left);
        let kept = worker.close(deadline);
        while !worker.log_is_written() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if untold > 0 {
            let then = match (running.journal, kept) {
                (_, true) => "the next start of this server will report them",
                (true, false) => {
                    "reset the index, because the journal does not have all of them, so the next start may not know of them"
                }
                (false, false) => {
                    "reset the index, because with CONTEXTPILOT_JOURNAL=0 the next start does not know of them"
                }
            };
            let evictions = if untold == 1 { "eviction" } else { "evictions" };
            log::line(format_args!(
                "{untold} {evictions} could not be reported to the index before the server ended; {then}"
            ));
        }
    });
}
