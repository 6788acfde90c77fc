//! States whose rows go from the files into the engine without a copy of the state in between.
#![cfg(debug_assertions)] // A release build has no errors on demand, and does this with large states only.

use std::fs;
use std::path::Path;

use contextpilot_control::PrefixStore;
use contextpilot_testbed::{Arch, Builder, Model, Server};

use super::{Stored, chunk_files, exact, folder, one_slot, started, tokens};

/// States of any size go straight, and whatever else is to happen does.
fn straight(builder: Builder, faults: &str) -> Builder {
    builder.env("CONTEXTPILOT_FAULT", format!("straight:1{faults}"))
}

/// Those of them that keep all, and those that cannot go back.
fn servers() -> [Builder; 6] {
    let model = |arch| Server::builder().model(&Model::tiny(arch)).bare_slots(1);
    [
        one_slot(),
        one_slot().args(["-ctk", "f32", "-ctv", "f32"]),
        // Slots that do not share their cells, and this one's are not the first.
        Server::builder()
            .model(&Model::tiny(Arch::Llama))
            .bare_slots(3)
            .args(["-c", "8192", "--no-kv-unified"]),
        // More words for each cell.
        model(Arch::Qwen2Vl).args(["-c", "4096"]),
        exact::one_slot(Arch::Gemma2),
        exact::one_slot(Arch::Jamba),
    ]
}

#[test]
fn rows_go_straight_into_the_engine_and_the_server_does_not_notice() {
    for builder in servers() {
        let folder = folder();
        let plain = started(&builder);
        let (tea, sea) = (tokens(1, 900), tokens(2, 600));
        let longer: Vec<u32> = tea.iter().copied().chain(tokens(3, 50)).collect();
        let mut stored = Stored::start(&straight(builder.clone(), ""), folder.path());
        for prompt in [&tea, &sea, &tea, &longer, &sea] {
            stored.compare(&plain, prompt);
        }
        stored.end();
        // Now all is in files.
        let mut stored = Stored::start(&straight(builder, ""), folder.path());
        for prompt in [&longer, &sea, &tea, &longer] {
            let (_, account) = stored.compare(&plain, prompt);
            assert!(account.evaluated < 60, "{account:?}");
        }
        let figures = stored.figures();
        assert!(figures.loads > 0);
        assert_eq!(figures.direct_loads, figures.loads, "{figures:?}");
        assert_eq!((figures.failed_loads, figures.problem), (0, None));
    }
}

/// Without flash attention the engine hands on each element of V by itself, and a recurrent state has no rows.
#[test]
fn what_is_scattered_and_what_has_no_rows_is_put_together() {
    for builder in [
        one_slot().args(["-fa", "off"]),
        exact::one_slot(Arch::Mamba),
    ] {
        let figures = after_a_restart(&straight(builder, ""), |_| ());
        assert!(figures.loads > 0, "{figures:?}");
        assert_eq!((figures.direct_loads, figures.failed_loads), (0, 0));
    }
}

/// If the engine handed rows on in a way that is not seen, it would get zeros. That is noticed at once, and the state put
/// together; so is every later one. What it fetches in such a way is all of a state.
#[test]
fn rows_that_are_not_seen_are_noticed() {
    let mut failed = 0;
    for builder in servers() {
        let figures = after_a_restart(&straight(builder, ",astray"), |_| ());
        assert!(figures.loads >= 2, "{figures:?}");
        assert_eq!((figures.direct_loads, figures.partial_saves), (0, 0));
        assert!(figures.failed_loads <= 1, "{figures:?}");
        failed += figures.failed_loads;
    }
    assert!(failed > 0);
}

/// Of a prompt that goes on along what is stored, the rest is copied out. The next server finds all of it.
#[test]
fn only_what_is_new_is_copied_out() {
    let scattered = one_slot().args(["-fa", "off"]);
    for builder in servers().into_iter().chain([scattered]) {
        let folder = folder();
        let plain = started(&builder);
        let tea = tokens(1, 900);
        let longer: Vec<u32> = tea.iter().copied().chain(tokens(3, 120)).collect();
        let mut stored = Stored::start(&straight(builder.clone(), ""), folder.path());
        for prompt in [&tea, &longer] {
            stored.compare(&plain, prompt);
            for other in 10..14 {
                stored.ask(&tokens(other, 400));
            }
        }
        let figures = stored.figures();
        assert!(figures.partial_saves > 0, "{figures:?}");
        stored.end();
        let mut stored = Stored::start(&straight(builder, ""), folder.path());
        let longest: Vec<u32> = longer.iter().copied().chain(tokens(4, 10)).collect();
        for prompt in [&longer, &longest] {
            let (_, account) = stored.compare(&plain, prompt);
            assert!(account.evaluated < 80, "{account:?}");
        }
        assert_eq!(stored.figures().problem, None);
    }
}

/// Half of a chunk is damaged, which shows when all of it was read: by then the engine has most of it. What it has is no
/// number, and must not stay even where no cell is used: attention reads these, and multiplies them by nought.
#[test]
fn damage_that_shows_during_a_load_is_noticed_and_cleared() {
    let mut failed = 0;
    // The first batch of a prompt loads what lies ahead, too.
    let small_batches = one_slot().args(["-b", "200", "-ub", "200"]);
    for builder in servers().into_iter().chain([small_batches]) {
        let figures = after_a_restart(&straight(builder, ""), |folder| {
            // All but the first chunk of each prompt.
            for file in chunk_files(folder) {
                let mut bytes = fs::read(&file).unwrap();
                if bytes[80..84] != [0; 4] {
                    let half = bytes.len() / 2;
                    bytes[half..].fill(0x7e);
                    fs::write(file, bytes).unwrap();
                }
            }
        });
        failed += figures.failed_loads;
        let problem = figures.problem.unwrap();
        assert!(problem.contains("checksum of its rows"), "{problem}");
    }
    // A tail is read before.
    assert!(failed >= 4, "{failed}");
}

/// The engine refuses: what the slot held is evaluated again.
#[test]
fn refused_states_are_evaluated() {
    for builder in servers() {
        let figures = after_a_restart(&straight(builder, ",load:1"), |_| ());
        assert_eq!((figures.loads, figures.direct_loads), (0, 0));
        assert!(figures.failed_loads >= 2, "{figures:?}");
    }
}

/// Fills a store, ends the server, lets `meanwhile` change the folder, and asks a new server, whose figures it returns.
/// Each answer is a plain server's, also where the slot holds a part of what is loaded.
fn after_a_restart(builder: &Builder, meanwhile: impl FnOnce(&Path)) -> PrefixStore {
    let folder = folder();
    let (tea, sea) = (tokens(1, 900), tokens(2, 600));
    let mut stored = Stored::start(builder, folder.path());
    for prompt in [&tea, &sea] {
        stored.ask(prompt);
    }
    stored.end();
    meanwhile(folder.path());
    let plain = started(builder);
    let mut stored = Stored::start(builder, folder.path());
    let short: Vec<u32> = tea[..350].iter().copied().chain(tokens(3, 10)).collect();
    for prompt in [&short, &tea, &sea, &tea] {
        stored.compare(&plain, prompt);
    }
    stored.figures()
}
