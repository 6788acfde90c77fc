//! With real folders. Where one has to belong to another user it is given away if this user may
//! do that (root), and otherwise only the walk is told so.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, lchown, symlink};

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

/// A folder that counts as the root of the file system, so that what lies above it, which is the
/// machine's, does not matter.
struct Tree {
    root: tempfile::TempDir,
    given: HashMap<PathBuf, u32>,
}

impl Tree {
    fn new(folders: &[&str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        set(root.path(), 0o755);
        let tree = Self {
            root,
            given: HashMap::new(),
        };
        for folder in folders {
            let path = tree.real(folder);
            fs::create_dir_all(&path).unwrap();
            // Whatever the mask of this process is.
            let ours = |path: &&Path| *path != tree.root.path();
            for made in path.ancestors().take_while(ours) {
                set(made, 0o755);
            }
        }
        tree
    }

    fn real(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    fn set(&self, path: &str, mode: u32) {
        set(&self.real(path), mode);
    }

    fn link(&self, path: &str, target: &str) {
        symlink(target, self.real(path)).unwrap();
    }

    fn give(&mut self, path: &str, owner: u32) {
        if lchown(self.real(path), Some(owner), None).is_err() {
            self.given.insert(path.into(), owner);
        }
    }

    /// The private folder in `base`.
    fn open(&self, base: &str) -> Result<PrivateFolder, Error> {
        self.open_or(base, Missing::Make)
    }

    fn open_or(&self, base: &str, missing: Missing) -> Result<PrivateFolder, Error> {
        let view = View {
            root: self.root.path(),
            user: effective_user(),
            owner: &|path, owner| self.given.get(path).copied().unwrap_or(owner),
            missing,
        };
        PrivateFolder::seen(&view, Path::new(base), NAME)
    }

    /// Where the fault is, and which.
    fn fault(&self, base: &str) -> (String, Fault) {
        match self.open(base) {
            Err(Error::Unsafe { at, why, .. }) => (at.to_str().unwrap().to_owned(), why),
            other => panic!("{base}: {other:?}"),
        }
    }
}

/// A user that no test runs as.
const SOMEBODY: u32 = 54_321;

fn at<T>(path: &str, why: T) -> (String, T) {
    (path.to_owned(), why)
}

#[test]
fn each_base_has_its_place() {
    let home = tempfile::tempdir().unwrap();
    set(home.path(), 0o700);
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
fn what_is_missing_is_made_for_us_alone() {
    let tree = Tree::new(&["/home"]);
    let folder = tree.open("/home/a/b/../c").unwrap();
    for made in ["/home/a", "/home/a/b", "/home/a/c"] {
        assert_eq!(mode(&tree.real(made)), 0o700, "{made}");
    }
    let metadata = File::metadata(&folder.descriptor).unwrap();
    let named = fs::metadata(tree.real("/home/a/c").join(NAME)).unwrap();
    assert_eq!(metadata.ino(), named.ino());
    assert_eq!(folder.path(), Path::new("/home/a/b/../c").join(NAME));
}

#[test]
fn a_look_makes_nothing() {
    let tree = Tree::new(&["/home"]);
    for missing in ["/home", "/home/a/b"] {
        let found = tree.open_or(missing, Missing::Leave);
        assert!(matches!(found, Err(Error::System { .. })), "{found:?}");
    }
    assert_eq!(fs::read_dir(tree.real("/home")).unwrap().count(), 0);
    tree.open("/home").unwrap();
    tree.open_or("/home", Missing::Leave).unwrap();
}

#[test]
fn the_first_runtime_folder_is_the_one_of_the_variable() {
    let home = tempfile::tempdir().unwrap();
    set(home.path(), 0o700);
    let run = home.path().join("run");
    let lookup = |name: &str| match name {
        "XDG_RUNTIME_DIR" => Some(run.clone().into()),
        "HOME" => Some(home.path().into()),
        _ => None,
    };
    let folders = |missing| -> Vec<PathBuf> {
        let folders = PrivateFolder::runtime(lookup, missing);
        folders.map(|folder| folder.path().to_owned()).collect()
    };
    let here = |folders: Vec<PathBuf>| -> Vec<PathBuf> {
        // The others are the machine's.
        let ours = |path: &PathBuf| path.starts_with(home.path());
        folders.into_iter().filter(ours).collect()
    };
    let state = home.path().join(".local/state").join(NAME);
    assert!(here(folders(Missing::Leave)).is_empty());
    // Not made, as it is the system's.
    assert_eq!(
        PrivateFolder::state(lookup, Missing::Make).unwrap().path(),
        state
    );
    assert_eq!(here(folders(Missing::Leave)), std::slice::from_ref(&state));
    assert!(!run.exists());

    fs::create_dir(&run).unwrap();
    set(&run, 0o700);
    assert_eq!(here(folders(Missing::Leave)), std::slice::from_ref(&state));
    let first = PrivateFolder::runtime(lookup, Missing::Make).next();
    assert_eq!(first.unwrap().path(), run.join(NAME));
    assert_eq!(
        here(folders(Missing::Leave)),
        [run.join(NAME), state.clone()]
    );
    // Others could put their own folder there.
    set(&run, 0o777);
    assert_eq!(here(folders(Missing::Leave)), [state]);
}

#[test]
fn what_others_could_read_is_closed_and_what_they_could_write_is_refused() {
    let tree = Tree::new(&["/cache/contextpilot-llama"]);
    let folder = "/cache/contextpilot-llama";
    for (open_to, fault) in [
        (0o770, Fault::Group(0o770)),
        (0o720, Fault::Group(0o720)),
        (0o707, Fault::Everybody(0o707)),
        (0o1777, Fault::Everybody(0o1777)),
    ] {
        tree.set(folder, open_to);
        assert_eq!(tree.fault("/cache"), at(folder, fault));
        assert_eq!(mode(&tree.real(folder)), open_to);
    }
    tree.set(folder, 0o755);
    tree.open("/cache").unwrap();
    assert_eq!(mode(&tree.real(folder)), 0o700);
}

#[test]
fn every_folder_above_is_closed_to_others() {
    let tree = Tree::new(&["/home", "/home/me", "/home/me/cache"]);
    for above in ["/", "/home", "/home/me", "/home/me/cache"] {
        for (open_to, fault) in [
            (0o775, Fault::Group(0o775)),
            (0o2770, Fault::Group(0o2770)),
            (0o777, Fault::Everybody(0o777)),
        ] {
            tree.set(above, open_to);
            assert_eq!(tree.fault("/home/me/cache"), at(above, fault));
        }
        tree.set(above, 0o711);
        tree.open("/home/me/cache").unwrap();
    }
}

#[test]
fn every_folder_above_is_ours_or_roots() {
    for above in ["/", "/home", "/home/me", "/home/me/cache"] {
        let mut tree = Tree::new(&["/home", "/home/me", "/home/me/cache"]);
        // Even if only its owner can write to it, and even if it is sticky.
        for theirs in [0o700, 0o755, 0o1777] {
            tree.set(above, theirs);
            tree.give(above, SOMEBODY);
            let fault = Fault::Owner(SOMEBODY);
            assert_eq!(tree.fault("/home/me/cache"), at(above, fault));
            tree.given.clear();
            tree.give(above, effective_user());
        }
        tree.set(above, 0o755);
        tree.given.clear();
        tree.give(above, 0);
        tree.open("/home/me/cache").unwrap();
    }
}

#[test]
fn in_roots_sticky_folders_names_are_their_owners() {
    let mut tree = Tree::new(&["/tmp", "/tmp/me"]);
    tree.set("/tmp", 0o1777);
    tree.give("/tmp", 0);
    tree.open("/tmp/me").unwrap();
    // Made there.
    tree.open("/tmp/new").unwrap();
    tree.open("/tmp").unwrap();
    tree.give("/tmp/me", SOMEBODY);
    let theirs = Fault::Owner(SOMEBODY);
    assert_eq!(tree.fault("/tmp/me"), at("/tmp/me", theirs));
}

#[test]
fn what_links_lead_to_is_looked_at_and_so_are_they() {
    let mut tree = Tree::new(&["/home/me", "/disk/me", "/disk/open/me"]);
    tree.link("/home/me/relative", "../../disk/me");
    tree.link("/home/me/absolute", "/disk/me");
    tree.link("/home/me/twice", "absolute/../me/");
    tree.link("/home/me/out", "/disk/open/me");
    for link in ["relative", "absolute", "twice"] {
        let base = format!("/home/me/{link}");
        let folder = tree.open(&base).unwrap();
        assert_eq!(folder.path(), Path::new(&base).join(NAME));
        assert!(tree.real("/disk/me").join(NAME).is_dir());
        fs::remove_dir(tree.real("/disk/me").join(NAME)).unwrap();
    }
    // Not the link's own folder is at fault, but one that it leads through.
    tree.set("/disk/open", 0o777);
    let open = at("/disk/open", Fault::Everybody(0o777));
    assert_eq!(tree.fault("/home/me/out"), open);
    assert!(!tree.real("/disk/open/me").join(NAME).exists());
    // Nor does it help to leave it again.
    assert_eq!(tree.fault("/disk/open/../me"), open);
    tree.open("/home/me/absolute").unwrap();

    tree.give("/home/me/absolute", SOMEBODY);
    let theirs = at("/home/me/absolute", Fault::Link(SOMEBODY));
    assert_eq!(tree.fault("/home/me/absolute"), theirs);
    assert_eq!(tree.fault("/home/me/twice"), theirs);
}

#[test]
fn links_in_circles_and_to_files_are_errors() {
    let tree = Tree::new(&["/home"]);
    tree.link("/home/circle", "circle");
    tree.link("/home/file-link", "file");
    tree.link("/home/nowhere", "missing/below");
    fs::write(tree.real("/home/file"), "").unwrap();
    for base in ["/home/circle", "/home/file", "/home/file-link"] {
        let found = tree.open(base);
        assert!(matches!(found, Err(Error::System { .. })), "{found:?}");
    }
    // Of what a link names, too, all that is missing is made.
    tree.open("/home/nowhere").unwrap();
    assert!(tree.real("/home/missing/below").join(NAME).is_dir());
}

#[test]
fn links_files_and_other_peoples_folders_are_refused() {
    let mut tree = Tree::new(&["/cache", "/elsewhere"]);
    let folder = "/cache/contextpilot-llama";
    tree.link(folder, "../elsewhere");
    assert_eq!(tree.fault("/cache"), at(folder, Fault::NotAFolder));
    fs::remove_file(tree.real(folder)).unwrap();
    fs::write(tree.real(folder), "").unwrap();
    assert_eq!(tree.fault("/cache"), at(folder, Fault::NotAFolder));
    fs::remove_file(tree.real(folder)).unwrap();
    fs::create_dir(tree.real(folder)).unwrap();
    // Root's is not good enough: what is in it is not ours.
    for owner in [SOMEBODY, effective_user().wrapping_add(1)] {
        tree.give(folder, owner);
        assert_eq!(tree.fault("/cache"), at(folder, Fault::Owner(owner)));
    }
}

#[test]
fn the_folder_that_was_checked_is_the_one_that_is_used() {
    let tree = Tree::new(&["/cache"]);
    let folder = tree.open("/cache").unwrap();
    let path = tree.real("/cache").join(NAME);
    fs::rename(&path, tree.real("/cache/moved")).unwrap();
    fs::create_dir(&path).unwrap();
    let flags = OFlags::WRONLY | OFlags::CREATE;
    rustix::fs::openat(&folder, "file", flags, Mode::RUSR).unwrap();
    assert!(tree.real("/cache/moved/file").exists());
}

#[test]
fn messages_name_the_folder_and_what_is_at_fault() {
    let tree = Tree::new(&["/cache"]);
    tree.set("/cache", 0o775);
    assert_eq!(
        tree.open("/cache").unwrap_err().to_string(),
        "\"/cache/contextpilot-llama\" is not private, because of \"/cache\" \
         (its group may write to it, mode 0775; `chmod go-w` ends that)"
    );
}
