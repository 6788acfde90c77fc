//! What a prompt wants and the folder does not have is fetched from the remote at once.

use std::path::Path;
use std::time::Instant;

use contextpilot_testbed::{Arch, Builder, Model, Server, Spec, or_return, until};
use tempfile::TempDir;

use super::{Redis, shared_by};
use crate::{SIGTERM, Stored, chunk_files, exact, folder, started, tokens};

/// A prompt has so many whole chunks, and some tokens more.
const WHOLE: usize = 2;
const PROMPT: usize = WHOLE * 256 + 50;
/// Of two prompts, in 10⁹ bytes: they have 8 KiB a token.
const BUDGET: &str = "0.012";

/// Evaluating a chunk takes some 250 ms, so that no answer is too late on a busy machine.
fn slow() -> Builder {
    slow_of(Arch::Llama)
}

fn slow_of(arch: Arch) -> Builder {
    let model = Model::of(&Spec {
        layers: 8,
        width: 256,
        ..Spec::new(arch)
    });
    let server = Server::builder().model(&model).bare_slots(1);
    server.args(["-c", "1024"])
}

fn prompt(seed: u64) -> Vec<u32> {
    tokens(seed, PROMPT)
}

/// Of models that cannot go back to any position a prompt is fetched up to the last state on its way: of its first batches only
/// chunks are there, which have none.
#[test]
fn a_prompt_of_a_model_that_cannot_go_back_gets_the_states_that_only_the_remote_has() {
    for arch in exact::ALL {
        // All but what the server evaluates behind its last checkpoint.
        get_what_only_the_remote_has(arch, &slow_of(arch), PROMPT - 4);
    }
}

/// The KV alone would be of no use.
#[test]
fn a_prompt_of_a_server_that_drafts_gets_the_hidden_states_that_only_the_remote_has() {
    // The hybrid's second batch has 50 tokens, and ends where the server takes a checkpoint.
    for (arch, loaded) in [(Arch::Mtp, WHOLE * 256), (Arch::Qwen35, PROMPT - 4)] {
        let server = slow_of(arch).args(["--spec-type", "draft-mtp"]);
        get_what_only_the_remote_has(arch, &server, loaded);
    }
}

/// Of a prompt that has left the folder, so many tokens are loaded.
fn get_what_only_the_remote_has(arch: Arch, server: &Builder, loaded: usize) {
    let redis = or_return!(Redis::start(&[]));
    let server = server.clone().args(["-b", "256", "-ub", "256"]);
    let other = folder();
    let mut stored = Stored::start(&shared_by(&server, &redis), other.path());
    let sent: Vec<_> = (150..157).map(prompt).collect();
    for prompt in &sent {
        stored.ask(prompt);
    }
    stored.end();
    let files = chunk_files(other.path()).len();
    until("all is sent", || (redis.chunks() >= files).then_some(()));
    let bytes = stored_bytes(other.path());

    // A third of it has room.
    let budget = format!("{:.6}", bytes as f64 / 3e9);
    let folder = folder();
    let mut stored = Stored::start_within(&shared_by(&server, &redis), folder.path(), &budget);
    until("what there is room for is fetched", || {
        let figures = stored.figures();
        (figures.bytes > figures.limit_bytes / 2).then_some(())
    });
    // The chunks of one model are listed at a look, and those of hidden states are another model's.
    until("all that was sent is known to be there", || {
        let remote = stored.figures().remote;
        remote
            .is_some_and(|remote| remote.known >= files as u64)
            .then_some(())
    });
    let plain = started(&server);
    stored.compare(&plain, &prompt(170));
    for prompt in &sent[..2] {
        let before = stored.figures();
        let (_, account) = stored.compare(&plain, prompt);
        let figures = stored.figures();
        assert_eq!(
            account.from.store as usize, loaded,
            "{arch}: {account:?} {figures:?}"
        );
        assert!(
            figures.fetched_chunks > before.fetched_chunks + 3,
            "{arch}: {figures:?}"
        );
        // What can go back is loaded batch by batch, as far as each has come.
        let loads = if arch == Arch::Mtp { WHOLE as u64 } else { 1 };
        assert_eq!(figures.loads, before.loads + loads, "{arch}: {figures:?}");
        assert!(figures.bytes <= figures.limit_bytes, "{arch}: {figures:?}");
    }
    // One that leaves the way is loaded up to the last state before, or evaluated.
    let left = [&sent[2][..300], &tokens(171, 250)].concat();
    let (_, account) = stored.compare(&plain, &left);
    assert!(account.from.store <= 300, "{arch}: {account:?}");
    // Of a prompt that no server has seen there is nothing, and what the Redis has let go is evaluated.
    let (_, account) = stored.compare(&plain, &prompt(172));
    assert_eq!(account.from.store, 0, "{arch}: {account:?}");
    redis.say("FLUSHALL");
    let (_, account) = stored.compare(&plain, &sent[3]);
    assert_eq!(account.from.store, 0, "{arch}: {account:?}");
}

fn stored_bytes(folder: &Path) -> u64 {
    let files = chunk_files(folder);
    files
        .iter()
        .map(|file| file.metadata().unwrap().len())
        .sum()
}

/// A server on a folder that has no room for all that was sent: these prompts, and four more. It has evaluated something,
/// so it is known how long that takes.
fn with_little_room(redis: &Redis, prompts: &[Vec<u32>]) -> (Stored, TempDir) {
    let other = folder();
    let mut stored = Stored::start(&shared_by(&slow(), redis), other.path());
    for prompt in prompts.iter().cloned().chain((153..157).map(prompt)) {
        stored.ask(&prompt);
    }
    stored.end();
    let sent = chunk_files(other.path()).len();
    until("all is sent", || (redis.chunks() >= sent).then_some(()));

    let folder = folder();
    let mut stored = Stored::start_within(&shared_by(&slow(), redis), folder.path(), BUDGET);
    let there = until("what there is room for is fetched", || {
        let there = stored.figures().chunks as usize;
        (there >= WHOLE).then_some(there)
    });
    assert!(there < sent / 2, "{there} of {sent}");
    stored.ask(&prompt(170));
    (stored, folder)
}

#[test]
fn a_prompt_gets_what_only_the_remote_has() {
    let redis = or_return!(Redis::start(&[]));
    let (mut stored, _folder) = with_little_room(&redis, &[150, 151, 152].map(prompt));
    let plain = started(&slow());
    // The first that were sent are not among those that are in the folder.
    for (nth, seed) in (150..153).enumerate() {
        let (_, account) = stored.compare(&plain, &prompt(seed));
        assert_eq!(account.from.store as usize, WHOLE * 256, "{account:?}");
        let figures = stored.figures();
        assert_eq!(figures.fetched_chunks as usize, (nth + 1) * WHOLE);
        assert!(figures.bytes <= figures.limit_bytes, "{figures:?}");
    }
    // What the engine holds is not fetched: all but the end of this prompt, which has left the folder or not.
    let longer = [prompt(152), tokens(172, 100)].concat();
    let (_, account) = stored.compare(&plain, &longer);
    assert_eq!(account.from.store, 0, "{account:?}");
    assert_eq!(stored.figures().fetched_chunks as usize, 3 * WHOLE);
    // Of a prompt that no server has seen there is nothing.
    let (_, account) = stored.compare(&plain, &prompt(171));
    assert_eq!(account.from.store, 0, "{account:?}");
    // What the Redis has let go is evaluated.
    redis.say("FLUSHALL");
    let (_, account) = stored.compare(&plain, &prompt(153));
    assert_eq!(account.from.store, 0, "{account:?}");
    assert_eq!(stored.figures().fetched_chunks as usize, 3 * WHOLE);
}

/// Prompts that begin alike are divided where they part, and that depends on which of them came first.
#[test]
fn what_another_machine_has_divided_in_another_way_is_of_use() {
    let redis = or_return!(Redis::start(&[]));
    let alike = |seed| [tokens(180, 100), tokens(seed, PROMPT - 100)].concat();
    let (mut stored, _folder) = with_little_room(&redis, &[alike(181), alike(182)]);
    let plain = started(&slow());
    for seed in [183, 184] {
        stored.compare(&plain, &alike(seed));
    }
    let before = stored.figures().fetched_chunks;
    let (_, account) = stored.compare(&plain, &alike(182));
    // What they have in common is in the slot.
    assert_eq!(
        (account.from.slot, account.from.store as usize),
        (100, WHOLE * 256 - 100)
    );
    assert!(stored.figures().fetched_chunks > before);
}

#[test]
fn a_prompt_waits_no_longer_than_evaluating_takes_for_a_remote_that_is_silent() {
    let redis = or_return!(Redis::start(&[]));
    let (mut stored, _folder) = with_little_room(&redis, &[150, 151, 152].map(prompt));
    let plain = started(&slow());
    let before = stored.figures().fetch_seconds;
    // It takes connections, and says nothing.
    redis.halt();
    let start = Instant::now();
    for seed in 150..153 {
        let (_, account) = stored.compare(&plain, &prompt(seed));
        assert_eq!(account.from.store, 0, "{account:?}");
    }
    // It waits as long as a chunk takes, and then asks no more for ten seconds. The two servers evaluate 13 chunks.
    let waited = stored.figures().fetch_seconds - before;
    let took = start.elapsed().as_secs_f64();
    assert!(
        waited > took / 100.0,
        "{waited} of {took} s: nobody was asked"
    );
    assert!(waited < took / 3.0, "{waited} of {took} s");
    stored.server.stop(SIGTERM).unwrap();
}
