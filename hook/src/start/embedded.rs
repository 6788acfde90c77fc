//! The start in a program that is no llama-server, with `CONTEXTPILOT_ENGINE=1`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use contextpilot_settings::{Error, Settings};

use super::running::{PREPARED, Prepared, arm, keep_environment};
use super::unfollowed;
use crate::attach::engines::{ENGINES, enter_next};
use crate::attach::{self, Embedded};
use crate::base::inactive::stay_inactive;
use crate::base::{environment, log};
use crate::capture::{engine_prompts, host_buffers, kept, requests};
use crate::hooks::replacements::REPLACEMENTS;
use crate::hooks::signal::ANSWERS;
use crate::library::HookLibrary;
use crate::store;

/// The settings, read in the constructor: later, other threads may change the environment.
static SETTINGS: OnceLock<Result<Settings, Error>> = OnceLock::new();

/// Attaches to each of this program's engines, now or when the program has loaded it. If it never does, nothing is
/// said.
///
/// # Safety
/// From the library's constructor only.
pub(super) unsafe fn watch(settings: Result<Settings, Error>) {
    let wanted = match &settings {
        Ok(settings) => settings.engine && settings.is_engaged(),
        Err(_) => true,
    };
    if let (true, Ok(settings)) = (wanted, &settings) {
        keep_environment(settings);
    }
    // Wrong settings are reported when there is an engine that would be followed.
    let hidden = settings.is_ok().then_some(say_hidden as fn(String));
    if wanted && SETTINGS.set(settings).is_ok() {
        // SAFETY: the caller's promise.
        unsafe { attach::watch(REPLACEMENTS, ANSWERS, attach_to, hidden) };
    }
}

/// An engine that is not followed was found, and a message said so.
static SAID: AtomicBool = AtomicBool::new(false);

/// The program that was run to be followed ends, and no model was loaded that could be followed: says so, once.
pub(super) fn say_nothing_ran() {
    let Some(Ok(settings)) = SETTINGS.get() else {
        return;
    };
    let is_wanted = settings.engine && settings.is_engaged();
    if !is_wanted || !environment::is_run() || SAID.load(Ordering::Relaxed) {
        return;
    }
    let program = environment::program();
    let what = match PREPARED.get() {
        Some(_) => "loaded no model",
        None => "had no llama.cpp",
    };
    log::line(format_args!(
        "Nothing was followed: {} {what} until its end. What it started says so by lines of its own",
        program.display()
    ));
}

fn attach_to(engine: Result<Embedded, String>) {
    match PREPARED.get() {
        None => {
            if let Err(why) = try_attach_to(engine) {
                SAID.store(true, Ordering::Relaxed);
                stay_inactive(&why);
                show_unfollowed(&why);
            }
        }
        Some(_) => {
            if let Err(why) = try_attach_to_further(engine) {
                log::line(format_args!("A further llama.cpp is left alone: {why}"));
            }
        }
    }
}

/// A library has an engine that cannot be followed. The program goes on: it may load one that can, or never call this one.
fn say_hidden(why: String) {
    match PREPARED.get() {
        None => {
            SAID.store(true, Ordering::Relaxed);
            log::line(format_args!("Inactive: {why}"));
            show_unfollowed(&why);
        }
        Some(_) => log::line(format_args!("A further llama.cpp is left alone: {why}")),
    }
}

fn show_unfollowed(why: &str) {
    if let Some(Ok(settings)) = SETTINGS.get() {
        unfollowed::listen(settings, why);
    }
}

/// As [`try_attach_to`], if another engine is followed already.
fn try_attach_to_further(engine: Result<Embedded, String>) -> Result<(), String> {
    let engine = engine?;
    let file = engine.file.clone();
    let Some((_, _entered)) = enter_next() else {
        return Err(format!(
            "in {}, because {ENGINES} of a program are followed; its prompts are evaluated as ever",
            file.display()
        ));
    };
    // SAFETY: this is called before any code was told where the functions are.
    let attached = unsafe { engine.attach() }?;
    if store::is_on() {
        if let Some(why) = attach::unstorable() {
            log::line(format_args!(
                "There is no prefix store in {}: {why}",
                file.display()
            ));
        }
        store::content::set_engine(file);
    }
    attached.announce_further();
    Ok(())
}

fn try_attach_to(engine: Result<Embedded, String>) -> Result<(), String> {
    let mut settings = match SETTINGS.get() {
        Some(Ok(settings)) => settings.clone(),
        Some(Err(error)) => return Err(error.to_string()),
        None => return Ok(()),
    };
    let engine = engine?;
    // No index asks a program what it has, and no router for its events.
    settings.index_in_front = None;
    settings.kv_events = None;
    if !settings.is_engaged() {
        return Ok(());
    }
    if settings.store.is_some() {
        attach::want_store();
    }
    if settings.keep_tokens {
        attach::want_tokens();
        kept::engage(settings.keep_calls);
    }
    let file = engine.file.clone();
    // No thread has entered any engine.
    let _entered = enter_next();
    // SAFETY: this is called from the constructor, or before any code was told where the functions are.
    let attached = unsafe { engine.attach() }?;
    if let Some(why) = attach::unstorable().filter(|_| settings.store.is_some()) {
        log::line(format_args!(
            "There is no prefix store: in this llama.cpp, {why}"
        ));
        settings.store = None;
    }
    if attached.hides_releases() {
        host_buffers::refuse();
    }
    if attached.forgets_uncached() {
        requests::expect_forgetting();
    }
    let serves = attach::serves_inside();
    // A prompt without a request has an id only if the program names it, and no start follows.
    settings.journal &= serves;
    if !serves && (settings.observes() || settings.index.is_some()) {
        engine_prompts::engage();
    }
    if settings.store.is_some() {
        store::engage();
        store::content::set_engine(file);
    }
    arm(Prepared {
        settings,
        library: HookLibrary(attached),
    });
    Ok(())
}
