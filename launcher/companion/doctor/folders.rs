use std::fs::File;
use std::io::Read;
use std::path::Path;

use contextpilot_private_folder::{Base, PrivateFolder};

use crate::variables::Lookup;

use super::{Finding, Grade};

/// Where the journal of live request ids lies. `index`: evictions are reported, so there is a journal.
pub(super) fn state(lookup: impl Lookup, journal: bool, index: bool) -> Finding {
    let limit = match index {
        true => Grade::Limited,
        false => Grade::Good,
    };
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

const LAUNCHER: &str = "contextpilot-llama-server";

/// A command of another package under the launcher's name: the one that `PATH` gives, or the one in the folder of this
/// one. `None`: these are the launcher, or there are none.
pub(super) fn launcher(lookup: impl Lookup) -> Option<Finding> {
    let path = lookup.non_empty("PATH").unwrap_or_default();
    let mut commands = std::env::split_paths(&path).map(|folder| folder.join(LAUNCHER));
    let given = commands.find(|command| command.is_file());
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

fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && &start == b"#!"
}
