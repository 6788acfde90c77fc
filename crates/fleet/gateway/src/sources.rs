//! Where the server publishes its events, as vllm-router reads it: an object with an entry for each
//! rank. (vLLM itself answers with a list by now, which vllm-router 0.1.17 does not read.)

use std::net::SocketAddr;

use contextpilot_proxy::Request;
use contextpilot_settings::KvEvents;
use hyper::header::HOST;
use hyper::http::uri::Authority;
use serde_json::{Value, json};

/// One rank, or none.
pub(crate) fn describe(events: Option<&KvEvents>, request: &Request) -> String {
    let all = events.map_or(json!({}), |events| json!({"0": source(events, request)}));
    all.to_string()
}

fn source(events: &KvEvents, request: &Request) -> Value {
    let host = request.headers().get(HOST);
    let host = host.and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let host = host.as_ref().map(Authority::host);
    json!({
        "publisher": "zmq",
        "enable_kv_cache_events": true,
        "endpoint": endpoint(events.publish, host),
        "replay_endpoint": events.replay.map(|replay| endpoint(replay, host)),
        "topic": events.topic,
    })
}

/// If the server publishes at all addresses, this gives the address by which the client has reached us.
fn endpoint(address: SocketAddr, host: Option<&str>) -> String {
    match host {
        Some(host) if address.ip().is_unspecified() => format!("tcp://{host}:{}", address.port()),
        _ => format!("tcp://{address}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contextpilot_proxy::Body;

    fn said(publish: &str, host: &str) -> Value {
        let events = KvEvents {
            connections: 32,
            publish: publish.parse().expect("an address"),
            replay: None,
            topic: "kv".to_owned(),
            block_size: 16,
            adapters: Vec::new(),
        };
        let mut request = Request::new(Body::full(""));
        let host = host.parse().expect("a header");
        request.headers_mut().insert(HOST, host);
        serde_json::from_str(&describe(Some(&events), &request)).expect("JSON")
    }

    #[test]
    fn a_client_gets_an_address_that_it_can_connect_to() {
        let of = |publish, host| said(publish, host)["0"]["endpoint"].clone();
        assert_eq!(of("127.0.0.1:5557", "a:8081"), "tcp://127.0.0.1:5557");
        assert_eq!(of("0.0.0.0:5557", "10.0.0.7:8081"), "tcp://10.0.0.7:5557");
        assert_eq!(of("[::]:5557", "[fd00::1]:8081"), "tcp://[fd00::1]:5557");
        assert_eq!(of("0.0.0.0:5557", "llama"), "tcp://llama:5557");
        let all = said("127.0.0.1:5557", "a");
        assert_eq!(all["0"]["replay_endpoint"], Value::Null);
        assert_eq!(all["0"]["topic"], "kv");
        assert_eq!(describe(None, &Request::new(Body::full(""))), "{}");
    }
}
