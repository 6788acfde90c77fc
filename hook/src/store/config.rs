//! llama.cpp's own configuration, `config.ini`: servers since mid 2026 take flags from it, before variables and the command
//! line.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use crate::base::environment;

/// The files, the machine's before the user's. Others than the server reads do no harm.
fn files() -> impl Iterator<Item = PathBuf> {
    let user = environment::variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = environment::variable("HOME").map(|home| PathBuf::from(home).join(".config"));
    let folders = [Some("/etc".into()), user, home];
    folders
        .into_iter()
        .flatten()
        .map(|folder| folder.join("llama.cpp/config.ini"))
}

/// What stood in them when this was first asked. `None`: one of them cannot be read.
pub(super) fn text() -> Option<&'static [u8]> {
    static TEXT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    TEXT.get_or_init(|| read(files())).as_deref()
}

fn read(files: impl Iterator<Item = PathBuf>) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    for file in files {
        match std::fs::read(file) {
            Ok(read) => text.extend(read),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(_) => return None,
        }
    }
    Some(text)
}

/// Stands for a text that may have a password in it. `None`: there is no text.
pub(super) fn digest(text: &[u8]) -> Option<String> {
    let whole = Sha256::digest(text);
    let digest: String = whole.iter().map(|byte| format!("{byte:02x}")).collect();
    (!text.is_empty()).then(|| format!("config.ini {digest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_counts_and_what_cannot_be_read_is_not_passed_over() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("config.ini");
        let of = |file: &PathBuf| read([file.clone(), home.path().join("other")].into_iter());
        assert_eq!(of(&file), Some(Vec::new()));
        std::fs::write(&file, "rope-freq-base = 500").unwrap();
        assert_eq!(of(&file).as_deref(), Some(&b"rope-freq-base = 500"[..]));
        assert_eq!(of(&home.path().to_owned()), None);
        assert_eq!(digest(b""), None);
        assert_ne!(digest(b"a"), digest(b"b"));
    }
}
