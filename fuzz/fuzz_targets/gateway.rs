//! The gateway answers whatever a client sends. It does not panic, and its answer is not much longer than
//! the request. No server is behind it, so nothing waits.
//!
//! The first byte of an input selects the route. The second is the length of the header `Host`, which
//! follows. The rest is the body.
#![no_main]

use std::cell::OnceCell;

use contextpilot_gateway::{Gateway, Serving};
use contextpilot_proxy::{Body, Handler, Request, Upstream};
use contextpilot_settings::{KvEventsOf, Settings};
use hyper::header::{HOST, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};

/// Bytes of an answer that do not depend on the length of the request.
const WORDS: usize = 1024;

thread_local! {
    static GATEWAY: OnceCell<(Runtime, Serving)> = const { OnceCell::new() };
}

fn start() -> (Runtime, Serving) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let upstream = Upstream::new("unix:/nowhere/llama.sock").expect("an address");
    let settings =
        Settings::from(|name| (name == "CONTEXTPILOT_KV_EVENTS").then(|| "tcp://*:5557".into()));
    let events = settings.expect("settings").kv_events;
    let events = events.as_ref().and_then(KvEventsOf::only).cloned();
    let gateway = Gateway::new(upstream, events).serving();
    (runtime.expect("a runtime"), gateway)
}

fuzz_target!(|input: &[u8]| {
    let Some((&[route, host], rest)) = input.split_first_chunk::<2>() else {
        return;
    };
    let (host, body) = rest.split_at(rest.len().min(usize::from(host)));
    let mut request = Request::new(Body::full(body.to_vec()));
    let (method, path) = match route % 5 {
        0 => ("POST", "/v1/completions/render"),
        1 => ("POST", "/v1/chat/completions/render"),
        2 => ("GET", "/kv_event_sources"),
        3 => ("GET", "/v1/completions/render"),
        _ => ("POST", "/completion"),
    };
    *request.method_mut() = method.parse().expect("a method");
    *request.uri_mut() = path.parse().expect("a path");
    if let Ok(host) = HeaderValue::from_bytes(host) {
        request.headers_mut().insert(HOST, host);
    }
    GATEWAY.with(|gateway| {
        let (runtime, gateway) = gateway.get_or_init(start);
        let (status, answer) = runtime.block_on(async {
            let response = gateway.handle(request).await;
            let status = response.status().as_u16();
            (status, response.into_body().collect(1 << 24).await)
        });
        let answer = answer.expect("a body");
        assert!(answer.len() <= 8 * input.len() + WORDS, "{}", answer.len());
        let expected: &[u16] = match route % 5 {
            // A prompt of token ids needs no server.
            0 => &[200, 400, 501, 502],
            1 => &[400, 501, 502],
            2 => &[200],
            3 => &[405],
            _ => &[502],
        };
        assert!(expected.contains(&status), "{status}");
    });
});
