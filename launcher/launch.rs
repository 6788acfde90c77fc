use std::convert::Infallible;
use std::ffi::OsString;
use std::path::Path;

use contextpilot_settings::{Error as Idle, Settings, env, flag, idle, is_wanted, table};

use crate::error::{Error, HookError};
use crate::hook_lib::Library;
use crate::say::say;
use crate::server::{self, FoundServer};
use crate::variables::{Lookup, PRELOAD, of_process};
use crate::{hook_lib, misspelt, obstacle, others, preload, share, sys, watcher};

/// Becomes llama-server, with the hook in it if the environment asks for it:
/// if one of the settings is there that give it something to do. Returns only if that failed, with the exit code, after one line on stderr.
///
/// A misspelt setting gets a line on stderr, and so does one that does nothing without another.
///
/// Without any of these, arguments, environment and signal
/// dispositions are passed on untouched, nothing is printed, and no file is
/// opened: finding the server is a matter of `stat` and `access`. (The one
/// exception is in the module `server`: it may read a file to find out whether that is
/// another copy of this launcher under the name of llama-server.)
pub fn launch() -> u8 {
    match run() {
        Ok(never) => match never {},
        Err(error) => {
            say(&error);
            error.exit_code()
        }
    }
}

fn run() -> Result<Infallible, Error> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut misspelt = misspelt::find(std::env::vars_os());
    let wanted = is_wanted(of_process);
    if !wanted && !misspelt.is_empty() && flag(of_process, &table::STRICT)? {
        return Err(Error::Unwanted(misspelt.swap_remove(0)));
    }
    misspelt.iter().for_each(say);
    let idle = idle(of_process);
    let asks_store = |idle: &Idle| [env::STORE_REMOTE, env::STORE_GB].contains(&idle.variable());
    if !wanted && idle.iter().any(asks_store) && flag(of_process, &table::STRICT)? {
        // Says the same as an error.
        Settings::from(of_process)?;
    }
    // Before the settings are checked: without the hook they do not matter.
    if !wanted {
        idle.iter().for_each(say);
        return exec(&server::find(of_process)?, arguments);
    }
    sys::open_standard_streams();
    let settings = Settings::from(of_process)?;
    idle.iter().for_each(say);
    let strict = settings.strict;
    let server = server::find(of_process)?;
    let other = others::instead_of_server(&server, of_process);
    let launcher = others::instead_of_launcher(of_process);
    other.iter().chain(&launcher).for_each(say);
    match inject(&server, other.is_some()) {
        Ok(library) => {
            watcher::name(&settings);
            say(format_args!(
                "Launching with {PRELOAD} injected: {} (hook {})",
                server.path.display(),
                library,
            ));
            let has_remote = settings.store.is_some_and(|store| store.remote.is_some());
            if has_remote && !share::only_ask(&arguments) {
                share::start();
            }
        }
        Err(why) if strict => return Err(Error::Strict(why)),
        Err(why) => say(format_args!(
            "Launching llama-server without the hook: {why}"
        )),
    }
    exec(&server, arguments)
}

/// Puts the hook library into this process's environment, which exec passes on. `is_other`: it is known to be no server, so
/// whether it has llama.cpp inside is of no interest.
fn inject(server: &FoundServer, is_other: bool) -> Result<Library, HookError> {
    if !is_other {
        let given = of_process.non_empty(env::HOOK_LIB);
        let built_for = obstacle::Library::new(given.as_deref().map(Path::new));
        obstacle::examine(&server.path, &built_for)?
            .iter()
            .for_each(say);
    }
    let library = hook_lib::load(of_process)?;
    let value = preload::with_library(&library.path, of_process(PRELOAD).as_deref())?;
    sys::set_env(PRELOAD, &value);
    Ok(library)
}

fn exec(server: &FoundServer, arguments: Vec<OsString>) -> Result<Infallible, Error> {
    let path: &Path = &server.path;
    let source = sys::exec(path, server.argv0.clone(), arguments);
    Err(Error::Exec {
        path: path.to_owned(),
        source,
    })
}
