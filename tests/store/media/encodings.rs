//! An image that was encoded once is not encoded again: in no prompt, slot or life of a server.

use std::fs;

use contextpilot_testbed::{Arch, Model, ProjectorKind, Request, Server, Spec};
use contextpilot_tiny_model::Chat;
use serde_json::json;

use super::super::pictures::{base64, picture};
use super::super::random::{ROUNDING, difference, steps};
use super::super::{SIGKILL, Stored, chunk_files, folder, one_slot, started};
use super::{Image, MARK, Part, SEA, SIDE, TEA, Text, ask, kinds, llava, qwen, with_images};

/// Images that were encoded, and those that were not as they were stored.
fn encoded(stored: &Stored) -> [u64; 2] {
    let figures = stored.figures();
    [figures.encoded, figures.encodings_loaded]
}

#[test]
fn an_image_is_encoded_once_whatever_prompt_slot_or_process_it_comes_back_in() {
    for builder in kinds() {
        let folder = folder();
        let mut stored = Stored::start(&builder, folder.path());
        let plain = started(&builder);
        ask(&mut stored, &plain, &TEA);
        ask(&mut stored, &plain, &SEA);
        assert_eq!(encoded(&stored), [2, 0]);
        ask(&mut stored, &plain, &TEA);
        assert_eq!(encoded(&stored), [2, 1]);
        // Behind another text, and beside an image that is new.
        let both = [
            Text(9, 30),
            Image(2, SIDE),
            Image(3, SIDE),
            Image(1, SIDE),
            Text(8, 20),
        ];
        ask(&mut stored, &plain, &both);
        assert_eq!(encoded(&stored), [3, 3]);
        stored.await_written();
        stored.server.stop(SIGKILL).unwrap();

        let two_slots = builder.clone().args(["-np", "2"]);
        let mut next = Stored::start(&two_slots, folder.path());
        for prompt in [&both[..], &TEA, &SEA] {
            ask(&mut next, &plain, prompt);
        }
        let [made, loaded] = encoded(&next);
        assert_eq!(made, 0, "{loaded}");
        assert!(loaded >= 4, "{loaded}");
        assert_eq!(next.figures().problem, None);
    }
}

/// Screenshots of an agent: each turn has a new one, and from some length on the oldest is left out.
#[test]
fn a_list_of_twelve_screenshots_has_just_the_new_one_encoded() {
    let list = |end: u64| {
        let mut parts = vec![Text(40, 50)];
        let images = end.saturating_sub(12)..end;
        parts.extend(images.flat_map(|seed| [Image(seed, 112), Text(seed, 10)]));
        parts
    };
    for builder in kinds() {
        let folder = folder();
        let mut stored = Stored::start(&builder, folder.path());
        let plain = started(&builder);
        for end in 10..16 {
            let [before, _] = encoded(&stored);
            ask(&mut stored, &plain, &list(end));
            let new = if end == 10 { 10 } else { 1 };
            assert_eq!(encoded(&stored)[0] - before, new, "{end}");
        }
        stored.end();
        let mut next = Stored::start(&builder, folder.path());
        ask(&mut next, &plain, &list(15));
        assert_eq!(encoded(&next), [0, 12]);
    }
}

/// A large image is cut into four, beside a small one of all of it. All five have the same name.
/// Prompts that come between two turns push each other out, and no image.
#[test]
fn images_stay_encoded_whatever_else_is_asked_between_two_turns() {
    const SIDE: u32 = 224;
    let folder = folder();
    // A prompt has some 4 MB, and an image 40 KB.
    let mut stored = Stored::start_within(&qwen(), folder.path(), "0.01");
    let plain = started(&qwen());
    let list = |first: u64| {
        let images = (first..first + 12).map(|seed| Image(seed, SIDE));
        [Text(40, 50)].into_iter().chain(images).collect::<Vec<_>>()
    };
    ask(&mut stored, &plain, &list(0));
    for turn in 1..4 {
        for nth in 0..3 {
            ask(&mut stored, &plain, &[Text(100 * turn + nth, 7_900)]);
        }
        let [before, _] = encoded(&stored);
        ask(&mut stored, &plain, &list(turn));
        let figures = stored.figures();
        assert_eq!(encoded(&stored)[0] - before, 1, "{figures:?}");
        assert!(figures.encodings_bytes > 0, "{figures:?}");
        assert!(
            figures.encodings_bytes <= figures.limit_bytes / 8,
            "{figures:?}"
        );
        assert!(figures.bytes <= figures.limit_bytes, "{figures:?}");
    }
}

#[test]
fn each_tile_of_an_image_is_its_own() {
    let folder = folder();
    // The server puts these around tiles.
    let markers = ["<fake_token_around_image>", "<global-img>", "\n\n"];
    let chat = Chat {
        markers: markers.map(str::to_owned).to_vec(),
        ..Chat::default()
    };
    let path = folder.path().join("tiles.gguf");
    contextpilot_tiny_model::write_with(&path, &Spec::new(Arch::Llama), &chat).unwrap();
    let model = Model::file(path, Arch::Llama);
    let builder = with_images(one_slot().model(&model), ProjectorKind::Idefics3);
    let mut stored = Stored::start(&builder, folder.path());
    let plain = started(&builder);
    let large = |seed| [Text(1, 20), Image(seed, 112), Text(2, 30)];
    ask(&mut stored, &plain, &large(1));
    assert_eq!(encoded(&stored), [5, 0]);
    ask(&mut stored, &plain, &large(2));
    assert_eq!(encoded(&stored), [10, 0]);
    // The same image twice, and from the second one of its tiles on.
    let twice = [Image(1, 112), Text(3, 5), Image(1, 112), Text(2, 30)];
    ask(&mut stored, &plain, &twice);
    assert_eq!(encoded(&stored), [10, 10]);
    stored.end();
    let mut next = Stored::start(&builder, folder.path());
    ask(&mut next, &plain, &large(2));
    assert_eq!(encoded(&next), [0, 5]);
}

/// The server names an image by its file. What counts are its pixels.
#[test]
fn the_same_image_in_another_file_is_not_encoded_again() {
    let folder = folder();
    let stored = Stored::start(&llava(), folder.path());
    let plain = started(&llava());
    let file = picture(1, 56);
    let pixels = &file[file.len() - 3 * 56 * 56..];
    let other = [b"P6\n56\n56\n255\n", pixels].concat();
    assert_ne!(file, other);
    for (file, expected) in [(&file, [1, 0]), (&other, [1, 1])] {
        let prompt =
            json!({"prompt_string": format!("a{MARK}bcd"), "multimodal_data": [base64(file)]});
        let request = Request::completion(prompt).predict(4).with("n_probs", 8);
        let says = |server: &Server| steps(&server.send(&request).unwrap().json().unwrap());
        assert!(difference(&says(&stored.server), &says(&plain)) < ROUNDING);
        assert_eq!(encoded(&stored), expected);
    }
}

/// Nothing of a prompt is shared with prompts of another salt, and that includes the time that encoding takes.
#[test]
fn an_image_of_another_salt_is_encoded_again() {
    let folder = folder();
    let stored = Stored::start(&llava(), folder.path());
    let send = |seed, salt: Option<&str>| {
        let file = base64(&picture(seed, 56));
        let prompt = json!({"prompt_string": format!("a{MARK}bcd"), "multimodal_data": [file]});
        let request = Request::completion(prompt).predict(1);
        let request = match salt {
            Some(salt) => request.with("cache_salt", salt),
            None => request,
        };
        assert_eq!(stored.server.send(&request).unwrap().status, 200);
        encoded(&stored)
    };
    assert_eq!(send(1, Some("red")), [1, 0]);
    assert_eq!(send(2, Some("red")), [2, 0]);
    assert_eq!(send(1, Some("red")), [2, 1]);
    // In between the slot has another image.
    assert_eq!(send(3, None), [3, 1]);
    assert_eq!(send(1, Some("blue")), [4, 1]);
    assert_eq!(send(2, None), [5, 1]);
    assert_eq!(send(1, Some("red")), [5, 2]);
}

#[test]
fn what_another_projector_has_made_of_an_image_is_of_no_use() {
    let folder = folder();
    let mut stored = Stored::start(&llava(), folder.path());
    let plain = started(&llava());
    ask(&mut stored, &plain, &TEA);
    stored.end();
    // Of the same size, and with other weights.
    let file = contextpilot_testbed::projector(ProjectorKind::Llava);
    let mut bytes = fs::read(file).unwrap();
    let end = bytes.len();
    bytes[end - 4000..]
        .iter_mut()
        .for_each(|byte| *byte = byte.rotate_left(4) & 0x3b);
    let other = folder.path().join("other.gguf");
    fs::write(&other, bytes).unwrap();
    let builder = one_slot()
        .env("LLAMA_MEDIA_MARKER", MARK)
        .args(["--mmproj".as_ref(), other.as_os_str()]);
    let next = Stored::start(&builder, folder.path());
    let request = super::asking(&TEA);
    assert_eq!(next.server.send(&request).unwrap().status, 200);
    assert_eq!(encoded(&next), [1, 0]);
}

#[test]
fn an_image_whose_rows_are_damaged_is_encoded() {
    let folder = folder();
    let mut stored = Stored::start(&qwen(), folder.path());
    let plain = started(&qwen());
    let picture: [Part; 3] = [Text(1, 4), Image(1, 560), Text(2, 4)];
    ask(&mut stored, &plain, &picture);
    stored.end();
    for path in chunk_files(folder.path()) {
        let mut bytes = fs::read(&path).unwrap();
        let end = bytes.len();
        bytes[end - 100] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let mut next = Stored::start(&qwen(), folder.path());
    ask(&mut next, &plain, &picture);
    assert_eq!(encoded(&next), [1, 0]);
    assert!(
        next.figures()
            .problem
            .is_some_and(|why| why.contains("read"))
    );
    ask(&mut next, &plain, &SEA);
    ask(&mut next, &plain, &picture);
    assert_eq!(encoded(&next), [2, 1]);
}

/// The figures of docs/store.md.
#[test]
#[ignore = "prints figures, for docs/store.md"]
fn how_long_encoding_twelve_screenshots_takes_and_loading_them() {
    let builder = qwen().args(["-c", "16384"]);
    let plain = started(&builder);
    let folder = folder();
    let list: Vec<Part> = (0..12)
        .flat_map(|seed| [Text(seed, 10), Image(seed, 896)])
        .chain([Text(12, 10)])
        .collect();
    for life in ["first", "second"] {
        let mut stored = Stored::start(&builder, folder.path());
        ask(&mut stored, &plain, &list);
        let figures = stored.figures();
        let (encoded, loaded) = (figures.encoded, figures.encodings_loaded);
        let seconds = [figures.encode_seconds, figures.encodings_load_seconds];
        println!("{life} life: encoded {encoded}, loaded {loaded}; seconds: {seconds:.2?}");
        stored.end();
    }
}
