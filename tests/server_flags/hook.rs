//! The hook in a server reads the same flags, and says so in `/stats` and in a recording.

use contextpilot_server_flags::Generation;
use contextpilot_testbed::{Connection, Server, skip, until};
use contextpilot_traffic::Setup;

use crate::help::Help;

#[test]
fn the_hook_reads_flags_in_every_spelling() {
    if Help::of_server().generation() == Generation::Of2025 {
        return skip("this server has no host prompt cache");
    }
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("traffic");
    let mut server = Server::tiny()
        .args(["--cache_ram", "7x", "--cache_reuse", "9", "-a", "tea,sea"])
        .env("LLAMA_ARG_N_PARALLEL", "2")
        .env("LLAMA_ARG_SLOT_PROMPT_SIMILARITY", "0.7")
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
        .env("CONTEXTPILOT_TRAFFIC_FILE", &recording)
        .spawn()
        .unwrap();
    let mut control = Connection::open(server.await_control().unwrap()).unwrap();
    let stats = control.exchange("GET", "/stats", b"").unwrap();
    let stats = stats.json().unwrap();
    assert_eq!(stats["host"]["limit_bytes"], 7 << 20, "{stats}");
    assert_eq!(stats["host"]["limit_from"], "command line");
    assert_eq!(stats["model"]["name"], "sea");
    server.stop(libc::SIGTERM).unwrap();
    let setup = until("the recording has the flags", || {
        contextpilot_traffic::read(&std::fs::read(&recording).ok()?).setup
    });
    let Setup {
        parallel,
        kv_unified,
        cache_ram,
        cache_reuse,
        slot_prompt_similarity,
        ..
    } = setup;
    assert_eq!((parallel, kv_unified), (2, false));
    assert_eq!((cache_ram, cache_reuse), (Some(7), 9));
    assert_eq!(slot_prompt_similarity, 0.1, "there is no such variable");
}
