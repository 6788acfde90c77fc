//! Sounds take the same way as images, through another encoder.

use super::*;

/// A sound has that many rows, if it is no longer than [`LONG`].
const ROWS: u64 = 16;
/// Longer ones are cut, in seconds.
const LONG: u32 = 30;

const SPOKEN: [Part; 3] = [Text(1, 100), Sound(1, 12), Text(2, 200)];
const SUNG: [Part; 3] = [Text(3, 80), Sound(2, 12), Text(4, 100)];

/// A model of each kind of cache and positions, and how much of a prompt that comes again it evaluates.
fn hearing() -> [(Arch, Builder, u64); 6] {
    [
        (Arch::Llama, 1),
        (Arch::Qwen2Vl, 1),
        (Arch::Gemma2, 4),
        (Arch::Mamba, 4),
        (Arch::Jamba, 4),
        (Arch::Qwen35, 4),
    ]
    .map(|(arch, rest)| (arch, hears(arch, ProjectorKind::Ultravox), rest))
}

fn hears(arch: Arch, kind: ProjectorKind) -> Builder {
    let builder = Server::builder().model(&Model::tiny(arch)).bare_slots(1);
    with_images(builder.args(["-c", "8192"]), kind)
}

/// Sounds that were encoded, and those that were not as they were stored.
fn encoded(stored: &Stored) -> [u64; 2] {
    let figures = stored.figures();
    [figures.encoded, figures.encodings_loaded]
}

#[test]
fn a_prompt_with_a_sound_is_loaded_and_the_sound_not_encoded_also_after_a_kill() {
    for (arch, kind, rest) in hearing() {
        let folder = folder();
        let mut stored = Stored::start(&kind, folder.path());
        let plain = started(&kind);
        let first = ask(&mut stored, &plain, &SPOKEN);
        assert_eq!(first.from.store, 0, "{arch}");
        ask(&mut stored, &plain, &SUNG);
        assert_eq!(encoded(&stored), [2, 0], "{arch}");
        let again = ask(&mut stored, &plain, &SPOKEN);
        assert_eq!(again.evaluated, rest, "{arch}: {again:?}");
        assert_eq!(again.prompt_tokens, first.prompt_tokens, "{arch}");
        assert_eq!(encoded(&stored), [2, 1], "{arch}");
        ask(&mut stored, &plain, &SUNG);
        stored.await_written();
        stored.server.stop(SIGKILL).unwrap();
        let mut stored = Stored::start(&kind, folder.path());
        let again = ask(&mut stored, &plain, &SPOKEN);
        assert_eq!(again.evaluated, rest, "{arch}: {again:?}");
        assert_eq!(encoded(&stored), [0, 1], "{arch}");
        // It goes on.
        let more = [&SPOKEN[..], &[Sound(2, 12), Text(5, 40)]].concat();
        let more = ask(&mut stored, &plain, &more);
        let new = ROWS + 40;
        // The server itself goes back some tokens, and evaluates the last one anyway.
        assert!(more.evaluated <= new + rest, "{arch}: {more:?}");
        assert_eq!(encoded(&stored), [0, 2], "{arch}");
        // The same text before and behind another sound.
        let other = [Text(1, 100), Sound(9, 12), Text(2, 200)];
        let other = ask(&mut stored, &plain, &other);
        assert!(other.evaluated >= ROWS + 200, "{arch}: {other:?}");
        assert_eq!(encoded(&stored), [1, 2], "{arch}");
        let figures = stored.figures();
        assert_eq!(figures.refused, [""; 0], "{arch}");
        assert_eq!((figures.problem, figures.failed_loads), (None, 0), "{arch}");
    }
}

#[test]
fn a_sound_is_whole_or_it_is_not_there_whatever_batches_it_is_evaluated_in() {
    for arch in [Arch::Llama, Arch::Qwen2Vl] {
        is_loaded_whatever_the_batches(&hears(arch, ProjectorKind::Ultravox), &SPOKEN);
    }
}

/// A chat's sound stands in its message, and comes back with each later turn.
#[test]
fn a_chat_about_a_sound_goes_on_after_a_restart() {
    for (arch, kind, _) in hearing() {
        let folder = folder();
        let plain = started(&kind);
        let turns = |count: usize| {
            let asked = |nth: usize| {
                let audio = base64(&sound(nth as u64 / 2, 5));
                json!({"role": "user", "content": [
                    {"type": "text", "text": letters(nth as u64, 60)},
                    {"type": "input_audio", "input_audio": {"data": audio, "format": "wav"}},
                    {"type": "text", "text": letters(nth as u64 + 50, 30)},
                ]})
            };
            let said = |nth| json!({"role": "assistant", "content": letters(nth as u64, 20)});
            let messages: Vec<_> = (0..count)
                .map(|nth| if nth % 2 == 0 { asked(nth) } else { said(nth) })
                .collect();
            Request::new(
                "/v1/chat/completions",
                json!({
                    "messages": messages, "max_tokens": 4, "temperature": 0, "logprobs": true, "top_logprobs": 8,
                }),
            )
        };
        let mut stored = Stored::start(&kind, folder.path());
        send(&mut stored, &plain, &turns(1));
        let whole = send(&mut stored, &plain, &turns(3));
        assert_eq!(encoded(&stored), [2, 0], "{arch}");
        stored.end();
        let mut stored = Stored::start(&kind, folder.path());
        let again = send(&mut stored, &plain, &turns(3));
        assert!(again.evaluated <= 12, "{arch}: {again:?} {whole:?}");
        let more = send(&mut stored, &plain, &turns(5));
        let new = more.prompt_tokens - whole.prompt_tokens;
        assert!(more.evaluated <= new + 12, "{arch}: {more:?}");
        // The first two are not encoded again, in either prompt.
        let [made, loaded] = encoded(&stored);
        assert_eq!(made, 1, "{arch}: {loaded}");
        assert_eq!(stored.figures().refused, [""; 0], "{arch}");
    }
}

/// It is cut into pieces of half a minute, which have one name.
#[test]
fn each_piece_of_a_long_sound_is_its_own() {
    let kind = hears(Arch::Llama, ProjectorKind::Ultravox);
    let folder = folder();
    let mut stored = Stored::start(&kind, folder.path());
    let plain = started(&kind);
    let long = |seed, behind| [Text(1, 20), Sound(seed, 2 * LONG + 5), Text(behind, 30)];
    let first = ask(&mut stored, &plain, &long(1, 2));
    // The server's own first token is one more.
    assert_eq!(first.evaluated, 1 + 20 + 3 * ROWS + 30);
    assert_eq!(encoded(&stored), [3, 0]);
    ask(&mut stored, &plain, &long(2, 2));
    assert_eq!(encoded(&stored), [6, 0]);
    stored.end();
    let mut stored = Stored::start(&kind, folder.path());
    let other = ask(&mut stored, &plain, &long(1, 3));
    assert_eq!(other.evaluated, 30, "{other:?}");
    assert_eq!(encoded(&stored), [0, 3]);
}

/// Each with an encoder of its own, in one file.
#[test]
fn images_and_sounds_stand_in_one_prompt() {
    let kind = hears(Arch::Llama, ProjectorKind::LlavaUltravox);
    let folder = folder();
    let mut stored = Stored::start(&kind, folder.path());
    let plain = started(&kind);
    let both = [
        Text(1, 50),
        Image(1, SIDE),
        Sound(1, 12),
        Text(2, 50),
        Sound(2, 12),
        Image(2, SIDE),
        Text(3, 50),
    ];
    ask(&mut stored, &plain, &both);
    assert_eq!(encoded(&stored), [4, 0]);
    ask(&mut stored, &plain, &TEA);
    assert_eq!(encoded(&stored), [4, 1]);
    stored.end();
    let mut stored = Stored::start(&kind, folder.path());
    let again = ask(&mut stored, &plain, &both);
    assert_eq!(again.evaluated, 1, "{again:?}");
    assert_eq!(encoded(&stored), [0, 4]);
    let turned = [Text(1, 50), Sound(1, 12), Image(1, SIDE), Text(2, 50)];
    let turned = ask(&mut stored, &plain, &turned);
    assert_eq!(turned.evaluated, 2 * ROWS + 50, "{turned:?}");
    assert_eq!(encoded(&stored), [0, 6]);
    assert_eq!(stored.figures().refused, [""; 0]);
}

/// Heads that draft get the hidden states of text behind sounds.
#[test]
fn what_stands_behind_sounds_is_drafted_from_as_if_it_had_been_evaluated() {
    for (arch, rest) in [(Arch::Mtp, 1), (Arch::Qwen35, 4)] {
        let builder = hears(arch, ProjectorKind::Ultravox).args(["--spec-type", "draft-mtp"]);
        drafts_as_if_evaluated(&arch.to_string(), &builder, [SPOKEN, SUNG], rest);
    }
}
