//! What an older version wrote down had the server's flags in it as they were.

mod common;

use std::fs;
use std::io::Cursor;
use std::path::Path;
use std::time::{Duration, SystemTime};

use common::{LONG, rows, writer};
use contextpilot_kv_files::{Folder, Pack, PackWriter};
use contextpilot_kv_store::{Facts, Fingerprint, Origin, Store, What};
use contextpilot_testbed::private_folder;
use sha2::Digest as _;

const SECRET: &str = "hf_sesame";
const ENGINE: &str = "0.7.0 (build b11669)";

/// Of a server with a flag that has a secret in it: the fact, as it was and is made.
fn program() -> Vec<u8> {
    let mut fact = Vec::new();
    for part in ["--hf-token", SECRET, "--swa-full"] {
        fact.extend((part.len() as u64).to_le_bytes());
        fact.extend(part.as_bytes());
    }
    fact.extend(ENGINE.as_bytes());
    fact
}

fn facts() -> Facts {
    let mut facts = Facts::default();
    facts.push(What::Program, program());
    facts.push(What::Model, vec![7; 16]);
    facts
}

/// As version 1 wrote it.
fn old() -> Vec<u8> {
    let mut bytes = b"CPorigi1".to_vec();
    let long = |bytes: &mut Vec<u8>, text: &[u8]| {
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text);
    };
    long(&mut bytes, b"tea");
    bytes.extend(2_u32.to_le_bytes());
    bytes.push(1);
    long(&mut bytes, &program());
    bytes.push(3);
    long(&mut bytes, &[7; 16]);
    bytes.push(0);
    bytes
}

fn holds(bytes: &[u8]) -> bool {
    bytes
        .windows(SECRET.len())
        .any(|part| part == SECRET.as_bytes())
}

/// The files below a folder in which the secret stands.
fn with_secret(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("it can be read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(with_secret(&path));
        } else if holds(&fs::read(&path).expect("it can be read")) {
            found.push(path.to_string_lossy().into_owned());
        }
    }
    found
}

#[test]
fn a_folder_from_before_has_no_secrets_when_something_writes_into_it() {
    let home = private_folder();
    let folder = Folder::open(home.path()).expect("it opens");
    let origins = home.path().join("v1/origins");
    fs::create_dir(&origins).expect("it is ours");
    let of = facts().fingerprint();
    let (good, cut) = (
        origins.join(of.to_string()),
        origins.join(Fingerprint([3; 16]).to_string()),
    );
    fs::write(&good, old()).expect("it is ours");
    fs::write(&cut, &old()[..60]).expect("it is ours");
    let then = SystemTime::now() - Duration::from_secs(3 * 24 * 3600);
    let file = fs::File::open(&good).expect("it is there");
    file.set_modified(then).expect("it is ours");
    assert_eq!(with_secret(home.path()).len(), 2);

    assert!(writer(&folder).flush(LONG));
    assert_eq!(with_secret(home.path()), [""; 0]);
    assert!(!cut.exists(), "it was damaged");
    // Its chunks are those of the same fingerprint, and it is as old as it was.
    let origin = Origin::new("tea".to_owned(), &facts(), None);
    assert_eq!(folder.origin(&of), Some(origin));
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(folder.origins_within(2 * day), []);
    assert_eq!(folder.origins_within(4 * day).len(), 1);
}

#[test]
fn a_pack_from_before_is_read_and_its_secrets_are_not_kept() {
    let origin = Origin::new("tea".to_owned(), &facts(), None);
    let tokens: Vec<i32> = (0..20).collect();
    let chunks = Store::new(0).missing(&facts().fingerprint(), &tokens, 8);
    let mut pack = PackWriter::begin(Vec::new(), std::slice::from_ref(&origin), &chunks)
        .expect("it is written");
    for chunk in &chunks {
        pack.chunk(chunk, &rows(chunk)).expect("it is written");
    }
    let now = pack.finish().expect("it is whole");
    assert!(!holds(&now));
    // The same as version 1 had it: another version, and another origin.
    let (new, old) = (origin.encode(), old());
    let mut before = now[..12].to_vec();
    before[8] = 1;
    before.extend((old.len() as u32).to_le_bytes());
    before.extend(&now[16..32]);
    before.extend(&old);
    before.extend(&now[32 + new.len()..now.len() - 32]);
    before.extend(sha2::Sha256::digest(&before));
    assert!(holds(&before));
    let read = Pack::open(Cursor::new(&before)).expect("it is good");
    assert_eq!((&read.origins, &read.chunks), (&vec![origin], &chunks));
    assert!(!holds(&read.origins[0].encode()));
}
