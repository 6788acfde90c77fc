use contextpilot_server_flags::{Generation, ServerFlags};
use proptest::prelude::*;

use super::*;

fn identity(port: &str) -> Identity {
    let argv = ["llama-server", "--port", port].map(Into::into);
    let flags = ServerFlags::read(argv, |_| None, Generation::Late2026);
    Identity::of("http://index", &flags, &crate::Origin::default())
}

fn read_all(bytes: &[u8]) -> Content {
    read(bytes, bytes.len() as u64, &identity("1")).unwrap()
}

fn journal(records: &[(Kind, &str)]) -> Vec<u8> {
    let mut bytes = header(&identity("1"));
    for &(kind, id) in records {
        write(&mut bytes, &identity("1"), kind, id);
    }
    bytes
}

fn strings(content: &Content) -> Vec<&str> {
    content.live.iter().map(|id| &**id).collect()
}

const RECORDS: [(Kind, &str); 5] = [
    (Kind::Live, "req-1"),
    (Kind::Live, "req-2"),
    (Kind::Gone, "req-1"),
    (Kind::Live, "äöü"),
    (Kind::Live, "req-1"),
];

#[test]
fn the_checksum_of_a_known_text_is_that_of_zlib() {
    assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
    // The ring goes on from the checksum of what all of its slots have in common.
    let mut rest = crc32fast::Hasher::new_with_initial(crc32fast::hash(b"12345"));
    rest.update(b"6789");
    assert_eq!(rest.finalize(), 0xcbf4_3926);
}

#[test]
fn live_ids_are_read_in_the_order_in_which_they_became_live() {
    let bytes = journal(&RECORDS);
    let content = read_all(&bytes);
    assert_eq!(strings(&content), ["req-2", "äöü", "req-1"]);
    assert_eq!(
        (content.good, content.end),
        (bytes.len() as u64, End::Whole)
    );
}

#[test]
fn a_file_torn_at_any_byte_gives_the_records_before_that() {
    let bytes = journal(&RECORDS);
    // Where a record ends, and what is live there.
    let mut states = vec![(0, vec![]), (HEADER_BYTES, vec![])];
    for n in 1..=RECORDS.len() {
        let part = journal(&RECORDS[..n]);
        let live = read_all(&part).live;
        states.push((part.len(), live));
    }
    for cut in 0..bytes.len() {
        let (good, live) = states.iter().rev().find(|(end, _)| *end <= cut).unwrap();
        let end = if *good == cut && cut > 0 {
            End::Whole
        } else {
            End::Torn
        };
        // No zeros: as a crash leaves the file. Zeros: as a power cut may leave it, with its new length
        // but without its new content.
        for zeros in [0, 1, 6, 7, 5000] {
            let mut torn = bytes[..cut].to_vec();
            torn.resize(cut + zeros, 0);
            let content = read_all(&torn);
            assert_eq!(&content.live, live, "{cut} {zeros}");
            if zeros == 0 {
                assert_eq!((content.good, content.end), (*good as u64, end), "{cut}");
            } else if cut >= HEADER_BYTES || cut == 0 {
                assert_eq!(
                    (content.good, content.end),
                    (*good as u64, End::Torn),
                    "{cut} {zeros}"
                );
            }
        }
    }
}

#[test]
fn a_wrong_byte_in_the_middle_is_damage_and_earlier_records_count() {
    let bytes = journal(&RECORDS);
    let first = HEADER_BYTES + HEAD_BYTES + 5;
    for at in first..first + HEAD_BYTES + 5 {
        for flip in [1, 0x80, 0xff] {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            let content = read_all(&wrong);
            assert_eq!(strings(&content), ["req-1"]);
            assert_eq!(content.good, first as u64);
            // A wrong length may lead beyond the end, which looks like a torn file.
            let length = (1..=2).contains(&(at - first));
            assert!(
                matches!(content.end, End::Damaged(_)) || (length && content.end == End::Torn),
                "{at} {flip}: {:?}",
                content.end
            );
        }
    }
}

#[test]
fn a_wrong_header_is_damage() {
    let bytes = journal(&RECORDS);
    for at in 0..HEADER_BYTES {
        let mut wrong = bytes.clone();
        wrong[at] ^= 4;
        let content = read_all(&wrong);
        assert!(content.live.is_empty());
        assert!(
            matches!(content.end, End::Damaged(_)),
            "{at}: {:?}",
            content.end
        );
    }
    for text in [
        "x",
        "not a journal, but longer than the header of one",
        "CPjournX",
    ] {
        let content = read_all(text.as_bytes());
        assert!(matches!(content.end, End::Damaged(_)), "{text}");
    }
}

#[test]
fn another_version_is_damage_and_another_instance_is_foreign() {
    let mut newer = header(&identity("1"));
    newer[8] = 2;
    let body = newer.len() - 4;
    let crc = crc32fast::hash(&newer[..body]);
    newer[body..].copy_from_slice(&crc.to_le_bytes());
    let End::Damaged(why) = read_all(&newer).end else {
        panic!("taken for ours");
    };
    assert!(why.contains("another version"));

    let mut other = header(&identity("2"));
    write(&mut other, &identity("2"), Kind::Live, "theirs");
    let content = read_all(&other);
    assert_eq!((content.end, content.live.len()), (End::Foreign, 0));

    // Records of another instance within our journal: they are not read.
    let mut mixed = journal(&RECORDS[..1]);
    mixed.extend(&other[HEADER_BYTES..]);
    assert_eq!(strings(&read_all(&mixed)), ["req-1"]);
}

#[test]
fn a_record_of_a_length_that_no_id_has_is_damage() {
    for length in [0, MAX_ID_BYTES + 1, 0xffff] {
        let id = vec![b'x'; length];
        let field = (length as u16).to_le_bytes();
        let mut bytes = journal(&[]);
        bytes.push(1);
        bytes.extend(field);
        bytes.extend(checksum(&identity("1"), 1, field, &id).to_le_bytes());
        bytes.extend(&id);
        bytes.extend([1; 9]);
        let content = read_all(&bytes);
        assert!(matches!(content.end, End::Damaged(_)), "{length}");
        assert!(content.live.is_empty());
    }
    let longest = "x".repeat(MAX_ID_BYTES);
    assert_eq!(
        strings(&read_all(&journal(&[(Kind::Live, &longest)]))),
        [longest]
    );
}

#[test]
fn memory_is_bounded_whatever_the_file_holds() {
    // Too many ids.
    let ids: Vec<_> = (0..=MAX_IDS).map(|n| n.to_string()).collect();
    let records: Vec<_> = ids.iter().map(|id| (Kind::Live, id.as_str())).collect();
    let content = read_all(&journal(&records));
    assert_eq!(content.live.len(), MAX_IDS);
    assert!(matches!(content.end, End::Damaged(_)));

    // Too large ids.
    let ids: Vec<_> = (0..33_000).map(|n| format!("{n:0>512}")).collect();
    let records: Vec<_> = ids.iter().map(|id| (Kind::Live, id.as_str())).collect();
    let content = read_all(&journal(&records));
    assert!(content.live.len() as u64 <= MAX_LIVE_BYTES / size(&ids[0]));
    assert!(matches!(content.end, End::Damaged(_)));

    // A file that is too large: it is not even read.
    struct Never;
    impl Read for Never {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("was read");
        }
    }
    let content = read(Never, MAX_FILE_BYTES + 1, &identity("1")).unwrap();
    assert!(matches!(content.end, End::Damaged(_)));
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let bytes = journal(&RECORDS);
    let found = read(&bytes[..40], bytes.len() as u64, &identity("1"));
    assert_eq!(found.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

fn operations() -> impl Strategy<Value = Vec<(bool, u8)>> {
    proptest::collection::vec((any::<bool>(), 0..20_u8), 0..60)
}

fn written(operations: &[(bool, u8)]) -> Vec<u8> {
    let ids: Vec<_> = operations.iter().map(|(_, n)| format!("req-{n}")).collect();
    let kind = |live| if live { Kind::Live } else { Kind::Gone };
    let records: Vec<_> = operations
        .iter()
        .zip(&ids)
        .map(|(&(live, _), id)| (kind(live), id.as_str()))
        .collect();
    journal(&records)
}

proptest! {
    #[test]
    fn records_add_ids_to_a_set_and_remove_them(operations in operations()) {
        let mut naive = std::collections::BTreeSet::new();
        for &(live, n) in &operations {
            let id = format!("req-{n}");
            if live { naive.insert(id); } else { naive.remove(&id); }
        }
        let content = read_all(&written(&operations));
        prop_assert_eq!(content.end, End::Whole);
        let read: std::collections::BTreeSet<_> =
            content.live.iter().map(|id| id.to_string()).collect();
        prop_assert_eq!(read, naive);
    }

    /// With any damage anywhere, the live ids are those after some number of the first
    /// records.
    #[test]
    fn a_damaged_file_gives_the_ids_of_some_first_part_of_it(
        operations in operations(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        insert in any::<prop::sample::Index>(),
        junk in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = written(&operations);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let at = insert.index(bytes.len());
        bytes.splice(at..at, junk);
        let content = read_all(&bytes);
        // The live ids after each record.
        let mut live: Vec<String> = Vec::new();
        let mut so_far = content.live.is_empty();
        for (live_now, n) in operations {
            let id = format!("req-{n}");
            match live.iter().position(|known| *known == id) {
                Some(at) if !live_now => drop(live.remove(at)),
                None if live_now => live.push(id),
                _ => {}
            }
            so_far |= strings(&content) == live;
        }
        prop_assert!(so_far, "{:?}", content);
        prop_assert!(content.good <= bytes.len() as u64);
    }

    #[test]
    fn noise_gives_no_ids(bytes in proptest::collection::vec(any::<u8>(), 0..2000), with_header: bool) {
        let mut file = if with_header { journal(&[]) } else { vec![] };
        file.extend(bytes);
        prop_assert!(read_all(&file).live.is_empty());
    }
}
