//! What others write and remove is seen.

mod common;

use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use common::{chunks, path, write};
use contextpilot_kv_files::{Folder, Listing, Watch};
use contextpilot_kv_store::{Chunk, Name};
use contextpilot_testbed::private_folder;

/// A look: the chunks that are new, and what is in the folders that may have changed.
fn look(watch: &mut Watch) -> (Vec<Name>, Vec<Listing>) {
    let mut new = Vec::new();
    let changed = watch.look(|header| new.push(header.chunk.name));
    new.sort_unstable();
    (new, changed.expect("it can be read"))
}

fn names(chunks: &[Chunk]) -> Vec<Name> {
    let mut names: Vec<Name> = chunks.iter().map(|chunk| chunk.name).collect();
    names.sort_unstable();
    names
}

#[test]
fn what_is_new_is_passed_on_once_and_what_is_gone_is_not_listed() {
    let root = private_folder();
    let folder = Folder::open(root.path()).expect("it is ours");
    let mut watch = Watch::new(folder.clone());
    assert_eq!(look(&mut watch), (vec![], vec![]));

    let (first, second) = (chunks(1, 600), chunks(2, 300));
    write(&folder, &first);
    assert_eq!(look(&mut watch).0, names(&first));
    write(&folder, &second);
    assert_eq!(look(&mut watch).0, names(&second));

    fs::remove_file(path(&folder, &first[0].name)).expect("it is there");
    let (new, changed) = look(&mut watch);
    assert_eq!(new, []);
    let of_first = changed.iter().find(|list| list.first == first[0].name.0[0]);
    let listed = &of_first.expect("its folder has changed").names;
    assert!(!listed.contains(&first[0].name));

    // A chunk that comes back is new.
    write(&folder, &first[..1]);
    assert_eq!(look(&mut watch).0, [first[0].name]);
}

#[test]
fn folders_that_have_not_changed_are_not_read() {
    let root = private_folder();
    let folder = Folder::open(root.path()).expect("it is ours");
    let mut watch = Watch::new(folder.clone());
    write(&folder, &chunks(1, 1000));
    assert_eq!(look(&mut watch).1.len(), look(&mut watch).1.len());
    assert_eq!(look(&mut watch), (vec![], vec![]));
    // Not within the same tick of the file system's clock.
    thread::sleep(Duration::from_millis(50));
    let other = chunks(2, 10);
    write(&folder, &other);
    let (new, changed) = look(&mut watch);
    assert_eq!(new, [other[0].name]);
    assert_eq!(changed.len(), 1);
    assert_eq!(changed[0].first, other[0].name.0[0]);
}

#[test]
fn what_another_version_wrote_is_left_alone() {
    let root = private_folder();
    let folder = Folder::open(root.path()).expect("it is ours");
    let written = chunks(1, 10);
    write(&folder, &written);
    let path = path(&folder, &written[0].name);
    let mut bytes = fs::read(&path).expect("it is there");
    // The version of the format: see `format.rs`.
    bytes[8] += 1;
    fs::write(&path, &bytes).expect("it is ours");
    let mut watch = Watch::new(folder.clone());
    assert_eq!(look(&mut watch).0, []);
    assert_eq!(fs::read(&path).expect("it is still there"), bytes);
}

/// A file was removed and written again between two looks, so the watch knows it and its user does not.
#[test]
fn what_is_not_known_any_more_is_passed_on_again() {
    let root = private_folder();
    let folder = Folder::open(root.path()).expect("it is ours");
    let mut watch = Watch::new(folder.clone());
    let all = chunks(1, 600);
    write(&folder, &all);
    assert_eq!(look(&mut watch).0, names(&all));
    look(&mut watch);
    assert_eq!(look(&mut watch), (vec![], vec![]));
    watch.again(&[all[0].name, Name([9; 16])]);
    let (new, changed) = look(&mut watch);
    assert_eq!(new, [all[0].name]);
    assert!(changed[0].names.contains(&all[0].name));
    look(&mut watch);
    assert_eq!(look(&mut watch), (vec![], vec![]));
}

/// The folder was removed, and another process has made it again.
#[test]
fn a_folder_that_was_made_again_is_followed() {
    let root = private_folder();
    let at = root.path().join("store");
    let folder = Folder::open(&at).expect("it is ours");
    let mut watch = Watch::new(folder.clone());
    let all = chunks(1, 600);
    write(&folder, &all);
    assert_eq!(look(&mut watch).0, names(&all));
    assert!(!watch.is_another());
    fs::remove_dir_all(&at).expect("it is ours");
    let gone = watch.look(|_| ()).expect_err("nothing is there");
    assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    assert!(!at.exists());

    let other = Folder::open(&at).expect("it is made");
    let new = [all[0].clone(), chunks(2, 10).remove(0)];
    write(&other, &new);
    let (found, changed) = look(&mut watch);
    assert_eq!(found, names(&new));
    assert!(watch.is_another());
    for name in names(&all) {
        let listed = changed.iter().find(|list| list.first == name.0[0]);
        let is_there = listed.expect("its folder is listed").names.contains(&name);
        assert_eq!(is_there, name == all[0].name);
    }
    look(&mut watch);
    assert!(!watch.is_another());
    // The writer does so there, too.
    write(&folder, &all[1..]);
    assert_eq!(look(&mut watch).0, names(&all[1..]));
}
