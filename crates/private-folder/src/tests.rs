use std::os::unix::fs::symlink;

use super::*;

fn open(base: Base, home: &Path) -> Result<PrivateFolder, Error> {
    PrivateFolder::open(base, |name| (name == "HOME").then(|| home.into()))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn each_base_has_its_place() {
    let home = tempfile::tempdir().unwrap();
    for (base, place) in [
        (Base::Cache, ".cache/contextpilot-llama"),
        (Base::State, ".local/state/contextpilot-llama"),
    ] {
        let folder = open(base, home.path()).unwrap();
        assert_eq!(folder.path(), home.path().join(place));
        assert_eq!(mode(folder.path()), 0o700);

        let elsewhere = home.path().join(base.variable());
        let folder = PrivateFolder::open(base, |name| {
            (name == base.variable()).then(|| elsewhere.clone().into())
        });
        assert_eq!(folder.unwrap().path(), elsewhere.join(NAME));
    }
}

#[test]
fn relative_and_empty_paths_are_no_folders() {
    for value in [None, Some(""), Some("relative")] {
        let found = PrivateFolder::open(Base::State, |_| value.map(OsString::from));
        assert!(matches!(found, Err(Error::NoHome)), "{value:?}");
    }
}

#[test]
fn what_others_could_read_is_closed_and_what_they_could_write_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let base = home.path().join(".local/state");
    let folder = base.join(NAME);
    fs::create_dir_all(&folder).unwrap();
    for open_to_others in [0o770, 0o707, 0o722, 0o720] {
        set(&folder, open_to_others);
        let found = open(Base::State, home.path());
        assert!(matches!(found, Err(Error::Unsafe { .. })), "{found:?}");
        assert_eq!(mode(&folder), open_to_others);
    }
    set(&folder, 0o755);
    open(Base::State, home.path()).unwrap();
    assert_eq!(mode(&folder), 0o700);

    set(&base, 0o777);
    let error = open(Base::State, home.path()).unwrap_err().to_string();
    assert!(error.contains("everybody may write"), "{error}");
    set(&base, 0o1777);
    open(Base::State, home.path()).unwrap();
}

#[test]
fn links_files_and_other_peoples_folders_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let base = home.path().join(".cache");
    fs::create_dir(&base).unwrap();
    let folder = base.join(NAME);
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), &folder).unwrap();
    assert!(matches!(
        open(Base::Cache, home.path()),
        Err(Error::Unsafe { .. })
    ));
    fs::remove_file(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    assert!(matches!(
        open(Base::Cache, home.path()),
        Err(Error::Unsafe { .. })
    ));
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    // Only root can give a folder away.
    if std::os::unix::fs::chown(&folder, Some(effective_user() + 1), None).is_ok() {
        let error = open(Base::Cache, home.path()).unwrap_err().to_string();
        assert!(error.contains("another user"), "{error}");
    }
}
