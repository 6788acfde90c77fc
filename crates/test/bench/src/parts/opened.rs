//! What the launcher opens when no index is set: nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use contextpilot_testbed::Result;

use crate::lab::{Lab, failed, has, run as run_command};
use crate::page::{Aim, Page};

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("What a disabled launcher opens");
    if !has("strace") {
        page.say("Skipped: strace is not installed.");
        return Ok(());
    }
    let mut through = lab.command(&lab.launcher);
    let (launcher, through_launcher) = opened(lab, &mut through, "launcher")?;
    let mut through = lab.command(Path::new("env"));
    through.arg(&lab.server);
    let (env, _) = opened(lab, &mut through, "env")?;
    let (_, plain) = opened(lab, &mut lab.command(&lab.server), "plain")?;
    let own: Vec<&String> = launcher.iter().filter(|path| !is_loaders(path)).collect();
    let after = if through_launcher == plain {
        "the same"
    } else {
        "not the same"
    };
    page.say(
        "By strace, `--version` again. To exec anything, a program has to be loaded first: what the\n\
         dynamic linker opens for it is listed for comparison with `env llama-server`, a plain exec.",
    );
    page.say(format!(
        "| | opened before llama-server takes over | of these by the program itself |\n\
         |---|---|--:|\n\
         | `env llama-server` | {} | {} |\n\
         | launcher, disabled | {} | {} |",
        list(&env),
        env.iter().filter(|path| !is_loaders(path)).count(),
        list(&launcher),
        own.len()
    ));
    page.say(format!(
        "What llama-server then opens by itself is {after} as without a launcher ({} files).",
        plain.len()
    ));
    page.aim(
        "Files that a disabled launcher opens",
        "none",
        &own.len().to_string(),
        Aim::met_if(own.is_empty() && through_launcher == plain),
    );
    if !own.is_empty() {
        return Err(failed(format!("a disabled launcher opens {own:?}")));
    }
    Ok(())
}

/// The files that are opened before and after the server's exec.
fn opened(
    lab: &Lab,
    command: &mut Command,
    name: &str,
) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let file = lab.scratch(name);
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-e", "trace=execve,open,openat,openat2", "-o"])
        .arg(&file)
        .arg(command.get_program())
        .args(command.get_args())
        .arg("--version");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    run_command(&mut strace)?;
    let trace = std::fs::read_to_string(&file)?;
    let server = lab.server.to_string_lossy();
    let exec = trace
        .lines()
        .position(|line| line.contains(&format!("execve(\"{server}\"")) && line.ends_with("= 0"))
        .ok_or_else(|| failed(format!("no exec of {server} in:\n{trace}")))?;
    let paths = |lines: &mut dyn Iterator<Item = &str>| -> BTreeSet<String> {
        // Looked for in vain is not opened.
        lines
            .filter(|line| line.contains("open") && !line.contains("= -1 "))
            .filter_map(|line| line.split('"').nth(1).map(str::to_owned))
            .collect()
    };
    let before = paths(&mut trace.lines().take(exec));
    let after = paths(&mut trace.lines().skip(exec + 1));
    Ok((before, after))
}

/// The dynamic linker's cache, and libraries of the C compiler and the C library.
fn is_loaders(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let libraries = [
        "libc.so",
        "libm.so",
        "libgcc_s.so",
        "libdl.so",
        "libpthread.so",
    ];
    name == "ld.so.cache" || libraries.iter().any(|library| name.starts_with(library))
}

fn list(paths: &BTreeSet<String>) -> String {
    let names = paths.iter().map(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        format!("`{name}`")
    });
    names.collect::<Vec<_>>().join(", ")
}
