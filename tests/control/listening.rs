//! Where the server listens, in `/stats`.

use std::net::TcpListener;

use contextpilot_testbed::{Endpoint, Server};

use crate::support::{Hooked, bare};

/// What `/stats` says where the server listens, after it was compared with the server's own log.
#[track_caller]
fn listening(hooked: &Hooked, scheme: &str) -> Vec<String> {
    let says = |server: &Server| -> Vec<String> {
        let endpoints = server.endpoints().iter();
        let url = endpoints.map(|endpoint| match endpoint {
            Endpoint::Tcp(address) => format!("{scheme}://{address}"),
            Endpoint::Unix(path) => format!("unix:{}", path.display()),
        });
        url.collect()
    };
    let stats = hooked.stats();
    assert_eq!(stats.listening, says(&hooked.server));
    stats.listening
}

#[test]
fn the_servers_sockets_are_named_and_ours_are_not() {
    // The hook listens at two sockets of its own for routers, and at one for this query.
    let server = bare(1).env("CONTEXTPILOT_KV_EVENTS", "tcp://127.0.0.1:0");
    let named = listening(&Hooked::observing(&server), "http");
    assert_eq!(named.len(), 1);
}

#[test]
fn all_hosts_are_named_with_absolute_paths() {
    let server = bare(1).args(["--host", "127.0.0.1,here.sock"]);
    let named = listening(&Hooked::observing(&server), "http");
    assert!(named[0].starts_with("http://127.0.0.1:"), "{named:?}");
    assert!(named[1].starts_with("unix:/"), "{named:?}");
    let all = listening(
        &Hooked::observing(&bare(1).args(["--host", "0.0.0.0"])),
        "http",
    );
    assert!(all[0].starts_with("http://0.0.0.0:"), "{all:?}");
}

#[test]
fn the_scheme_is_the_one_that_the_server_speaks() {
    let named = listening(&Hooked::observing(&bare(1).tls()), "https");
    assert_eq!(named.len(), 1);
    // The server speaks TLS only with both files.
    let server = bare(1).args(["--ssl-cert-file", "none.pem"]);
    listening(&Hooked::observing(&server), "http");
}

#[test]
fn an_ipv6_address_is_named_in_brackets() {
    if TcpListener::bind("[::1]:0").is_err() {
        contextpilot_testbed::skip("this machine has no IPv6 loopback");
        return;
    }
    let named = listening(&Hooked::observing(&bare(1).args(["--host", "::1"])), "http");
    assert!(named[0].starts_with("http://[::1]:"), "{named:?}");
}

#[test]
fn while_the_model_is_loaded_the_address_is_known() {
    let hooked = Hooked::loading(bare(1));
    // The server listens before it loads its model, and the endpoint answers from then on.
    assert_eq!(hooked.stats().listening.len(), 1);
}
