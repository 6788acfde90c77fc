//! `run`: becomes a program that is no llama-server, with the hook in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use contextpilot_inspect::Program;
use contextpilot_settings::{Settings, env, idle, is_wanted};

use crate::error::HookError;
use crate::say::say;
use crate::variables::{Lookup, PRELOAD, of_process};
use crate::{hook_lib, obstacle, preload, sys, watcher};

/// Run a program with llama.cpp inside, with the hook in it
///
/// For programs that are no llama-server, such as Python with llama-cpp-python. It is the same as
/// to set LD_PRELOAD to what `hook-path` prints, and CONTEXTPILOT_ENGINE to 1. What the hook does
/// there is said by CONTEXTPILOT_STORE and CONTEXTPILOT_LISTEN.
#[derive(Args)]
#[command(after_help = "Example:
  CONTEXTPILOT_STORE=~/llama-store contextpilot-llama run python3 app.py")]
pub(super) struct RunOptions {
    /// The program, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    line: Vec<OsString>,
}

/// As in a shell: the program is not there, or cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// As the launcher's.
const WRONG_SETTING: u8 = 2;
const STRICT: u8 = 3;

/// Returns only if that failed.
pub(super) fn run(options: &RunOptions) -> ExitCode {
    let code = match try_run(options) {
        Ok(never) => match never {},
        Err((code, why)) => {
            say(why);
            code
        }
    };
    ExitCode::from(code)
}

fn try_run(options: &RunOptions) -> Result<std::convert::Infallible, (u8, String)> {
    let (name, arguments) = options.line.split_first().ok_or_else(|| {
        let why = "there is no program to run: contextpilot-llama run python3 app.py";
        (NOT_FOUND, why.to_owned())
    })?;
    let path = find(name)?;
    let settings = Settings::from(of_process).map_err(|e| (WRONG_SETTING, e.to_string()))?;
    idle(of_process).iter().for_each(say);
    if !is_wanted(of_process) {
        say(format_args!(
            "Running {} without the hook, which has nothing to do: set {} or {}",
            path.display(),
            env::STORE,
            env::LISTEN
        ));
    } else if let Err(why) = inject(&path, &settings) {
        if settings.strict {
            let why = format!("{why}; not run, as {} is set", env::STRICT);
            return Err((STRICT, why));
        }
        say(format_args!("Running it without the hook: {why}"));
    }
    let error = sys::exec(&path, name.clone(), arguments.to_vec());
    Err((
        NOT_EXECUTABLE,
        format!("{} cannot be run: {error}", path.display()),
    ))
}

/// The program's file, with a slash in it.
fn find(name: &OsString) -> Result<PathBuf, (u8, String)> {
    let found = which::which(name).map_err(|_| {
        let path = Path::new(name);
        let shown = path.display();
        // `which` looks for what can be run.
        if name.as_encoded_bytes().contains(&b'/') && path.exists() {
            let why = format!("{shown} is no program that can be run: chmod +x it, or name one");
            return (NOT_EXECUTABLE, why);
        }
        let why = format!("{shown} was not found: check its name, or give its path");
        (NOT_FOUND, why)
    })?;
    // As it was named, where that is a path: programs find their files beside it.
    Ok(if name.as_encoded_bytes().contains(&b'/') {
        name.into()
    } else {
        found
    })
}

/// Puts the hook library into this process's environment, which exec passes on.
fn inject(path: &Path, settings: &Settings) -> Result<(), HookError> {
    let value = preloaded(path)?;
    sys::set_env(PRELOAD, &value);
    watcher::name(settings);
    sys::set_env(env::ENGINE, "1".as_ref());
    // What this process becomes says at its end if there was no engine. What it starts does not.
    sys::set_env(env::RUN, std::process::id().to_string().as_ref());
    Ok(())
}

/// The value of the variable with which the dynamic linker loads the hook into this program.
///
/// # Errors
/// Nothing can be loaded into it, or the library cannot be had.
pub(super) fn preloaded(path: &Path) -> Result<OsString, HookError> {
    let given = of_process.non_empty(env::HOOK_LIB);
    let built_for = obstacle::Library::new(given.as_deref().map(Path::new));
    if let Ok(program) = Program::open(path) {
        if let Some(why) = obstacle::to_loading(&program, &built_for) {
            return Err(HookError::Server {
                path: path.to_owned(),
                why,
            });
        }
    }
    let library = hook_lib::load(of_process)?;
    preload::with_library(&library.path, of_process(PRELOAD).as_deref())
}
