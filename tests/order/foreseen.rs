//! The hook's forecast of reuse (`POST /match`), and the models for which a forecast is worth little.

use std::time::Duration;

use contextpilot_client::control::Like;
use contextpilot_testbed::{Arch, Model, Request, Server};
use serde_json::json;

use crate::support::{Index, control, until, watched};
use crate::{ELM, ICE, OWL, SEA, TEA};

#[test]
fn a_forecast_by_a_similar_request_equals_the_forecast_by_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let builder = Server::tiny().args(["--parallel", "2", "--no-kv-unified", "--cache-ram", "8"]);
    let server = watched(&builder, &socket);
    let control = control(&socket);
    let complete = |id: &str, prompt: &str| {
        let request = Request::completion(prompt).id(id).predict(2);
        server.complete(&request).unwrap().cache_n
    };
    for (id, texts) in [
        ("a", [TEA, SEA]),
        ("b", [OWL, ELM]),
        ("c", [ICE, TEA]),
        ("d", [OWL, SEA]),
    ] {
        complete(id, &texts.join("\n"));
    }
    // Each prompt begins like one cached request, wherever the engine holds it, and continues like
    // no other.
    for (id, first) in [("a", TEA), ("c", ICE), ("d", OWL)] {
        let prompt = format!("{first}\n\u{7f}1 2 3, what of it?");
        let body = json!({"content": prompt, "add_special": true});
        let answer = server.post("/tokenize", &body).unwrap().json().unwrap();
        let tokens: Vec<i32> = serde_json::from_value(answer["tokens"].clone()).unwrap();
        let exact = control.matching(&tokens).unwrap();
        let like = Like {
            id: id.to_owned(),
            common: exact.best as u32,
            tokens: tokens.len() as u32,
        };
        let found = control
            .matching_like(&like, Duration::from_secs(10))
            .unwrap();
        assert!(exact.reused > 50, "{exact:?}");
        assert_eq!(found, exact, "{id}");
    }
    let gone = Like {
        id: "nobody".to_owned(),
        common: 10,
        tokens: 100,
    };
    let found = control
        .matching_like(&gone, Duration::from_secs(10))
        .unwrap();
    assert_eq!(found.tokens, 0);
}

#[test]
fn for_a_sliding_window_or_recurrent_model_answers_have_a_warning() {
    for (arch, warns) in [
        (Arch::Llama, false),
        (Arch::Gemma2, true),
        (Arch::Mamba, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let builder = Server::builder().model(&Model::tiny(arch)).bare_slots(2);
        let server = watched(&builder, &socket);
        let index = Index::told(server.address(), &socket);
        let warning = || {
            let (answer, id, prompt) = index.order(&[SEA, TEA, ELM]);
            index.complete(&prompt, &id);
            answer["warning"].as_str().map(str::to_owned)
        };
        if warns {
            let warning = until("it warns", warning);
            assert!(warning.contains("sliding-window or recurrent"), "{warning}");
        } else {
            assert_eq!((0..5).find_map(|_| warning()), None);
        }
    }
}
