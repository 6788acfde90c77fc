//! Commands that are something else than their names or places say: the Python package `contextpilot` has one of our
//! launcher's name, and `LLAMA_SERVER_BIN` may name a program that is no llama-server.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use contextpilot_settings::env;

use crate::server::FoundServer;
use crate::variables::Lookup;

/// Our launcher's command.
pub(crate) const LAUNCHER: &str = "contextpilot-llama-server";

/// Programs that run what they are given.
const SHELLS: [&str; 8] = [
    "sh", "bash", "dash", "zsh", "fish", "busybox", "python3", "node",
];

/// What to say of a program that `LLAMA_SERVER_BIN` names and whose name says what else it is.
pub(crate) fn instead_of_server(server: &FoundServer, lookup: impl Lookup) -> Option<String> {
    let variable = env::LLAMA_SERVER_BIN;
    lookup.non_empty(variable)?;
    let path = &server.path;
    let shown = path.display();
    let name = path.file_name()?.to_str()?;
    let what = if name == LAUNCHER && is_script(path) {
        "which is not llama-server, but a command of the Python package contextpilot".to_owned()
    } else if SHELLS.contains(&name) {
        "which is no llama-server, and runs what it is told".to_owned()
    } else if name.starts_with("llama-") && !name.contains("llama-server") {
        "which is another command of llama.cpp, in which the hook does nothing".to_owned()
    } else {
        return None;
    };
    Some(format!(
        "{variable} is {shown}, {what}: set it to the path of llama-server"
    ))
}

/// The command of our name that a shell would find, if that is another one.
pub(crate) fn instead_of_launcher(lookup: impl Lookup) -> Option<String> {
    let path = lookup.non_empty("PATH")?;
    let given = launchers_in(&path).next()?;
    is_script(&given).then(|| {
        format!(
            "Without a path, {LAUNCHER} is {}, a command of the Python package contextpilot and not this one: put the \
             folder of this one before it on PATH",
            given.display()
        )
    })
}

/// The commands of the launcher's name in the folders of a `PATH`, in its order.
pub(crate) fn launchers_in(path: &OsStr) -> impl Iterator<Item = PathBuf> {
    let commands = std::env::split_paths(path).map(|folder| folder.join(LAUNCHER));
    commands.filter(|command| command.is_file())
}

pub(crate) fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && &start == b"#!"
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use super::*;

    fn server(path: PathBuf) -> FoundServer {
        FoundServer {
            path,
            argv0: "llama-server".into(),
        }
    }

    #[test]
    fn a_command_of_our_name_that_is_another_packages_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let theirs = folder.path().join(LAUNCHER);
        fs::write(&theirs, "#!/usr/bin/python3\n").unwrap();
        let path = OsString::from(folder.path());
        let lookup = |name: &str| (name == "PATH").then(|| path.clone());
        let said = instead_of_launcher(lookup).unwrap();
        assert!(said.contains(theirs.to_str().unwrap()), "{said}");
        let named = |name: &str| (name == env::LLAMA_SERVER_BIN).then(|| theirs.clone().into());
        let said = instead_of_server(&server(theirs.clone()), named).unwrap();
        assert!(
            said.contains("is not llama-server, but a command of the Python package"),
            "{said}"
        );
        fs::write(&theirs, b"\x7fELF").unwrap();
        assert_eq!(instead_of_launcher(lookup), None);
    }

    #[test]
    fn what_is_no_llama_server_gets_one_line_if_it_was_named() {
        for (path, what) in [
            ("/bin/sh", "is no llama-server"),
            ("/usr/bin/llama-cli", "another command of llama.cpp"),
        ] {
            let lookup = |name: &str| (name == env::LLAMA_SERVER_BIN).then(|| path.into());
            let said = instead_of_server(&server(path.into()), lookup);
            assert!(
                said.as_ref().is_some_and(|said| said.contains(what)),
                "{said:?}"
            );
            assert_eq!(
                instead_of_server(&server(path.into()), |_: &str| None),
                None
            );
        }
        for path in [
            "/usr/bin/llama-server",
            "/opt/llama-server-cuda",
            "/sbin/tini",
            "/srv/serve",
        ] {
            let lookup = |name: &str| (name == env::LLAMA_SERVER_BIN).then(|| path.into());
            assert_eq!(instead_of_server(&server(path.into()), lookup), None);
        }
    }
}
