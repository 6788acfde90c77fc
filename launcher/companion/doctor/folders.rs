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

/// A command of another package under the launcher's name, in the folder of this one. `None`: it
/// is the launcher, or there is none.
pub(super) fn launcher() -> Option<Finding> {
    let this = std::env::current_exe().ok()?;
    let beside = this.with_file_name("contextpilot-llama-server");
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
