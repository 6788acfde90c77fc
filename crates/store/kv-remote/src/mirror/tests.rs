use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use contextpilot_kv_files::{AskedChunk, Door, Wish};
use contextpilot_kv_store::{Facts, GRID, Origin, Place, Store, What};

use super::*;
use crate::known::Known;
use crate::remote::Bucket;
use crate::supply::Supplier;

fn origin() -> Origin {
    let mut facts = Facts::default();
    facts.push(What::Model, vec![1; 16]);
    Origin::new("tea".to_owned(), &facts, None)
}

fn write(folder: &Folder, chunks: RangeInclusive<u8>) {
    let writer = Writer::start(folder.clone(), QUEUE, || {}, || false).unwrap();
    for nth in chunks {
        writer.write(&chunk(nth), Arc::new(vec![nth; 600])).unwrap();
    }
    assert!(writer.flush(DISK));
}

/// A chunk of three tokens, which nothing stands before.
fn chunk(nth: u8) -> Chunk {
    chunks(&[i32::from(nth), 2, 3]).remove(0)
}

/// The chunks of these tokens.
fn chunks(tokens: &[i32]) -> Vec<Chunk> {
    Store::new(0).missing(&origin().fingerprint, tokens, 200)
}

/// A folder that servers have used for the chunks of [`chunk`].
fn used(path: &Path) -> Folder {
    let folder = Folder::open(path).unwrap();
    let writer = Writer::start(folder.clone(), QUEUE, || {}, || false).unwrap();
    writer.note_origin(origin());
    assert!(writer.flush(DISK));
    folder
}

/// Waits until the mirror has written what it fetched, and returns how many files that are.
fn files(mirror: &mut Mirror) -> usize {
    assert!(mirror.writer.flush(DISK));
    mirror.folder.headers().unwrap().count()
}

#[test]
fn a_folder_without_a_server_stays_within_its_limit_and_a_tenth() {
    let bucket = Bucket::start();
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let size = chunk(1).cost();
    let mut mirror = Mirror::new(used(here.path()), bucket.remote(), 10 * size).unwrap();
    assert_eq!(mirror.turn(&mut Moved::default()).unwrap(), Turn::Alike);
    // All of it is sent when this one has begun.
    write(&used(there.path()), 1..=30);
    let folder = Folder::open(there.path()).unwrap();
    let mut other = Mirror::new(folder, bucket.remote(), 1 << 30).unwrap();
    while other.turn(&mut Moved::default()).unwrap() != Turn::Alike {}
    let fetch = |mirror: &mut Mirror| {
        for _ in 0..3 {
            while mirror.turn(&mut Moved::default()).unwrap() != Turn::Alike {}
        }
        files(mirror)
    };
    let before = fetch(&mut mirror);
    assert_eq!(before, 11);
    // A server lets some go: so many more are fetched, and none of those again.
    let gone: Vec<Name> = mirror.here.keys().take(4).copied().collect();
    for name in &gone {
        mirror.folder.remove(name).unwrap();
    }
    assert_eq!(fetch(&mut mirror), before);
    assert!(gone.iter().all(|name| mirror.folder.lacks(name)));
}

#[test]
fn what_waits_for_the_disk_is_here_while_others_write_beside_it() {
    static MAY_WRITE: AtomicBool = AtomicBool::new(false);
    fn held() {
        while !MAY_WRITE.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
    let bucket = Bucket::start();
    let path = tempfile::tempdir().unwrap();
    let mut mirror = Mirror::new(used(path.path()), bucket.remote(), 1 << 30).unwrap();
    let folder = mirror.folder.clone();
    mirror.writer = Writer::start(folder.clone(), QUEUE, held, || false).unwrap();
    mirror.write(&chunk(1), vec![1; 600]).unwrap();
    let mut beside = chunk(1);
    beside.name.0[15] = 2;
    let writer = Writer::start(folder, QUEUE, || {}, || false).unwrap();
    writer.write(&beside, Arc::new(vec![2; 600])).unwrap();
    assert!(writer.flush(DISK));
    let both = 2 * chunk(1).cost();
    mirror.look().unwrap();
    assert_eq!((mirror.here.len(), mirror.bytes), (2, both));
    MAY_WRITE.store(true, Ordering::Release);
    assert_eq!(files(&mut mirror), 2);
    mirror.look().unwrap();
    assert_eq!((mirror.here.len(), mirror.bytes), (2, both));
    // What was fetched is not sent back.
    let unsent: Vec<Name> = mirror.unsent.keys().map(|&(.., name)| name).collect();
    assert_eq!(unsent, [beside.name]);
    mirror.folder.remove(&chunk(1).name).unwrap();
    mirror.look().unwrap();
    assert_eq!((mirror.here.len(), mirror.bytes), (1, chunk(1).cost()));
}

#[test]
fn what_cannot_be_written_is_not_here() {
    let bucket = Bucket::start();
    let path = tempfile::tempdir().unwrap();
    let mut mirror = Mirror::new(used(path.path()), bucket.remote(), 1 << 30).unwrap();
    // Its inner folder's name is taken by a file.
    let inner = chunk(7).name.to_string()[..2].to_owned();
    std::fs::write(path.path().join("v1").join(inner), "").unwrap();
    mirror.write(&chunk(7), vec![7; 600]).unwrap();
    assert_eq!(mirror.here.len(), 1);
    assert_eq!(files(&mut mirror), 0);
    mirror.look().unwrap();
    assert_eq!(
        (mirror.here.len(), mirror.bytes, mirror.fetched.len()),
        (0, 0, 0)
    );
}

#[test]
fn a_folder_that_was_made_again_is_filled_again_and_what_is_new_there_is_sent() {
    let bucket = Bucket::start();
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("store");
    write(&used(&path), 1..=5);
    let folder = Folder::open(&path).unwrap();
    let mut mirror = Mirror::new(folder, bucket.remote(), 1 << 30).unwrap();
    let mut moved = Moved::default();
    while mirror.turn(&mut moved).unwrap() != Turn::Alike {}
    assert_eq!((moved.sent, moved.fetched), (5, 0));
    std::fs::remove_dir_all(&path).unwrap();
    let gone = mirror.turn(&mut moved).unwrap_err();
    assert!(gone.to_string().contains("cannot be read"), "{gone}");
    // A server has made it again.
    write(&used(&path), 6..=6);
    while mirror.turn(&mut moved).unwrap() != Turn::Alike {}
    assert_eq!((moved.sent, moved.fetched), (6, 5));
    assert_eq!(files(&mut mirror), 6);
}

#[test]
fn a_turn_sends_some_and_says_whether_that_was_all() {
    let bucket = Bucket::start();
    let path = tempfile::tempdir().unwrap();
    let folder = Folder::open(path.path()).unwrap();
    write(&folder, 1..=5);
    let mut mirror = Mirror::new(folder, bucket.remote(), 1 << 30).unwrap();
    let mut moved = Moved::default();
    let turns = [(); 3].map(|()| {
        let is_all = mirror.turn(&mut moved).unwrap();
        (is_all, moved.sent)
    });
    // Two chunks are more than a turn has to send.
    let (more, alike) = (Turn::More, Turn::Alike);
    assert_eq!(turns, [(more, 2), (more, 4), (alike, 5)]);
    let asked = bucket.asked();
    let count = |what: &str| asked.iter().filter(|asked| asked.as_str() == what).count();
    // Each turn tells others what it has sent.
    assert_eq!((count("LIST"), count("PUT news")), (1, 3), "{asked:?}");
    assert_eq!(mirror.turn(&mut moved).unwrap(), Turn::Alike);
    assert_eq!((moved.sent, bucket.asked().len()), (5, 0));
}

/// Another machine has these chunks in its folder, and has sent them.
#[cfg(target_os = "linux")]
fn send(folder: &Path, bucket: &Bucket, chunks: &[Chunk]) {
    let writer = Writer::start(used(folder), QUEUE, || {}, || false).unwrap();
    for chunk in chunks {
        let rows = Arc::new(vec![7; chunk.bytes as usize]);
        writer.write(chunk, rows).unwrap();
    }
    assert!(writer.flush(DISK));
    let folder = Folder::open(folder).unwrap();
    let mut mirror = Mirror::new(folder, bucket.remote(), 1 << 30).unwrap();
    while mirror.turn(&mut Moved::default()).unwrap() != Turn::Alike {}
}

/// Who sent a chunk may have divided what is before it in another way, and then it names another parent.
#[test]
#[cfg(target_os = "linux")]
fn what_is_supplied_stands_behind_the_parent_that_was_asked_for() {
    let bucket = Bucket::start();
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fingerprint = origin().fingerprint;
    let tokens: Vec<i32> = (0..GRID as i32 + 40).collect();
    let [first, second] = &Store::new(0).missing(&fingerprint, &tokens, 10)[..] else {
        panic!("two chunks");
    };
    let elsewhere = Chunk {
        parent: Some((Name([9; 16]), 5)),
        ..second.clone()
    };
    send(there.path(), &bucket, &[elsewhere]);

    let folder = used(here.path());
    let door = Arc::new(Door::open(&folder).unwrap().unwrap());
    let known = Known::default();
    known.add([second.name]);
    Supplier::start(&door, folder.clone(), bucket.remote(), known, 1 << 30).unwrap();
    let parent = Some((first.name, GRID as u32));
    let wish = Wish {
        place: Place::first(fingerprint).behind(&tokens, GRID),
        parent,
        tokens: tokens[GRID..].to_vec(),
        tail: false,
    };
    let mut answers = folder.ask(&wish).unwrap();
    let end = std::time::Instant::now() + DISK;
    assert_eq!(answers.next(end), AskedChunk::There(second.name, 40));
    assert_eq!(answers.next(end), AskedChunk::End);
    let header = folder.header(&second.name).unwrap();
    assert_eq!(header.chunk.parent, parent);
    door.close();
}

/// The sender has more tails than the last one, and one behind tokens that the prompt does not have.
#[test]
#[cfg(target_os = "linux")]
fn the_last_tail_within_a_prompt_is_supplied_behind_its_chunks() {
    let bucket = Bucket::start();
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fingerprint = origin().fingerprint;
    let tokens: Vec<i32> = (0..GRID as i32 + 40).collect();
    let all = tokens.len();
    let mut store = Store::new(1 << 30);
    let mut sent = store.missing_divided(&fingerprint, &tokens, 10, &[GRID + 30]);
    assert_eq!(sent.len(), 3);
    for chunk in &sent {
        store.insert(chunk.clone()).unwrap();
    }
    let ends = [100, GRID + 20, GRID + 30, all];
    let tails = ends.map(|end| {
        store
            .missing_tail(&fingerprint, &tokens[..end], 50)
            .unwrap()
    });
    sent.extend(tails.clone());
    send(there.path(), &bucket, &sent);

    let folder = used(here.path());
    let door = Arc::new(Door::open(&folder).unwrap().unwrap());
    let known = Known::default();
    known.add(sent.iter().map(|chunk| chunk.name));
    Supplier::start(
        &door,
        folder.clone(),
        bucket.remote(),
        known.clone(),
        1 << 30,
    )
    .unwrap();
    let end = std::time::Instant::now() + DISK;
    let ask = |tokens: &[i32], tail| {
        let wish = Wish {
            place: Place::first(fingerprint),
            parent: None,
            tokens: tokens.to_vec(),
            tail,
        };
        let mut answers = folder.ask(&wish).unwrap();
        let next = || match answers.next(end) {
            AskedChunk::There(name, tokens) => Some((name, tokens)),
            _ => None,
        };
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    let dense = [(sent[0].name, GRID), (sent[1].name, 30)];
    let prompt = [&tokens[..all - 1], &[-1, -2]].concat();
    assert_eq!(ask(&prompt, false), dense);
    let with_tail = [&dense[..], &[(tails[2].name, 1)]].concat();
    assert_eq!(ask(&prompt, true), with_tail);
    assert_eq!(folder.header(&tails[2].name).unwrap().chunk, tails[2]);
    // One that is within a chunk stands behind a part of it. What the remote has let go is passed over.
    known.remove(&tails[2].name);
    folder.remove(&tails[1].name).ok();
    let with_tail = [&dense[..], &[(tails[1].name, 1)]].concat();
    assert_eq!(ask(&prompt, true), with_tail);
    let header = folder.header(&tails[1].name).unwrap();
    assert_eq!(header.chunk.parent, Some((sent[1].name, 20)));
    // Of tokens that no chunk of the remote ends within, nothing comes.
    assert_eq!(ask(&prompt[..200], true), []);
    door.close();
}
