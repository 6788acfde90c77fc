//! Recordings of a real llama-server, and what it reused: more clients than slots, and no pauses.
//!
//! `recordings/` has requests of agents' sessions from callanjfox/kv-cache-tester (Apache-2.0, recorded at WEKA), a
//! block of 64 tokens played as one (`scripts/lib/play_sessions.py`), to llama-server 0.7.0 with a tiny model on a busy
//! machine. It has what all recordings have: lengths, times and which prompts begin alike, and no text.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use contextpilot_simulate::{Point, Setting, simulate};
use contextpilot_traffic::{Traffic, read};

/// How far the share of reused tokens may be off.
const TOLERANCE: f64 = 0.02;

fn played(bytes: &[u8]) -> (Traffic, Point) {
    let traffic = read(bytes);
    assert!(traffic.damage.is_none());
    let setting = Setting::recorded(&traffic).unwrap();
    let point = simulate(&traffic, &setting);
    (traffic, point)
}

/// As recorded, and as simulated.
fn reused(traffic: &Traffic, point: &Point) -> (f64, f64) {
    let records = || traffic.requests.iter().map(|request| &request.record);
    let reused: u64 = records().map(|record| u64::from(record.reused)).sum();
    let prompts: u64 = records().map(|record| u64::from(record.prompt)).sum();
    (reused as f64 / prompts as f64, point.reused_share())
}

/// Two clients, two slots, a host prompt cache of 2 MiB. A simulation in which requests come at their recorded times found
/// 50 %: once one was late, they passed each other.
#[test]
fn two_clients_on_two_slots() {
    let (traffic, point) = played(include_bytes!("recordings/two-clients"));
    let (engine, simulated) = reused(&traffic, &point);
    assert_eq!(traffic.requests.len(), 1338);
    assert!(engine > 0.89 && engine < 0.90, "{engine}");
    assert!(
        (engine - simulated).abs() < TOLERANCE,
        "{engine} {simulated}"
    );
    // Nobody else is there to wait for.
    let waited = traffic.requests.iter().map(|request| &request.record);
    let waited: u64 = waited.map(|record| record.launched - record.arrived).sum();
    assert!(
        point.waited_seconds < 3.0 * waited as f64 / 1e6,
        "{waited} {}",
        point.waited_seconds
    );
}

/// Six clients, four slots, a host prompt cache of 8 MiB: 37 % in such a simulation.
#[test]
fn six_clients_on_four_slots() {
    let (traffic, point) = played(include_bytes!("recordings/six-clients"));
    let (engine, simulated) = reused(&traffic, &point);
    assert_eq!(traffic.requests.len(), 2183);
    assert!(engine > 0.81 && engine < 0.82, "{engine}");
    assert!(
        (engine - simulated).abs() < TOLERANCE,
        "{engine} {simulated}"
    );
    // The same was played to six slots without a host prompt cache.
    let setting = Setting::recorded(&traffic).unwrap();
    let setting = setting.with_parallel(6).with_cache_ram(0).unwrap();
    let other = simulate(&traffic, &setting).reused_share();
    assert!((other - 0.826).abs() < TOLERANCE, "{other}");
}
