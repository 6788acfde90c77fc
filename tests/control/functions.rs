//! The state of each hooked function in `/stats`: found, patched, called.

use std::process::Command;

use crate::support::{Hooked, ask, bare};
use contextpilot_control::HookedFunction;

/// Functions that a server of 2026 calls for every answer.
const ALWAYS_CALLED: [&str; 8] = [
    "llama_init_from_model",
    "llama_get_memory",
    "llama_memory_seq_rm",
    "llama_process",
    "_ZN12server_queue10get_new_idEv",
    "_ZN19server_context_impl21launch_slot_with_taskER11server_slotO11server_task",
    "recv",
    "send",
];

fn functions(hooked: &Hooked) -> Vec<HookedFunction> {
    hooked.stats().engine.functions
}

#[track_caller]
fn named<'a>(functions: &'a [HookedFunction], name: &str) -> &'a HookedFunction {
    let found = functions.iter().find(|function| function.name == name);
    found.unwrap_or_else(|| panic!("{name} is not among {functions:?}"))
}

#[test]
fn after_an_answer_only_the_functions_that_it_needs_are_called() {
    let hooked = Hooked::observing(&bare(1));
    hooked.complete(&ask(1, 60).id("req-1"));
    let functions = functions(&hooked);
    for name in ALWAYS_CALLED {
        let function = named(&functions, name);
        assert!(function.called, "{function:?}");
        assert!(function.found > 0, "{function:?}");
        assert_eq!(function.patched, function.found, "{function:?}");
        assert_ne!(function.way, "none", "{function:?}");
    }
    // No request needed these functions.
    for name in ["llama_state_seq_load_file", "llama_memory_seq_cp"] {
        assert!(!named(&functions, name).called, "{name}");
    }
    // The server uses no TLS, so its OpenSSL functions, if it was built with them, are never called.
    let read = functions.iter().find(|one| one.name == "SSL_read");
    assert!(!read.is_some_and(|one| one.called), "{read:?}");
    let stats = hooked.stats();
    assert_eq!(stats.losses.claims, 0);
    assert!(stats.engine.missing.is_empty(), "{:?}", stats.engine);
}

#[test]
fn metrics_and_doctor_agree_with_stats() {
    let hooked = Hooked::observing(&bare(1));
    hooked.complete(&ask(1, 60).id("req-1"));
    let functions = functions(&hooked);
    let page = hooked.get("/metrics").text();
    let recv = named(&functions, "recv");
    for (known, value) in [
        ("found", recv.found),
        ("patched", recv.patched),
        ("called", 1),
    ] {
        let labels = format!(r#"function="recv",way="import",known="{known}"}} {value}"#);
        assert!(page.contains(&labels), "{labels} in {page}");
    }
    let doctor = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"))
        .args(["doctor", "--verbose"])
        .arg(contextpilot_testbed::llama_server())
        .env("CONTEXTPILOT_LISTEN", hooked.control.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8(doctor.stdout).unwrap();
    let patched = functions.iter().filter(|function| function.patched > 0);
    let places: u32 = patched.clone().map(|function| function.patched).sum();
    let told = format!("{} functions patched in {places} places, ", patched.count());
    assert!(said.contains(&told), "{told} in {said}");
    let called = said.split("\nCalled\n").nth(1).unwrap_or_default();
    assert!(called.contains("  llama_process\n"), "{said}");
}
