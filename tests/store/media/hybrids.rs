//! Images in models with a recurrent state or sliding windows, which cannot go back to any position: they are loaded by the state right
//! behind an image.

use super::*;

/// Sliding windows, recurrent, a hybrid, and one whose images' rows share a position (M-RoPE).
fn bounded() -> [(Arch, Builder); 4] {
    [
        (Arch::Gemma2, ProjectorKind::Llava),
        (Arch::Mamba, ProjectorKind::Llava),
        (Arch::Jamba, ProjectorKind::Llava),
        (Arch::Qwen35, ProjectorKind::Qwen2Vl),
    ]
    .map(|(arch, kind)| (arch, seeing(&Model::tiny(arch), kind)))
}

fn seeing(model: &Model, kind: ProjectorKind) -> Builder {
    let builder = Server::builder().model(model).bare_slots(1);
    with_images(builder.args(["-c", "8192"]), kind)
}

/// The server takes a checkpoint that many tokens before a prompt's end.
const REST: u64 = 4;

#[test]
fn what_is_behind_an_image_is_loaded_also_after_a_kill() {
    for (arch, kind) in bounded() {
        let folder = folder();
        let plain = started(&kind);
        let mut stored = Stored::start(&kind, folder.path());
        let first = ask(&mut stored, &plain, &TEA);
        assert_eq!(first.from.store, 0, "{arch}");
        ask(&mut stored, &plain, &SEA);
        let again = ask(&mut stored, &plain, &TEA);
        assert_eq!(again.evaluated, REST, "{arch}: {again:?}");
        assert_eq!(again.prompt_tokens, first.prompt_tokens, "{arch}");
        ask(&mut stored, &plain, &SEA);
        stored.await_written();
        stored.server.stop(SIGKILL).unwrap();
        let mut stored = Stored::start(&kind, folder.path());
        let again = ask(&mut stored, &plain, &TEA);
        assert_eq!(again.evaluated, REST, "{arch}: {again:?}");
        // The same text before and behind another image.
        let other = [Text(1, 100), Image(9, SIDE), Text(2, 200)];
        let other = ask(&mut stored, &plain, &other);
        assert!(other.evaluated >= ROWS + 200, "{arch}: {other:?}");
        let figures = stored.figures();
        assert_eq!(figures.refused, [""; 0], "{arch}");
        assert_eq!((figures.problem, figures.failed_loads), (None, 0), "{arch}");
    }
}

/// What each of two prompts has of its own is a text, an image, or both; batches are smaller than an image, or larger than all. With
/// sliding windows the first of these is not stored.
#[test]
fn prompts_that_part_behind_an_image_are_loaded_up_to_the_state_before() {
    for (arch, kind) in bounded() {
        let small = if arch == Arch::Gemma2 { "32" } else { "12" };
        for batch in [small, "2048"] {
            let kind = kind.clone().args(["-b", batch, "-ub", batch]);
            let folder = folder();
            let mut stored = Stored::start(&kind, folder.path());
            let plain = started(&kind);
            let with = |end: &[Part]| [&TEA[..], end].concat();
            let [one, two] = [5, 6].map(|seed| with(&[Image(seed, SIDE), Text(seed, 50)]));
            let [three, four] = [7, 8].map(|seed| with(&[Text(seed, 50)]));
            let all = [&one, &two, &three, &four];
            let mut sum = [0; 2];
            for sum in &mut sum {
                for prompt in all {
                    let account = ask(&mut stored, &plain, prompt);
                    *sum += account.evaluated;
                    ask(&mut stored, &plain, &SEA);
                }
            }
            // A part of a prompt behind its last state is evaluated again.
            assert!(sum[1] <= all.len() as u64 * 12, "{arch} {batch}: {sum:?}");
            let figures = stored.figures();
            assert_eq!((figures.problem, figures.failed_loads), (None, 0), "{arch}");
            assert_eq!(figures.refused, [""; 0], "{arch}");
        }
    }
}

/// Heads that draft get the hidden states of text behind images as ever. (With EAGLE-3, llama-server 0.7.0 itself answers every prompt
/// with an image by an error.)
#[test]
fn what_stands_behind_images_is_drafted_from_as_if_it_had_been_evaluated() {
    let mtp = |arch, kind| seeing(&Model::tiny(arch), kind).args(["--spec-type", "draft-mtp"]);
    for (what, builder, rest) in [
        ("MTP", mtp(Arch::Mtp, ProjectorKind::Llava), 1),
        ("M-RoPE", mtp(Arch::Qwen35, ProjectorKind::Qwen2Vl), REST),
    ] {
        for batch in ["12", "2048"] {
            let builder = builder.clone().args(["-b", batch, "-ub", batch]);
            drafts_as_if_evaluated(&format!("{what} {batch}"), &builder, [TEA, SEA], rest);
        }
    }
}

/// At any moment, while what is stored is loaded, left out, or evaluated.
#[cfg(debug_assertions)]
#[test]
fn after_an_error_of_ours_images_are_answered_as_ever() {
    for arch in [Arch::Jamba, Arch::Gemma2] {
        let kind = seeing(&Model::tiny(arch), ProjectorKind::Llava);
        answers_as_ever_after_errors(&kind.args(["-b", "64", "-ub", "64"]), 71);
    }
}
