//! Whether a recording reads as it was written, also when it is damaged, old, or full.

use std::collections::HashMap;

use contextpilot_traffic::{
    Applied, BLOCK, Calls, ChangeKind, DamageKind, GRAM, History, Key, Memory, Recent, Recorded,
    Refusal, RequestRecord, Setup, SizeKind, SizeSample, SlotChange, Tokens, Traffic, Wished,
    Writer, read,
};
use proptest::prelude::*;

const LIMIT: u64 = 1 << 24;

fn key() -> Key {
    Key::new([3; 16])
}

fn bytes(recorded: Recorded) -> Vec<u8> {
    match recorded {
        Recorded::Bytes(bytes) => bytes,
        Recorded::Full => panic!("there is room"),
    }
}

fn request(order: usize, prompt: &[i32]) -> RequestRecord {
    RequestRecord {
        order: order as u64,
        prompt: prompt.len() as u32,
        wished: Wished {
            cache_reuse: (order % 3 == 1).then(|| order as u32 - 1),
            keep: if order % 3 == 2 { -1 } else { 0 },
            discard: order as u32 % 2,
        },
        ..RequestRecord::default()
    }
}

fn file(prompts: &[Vec<i32>], history: History) -> Vec<u8> {
    let (writer, mut file) = Writer::new(key(), false, LIMIT);
    let mut writer = writer.with_history(history);
    for (order, prompt) in prompts.iter().enumerate() {
        file.extend(bytes(writer.request(request(order, prompt), prompt, None)));
    }
    file
}

fn common<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Prompts that are made of the same few pieces, so that they differ and then agree again.
fn prompts(most: usize) -> impl Strategy<Value = Vec<Vec<i32>>> {
    let pieces = prop::collection::vec((0_i32..4, 1_usize..most), 0..8);
    let prompt = pieces.prop_map(|pieces| {
        let tokens = pieces.into_iter().flat_map(|(piece, length)| {
            (0..length as i32).map(move |nth| piece * 1000 + nth * nth % 97)
        });
        tokens.collect::<Vec<i32>>()
    });
    prop::collection::vec(prompt, 1..12)
}

proptest! {
    #[test]
    fn prompts_that_share_a_prefix_share_it_to_the_token_in_the_recording(prompts in prompts(90)) {
        let traffic = read(&file(&prompts, History::new()));
        prop_assert_eq!(traffic.damage, None);
        prop_assert_eq!(traffic.requests.len(), prompts.len());
        for (a, x) in prompts.iter().zip(&traffic.requests) {
            prop_assert_eq!(x.tokens.len() as usize, a.len());
            prop_assert_eq!(x.record.wished, request(x.record.order as usize, a).wished);
            for (b, y) in prompts.iter().zip(&traffic.requests) {
                prop_assert_eq!(x.tokens.common_prefix(&y.tokens) as usize, common(a, b));
            }
        }
    }

    /// Also in the middle of prompts, and whatever the writer has forgotten.
    #[test]
    fn tokens_of_equal_identity_are_equal(prompts in prompts(90), limit in 1_usize..3000) {
        let traffic = read(&file(&prompts, History::with_limit(limit)));
        let mut known = HashMap::new();
        for (prompt, request) in prompts.iter().zip(&traffic.requests) {
            let identities = request.tokens.runs().iter();
            let identities = identities.flat_map(|run| run.first..run.first + u64::from(run.length));
            for (identity, token) in identities.zip(prompt) {
                prop_assert_eq!(*known.entry(identity).or_insert(*token), *token);
            }
        }
    }

    /// A token has the same identity in two places if, and only if, the tokens before it are the same, too:
    /// as many as make a gram, or all of them from the beginning of both prompts on.
    #[test]
    fn identities_are_equal_exactly_where_grams_are(prompts in prompts(90)) {
        let traffic = read(&file(&prompts, History::new()));
        prop_assert_eq!(traffic.gram as usize, GRAM);
        let gram = |prompt: &[i32], at: usize| (prompt[at.saturating_sub(GRAM - 1)..=at].to_vec(), at.min(GRAM - 1));
        let (mut names, mut grams) = (HashMap::new(), HashMap::new());
        for (prompt, request) in prompts.iter().zip(&traffic.requests) {
            for at in 0..prompt.len() {
                let (gram, identity) = (gram(prompt, at), request.tokens.at(at as u32));
                prop_assert_eq!(*names.entry(gram.clone()).or_insert(identity), identity);
                prop_assert_eq!(grams.entry(identity).or_insert(gram.clone()), &gram);
            }
        }
    }

    /// The reader recognises prompts by their hashes, whole blocks at a time.
    #[test]
    fn prefixes_that_the_writer_has_forgotten_are_known_to_the_block(prompts in prompts(300)) {
        let traffic = read(&file(&prompts, History::with_limit(1)));
        for (a, x) in prompts.iter().zip(&traffic.requests) {
            for (b, y) in prompts.iter().zip(&traffic.requests) {
                let found = x.tokens.common_prefix(&y.tokens) as usize;
                let truth = common(a, b);
                prop_assert!(found <= truth && found >= truth / BLOCK * BLOCK, "{found} of {truth}");
            }
        }
    }

    /// Requests before the damage are read as they were written, and no others are made up.
    #[test]
    fn a_damaged_file_is_read_up_to_the_damage(
        prompts in prompts(40), at in 10_usize..5000, bit in 0_u8..8, cut in any::<bool>(),
    ) {
        let whole = file(&prompts, History::new());
        let mut damaged = whole.clone();
        let at = 10 + at % (whole.len() - 10);
        if cut { damaged.truncate(at) } else { damaged[at] ^= 1 << bit }
        let (good, rest) = (read(&whole), read(&damaged));
        prop_assert!(rest.damage.is_none_or(|damage| damage.at <= at));
        prop_assert!(rest.requests.len() < good.requests.len() || rest.damage.is_some() || cut);
        for (found, truth) in rest.requests.iter().zip(&good.requests) {
            prop_assert_eq!(&found.record, &truth.record);
            prop_assert_eq!(&found.tokens, &truth.tokens);
        }
    }

    #[test]
    fn arbitrary_bytes_after_the_header_are_read_without_a_panic(mut tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let (_, mut file) = Writer::new(key(), false, LIMIT);
        file.append(&mut tail);
        let Traffic { damage, .. } = read(&file);
        prop_assert!(damage.is_none_or(|damage| damage.at <= file.len()));
    }
}

#[test]
fn every_field_of_a_request_is_read_as_it_was_written() {
    let setup = Setup {
        engine: "0.7.0".to_owned(),
        cache_ram: Some(-1),
        memory: Memory::Window(4096),
        slot_prompt_similarity: 0.0003,
        context_shift: true,
        calls: Calls::Process,
        version: "0.7.0".to_owned(),
        projector: true,
        ..Setup::default()
    };
    let size = SizeSample {
        kind: SizeKind::Checkpoint,
        tokens: 100,
        bytes: 1 << 40,
    };
    let record = RequestRecord {
        order: 7,
        arrived: 1_000,
        launched: 1_500,
        prompted: 2_500,
        ended: 9_000,
        slot: 3,
        id_slot: Some(3),
        uncached: true,
        embedding: true,
        child: true,
        abandoned: true,
        names_adapters: true,
        adapters: Applied {
            hash: u64::MAX,
            enabled: true,
            invoked: true,
        },
        activated_at: Some(3),
        prompt: 90,
        reused: 30,
        evaluated: 60,
        loaded: 25,
        kept: 0,
        keep: 4,
        gone: 20,
        wished: Wished {
            cache_reuse: Some(0),
            keep: -1,
            discard: 7,
        },
        breaks: vec![30, 86],
        media: vec![(10, 20)],
    };
    let tokens: Vec<i32> = (0..100).collect();
    let (mut writer, mut file) = Writer::new(key(), true, LIMIT);
    file.extend(bytes(writer.setup(&setup)));
    file.extend(bytes(writer.size(size)));
    file.extend(bytes(writer.request(
        record.clone(),
        &tokens,
        Some((4, 20)),
    )));
    let traffic = read(&file);
    assert_eq!(traffic.damage, None);
    assert_eq!(traffic.setup, Some(setup));
    assert_eq!(traffic.sizes, [size]);
    assert_eq!(traffic.key, Some(key()));
    assert_eq!(traffic.requests[0].record, record);
    assert_eq!(traffic.requests[0].generated(), 10);
    let kind = |bytes: &[u8]| read(bytes).damage.map(|damage| damage.kind);
    let said = read(b"no").damage.expect("it is no recording").to_string();
    assert_eq!(said, "this is not a recording of traffic");
    assert_eq!(kind(b"no"), Some(DamageKind::NotARecording));
    file[8] = 200;
    assert_eq!(kind(&file), Some(DamageKind::Version(200)));
}

fn restored(order: u64) -> SlotChange {
    SlotChange {
        order,
        at: 77,
        slot: 2,
        media: vec![(3, 5)],
        kind: ChangeKind::Restored,
    }
}

#[test]
fn every_field_of_a_slot_change_is_read_as_it_was_written() {
    let refusal = Refusal {
        id_slot: Some(0),
        names_adapters: true,
        adapters: Applied {
            hash: 1 << 60,
            enabled: true,
            invoked: true,
        },
        declined: true,
        saved: true,
        loaded: true,
    };
    let kinds = [
        ChangeKind::Erased,
        ChangeKind::Restored,
        ChangeKind::Refused(refusal),
        ChangeKind::Refused(Refusal::default()),
    ];
    let tokens: Vec<i32> = (0..100).collect();
    let (mut writer, mut file) = Writer::new(key(), false, LIMIT);
    for (order, kind) in kinds.into_iter().enumerate() {
        let change = SlotChange {
            kind,
            ..restored(order as u64)
        };
        file.extend(bytes(writer.change(&change, &tokens[..order * 20])));
    }
    let traffic = read(&file);
    assert_eq!(traffic.damage, None);
    let found: Vec<ChangeKind> = traffic.changes.iter().map(|c| c.record.kind).collect();
    assert_eq!(found, kinds);
    assert_eq!(traffic.changes[1].record, restored(1));
    let lengths: Vec<u32> = traffic.changes.iter().map(|c| c.tokens.len()).collect();
    assert_eq!(lengths, [0, 20, 40, 60]);
}

/// No server has launched so many requests, so arithmetic with these numbers cannot overflow.
#[test]
fn a_change_behind_more_launches_than_there_can_be_is_damage() {
    const MOST: u64 = 1 << 32;
    for (order, changes) in [(MOST, 1), (MOST + 1, 0)] {
        let (mut writer, mut file) = Writer::new(key(), false, LIMIT);
        file.extend(bytes(writer.change(&restored(order), &[7, 8, 9])));
        let traffic = read(&file);
        assert_eq!(traffic.changes.len(), changes, "{order}");
    }
}

/// A prompt can share tokens with the content of a state file that was restored before.
#[test]
fn a_prompt_shares_its_prefix_with_a_restored_slot_to_the_token() {
    let file_of_a_slot: Vec<i32> = (0..150).collect();
    let prompt: Vec<i32> = (0..90).chain(500..600).collect();
    let (mut writer, mut file) = Writer::new(key(), false, LIMIT);
    file.extend(bytes(writer.change(&restored(0), &file_of_a_slot)));
    file.extend(bytes(writer.request(request(0, &prompt), &prompt, None)));
    file.extend(bytes(writer.change(&restored(1), &prompt)));
    let traffic = read(&file);
    let prompt = &traffic.requests[0].tokens;
    assert_eq!(traffic.changes[0].tokens.common_prefix(prompt), 90);
    assert_eq!(traffic.changes[1].tokens, *prompt);
}

/// The tokens of a change of an unknown kind are numbered all the same: later segments name them.
#[test]
fn changes_and_frames_of_unknown_kinds_are_left_out() {
    let (prompt, other): (Vec<i32>, Vec<i32>) = ((0..90).collect(), (0..40).collect());
    let (mut writer, begin) = Writer::new(key(), false, LIMIT);
    let mut known = bytes(writer.change(&restored(0), &prompt));
    let after = bytes(writer.request(request(0, &other), &other, None));
    // The kind is the last byte of the body.
    let kind = known.len() - 5;
    known[kind] = 99;
    let sum = crc32fast::hash(&known[..=kind]);
    known[kind + 1..].copy_from_slice(&sum.to_le_bytes());
    let mut frame = vec![200, 1, 0, 0, 0, 7];
    frame.extend(crc32fast::hash(&frame).to_le_bytes());
    let traffic = read(&[begin, known, frame, after].concat());
    assert_eq!(traffic.damage, None);
    assert!(traffic.changes.is_empty());
    let first = traffic.requests[0].tokens.runs()[0];
    assert_eq!((first.first, first.length), (0, 40), "the first of the 90");
}

/// Files of version 1 have no changes of slots, and shorter setups. Requests of versions 1 and 2 do not say
/// what a context shift left.
#[test]
fn files_of_versions_1_and_2_are_read_and_of_version_0_refused() {
    // Recorded by version 2: a model's chat of six turns, then without the oldest one.
    let mut file = include_bytes!("old/version-2.traffic").to_vec();
    for version in [2, 1] {
        file[8] = version;
        let traffic = read(&file);
        assert_eq!(traffic.damage, None);
        assert!(
            traffic.gram < 2,
            "equal tokens may have different identities"
        );
        let prompts: Vec<u32> = traffic.requests.iter().map(|r| r.record.prompt).collect();
        assert_eq!(prompts, [41, 210, 379, 547, 718, 886, 885]);
        let last = &traffic.requests[6].tokens;
        assert_eq!(last.common_prefix(&traffic.requests[5].tokens), 25);
    }
    file[8] = 0;
    let kind = read(&file).damage.map(|damage| damage.kind);
    assert_eq!(kind, Some(DamageKind::Version(0)));
    // A setup as version 1 wrote it: without `calls` and `version`, which take 2 bytes, and the checksum.
    let (mut writer, begin) = Writer::new(key(), false, LIMIT);
    let mut setup = bytes(writer.setup(&Setup::default()));
    setup.truncate(setup.len() - 6);
    let length = (setup.len() - 5) as u32;
    setup[1..5].copy_from_slice(&length.to_le_bytes());
    setup.extend(crc32fast::hash(&setup).to_le_bytes());
    let traffic = read(&[begin, setup].concat());
    assert_eq!(traffic.damage, None);
    assert_eq!(traffic.setup, Some(Setup::default()));
}

/// What is loaded has a frame of its own, so that older programs leave it out, and read the rest.
#[test]
fn a_recording_says_what_a_prefix_store_had() {
    let (mut writer, mut file) = Writer::new(key(), false, LIMIT);
    file.extend(bytes(writer.setup(&Setup::default())));
    let plain = file.clone();
    file.extend(bytes(writer.store(50_000_000_000)));
    assert!(contextpilot_traffic::is_empty(&file));
    let prompt: Vec<i32> = (0..100).collect();
    for (order, loaded) in [(0, 0), (1, 90), (2, 200)] {
        let record = RequestRecord {
            evaluated: 95,
            loaded,
            ..request(order, &prompt)
        };
        file.extend(bytes(writer.request(record, &prompt, None)));
    }
    let traffic = read(&file);
    assert_eq!(traffic.damage, None);
    assert_eq!(
        traffic.setup.as_ref().map(|setup| setup.store),
        Some(Some(50_000_000_000))
    );
    let records = traffic.requests.iter().map(|request| &request.record);
    let loaded: Vec<_> = records.map(|r| (r.loaded, r.computed())).collect();
    assert_eq!(
        loaded,
        [(0, 95), (90, 5), (95, 0)],
        "never more than the server asked for"
    );
    assert_eq!(read(&plain).setup, Some(Setup::default()));
}

#[test]
fn at_its_limit_the_recording_ends() {
    let (mut writer, begin) = Writer::new(key(), false, 300);
    let mut length = begin.len();
    let mut written = 0;
    for order in 0..20 {
        let prompt: Vec<i32> = (order * 1000..order * 1000 + 200).collect();
        let Recorded::Bytes(bytes) =
            writer.request(request(order as usize, &prompt), &prompt, None)
        else {
            break;
        };
        length += bytes.len();
        written += 1;
    }
    assert!(written > 0 && written < 20, "{written}");
    assert!(length <= 300);
    // It stays full even for a request that would fit: later segments name tokens of earlier ones, so
    // nothing may be missing in between.
    assert_eq!(writer.request(request(21, &[]), &[], None), Recorded::Full);
}

/// What a slot holds after a context shift was never sent as a prompt, but a later prompt can begin with
/// it.
#[test]
fn a_prompt_shares_its_prefix_with_a_shifted_slot_to_the_token() {
    for shared in [13, 30] {
        shares_with_a_shifted_slot(shared);
    }
}

fn shares_with_a_shifted_slot(shared: u32) {
    let whole: Vec<i32> = (0..60).collect();
    // Ten tokens are kept, and twenty discarded.
    let left: Vec<i32> = (0..10).chain(30..60).collect();
    let next: Vec<i32> = left[..shared as usize]
        .iter()
        .copied()
        .chain(500..520)
        .collect();
    let (mut writer, mut file) = Writer::new(key(), false, LIMIT);
    file.extend(bytes(writer.request(
        request(0, &whole),
        &whole,
        Some((10, 20)),
    )));
    file.extend(bytes(writer.request(request(1, &next), &next, None)));
    let traffic = read(&file);
    let (shifted, next) = (&traffic.requests[0], &traffic.requests[1].tokens);
    assert_eq!((shifted.record.keep, shifted.record.gone), (10, 20));
    let moved = GRAM as u32 - 1;
    assert_eq!(shifted.junction.len(), moved);
    let mut held = Tokens::new();
    held.extend(&shifted.tokens, 0, 10);
    held.extend(&shifted.junction, 0, moved);
    held.extend(&shifted.tokens, 30 + moved, 60);
    assert_eq!(held.common_prefix(next), shared);
    assert_eq!(shifted.tokens.common_prefix(next), 10);
}

/// With right checksums, so that only the content tells.
#[test]
fn what_no_server_has_is_damage_and_makes_nobody_reserve_memory() {
    let (writer, begin) = Writer::new(key(), false, LIMIT);
    let mut writer = writer.with_history(History::new());
    let most = u32::MAX;
    let usual = Setup::default;
    for setup in [
        Setup {
            parallel: most,
            ..usual()
        },
        Setup {
            context: most,
            ..usual()
        },
        Setup {
            slot_context: most,
            ..usual()
        },
        Setup {
            slot_context: 1 << 26,
            parallel: 256,
            kv_unified: false,
            ..usual()
        },
        Setup {
            batch_size: most,
            ..usual()
        },
        Setup {
            ubatch_size: most,
            memory: Memory::Window(most),
            ..usual()
        },
    ] {
        let setup = bytes(writer.setup(&setup));
        let traffic = read(&[&begin[..], &setup].concat());
        let damage = traffic.damage.map(|damage| damage.kind);
        assert_eq!(damage, Some(DamageKind::Content));
        assert_eq!(traffic.setup, None);
    }
    // A prompt of 2³² − 1 tokens in a few bytes: the last segment of a request, made that long.
    let good = file(&[vec![1, 2, 3]], History::new());
    let body = [3_u8 << 1];
    let at = good
        .windows(1)
        .rposition(|bytes| bytes == body)
        .expect("its segment");
    let (head, tail) = (&good[begin.len()..at], &good[at + 1..good.len() - 4]);
    let long = [0xfe, 0xff, 0xff, 0xff, 0x1f];
    let mut frame = [head, &long, tail].concat();
    let length = (frame.len() - 5) as u32;
    frame[1..5].copy_from_slice(&length.to_le_bytes());
    frame.extend(crc32fast::hash(&frame).to_le_bytes());
    let traffic = read(&[&begin[..], &frame].concat());
    let damage = traffic.damage.map(|damage| damage.kind);
    assert_eq!(damage, Some(DamageKind::Content));
}

/// Sums of such times would not fit into 64 bits.
#[test]
fn what_happened_in_a_million_years_is_damage() {
    let (mut writer, mut file) = Writer::new(key(), false, LIMIT);
    let record = RequestRecord {
        ended: u64::MAX / 2,
        prompt: 3,
        evaluated: 3,
        ..RequestRecord::default()
    };
    match writer.request(record, &[1, 2, 3], None) {
        Recorded::Bytes(bytes) => file.extend(bytes),
        Recorded::Full => panic!("there is room"),
    }
    let kind = read(&file).damage.map(|damage| damage.kind);
    assert_eq!(kind, Some(DamageKind::Content));
}

/// Each prompt of `/infill` has a second row, and both kinds share with their own what they have in common.
#[test]
fn a_prompt_in_the_other_order_has_a_row_of_its_own() {
    let (mut writer, mut file) = Writer::new(key(), false, LIMIT);
    let (prefix, suffix): (Vec<i32>, Vec<i32>) = ((0..200).collect(), (1000..1300).collect());
    for order in 0..3 {
        let prefix = &prefix[..200 - 20 * order];
        let usual = [prefix, &suffix].concat();
        let mut other = [&suffix, prefix].concat();
        // The last is damaged: it has another length than its request.
        other.truncate(if order == 2 { 400 } else { 500 });
        file.extend(bytes(writer.suffix_first(order as u64, &other)));
        file.extend(bytes(writer.request(request(order, &usual), &usual, None)));
    }
    // One whose request is not there.
    file.extend(bytes(writer.suffix_first(7, &suffix)));
    let traffic = read(&file);
    assert_eq!((traffic.damage, traffic.requests.len()), (None, 3));
    let usual = |nth: usize| &traffic.requests[nth].tokens;
    assert_eq!(usual(0).common_prefix(usual(1)), 180);
    let mut known: Vec<u64> = traffic.suffix_first.keys().copied().collect();
    known.sort_unstable();
    assert_eq!(known, [0, 1]);
    let [first, second] = [0, 1].map(|order| &traffic.suffix_first[&order]);
    assert_eq!((first.len(), second.len()), (500, 480));
    assert_eq!(first.common_prefix(second), 480);
    assert_eq!(first.common_prefix(usual(0)), 0);
}

/// A prompt that got an answer's tokens has a second row, with the tokenizer's, which may have another length.
#[test]
fn a_prompt_with_kept_tokens_has_a_row_with_the_tokenizers_own() {
    let (mut writer, mut file) = Writer::new(key(), false, LIMIT);
    let ours: Vec<i32> = (0..300).collect();
    // From token 200 on, the tokenizer has others, and more of them.
    let theirs = |count: i32| [&ours[..200], &(1000..1000 + count).collect::<Vec<i32>>()].concat();
    for (order, count) in [(0, 130), (1, 150), (2, 500)] {
        file.extend(bytes(writer.kept(order, 41, &theirs(count))));
        file.extend(bytes(writer.request(
            request(order as usize, &ours),
            &ours,
            None,
        )));
    }
    file.extend(bytes(writer.request(request(3, &ours), &ours, None)));
    let traffic = read(&file);
    assert_eq!((traffic.damage, traffic.requests.len()), (None, 4));
    let kept: Vec<u32> = traffic
        .requests
        .iter()
        .map(|request| request.record.kept)
        .collect();
    // What would take more than twice as long to simulate is damaged.
    assert_eq!(kept, [41, 41, 0, 0]);
    let [first, second] = [0, 1].map(|order| &traffic.canonical[&order]);
    assert_eq!(
        (first.len(), second.len(), first.common_prefix(second)),
        (330, 350, 330)
    );
    assert_eq!(first.common_prefix(&traffic.requests[0].tokens), 200);
    let recent = {
        let (mut recent, room) = Recent::new(1 << 20);
        let mut writer = Writer::recent(key(), room);
        recent.push(&bytes(writer.setup(&Setup::default())));
        recent.push(&bytes(writer.kept(0, 41, &theirs(130))));
        let written = [
            bytes(writer.kept(1, 7, &theirs(130))),
            bytes(writer.request(request(1, &ours), &ours, None)),
        ];
        recent.push(&written.concat());
        read(&recent.recording(&[]))
    };
    assert_eq!((recent.damage, recent.requests[0].record.kept), (None, 7));
}
