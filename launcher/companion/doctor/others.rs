//! The llama-servers of other users that run on this machine.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::companion::show::Visible;

use super::report::{Finding, Grade};

/// So many are named.
const MOST: usize = 8;

/// A finding for each of them.
pub(super) fn servers() -> Vec<Finding> {
    let found = lines().into_iter();
    found
        .map(|line| Finding::new("running", Grade::Good, line))
        .collect()
}

/// A line for each of them, with what to type. Only `/proc` is read, and of it what every user may read.
pub(in crate::companion) fn lines() -> Vec<String> {
    let Some(own) = owner(Path::new("/proc/self")) else {
        return Vec::new();
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<(u32, u32, Option<String>)> = processes
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let owner = owner(&entry.path()).filter(|owner| *owner != own)?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            model(&line).map(|model| (process, owner, model))
        })
        .collect();
    found.sort_unstable();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = |(process, owner, model): (u32, u32, Option<String>)| {
        let user = name(&users, owner);
        let who = user.map_or(format!("user {owner}"), str::to_owned);
        let model = model.map_or(String::new(), |model| format!(", {}", Visible(&model)));
        let as_them = user.map_or(format!("#{owner}"), str::to_owned);
        format!(
            "process {process} of {}{model}: sudo -u '{}' contextpilot-llama top",
            Visible(&who),
            Visible(&as_them)
        )
    };
    found.into_iter().take(MOST).map(line).collect()
}

fn owner(process: &Path) -> Option<u32> {
    fs::metadata(process).ok().map(|metadata| metadata.uid())
}

/// The file name of the model on a command line; the outer `None`: it is not that of a llama-server.
fn model(line: &[u8]) -> Option<Option<String>> {
    let mut words = line.split(|byte| *byte == 0).map(OsStr::from_bytes);
    let program = Path::new(words.next()?).file_name()?;
    if program != "llama-server" {
        return None;
    }
    let mut words = words.skip_while(|word| *word != "-m" && *word != "--model");
    let model = words.nth(1).and_then(|path| Path::new(path).file_name());
    Some(model.map(|name| name.to_string_lossy().into_owned()))
}

/// The name of a user, in lines as those of `/etc/passwd`.
fn name(users: &str, id: u32) -> Option<&str> {
    let id = id.to_string();
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_by_its_command_line() {
        let model = |line: &str| model(line.replace(' ', "\0").as_bytes());
        let tea = Some(Some("tea.gguf".to_owned()));
        assert_eq!(
            model("/usr/bin/llama-server -m /srv/tea.gguf --port 1"),
            tea
        );
        assert_eq!(model("llama-server --port 1 --model tea.gguf"), tea);
        assert_eq!(model("llama-server --port 1"), Some(None));
        assert_eq!(model("vi llama-server"), None);
        assert_eq!(model(""), None);
    }

    #[test]
    fn users_have_names() {
        let users = "root:x:0:0::/root:/bin/sh\nllama:x:998:997::/:/bin/false\nbroken\n";
        assert_eq!(name(users, 998), Some("llama"));
        assert_eq!(name(users, 0), Some("root"));
        assert_eq!(name(users, 9), None);
    }
}
