use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use contextpilot_private_folder::{Base, PrivateFolder};
use contextpilot_settings::{Settings, Watcher, env};
use rustix::fs::Access;

use crate::others::{LAUNCHER, is_script, launchers_in};
use crate::variables::Lookup;
use crate::watcher;

use super::report::{Finding, Grade};

/// Where the journal of live request ids lies. `index`: evictions are reported, so there is a journal.
pub(super) fn state(lookup: impl Lookup, journal: bool, index: bool) -> Finding {
    let limit = if index { Grade::Limited } else { Grade::Good };
    let (grade, text) = if !journal {
        let text = "not used: no journal is kept (CONTEXTPILOT_JOURNAL=0), so what a crash takes from \
                    the cache is not reported";
        (limit, text.to_owned())
    } else {
        match PrivateFolder::look_for(Base::State, lookup) {
            Ok(folder) => (Grade::Good, folder.display().to_string()),
            Err(why) if !index => (limit, format!("{why}; without an index it is not needed")),
            Err(why) => {
                let text = format!(
                    "{why}: no journal is kept, so what a crash takes from the cache is not \
                     reported; set XDG_STATE_HOME to a folder of your own"
                );
                (limit, text)
            }
        }
    };
    Finding::new("state folder", grade, text)
}

/// The files that the settings name for the hook to write.
pub(super) fn files(settings: &Settings) -> Vec<Finding> {
    let recording = settings.traffic_file.as_ref().map(|file| &*file.path);
    let files = [
        ("recording", env::TRAFFIC_FILE, recording),
        ("log file", env::LOG_FILE, settings.log_file.as_deref()),
    ];
    let found = files.into_iter().filter_map(|(subject, variable, path)| {
        let path = path?;
        Some(match obstacle(path) {
            None => Finding::new(subject, Grade::Good, path.display().to_string()),
            Some(why) => {
                let text = format!(
                    "{} cannot be written ({why}), so nothing will be: correct {variable}",
                    path.display()
                );
                Finding::new(subject, Grade::Limited, text)
            }
        })
    });
    found.collect()
}

/// Why the hook could not write this file, as far as that can be seen without making it.
fn obstacle(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let may = |what: &Path, access| {
        let refused = rustix::fs::access(what, access).err()?;
        Some(format!("{}: {}", what.display(), io::Error::from(refused)))
    };
    match path.symlink_metadata() {
        Ok(found) if found.file_type().is_symlink() => Some("it is a link".to_owned()),
        Ok(found) if found.is_dir() => Some("it is a folder".to_owned()),
        Ok(found) if !found.is_file() => Some("it is a device, a pipe or a socket".to_owned()),
        Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => {
            Some("it is another user's".to_owned())
        }
        Ok(_) => may(path, Access::WRITE_OK),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Some(error.to_string()),
        Err(_) if !folder.exists() => Some(format!("there is no folder {}", folder.display())),
        Err(_) => may(folder, Access::WRITE_OK | Access::EXEC_OK),
    }
}

/// What is started beside the server, to report what it held as soon as it was killed. `None`: nothing is asked for.
pub(super) fn watcher(settings: &Settings) -> Option<Finding> {
    let found = match settings.watcher.as_ref()? {
        Watcher::Auto => watcher::find(),
        Watcher::At(path) => match path.metadata() {
            Ok(found) if found.is_file() && found.mode() & 0o111 != 0 => Ok(path.clone()),
            Ok(_) => Err(format!("{} is no program", path.display())),
            Err(error) => Err(format!("{} cannot be started ({error})", path.display())),
        },
    };
    let (grade, text) = match found {
        Ok(_) if !settings.journal => {
            let why =
                "it would have nothing to report: no journal is kept (CONTEXTPILOT_JOURNAL=0)";
            (Grade::Limited, why.to_owned())
        }
        Ok(path) => {
            let text = format!("each server starts {} killed --at-end", path.display());
            (Grade::Good, text)
        }
        Err(why) => {
            let text = format!(
                "{why}: set {} to the path of contextpilot-llama, or what a killed server held is reported by the next \
                 start",
                env::WATCHER
            );
            (Grade::Limited, text)
        }
    };
    Some(Finding::new("watcher", grade, text))
}

/// A command of another package under the launcher's name: the one that `PATH` gives, one behind ours, or the one in the
/// folder of this one. `None`: these are the launcher, or there are none.
pub(super) fn launcher(lookup: impl Lookup) -> Option<Finding> {
    let path = lookup.non_empty("PATH").unwrap_or_default();
    let mut commands = launchers_in(&path);
    let given = commands.next();
    let behind = commands.find(|command| is_script(command));
    if let (Some(ours), Some(theirs)) =
        (given.as_ref().filter(|command| !is_script(command)), behind)
    {
        let text = format!(
            "PATH gives {}, and behind it {}, a script, as the Python package contextpilot has one of this name",
            ours.display(),
            theirs.display()
        );
        return Some(Finding::new("launcher", Grade::Good, text));
    }
    if let Some(given) = given.filter(|command| is_script(command)) {
        let text = format!(
            "PATH gives {}, which is not ours but a script, as the Python package contextpilot has one of this name; \
             put the folder of ours before it, or give its path",
            given.display()
        );
        return Some(Finding::new("launcher", Grade::Limited, text));
    }
    let this = std::env::current_exe().ok()?;
    let beside = this.with_file_name(LAUNCHER);
    is_script(&beside).then(|| {
        Finding::new(
            "launcher",
            Grade::Limited,
            format!(
                "{} is not ours but a script, as the Python package contextpilot has one of this \
                 name: pip install --force-reinstall --no-deps contextpilot-llama-server",
                beside.display()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_command_of_our_name_is_noticed_before_ours_and_behind_it() {
        let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(ours.path().join(LAUNCHER), b"\x7fELF").unwrap();
        fs::write(theirs.path().join(LAUNCHER), "#!/usr/bin/python3\n").unwrap();
        let found = |folders: [&Path; 2]| -> (Grade, String) {
            let path: OsString = std::env::join_paths(folders).unwrap();
            let found = launcher(|name: &str| (name == "PATH").then(|| path.clone())).unwrap();
            (found.grade, found.text)
        };
        let shown = theirs.path().display().to_string();
        let (grade, text) = found([ours.path(), theirs.path()]);
        assert!(
            grade == Grade::Good && text.contains(&format!("behind it {shown}")),
            "{text}"
        );
        let (grade, text) = found([theirs.path(), ours.path()]);
        assert!(
            grade == Grade::Limited && text.starts_with(&format!("PATH gives {shown}")),
            "{text}"
        );
    }
}
