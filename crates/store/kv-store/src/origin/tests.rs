use super::*;

fn program(flags: &[&str], engine: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for flag in flags {
        text.extend((flag.len() as u64).to_le_bytes());
        text.extend(flag.as_bytes());
    }
    text.extend(engine);
    text
}

fn facts(model: u8, program: Vec<u8>) -> Facts {
    let mut facts = Facts::default();
    facts.push(What::Program, program);
    facts.push(What::Layout, vec![1; 16]);
    facts.push(What::Model, vec![model; 16]);
    facts.push(What::Context, vec![0]);
    facts
}

fn origin_of(facts: &Facts) -> Origin {
    Origin::new("tea".to_owned(), facts, None)
}

const ENGINE: &[u8] = b"0.7.0 (build b11669)";

/// As the version before wrote it.
fn with_secrets(facts: &Facts) -> Vec<u8> {
    let mut bytes = WITH_SECRETS.to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(b"tea");
    facts.encode(&mut bytes);
    bytes.push(0);
    bytes
}

#[test]
fn what_differs_is_named() {
    let plain = origin_of(&facts(1, program(&[], ENGINE)));
    assert_eq!(plain.difference(&plain.clone()), None);
    let other = origin_of(&facts(2, program(&[], ENGINE)));
    assert_eq!(
        plain.difference(&other).as_deref(),
        Some("the model's file is another one")
    );
    let newer = origin_of(&facts(1, program(&[], b"0.8.0")));
    assert_eq!(
        newer.difference(&plain).as_deref(),
        Some("the engine is another one: 0.8.0, here 0.7.0 (build b11669)")
    );
    let with = |flags: &[&str]| origin_of(&facts(1, program(flags, ENGINE)));
    let five = with(&["--rope-freq-base", "5"]);
    assert_eq!(
        five.difference(&plain).as_deref(),
        Some("flags differ: --rope-freq-base 5, here none")
    );
    assert_eq!(
        five.difference(&with(&["--rope-freq-base", "6"]))
            .as_deref(),
        Some("flags differ: --rope-freq-base 5, here --rope-freq-base 6")
    );
    assert_ne!(five.fingerprint, plain.fingerprint);
}

#[test]
fn an_origin_is_read_as_it_was_written_and_nothing_else_is() {
    let origin = origin_of(&facts(1, program(&["-fa", "on"], b"0.7.0")));
    let bytes = origin.encode();
    assert_eq!(Origin::decode(&bytes), Some(origin.clone()));
    for end in 0..bytes.len() {
        assert_eq!(Origin::decode(&bytes[..end]), None, "{end}");
        let mut damaged = bytes.clone();
        damaged[end] ^= 1;
        assert_eq!(Origin::decode(&damaged), None, "{end}");
    }
    let longer = [&*bytes, &[0]].concat();
    assert_eq!(Origin::decode(&longer), None);
}

#[test]
fn the_fingerprint_of_a_folder_from_before_stays_and_its_secrets_do_not() {
    let facts = facts(
        1,
        program(&["--hf-token", "hf_sesame", "--swa-full"], ENGINE),
    );
    let before = with_secrets(&facts);
    assert!(Origin::has_secrets(&before));
    let read = Origin::decode(&before).unwrap();
    assert_eq!(read.fingerprint, facts.fingerprint());
    assert_eq!(read, origin_of(&facts));
    let now = read.encode();
    assert!(!Origin::has_secrets(&now) && !holds(&now, "sesame"));
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

/// Whatever a flag is called, and however its value is given.
#[test]
fn values_are_told_only_of_flags_that_are_known_to_be_harmless() {
    let secrets: [&[&str]; 12] = [
        &["--hf-token", "sesame"],
        &["--hf-token=sesame"],
        &["-hft", "sesame"],
        &["--hf-token", "--sesame"],
        &["--hf-token", "-sesam"],
        &["--mcp-servers-json", r#"{"token":"sesame"}"#],
        &["--model-url", "https://me:sesame@host/a.gguf?key=sesame"],
        &["--from-next-year", "sesame"],
        &["--rope-freq-base", "https://sesame"],
        &["--two-values", "1", "sesame"],
        &["sesame"],
        &["LLAMA_ARG_HF_TOKEN", "--sesame"],
    ];
    for flags in secrets {
        for engine in [ENGINE, &[0xfe; 16][..]] {
            // Without a server the digest of the engine stands first.
            let fact = if engine == ENGINE {
                program(flags, engine)
            } else {
                [engine, &program(flags, b"")].concat()
            };
            let origin = origin_of(&facts(1, fact));
            let bytes = origin.encode();
            assert!(!holds(&bytes, "sesam"), "{flags:?}");
            let plain = origin_of(&facts(1, program(&[], ENGINE)));
            let said = origin.difference(&plain).unwrap();
            assert!(!said.contains("sesam"), "{said}");
            if engine == ENGINE && flags[0].starts_with("--") {
                let name = flags[0].split('=').next().unwrap();
                assert!(said.contains(name), "{said}");
            }
        }
    }
    // What is none of both says nothing but that it is another one.
    let odd = origin_of(&facts(1, [&[0xff; 7][..], b"sesame"].concat()));
    assert!(!holds(&odd.encode(), "sesame"));
}

#[test]
fn which_flag_differs_is_said_and_not_in_what() {
    let with = |token: &str| origin_of(&facts(1, program(&["--hf-token", token], ENGINE)));
    let (sesame, poppy) = (with("sesame"), with("poppy"));
    let said = sesame.difference(&poppy).unwrap();
    assert!(
        said.starts_with("flags differ: --hf-token (digest "),
        "{said}"
    );
    assert!(said.contains(", here --hf-token (digest "), "{said}");
    assert_eq!(sesame.difference(&with("sesame")), None);
}
