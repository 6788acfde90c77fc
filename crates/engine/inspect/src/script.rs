//! A server that is a script: what runs it, and what it seems to do.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// How much of a script is looked at, in bytes.
pub(crate) const EXAMINED: u64 = 64 << 10;

/// The kernel reads no more of the first line (`BINPRM_BUF_SIZE`).
const FIRST_LINE: usize = 256;

/// A text file that starts with `#!`. A preload passes through it, into the shell and on into
/// what that starts, unless something in between clears the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// The program on the `#!` line.
    pub interpreter: PathBuf,
    /// All that follows it on that line: the kernel makes one argument of it.
    pub argument: Option<OsString>,
    /// Words of the script that are paths of files called `llama-server…` or `llama`: most likely
    /// the server itself. A guess, good enough for advice.
    pub mentions: Vec<PathBuf>,
    /// A command in the script that is known to keep our variables from the server, as it is
    /// written there. A guess too.
    pub resets_environment: Option<String>,
}

impl Script {
    /// `text` is the beginning of the file; `None` where it does not start with `#!`.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let line = text.strip_prefix(b"#!")?;
        let line = &line[..line.len().min(FIRST_LINE - 2)];
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
        let end = line
            .iter()
            .position(u8::is_ascii_whitespace)
            .unwrap_or(line.len());
        let (interpreter, argument) = line.split_at(end);
        let argument = argument.trim_ascii();
        if interpreter.is_empty() {
            return None;
        }
        let body = String::from_utf8_lossy(text);
        let commands = body
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with('#'));
        Some(Self {
            interpreter: OsString::from_vec(interpreter.to_vec()).into(),
            argument: (!argument.is_empty()).then(|| OsString::from_vec(argument.to_vec())),
            mentions: mentions(commands.clone()),
            resets_environment: commands.clone().find_map(resets_environment),
        })
    }
}

fn mentions<'a>(commands: impl Iterator<Item = &'a str>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for word in commands.flat_map(words) {
        let path = PathBuf::from(word);
        let is_server = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("llama-server") || name == "llama");
        if is_server && path.is_absolute() && path.is_file() && !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

fn resets_environment(command: &str) -> Option<String> {
    const ALWAYS: [&str; 14] = [
        "sudo",
        "doas",
        "su",
        "runuser",
        "docker",
        "podman",
        "nerdctl",
        "apptainer",
        "singularity",
        "chroot",
        "bwrap",
        "ssh",
        "systemd-run",
        "flatpak",
    ];
    if let Some(replaced) = replaces_preload(command) {
        return Some(replaced);
    }
    let words: Vec<_> = words(command).collect();
    let name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    words.iter().enumerate().find_map(|(at, word)| {
        let next = words.get(at + 1).copied().unwrap_or_default();
        let command = name(word);
        if ALWAYS.contains(&command.as_str()) {
            Some(command)
        } else if command == "env" && matches!(next, "-i" | "-" | "--ignore-environment") {
            Some(format!("env {next}"))
        } else if command == "setpriv" && words.contains(&"--reset-env") {
            Some("setpriv --reset-env".into())
        } else if command == "unset" && next == "LD_PRELOAD" {
            Some("unset LD_PRELOAD".into())
        } else {
            None
        }
    })
}

/// A preload of the script's own, as for another allocator, that does not keep what was there.
fn replaces_preload(command: &str) -> Option<String> {
    const VARIABLE: &str = "LD_PRELOAD=";
    let at = command.find(VARIABLE)?;
    let before = command[..at].chars().next_back();
    if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
        return None;
    }
    let rest = &command[at..];
    let value = &rest[VARIABLE.len()..];
    let end = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => value[1..].find(quote).map(|end| end + 2),
        _ => value.find(|c: char| c.is_whitespace() || ";&|".contains(c)),
    };
    let word = &rest[..VARIABLE.len() + end.unwrap_or(value.len())];
    (!word.contains("$LD_PRELOAD") && !word.contains("${LD_PRELOAD")).then(|| word.to_owned())
}

fn words(command: &str) -> impl Iterator<Item = &str> {
    command
        .split(|c: char| c.is_whitespace() || ";&|()'\"=`".contains(c))
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_read_as_the_kernel_reads_it() {
        let parse = |text: &str| {
            Script::parse(text.as_bytes()).map(|script| (script.interpreter, script.argument))
        };
        let is = |path: &str, argument: Option<&str>| {
            Some((PathBuf::from(path), argument.map(OsString::from)))
        };
        assert_eq!(parse("#!/bin/sh\nexec x"), is("/bin/sh", None));
        assert_eq!(parse("#! /bin/sh -e \nx"), is("/bin/sh", Some("-e")));
        assert_eq!(
            parse("#!/usr/bin/env -S a b"),
            is("/usr/bin/env", Some("-S a b"))
        );
        assert_eq!(parse("#!\n"), None);
        assert_eq!(parse("exec x"), None);
    }

    #[test]
    fn the_server_behind_a_script_is_guessed() {
        let folder = tempfile::tempdir().unwrap();
        let server = folder.path().join("llama-server");
        std::fs::write(&server, "").unwrap();
        let text = format!(
            "#!/bin/sh\n# see {0}-old\nif true; then exec \"{0}\" \"$@\"; fi\n{0} --version\n",
            server.display()
        );
        let script = Script::parse(text.as_bytes()).unwrap();
        assert_eq!(script.mentions, [server]);
        assert_eq!(script.resets_environment, None);
    }

    #[test]
    fn commands_that_reset_the_environment_are_named() {
        let reset = |line: &str| {
            Script::parse(format!("#!/bin/sh\n{line}\n").as_bytes())
                .unwrap()
                .resets_environment
        };
        assert_eq!(
            reset("exec sudo -u llama llama-server").as_deref(),
            Some("sudo")
        );
        assert_eq!(reset("exec env -i llama-server").as_deref(), Some("env -i"));
        assert_eq!(
            reset("/usr/bin/env - llama-server").as_deref(),
            Some("env -")
        );
        assert_eq!(
            reset("unset LD_PRELOAD; x").as_deref(),
            Some("unset LD_PRELOAD")
        );
        let replaced = "LD_PRELOAD=/usr/lib/libjemalloc.so.2";
        assert_eq!(
            reset(&format!("{replaced} exec llama-server")).as_deref(),
            Some(replaced)
        );
        assert_eq!(
            reset("export LD_PRELOAD='/a.so /b.so'").as_deref(),
            Some("LD_PRELOAD='/a.so /b.so'")
        );
        assert_eq!(
            reset("env LD_PRELOAD= llama-server").as_deref(),
            Some("LD_PRELOAD=")
        );
        for kept in [
            "LD_PRELOAD=/a.so:$LD_PRELOAD x",
            "export LD_PRELOAD=\"/a.so${LD_PRELOAD:+:$LD_PRELOAD}\"",
            "MY_LD_PRELOAD=x llama-server",
        ] {
            assert_eq!(reset(kept), None, "{kept}");
        }
        assert_eq!(
            reset("setpriv --reuid 1 --reset-env llama-server").as_deref(),
            Some("setpriv --reset-env")
        );
        assert_eq!(reset("# sudo is not needed"), None);
        assert_eq!(reset("exec env A=1 llama-server"), None);
    }
}
