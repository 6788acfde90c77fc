use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use contextpilot_private_folder::PrivateFolder;
use contextpilot_testbed::private_folder;

use super::*;

fn home(path: &Path) -> impl Fn(&str) -> Option<OsString> {
    let path = path.as_os_str().to_owned();
    move |name| (name == "HOME").then(|| path.clone())
}

/// The private folder below a new home, which goes with the first.
fn private() -> (tempfile::TempDir, PrivateFolder) {
    let home_folder = private_folder();
    let folder = folder::private_cache(home(home_folder.path())).unwrap();
    (home_folder, folder)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn files(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn the_library_is_laid_down_privately() {
    let home_folder = private_folder();
    let library = locate(home(home_folder.path())).unwrap();
    let folder = home_folder.path().join(".cache/contextpilot-llama");
    assert_eq!(library.parent(), Some(folder.as_path()));
    assert_eq!(fs::read(&library).unwrap(), EMBEDDED);
    assert_eq!((mode(&folder), mode(&library)), (0o700, 0o600));
    assert_eq!(files(&folder).len(), 1);
}

#[test]
fn what_is_good_is_left_alone_and_what_is_not_is_replaced() {
    let (_home, folder) = private();
    let path = cache::ensure(&folder, "lib", b"right").unwrap().path;
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let first = inode(&path);
    cache::ensure(&folder, "lib", b"right").unwrap();
    assert_eq!(inode(&path), first);

    for wrong in [&b"wrong"[..], b"righ", b"right+", b""] {
        fs::write(&path, wrong).unwrap();
        cache::ensure(&folder, "lib", b"right").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"right");
    }
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    cache::ensure(&folder, "lib", b"right").unwrap();
    assert_eq!(mode(&path), 0o600);

    fs::remove_file(&path).unwrap();
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, b"right").unwrap();
    symlink(&elsewhere, &path).unwrap();
    cache::ensure(&folder, "lib", b"right").unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
}

/// Programs cannot set the time of a file's last change, whose steps are some milliseconds.
fn write_later(path: &Path, content: &[u8]) {
    use std::os::unix::fs::MetadataExt;
    let changed = || fs::metadata(path).map(|of| (of.ctime(), of.ctime_nsec()));
    let before = changed().unwrap();
    while changed().unwrap() == before {
        fs::write(path, content).unwrap();
    }
}

#[test]
fn what_was_compared_and_not_written_to_since_is_not_compared_again() {
    let (_home, folder) = private();
    let path = cache::ensure(&folder, "lib", b"right").unwrap().path;
    let note = folder.path().join(checked::note_of("lib"));
    assert!(!note.exists(), "it may be written to in the same moment");
    let stamp = || checked::stamp(&fs::metadata(&path).unwrap()).unwrap();
    fs::write(&note, stamp()).unwrap();
    cache::ensure(&folder, "lib", b"other").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"right", "the note is believed");

    write_later(&path, b"wrong");
    cache::ensure(&folder, "lib", b"right").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"right");

    // The machine was started again since.
    fs::write(&path, b"wrong").unwrap();
    let other = stamp().replacen(|of: char| of.is_ascii_hexdigit(), "g", 1);
    fs::write(&note, other).unwrap();
    cache::ensure(&folder, "lib", b"right").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"right");
}

#[test]
fn a_file_that_is_in_the_way_is_stepped_around() {
    let (_home, folder) = private();
    let stale = folder.path().join(format!(".new-{}-0", std::process::id()));
    fs::write(&stale, b"stale").unwrap();
    let path = cache::ensure(&folder, "lib", b"right").unwrap().path;
    assert_eq!(fs::read(path).unwrap(), b"right");
    assert_eq!(fs::read(stale).unwrap(), b"stale");
}

#[test]
fn a_folder_in_the_files_place_is_an_error_and_leaves_nothing_behind() {
    let (_home, folder) = private();
    fs::create_dir(folder.path().join("lib")).unwrap();
    let error = cache::ensure(&folder, "lib", b"right").unwrap_err();
    assert!(matches!(error, HookError::Write { .. }), "{error}");
    assert_eq!(files(folder.path()), ["lib"]);
}

#[test]
fn only_a_private_folder_will_do() {
    let home_folder = private_folder();
    let base = home_folder.path().join(".cache");
    let folder = base.join("contextpilot-llama");
    fs::create_dir_all(&folder).unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    set(&base, 0o755);
    let found = || {
        let found = folder::private_cache(home(home_folder.path()));
        found.map(|folder| folder.path().to_owned())
    };

    for open in [0o770, 0o707, 0o722] {
        set(&folder, open);
        let error = found().unwrap_err();
        assert!(matches!(error, HookError::Unsafe(_)), "{error}");
    }
    set(&folder, 0o755);
    assert_eq!(found().unwrap(), folder);
    assert_eq!(mode(&folder), 0o700);

    for (open, who) in [(0o777, "everybody"), (0o775, "its group")] {
        set(&base, open);
        let error = found().unwrap_err().to_string();
        assert!(error.contains(&format!("{who} may write")), "{error}");
        assert!(error.contains("chmod go-w"), "{error}");
        assert!(error.contains("CONTEXTPILOT_HOOK_LIB"), "{error}");
    }
    set(&base, 0o755);
    assert_eq!(found().unwrap(), folder);

    fs::remove_dir(&folder).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), &folder).unwrap();
    assert!(matches!(found(), Err(HookError::Unsafe(_))));
}

#[test]
fn without_a_home_there_is_no_cache() {
    for value in [None, Some(""), Some("relative")] {
        let lookup = |_: &str| value.map(OsString::from);
        assert!(matches!(
            folder::private_cache(lookup),
            Err(HookError::NoCache)
        ));
    }
}

#[test]
fn threads_agree_on_one_file() {
    let (_home, folder) = private();
    let content = vec![7; 1 << 20];
    std::thread::scope(|scope| {
        // Each thread stands for a process: a name of its own is what the
        // process number gives, and `create_new` what threads have to settle.
        for _ in 0..8 {
            scope.spawn(|| {
                let path = cache::ensure(&folder, "lib", &content).unwrap().path;
                assert_eq!(fs::read(path).unwrap(), content);
            });
        }
    });
    assert_eq!(files(folder.path()), ["lib"]);
}
