use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// Folders `a`, `b`, `c` on a `PATH`, to put executables in.
struct Path3 {
    root: tempfile::TempDir,
}

impl Path3 {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["a", "b", "c"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        Self { root }
    }

    fn at(&self, folder: &str) -> PathBuf {
        self.root.path().join(folder).join(NAME)
    }

    fn put(&self, folder: &str, content: &[u8]) {
        fs::write(self.at(folder), content).unwrap();
        fs::set_permissions(self.at(folder), Permissions::from_mode(0o755)).unwrap();
    }

    /// What the launcher in `folder` finds.
    fn found_by(&self, folder: &str) -> Option<PathBuf> {
        let path = self.at(folder);
        let metadata = fs::metadata(&path).unwrap();
        self.found(Some(This { path, metadata }))
    }

    fn found(&self, this: Option<This>) -> Option<PathBuf> {
        let folders = ["a", "b", "c"].map(|folder| self.root.path().join(folder));
        let path = std::env::join_paths(folders).unwrap();
        on_path(path, this.as_ref()).map(|server| {
            assert_eq!(server.argv0, NAME);
            server.path
        })
    }
}

fn launcher(version: &str) -> Vec<u8> {
    [b"ELF", MARK, version.as_bytes()].concat()
}

#[test]
fn the_first_on_path_is_taken() {
    let path = Path3::new();
    assert_eq!(path.found(None), None);
    path.put("c", b"server");
    path.put("b", b"server");
    fs::create_dir(path.at("a")).unwrap();
    assert_eq!(path.found(None), Some(path.at("b")));
    fs::set_permissions(path.at("b"), Permissions::from_mode(0o644)).unwrap();
    assert_eq!(path.found(None), Some(path.at("c")));
}

#[test]
fn the_launcher_is_passed_over_by_link_and_by_copy() {
    let path = Path3::new();
    path.put("a", &launcher("1"));
    symlink(path.at("a"), path.at("b")).unwrap();
    assert_eq!(path.found_by("a"), None);
    path.put("c", b"server");
    assert_eq!(path.found_by("a"), Some(path.at("c")));

    fs::remove_file(path.at("b")).unwrap();
    path.put("b", &launcher("1"));
    assert_eq!(path.found_by("a"), Some(path.at("c")));
    fs::remove_file(path.at("b")).unwrap();
    fs::hard_link(path.at("a"), path.at("b")).unwrap();
    assert_eq!(path.found_by("a"), Some(path.at("c")));
}

#[test]
fn a_server_of_the_launchers_size_is_a_server() {
    let path = Path3::new();
    path.put("a", b"launcher");
    path.put("b", b"a_server");
    assert_eq!(path.found_by("a"), Some(path.at("b")));
}

#[test]
fn a_server_before_the_launcher_is_found_when_none_is_behind() {
    let path = Path3::new();
    path.put("a", b"server");
    path.put("b", &launcher("1"));
    assert_eq!(path.found_by("b"), Some(path.at("a")));
    path.put("c", b"another");
    assert_eq!(path.found_by("b"), Some(path.at("c")));
}

#[test]
fn several_versions_on_path_end_at_the_server_or_at_none() {
    let path = Path3::new();
    path.put("a", &launcher("1"));
    path.put("b", &launcher("22"));
    assert_eq!(path.found_by("a"), Some(path.at("b")));
    assert_eq!(path.found_by("b"), None);
    path.put("c", b"server");
    assert_eq!(path.found_by("b"), Some(path.at("c")));

    let path = Path3::new();
    path.put("a", b"server");
    path.put("b", &launcher("1"));
    path.put("c", &launcher("22"));
    assert_eq!(path.found_by("b"), Some(path.at("c")));
    assert_eq!(path.found_by("c"), Some(path.at("a")));
}

#[test]
fn a_name_without_a_slash_is_in_the_working_directory() {
    assert_eq!(
        with_slash("llama-server".into()),
        Path::new("./llama-server")
    );
    assert_eq!(with_slash("a/b".into()), Path::new("a/b"));
}

#[test]
fn llama_server_bin_must_be_an_executable_file() {
    let path = Path3::new();
    let named = |path: &Path| super::named(path.as_os_str().to_owned(), None);
    assert!(matches!(named(&path.at("a")), Err(Error::Missing(_))));
    assert!(matches!(
        named(path.root.path()),
        Err(Error::NotExecutable(..))
    ));
    path.put("a", b"server");
    let server = named(&path.at("a")).unwrap();
    assert_eq!(server.argv0, path.at("a"));
    fs::set_permissions(path.at("a"), Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(
        named(&path.at("a")),
        Err(Error::NotExecutable(..))
    ));
}
