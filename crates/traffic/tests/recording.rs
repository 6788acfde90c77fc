//! What is recorded is what is read.

use contextpilot_traffic::{
    Applied, BLOCK, DamageKind, History, Key, Memory, Recorded, RequestRecord, Setup, SizeKind,
    SizeSample, Traffic, Writer, read,
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

/// Prompts that part and come together again.
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
    fn what_prompts_share_is_known_to_the_token(prompts in prompts(90)) {
        let traffic = read(&file(&prompts, History::new()));
        prop_assert_eq!(traffic.damage, None);
        prop_assert_eq!(traffic.requests.len(), prompts.len());
        for (a, x) in prompts.iter().zip(&traffic.requests) {
            prop_assert_eq!(x.tokens.len() as usize, a.len());
            for (b, y) in prompts.iter().zip(&traffic.requests) {
                prop_assert_eq!(x.tokens.common_prefix(&y.tokens) as usize, common(a, b));
            }
        }
    }

    /// Tokens of equal identity are equal, also in the middle of prompts.
    #[test]
    fn equal_identities_are_equal_tokens(prompts in prompts(90), limit in 1_usize..3000) {
        let traffic = read(&file(&prompts, History::with_limit(limit)));
        let mut known = std::collections::HashMap::new();
        for (prompt, request) in prompts.iter().zip(&traffic.requests) {
            let identities = request.tokens.runs().iter();
            let identities = identities.flat_map(|run| run.first..run.first + u64::from(run.length));
            for (identity, token) in identities.zip(prompt) {
                prop_assert_eq!(*known.entry(identity).or_insert(*token), *token);
            }
        }
    }

    /// A writer that has forgotten what it saw is put right, to the block.
    #[test]
    fn what_was_forgotten_is_recognised_by_its_hashes(prompts in prompts(300)) {
        let traffic = read(&file(&prompts, History::with_limit(1)));
        for (a, x) in prompts.iter().zip(&traffic.requests) {
            for (b, y) in prompts.iter().zip(&traffic.requests) {
                let found = x.tokens.common_prefix(&y.tokens) as usize;
                let truth = common(a, b);
                prop_assert!(found <= truth && found >= truth / BLOCK * BLOCK, "{found} of {truth}");
            }
        }
    }

    /// Whatever is damaged, what stands before it is read, and nothing else is made up.
    #[test]
    fn a_damaged_file_is_read_to_where_it_is_good(
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
    fn any_bytes_can_be_read(mut tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let (_, mut file) = Writer::new(key(), false, LIMIT);
        file.append(&mut tail);
        let Traffic { damage, .. } = read(&file);
        prop_assert!(damage.is_none_or(|damage| damage.at <= file.len()));
    }
}

#[test]
fn all_of_a_request_comes_back() {
    let setup = Setup {
        engine: "0.7.0".to_owned(),
        cache_ram: Some(-1),
        memory: Memory::Window(4096),
        slot_prompt_similarity: 250,
        context_shift: true,
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
        keep: 4,
        breaks: vec![30, 86],
        media: vec![(10, 20)],
    };
    let tokens: Vec<i32> = (0..100).collect();
    let (mut writer, mut file) = Writer::new(key(), true, LIMIT);
    file.extend(bytes(writer.setup(&setup)));
    file.extend(bytes(writer.size(size)));
    file.extend(bytes(writer.request(record.clone(), &tokens, None)));
    let traffic = read(&file);
    assert_eq!(traffic.damage, None);
    assert_eq!(traffic.setup, Some(setup));
    assert_eq!(traffic.sizes, [size]);
    assert_eq!(traffic.key, Some(key()));
    assert_eq!(traffic.requests[0].record, record);
    assert_eq!(traffic.requests[0].generated(), 10);
    let kind = |bytes: &[u8]| read(bytes).damage.map(|damage| damage.kind);
    assert_eq!(kind(b"no"), Some(DamageKind::NotARecording));
    file[8] = 200;
    assert_eq!(kind(&file), Some(DamageKind::Version(200)));
}

#[test]
fn a_file_has_a_limit() {
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
    // Once full it stays so: a gap would change what later segments mean.
    assert_eq!(writer.request(request(21, &[]), &[], None), Recorded::Full);
}

/// What a slot holds after a context shift was no prompt, and prompts that share it are known to.
#[test]
fn what_a_shift_leaves_is_related_to_the_token() {
    let whole: Vec<i32> = (0..60).collect();
    // Ten are kept, twenty were discarded.
    let left: Vec<i32> = (0..10).chain(30..60).collect();
    let next: Vec<i32> = left[..13].iter().copied().chain(500..520).collect();
    let (mut writer, mut file) = Writer::new(key(), false, LIMIT);
    file.extend(bytes(writer.request(
        request(0, &whole),
        &whole,
        Some((10, 20)),
    )));
    file.extend(bytes(writer.request(request(1, &next), &next, None)));
    let traffic = read(&file);
    let (whole, next) = (&traffic.requests[0].tokens, &traffic.requests[1].tokens);
    let mut held = contextpilot_traffic::Tokens::new();
    held.extend(whole, 0, 10);
    held.extend(whole, 30, 60);
    assert_eq!(held.common_prefix(next), 13);
    assert_eq!(whole.common_prefix(next), 10);
}
