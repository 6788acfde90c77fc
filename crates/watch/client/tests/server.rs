//! The client against a real llama-server.

use std::time::{Duration, Instant};

use contextpilot_client::{Error, Health, LlamaServer, Prompt};
use contextpilot_testbed::{Builder, Server};

const PATIENCE: Duration = Duration::from_secs(60);

fn server() -> Builder {
    Server::tiny().bare_slots(2)
}

fn client(server: &Server) -> LlamaServer {
    LlamaServer::new(&server.address().to_string()).unwrap()
}

const TEA: &str = "Tea is picked in spring, on slopes that face the morning sun.";

#[test]
fn health_props_slots_and_metrics_are_read() {
    let server = server().args(["--metrics"]).spawn().unwrap();
    let client = client(&server);
    client.wait_ready(PATIENCE).unwrap();
    assert_eq!(client.health(), Ok(Health::Ready));
    let props = client.props().unwrap();
    assert_eq!((props.total_slots, props.n_ctx), (2, Some(2048)));
    assert!(props.model_path.is_some() && props.build_info.is_some());
    let slots = client.slots().unwrap();
    assert_eq!(slots.iter().map(|slot| slot.id).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(
        (slots[0].n_ctx, slots[0].is_processing),
        (Some(2048), false)
    );
    let metrics = client.metrics().unwrap();
    assert_eq!(
        metrics.value("llamacpp:prompt_tokens_total", &[]),
        Some(0.0)
    );
    assert_eq!(
        metrics.kind("llamacpp:prompt_tokens_total"),
        Some("counter")
    );
}

#[test]
fn a_completion_has_the_cached_tokens_and_the_time_of_its_first_token() {
    let server = server().spawn().unwrap();
    let client = client(&server);
    let prompt = Prompt::new(TEA).slot(1).predict(4);
    let first = client.complete(&prompt).unwrap();
    assert_eq!(first.slot, Some(1));
    assert_eq!(first.content.chars().count(), 4);
    // The beginning-of-text token is not part of the text.
    let text = client.count_tokens(TEA).unwrap() as u64;
    assert_eq!(first.prompt_tokens, text + 1);
    assert_eq!(
        (first.timings.cached, first.timings.evaluated),
        (0, text + 1)
    );
    assert!(Duration::ZERO < first.first_token && first.first_token <= first.total);

    let again = client.complete(&prompt).unwrap();
    assert_eq!((again.timings.cached, again.timings.evaluated), (text, 1));
    // The fourth token was sent, and not evaluated.
    client.wait_idle(1, PATIENCE).unwrap();
    assert_eq!(client.slots().unwrap()[1].tokens, Some(text + 1 + 3));
}

#[test]
fn slots_are_saved_restored_and_erased() {
    let server = server().spawn().unwrap();
    let client = client(&server);
    let tokens = client
        .complete(&Prompt::new(TEA).slot(0))
        .unwrap()
        .prompt_tokens;
    let saved = client.save(0, "tea.bin").unwrap();
    // The last token generated is not evaluated, so it is not in the cache.
    assert_eq!(saved.tokens, tokens + 7);
    let file = server.folder().join("tea.bin");
    assert_eq!(saved.bytes, file.metadata().unwrap().len());

    assert_eq!(client.erase(0).unwrap().tokens, saved.tokens);
    assert_eq!(client.erase(0).unwrap().tokens, 0);
    let restored = client.restore(1, "tea.bin").unwrap();
    assert_eq!((restored.slot, restored.tokens), (1, saved.tokens));
    assert_eq!(restored.bytes, saved.bytes);
    let timings = client.complete(&Prompt::new(TEA).slot(1)).unwrap().timings;
    assert_eq!((timings.cached, timings.evaluated), (tokens - 1, 1));
}

#[test]
fn an_impossible_action_on_a_slot_is_an_error() {
    let server = server().spawn().unwrap();
    let client = client(&server);
    client.complete(&Prompt::new(TEA).slot(1)).unwrap();
    // The server itself would erase slot 1: it takes the id modulo two.
    let wrong = Error::NoSuchSlot { slot: 3, slots: 2 };
    assert_eq!(client.erase(3), Err(wrong.clone()));
    assert_eq!(client.save(3, "a"), Err(wrong.clone()));
    assert_eq!(client.wait_idle(3, PATIENCE), Err(wrong));
    for name in ["../a", "a/b", ""] {
        let error = client.save(0, name).unwrap_err();
        assert_eq!(error, Error::FileName { name: name.into() });
    }
    let timings = client.complete(&Prompt::new(TEA).slot(1)).unwrap().timings;
    assert_eq!(timings.evaluated, 1, "slot 1 was to be left alone");

    let error = client.restore(1, "nowhere.bin").unwrap_err();
    let file = "nowhere.bin".to_owned();
    assert_eq!(error, Error::NotRestored { slot: 1, file });
    assert!(error.to_string().contains("is empty now"), "{error}");
    let timings = client.complete(&Prompt::new(TEA).slot(1)).unwrap().timings;
    assert_eq!(timings.cached, 0, "the text says that the slot is empty");
}

/// Until the server is caught at work: on a machine that stood still meanwhile there is
/// nothing to be seen.
#[test]
fn an_action_on_a_busy_slot_is_an_error() {
    let server = server().spawn().unwrap();
    let client = client(&server);
    let long = Prompt::new("go on")
        .slot(0)
        .predict(2000)
        .with("ignore_eos", true);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let refused = std::thread::scope(|scope| {
            let working = scope.spawn(|| client.complete(&long).unwrap());
            while !working.is_finished() && !client.slots().unwrap()[0].is_processing {}
            let refused = client.erase(0);
            client.wait_idle(0, PATIENCE).unwrap();
            assert_eq!(working.join().unwrap().timings.generated, 2000);
            refused
        });
        match refused {
            Err(Error::Busy { slot: 0 }) => break,
            Ok(_) => assert!(Instant::now() < deadline, "never caught at work"),
            other => panic!("{other:?}"),
        }
    }
    assert!(client.erase(0).is_ok());
}

#[test]
fn if_the_server_lacks_a_flag_the_error_names_it() {
    let server = Server::tiny()
        .args(["--no-slots", "--ctx-size", "256"])
        .no_saved_slots()
        .spawn()
        .unwrap();
    let client = client(&server);
    let flag = |error: Option<Error>| match error {
        Some(Error::Disabled { flag }) => flag,
        other => panic!("{other:?}"),
    };
    assert_eq!(flag(client.slots().err()), "--slots");
    assert_eq!(flag(client.metrics().err()), "--metrics");
    for erased in [client.erase(0).map(|_| ()), client.save(0, "a").map(|_| ())] {
        assert_eq!(flag(erased.err()), "--slot-save-path <folder>");
    }
    let long = client.complete(&Prompt::new("word ".repeat(300)));
    assert!(matches!(long, Err(Error::TooLong { .. })), "{long:?}");
}

#[test]
fn a_key_is_asked_for_and_given() {
    let server = Server::tiny()
        .args(["--api-key", "sesame"])
        .spawn()
        .unwrap();
    let client = client(&server);
    assert_eq!(client.health(), Ok(Health::Ready));
    assert!(matches!(client.props(), Err(Error::Unauthorized { .. })));
    let wrong = client.clone().with_api_key("wrong").unwrap();
    assert!(matches!(wrong.slots(), Err(Error::Unauthorized { .. })));
    let right = client.with_api_key("sesame").unwrap();
    assert_eq!(right.slots().unwrap().len(), 4);
    assert_eq!(right.save(0, "empty").unwrap().tokens, 0);
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    let address = contextpilot_testbed::nowhere().to_string();
    let client = LlamaServer::new(&address).unwrap();
    let why = "nothing listens there".to_owned();
    assert_eq!(client.health(), Ok(Health::Unreachable { why }));
    let error = client.wait_ready(Duration::ZERO).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("none.sock").display());
    let client = LlamaServer::new(&socket).unwrap();
    let why = "there is no such socket".to_owned();
    assert_eq!(client.health(), Ok(Health::Unreachable { why }));
}
