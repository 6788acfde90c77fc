//! `insert`: puts the hook into a service that starts llama-server by itself, by a drop-in file of systemd. Nothing of the
//! service is changed, so an update of it keeps the hook, and undoing is removing a file.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use contextpilot_settings::{Settings, Watcher, env, is_wanted, table};

use crate::variables::{Lookup, PRELOAD, of_process};
use crate::{hook_lib, watcher};

use super::show::print;

/// Put the hook into a service that starts llama-server by itself, such as Ollama
///
/// Writes a drop-in file for the service's systemd unit, with LD_PRELOAD and the CONTEXTPILOT_
/// settings that are set now (without any: CONTEXTPILOT_LISTEN=auto). Programs that the service
/// starts inherit them; in all but a llama-server the hook does nothing. No binary and no unit is
/// changed. Doing it again replaces the file.
#[derive(Args)]
#[command(after_help = "Examples:
  sudo contextpilot-llama insert --into ollama
  sudo CONTEXTPILOT_STORE=/var/lib/ollama-store contextpilot-llama insert --into ollama
  sudo contextpilot-llama insert --into ollama --undo")]
pub(super) struct InsertOptions {
    /// The service: ollama, or the name of any systemd unit
    #[arg(long, value_name = "SERVICE")]
    into: String,
    /// Take it out again
    #[arg(long)]
    undo: bool,
    /// A unit of this user, and not of the system
    #[arg(long)]
    user: bool,
    /// The root of the system that is changed, as when an image is built
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

/// Where drop-ins of the system's units are, and those of a user's, in the home.
const OF_SYSTEM: &str = "etc/systemd/system";
const OF_USER: &str = ".config/systemd/user";

/// The drop-in's name.
const FILE: &str = "contextpilot.conf";

/// Where a library of root's own cache is put for other users.
const LIBRARIES: &str = "usr/local/lib/contextpilot-llama";

pub(super) fn run(options: &InsertOptions) -> Result<(), String> {
    let unit = Unit::named(&options.into, options.user, &options.root)?;
    let drop_in = unit.drop_in();
    let shown = drop_in.display();
    if options.undo {
        return match fs::remove_file(&drop_in) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                print(&format!("{shown} is not there: nothing to undo\n"))
            }
            Err(e) => Err(cannot_write(&drop_in, &e)),
            Ok(()) => {
                // The folder is systemd's; it stays if it has other files.
                let _ = drop_in.parent().map(fs::remove_dir);
                print(&format!("Removed {shown}\n\nNext: {}\n", unit.restart()))
            }
        };
    }
    if !unit.exists() {
        return Err(format!(
            "There is no unit {} ({} were looked at): install it first, or name another one with --into",
            unit.name,
            unit.folders()
                .map(|folder| folder.display().to_string())
                .join(", ")
        ));
    }
    let for_service = |file: PathBuf| {
        if options.user || is_readable_by_all(&file) {
            Ok(file)
        } else {
            copied(&file, &options.root)
        }
    };
    let own = hook_lib::load(of_process).map_err(|e| e.to_string())?.path;
    let library = for_service(own)?;
    let watcher = match Settings::from(of_process)
        .map_err(|e| e.to_string())?
        .watcher
    {
        Some(Watcher::Auto) => Some(for_service(watcher::find()?)?),
        _ => None,
    };
    let text = drop_in_text(&library, watcher.as_deref());
    if fs::read_to_string(&drop_in).is_ok_and(|there| there == text) {
        return print(&format!("{shown} has it already\n"));
    }
    let folder = drop_in.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)
        .and_then(|()| written(&drop_in, &text))
        .map_err(|e| cannot_write(&drop_in, &e))?;
    print(&format!("Wrote {shown}\n\nNext: {}\n", unit.restart()))
}

/// For root alone: settings may be secrets.
fn written(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension("new");
    let _ = fs::remove_file(&beside);
    let mut options = fs::File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    file.write_all(text.as_bytes())?;
    fs::rename(beside, path)
}

fn cannot_write(path: &Path, error: &io::Error) -> String {
    format!(
        "{} cannot be written ({error}): run it as root (sudo), or with --user for a unit of your own",
        path.display()
    )
}

/// The drop-in: what `run` puts into the environment, for whatever the unit starts.
fn drop_in_text(library: &Path, watcher: Option<&Path>) -> String {
    let names = table::ALL.iter().map(|setting| setting.name);
    let ours = names.filter(|name| ![env::LLAMA_SERVER_BIN, env::HOOK_LIB].contains(name));
    let mut set: Vec<(&str, String)> = ours
        .filter_map(|name| Some((name, of_process.text(name)?)))
        .collect();
    // The hook cannot know where the program is.
    let named = set.iter_mut().find(|(name, _)| *name == env::WATCHER);
    if let (Some((_, value)), Some(path)) = (named, watcher) {
        *value = path.display().to_string();
    }
    if !is_wanted(of_process) {
        set.push((env::LISTEN, "auto".to_owned()));
    }
    let mut text = String::from(
        "# Written by `contextpilot-llama insert`; `contextpilot-llama insert --into SERVICE --undo` removes it.\n[Service]\n",
    );
    let preload = (PRELOAD, library.display().to_string());
    for (name, value) in [preload].into_iter().chain(set) {
        let _ = writeln!(text, "Environment=\"{name}={}\"", escaped(&value));
    }
    text
}

/// As systemd reads a value in double quotes (systemd.syntax(7), and `%` for its specifiers).
fn escaped(value: &str) -> String {
    value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
}

/// Puts a library or a program where every user can read it, and execute what can be executed.
fn copied(library: &Path, root: &Path) -> Result<PathBuf, String> {
    let name = library.file_name().unwrap_or_default();
    let to = root.join(LIBRARIES).join(name);
    let copy = || -> io::Result<()> {
        let folder = root.join(LIBRARIES);
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        // Beside it first: a process may have the old one mapped.
        let beside = to.with_extension("new");
        fs::copy(library, &beside)?;
        let executable = fs::metadata(library)?.permissions().mode() & 0o111 != 0;
        let mode = if executable { 0o755 } else { 0o644 };
        fs::set_permissions(&beside, fs::Permissions::from_mode(mode))?;
        fs::rename(&beside, &to)
    };
    copy().map_err(|e| cannot_write(&to, &e))?;
    Ok(Path::new("/").join(LIBRARIES).join(name))
}

fn is_readable_by_all(path: &Path) -> bool {
    path.ancestors().enumerate().all(|(depth, part)| {
        let wanted = if depth == 0 { 0o004 } else { 0o001 };
        fs::metadata(part).is_ok_and(|found| found.permissions().mode() & wanted != 0)
    })
}

/// A unit of systemd.
pub(super) struct Unit {
    name: String,
    user: bool,
    root: PathBuf,
}

impl Unit {
    fn named(name: &str, user: bool, root: &Path) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "@:_.-".contains(c);
        if name.is_empty() || !name.chars().all(is_plain) || name.starts_with('.') {
            return Err(format!(
                "{name:?} is no name of a unit: --into ollama, for instance"
            ));
        }
        let name = if name.ends_with(".service") {
            name.to_owned()
        } else {
            format!("{name}.service")
        };
        let root = if user {
            of_process
                .non_empty("HOME")
                .map(PathBuf::from)
                .ok_or("HOME is not set: set it")?
        } else {
            root.to_owned()
        };
        Ok(Self { name, user, root })
    }

    /// Where units are, in systemd's order.
    fn folders(&self) -> [PathBuf; 3] {
        let names = if self.user {
            [
                OF_USER,
                ".local/share/systemd/user",
                ".nix-profile/share/systemd/user",
            ]
        } else {
            [
                OF_SYSTEM,
                "usr/local/lib/systemd/system",
                "usr/lib/systemd/system",
            ]
        };
        names.map(|name| self.root.join(name))
    }

    fn exists(&self) -> bool {
        // A user's units are also where packages put them.
        let others: &[&str] = if self.user {
            &["/etc/systemd/user", "/usr/lib/systemd/user"]
        } else {
            &["lib/systemd/system"]
        };
        let others = others.iter().map(|name| self.root.join(name));
        let mut folders = self.folders().into_iter().chain(others);
        folders.any(|folder| folder.join(&self.name).exists())
    }

    fn drop_in(&self) -> PathBuf {
        let [folder, ..] = self.folders();
        folder.join(format!("{}.d", self.name)).join(FILE)
    }

    fn restart(&self) -> String {
        let systemctl = if self.user {
            "systemctl --user"
        } else {
            "systemctl"
        };
        format!(
            "{systemctl} daemon-reload && {systemctl} restart {}",
            self.name
        )
    }
}

/// The drop-in files of the system's units and of this user's own that have the hook, and the library that each loads.
pub(super) fn inserted() -> Vec<(PathBuf, Option<PathBuf>)> {
    let home = of_process.non_empty("HOME").map(PathBuf::from);
    let own = home.map(|home| home.join(OF_USER));
    inserted_in([Path::new("/").join(OF_SYSTEM)].into_iter().chain(own))
}

fn inserted_in(folders: impl Iterator<Item = PathBuf>) -> Vec<(PathBuf, Option<PathBuf>)> {
    let units = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let files = units.map(|folder| folder.path().join(FILE));
    let there = files.filter_map(|file| {
        let text = fs::read_to_string(&file).ok()?;
        let beginning = format!("Environment=\"{PRELOAD}=");
        let mut values = text
            .lines()
            .filter_map(|line| line.strip_prefix(&beginning));
        let library = values
            .next()
            .map(|value| PathBuf::from(value.trim_end_matches('"')));
        Some((file, library))
    });
    there.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_reaches_the_service_as_it_is() {
        assert_eq!(escaped(r#"a "b" \ 50%"#), r#"a \"b\" \\ 50%%"#);
    }

    #[test]
    fn drop_ins_are_found_in_all_folders_with_the_library_that_they_name() {
        let (system, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let drop_in = |folder: &Path, text: &str| {
            let folder = folder.join("a.service.d");
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(FILE), text).unwrap();
            folder.join(FILE)
        };
        let first = drop_in(
            system.path(),
            "[Service]\nEnvironment=\"LD_PRELOAD=/x.so\"\n",
        );
        let second = drop_in(own.path(), "[Service]\n");
        fs::create_dir(own.path().join("b.service.d")).unwrap();
        let missing = own.path().join("missing");
        let folders = [system.path(), own.path(), &missing].map(Path::to_owned);
        let expected = [(first, Some(PathBuf::from("/x.so"))), (second, None)];
        assert_eq!(inserted_in(folders.into_iter()), expected);
    }

    #[test]
    fn a_unit_is_named_with_and_without_its_ending() {
        let root = Path::new("/");
        for name in ["ollama", "ollama.service"] {
            let unit = Unit::named(name, false, root).unwrap();
            let drop_in = "/etc/systemd/system/ollama.service.d/contextpilot.conf";
            assert_eq!(unit.drop_in(), Path::new(drop_in));
        }
        for name in ["", "../x", "a/b", "a b"] {
            assert!(Unit::named(name, false, root).is_err(), "{name}");
        }
    }
}
