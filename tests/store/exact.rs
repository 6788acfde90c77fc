//! Models whose cache cannot go back to any position: their states are loaded where they were taken.

use std::fs;

use contextpilot_testbed::{Arch, Builder, Model, Server};
use serde_json::json;

use super::{SIGKILL, SIGTERM, Stored, asking, chunk_files, folder, started, tokens};

/// Sliding windows of 64 tokens, a recurrent model, and a hybrid one.
pub(super) const ALL: [Arch; 3] = [Arch::Gemma2, Arch::Mamba, Arch::Jamba];

fn slots(arch: Arch, count: u32) -> Builder {
    Server::builder()
        .model(&Model::tiny(arch))
        .bare_slots(count)
        .args(["-c", "8192", "-ub", "64"])
}

pub(super) fn one_slot(arch: Arch) -> Builder {
    slots(arch, 1)
}

fn joined(beginning: &[u32], seed: u64, count: usize) -> Vec<u32> {
    let more = tokens(seed, count);
    beginning.iter().copied().chain(more).collect()
}

/// The server takes its last checkpoint four tokens before a prompt's end.
#[test]
fn a_prompt_that_was_overwritten_is_loaded_up_to_the_servers_last_checkpoint() {
    for arch in ALL {
        let folder = folder();
        let mut stored = Stored::start(&one_slot(arch), folder.path());
        let plain = started(&one_slot(arch));
        let (tea, sea) = (tokens(1, 600), tokens(2, 600));
        for prompt in [&tea, &sea, &tea, &sea] {
            let (_, account) = stored.compare(&plain, prompt);
            assert_eq!(
                account.causes.sum(),
                account.evaluated,
                "{arch}: {account:?}"
            );
            assert_eq!(
                account.reused + account.evaluated,
                600,
                "{arch}: {account:?}"
            );
        }
        let ([ours, theirs], account) = stored.compare(&plain, &tea);
        assert_eq!((ours.cache_n, theirs.cache_n), (0, 0), "{arch}");
        assert_eq!(account.from.store, 596, "{arch}: {account:?}");
        let figures = stored.figures();
        assert_eq!(figures.loaded_tokens, 3 * 596, "{arch}: {figures:?}");
        assert_eq!(figures.refused, [""; 0]);
        assert_eq!(figures.problem, None);
        assert_eq!(figures.failed_loads, 0);
    }
}

/// Nothing lies ahead that the prompt has: its end is evaluated, and what it has in common up to a state is not.
#[test]
fn a_conversation_goes_on_after_a_restart() {
    for arch in ALL {
        for signal in [SIGTERM, SIGKILL] {
            let folder = folder();
            let mut first = Stored::start(&one_slot(arch), folder.path());
            let tea = tokens(3, 900);
            let (answer, _) = first.send(asking(&tea).with("return_tokens", true));
            if signal == SIGKILL {
                // What the answer began with is stored where that is cheap; here it is lost for another prompt.
                first.ask(&tokens(4, 50));
            }
            first.await_written();
            first.server.stop(signal).unwrap();

            let mut next = Stored::start(&one_slot(arch), folder.path());
            let plain = started(&one_slot(arch));
            let said = answer.raw["tokens"].as_array().unwrap();
            let said = said.iter().map(|token| token.as_u64().unwrap() as u32);
            let longer: Vec<u32> = tea.iter().copied().chain(said).collect();
            let longer = joined(&longer, 5, 200);
            let (_, account) = next.compare(&plain, &longer);
            // Of four generated tokens, the last was not evaluated, and two more are not worth a copy.
            let loaded = account.from.store;
            assert!(
                (901..=903).contains(&loaded),
                "{arch} {signal}: {account:?}"
            );
            assert_eq!(
                account.evaluated,
                1104 - loaded,
                "{arch} {signal}: {account:?}"
            );
        }
    }
}

/// The server passes 64 tokens at a time, and none of its batches ends where a state was taken.
#[test]
fn the_batches_of_two_prompts_need_not_end_at_the_same_places() {
    for arch in ALL {
        let folder = folder();
        let mut first = Stored::start(&one_slot(arch), folder.path());
        let tea = tokens(6, 2600);
        first.ask(&tea);
        first.ask(&tokens(8, 50));
        first.end();

        let small = one_slot(arch).args(["-b", "67"]);
        let mut next = Stored::start(&small, folder.path());
        let plain = started(&small);
        let longer = joined(&tea, 7, 300);
        let (_, account) = next.compare(&plain, &longer);
        // The end of the first prompt, or a generated token that is the next one by chance.
        assert!(account.from.store >= 2596, "{arch}: {account:?}");
        assert_eq!(account.from.store + account.evaluated, 2900, "{arch}");
        let figures = next.figures();
        assert!(figures.loads <= 2, "{arch}: {figures:?}");
    }
}

/// On the way to a state nothing is in the engine yet. The prompt leaves the way before it.
#[test]
fn a_prompt_may_turn_off_before_the_state_that_it_seemed_to_go_to() {
    for arch in ALL {
        let folder = folder();
        let builder = one_slot(arch).args(["-b", "64"]);
        let mut stored = Stored::start(&builder, folder.path());
        let plain = started(&builder);
        let tea = tokens(8, 1000);
        stored.ask(&tea);
        stored.ask(&tokens(9, 100));
        for (kept, seed) in [(500, 10), (3, 11), (930, 12), (995, 13), (998, 14)] {
            let branch = joined(&tea[..kept], seed, 150);
            let (_, account) = stored.compare(&plain, &branch);
            assert_eq!(
                account.causes.sum(),
                account.evaluated,
                "{arch}: {account:?}"
            );
            assert_eq!(account.reused + account.evaluated, branch.len() as u64);
            let there = [932, 996].into_iter().filter(|at| *at <= kept).max();
            let there = there.unwrap_or(0) as u64;
            // Fewer tokens are not worth a load, if the slot has the others.
            assert!(account.reused + 8 > there, "{arch} {kept}: {account:?}");
        }
        stored.ask(&tokens(19, 100));
        let (_, account) = stored.compare(&plain, &tea);
        assert!(account.from.store >= 996, "{arch}: {account:?}");
        assert_eq!(stored.figures().failed_loads, 0);
    }
}

/// The file of a slot has the server's checkpoints in it. They must be those of a server without a store, byte for byte,
/// if nothing was loaded, and if all was, into the slot that had it or into another one. Those that are taken on the way
/// are in the store, and for them nothing is loaded.
#[test]
fn the_servers_own_checkpoints_are_those_of_a_plain_server() {
    for arch in ALL {
        let (folder, saves) = (folder(), folder());
        let at = saves.path().to_str().unwrap();
        let own = ["--no-kv-unified", "-t", "1", "--slot-save-path", at];
        let builder = slots(arch, 2).args(own);
        let stored = Stored::start(&builder, folder.path());
        let plain = started(&builder);
        // Shorter than the cache of the windows, so that the engine's cells are in order.
        let (tea, sea) = (tokens(15, 230), tokens(16, 90));
        let file = |server: &Server, slot: u32, name: &str| {
            let path = format!("/slots/{slot}?action=save");
            let saved = server.post(&path, &json!({ "filename": name }));
            assert_eq!(saved.unwrap().status, 200);
            fs::read(saves.path().join(name)).unwrap()
        };
        let one = |server: &Server, slot: u32, prompt: &[u32]| {
            server
                .complete(&asking(prompt).slot(slot).predict(1))
                .unwrap();
        };
        for slot in [0, 1] {
            one(&plain, slot, &tea);
        }
        let expected = [0, 1].map(|slot| file(&plain, slot, "plain"));
        one(&stored.server, 0, &tea);
        assert!(file(&stored.server, 0, "new") == expected[0], "{arch}: new");
        one(&stored.server, 0, &sea);
        for slot in [0, 1] {
            // Else the other slot's content is copied.
            one(&stored.server, 1 - slot, &sea);
            let before = stored.figures();
            one(&stored.server, slot, &tea);
            let after = stored.figures();
            let loaded = after.loaded_tokens - before.loaded_tokens;
            assert!(loaded >= 220, "{arch}, slot {slot}: {loaded}");
            assert_eq!(after.loads - before.loads, 1, "{arch}, slot {slot}");
            let (found, expected) = (
                file(&stored.server, slot, "loaded"),
                &expected[slot as usize],
            );
            assert_eq!(found.len(), expected.len(), "{arch}");
            let differ = |at: &usize| found[*at] != expected[*at];
            // Few of them, so that a failure can be read.
            let differing: Vec<usize> = (0..found.len()).filter(differ).take(9).collect();
            match arch {
                // The server writes down from which position on a checkpoint reaches. A plain server says 0, because
                // all of the prompt is still there; a state has the window, and no more.
                Arch::Gemma2 => {
                    assert_eq!(
                        differing.len(),
                        2,
                        "{arch} {slot} {}: {differing:?}",
                        found.len()
                    );
                    assert!(differing.iter().all(|at| expected[*at] == 0));
                }
                _ => assert_eq!(differing, [0; 0], "{arch}, slot {slot}"),
            }
        }
    }
}

/// A server that has gone back to a checkpoint which came from the store is known to hold what that stands for: what it
/// evaluates from there is stored.
#[test]
fn what_is_evaluated_behind_a_checkpoint_from_the_store_is_stored() {
    for arch in ALL {
        let folder = folder();
        let mut stored = Stored::start(&one_slot(arch), folder.path());
        let plain = started(&one_slot(arch));
        let (tea, sea) = (tokens(41, 600), tokens(42, 600));
        // The server's checkpoints are 68 and 4 tokens before the end.
        let branch = joined(&tea[..560], 43, 300);
        for prompt in [&tea, &sea, &tea] {
            stored.compare(&plain, prompt);
        }
        let before = stored.figures();
        assert_eq!((before.loads, before.loaded_tokens), (1, 596), "{arch}");
        // The server goes on at the checkpoint's last position or, if it reaches back to no other one, behind it.
        let at = if arch == Arch::Gemma2 { 531 } else { 532 };
        let ([ours, _], account) = stored.compare(&plain, &branch);
        assert_eq!(ours.cache_n, at, "{arch}: {account:?}");
        stored.compare(&plain, &sea);
        let (_, account) = stored.compare(&plain, &branch);
        assert_eq!(account.from.store, 856, "{arch}: {account:?}");
    }
}

/// The server copies its checkpoints to the host prompt cache and back: they stand elsewhere then.
#[test]
fn what_goes_back_to_a_checkpoint_from_the_host_cache_is_loaded_and_stored() {
    for arch in ALL {
        let folder = folder();
        let server = slots(arch, 1).args(["--cache-ram", "64"]);
        let mut stored = Stored::start(&server, folder.path());
        let plain = started(&server);
        let (tea, sea) = (tokens(44, 300), tokens(45, 280));
        let (longer, branch) = (joined(&tea, 46, 400), joined(&tea[..298], 47, 350));
        // The first prompt's checkpoint is 4 tokens before its end. What goes on behind it is put aside for another text, and comes
        // back for a branch there.
        for prompt in [&tea, &longer, &sea, &branch, &sea] {
            stored.compare(&plain, prompt);
        }
        let figures = stored.figures();
        assert_eq!(figures.refused, [""; 0], "{arch}");
        // Both were in a slot that came from the host cache.
        for prompt in [&longer, &branch] {
            let (ours, account) = stored.ask(prompt);
            let all = prompt.len() as u64;
            assert!(account.evaluated <= 4, "{arch}: {ours:?}, {account:?}");
            assert_eq!(
                account.reused + account.evaluated,
                all,
                "{arch}: {account:?}"
            );
        }
        assert_eq!(stored.figures().refused, [""; 0], "{arch}");
    }
}

#[test]
fn what_another_slot_holds_is_as_good_as_stored() {
    for arch in ALL {
        let folder = folder();
        let mut stored = Stored::start(&slots(arch, 2), folder.path());
        let plain = started(&slots(arch, 2));
        let tea = tokens(17, 700);
        let answer = stored.ask_slot(0, &tea).0;
        let said = answer.content;
        let longer = joined(&tea, 18, 40);
        let (answer, account) = stored.ask_slot(1, &longer);
        // The server took its checkpoints 68 and 4 tokens before the end of the one prompt, and wants one 68 tokens
        // before the end of the other.
        assert!(account.from.store >= 632, "{arch}: {account:?}");
        let expected = plain.complete(&asking(&longer)).unwrap();
        assert_eq!(answer.content, expected.content, "{arch}");
        // Nothing became of the first slot.
        let (answer, _) = stored.ask_slot(0, &tea);
        assert_eq!(answer.content, said, "{arch}");
        assert!(answer.cache_n >= 690, "{arch}: {answer:?}");
    }
}

#[test]
fn several_answers_to_a_loaded_prompt() {
    for arch in ALL {
        let folder = folder();
        let two = slots(arch, 2);
        let mut stored = Stored::start(&two, folder.path());
        let plain = started(&two);
        let tea = tokens(20, 600);
        stored.send(asking(&tea).predict(1).with("n", 2));
        for slot in [0, 1] {
            stored.ask_slot(slot, &tokens(23 + u64::from(slot), 700));
        }
        stored.send(asking(&tea).with("n", 2));
        let expected = plain.complete(&asking(&tea)).unwrap();
        for slot in [0, 1] {
            stored.ask_slot(slot, &tokens(25 + u64::from(slot), 700));
            let (answer, account) = stored.ask_slot(slot, &tea);
            assert_eq!(
                answer.content, expected.content,
                "{arch} {slot}: {account:?}"
            );
            assert!(account.from.store >= 596, "{arch}: {account:?}");
        }
    }
}

/// A damaged tail leaves the store, and an earlier state is loaded.
#[test]
fn a_damaged_tail_is_not_used() {
    for arch in ALL {
        let folder = folder();
        let mut first = Stored::start(&one_slot(arch), folder.path());
        let tea = tokens(30, 600);
        first.ask(&tea);
        first.end();
        for path in chunk_files(folder.path()) {
            let mut bytes = fs::read(&path).unwrap();
            // Their only token.
            if bytes[128..].starts_with(&i32::MIN.to_le_bytes()) {
                let end = bytes.len();
                bytes[end - 100] ^= 1;
                fs::write(&path, bytes).unwrap();
            }
        }
        let mut next = Stored::start(&one_slot(arch), folder.path());
        let plain = started(&one_slot(arch));
        let (_, account) = next.compare(&plain, &tea);
        assert_eq!((account.from.store, account.evaluated), (0, 600), "{arch}");
        let problem = next.figures().problem;
        assert!(problem.is_some_and(|problem| problem.contains("read")));
        // All is stored again.
        next.ask(&tokens(31, 50));
        let (_, account) = next.compare(&plain, &tea);
        assert_eq!(account.from.store, 596, "{arch}: {account:?}");
    }
}

/// The engine gets half of each state. What it lost by that is evaluated, and nothing wrong is stored.
#[test]
#[cfg(debug_assertions)] // A release build has no errors on demand.
fn refused_states_are_evaluated() {
    for (arch, first) in ALL.into_iter().flat_map(|arch| [(arch, 1), (arch, 2)]) {
        let folder = folder();
        let refusing = one_slot(arch).env("CONTEXTPILOT_FAULT", format!("load:{first}"));
        let mut stored = Stored::start(&refusing, folder.path());
        let plain = started(&one_slot(arch));
        let (tea, sea) = (tokens(32, 600), tokens(33, 600));
        let longer = joined(&tea, 34, 100);
        for prompt in [&tea, &sea, &tea, &longer, &sea, &longer, &tea] {
            stored.compare(&plain, prompt);
        }
        let figures = stored.figures();
        assert!(figures.failed_loads >= 2, "{arch}: {figures:?}");
        stored.end();
        let mut next = Stored::start(&one_slot(arch), folder.path());
        for prompt in [&tea, &sea, &longer] {
            let (_, account) = next.compare(&plain, prompt);
            assert!(account.from.store >= 596, "{arch}: {account:?}");
        }
    }
}

/// Each slot has streams of its own, and their number is part of a tail: servers with as many slots share what is stored.
#[test]
fn slots_with_memory_of_their_own() {
    for arch in ALL {
        let folder = folder();
        let builder = slots(arch, 2).args(["--no-kv-unified"]);
        let tea = tokens(35, 600);
        for slot in [0, 1] {
            let mut stored = Stored::start(&builder, folder.path());
            let plain = started(&builder);
            let (answer, account) = stored.ask_slot(slot, &tea);
            let expected = plain.complete(&asking(&tea)).unwrap();
            assert_eq!(answer.content, expected.content, "{arch}: {account:?}");
            let there = if slot == 0 { 0 } else { 596 };
            assert_eq!(account.from.store, there, "{arch}: {account:?}");
            stored.end();
        }
    }
}

/// A special token, a text, and what an answer begins with.
fn message(seed: u64, count: usize) -> Vec<u32> {
    [&[1], &tokens(seed, count)[..], &[2]].concat()
}

/// The client writes its last message anew. The server has no checkpoint near the place where that begins.
#[test]
fn a_branch_at_the_last_message_is_loaded_to_within_a_part_of_a_batch() {
    for arch in ALL {
        let folder = folder();
        let mut stored = Stored::start(&one_slot(arch), folder.path());
        let plain = started(&one_slot(arch));
        let head = [message(50, 300), message(51, 500), message(52, 200)].concat();
        let prompt = |seed| [&head[..], &message(seed, 400), &[1, 301, 302]].concat();
        stored.compare(&plain, &prompt(53));
        stored.compare(&plain, &tokens(54, 300));
        for seed in [55, 56] {
            let (_, account) = stored.compare(&plain, &prompt(seed));
            let (loaded, there) = (account.from.store, head.len() as u64);
            assert!(
                (there - 64..=there).contains(&loaded),
                "{arch}: {account:?}"
            );
        }
        stored.end();
        let mut next = Stored::start(&one_slot(arch), folder.path());
        let (_, account) = next.compare(&plain, &prompt(57));
        assert!(
            account.from.store + 64 >= head.len() as u64,
            "{arch}: {account:?}"
        );
        assert_eq!(next.figures().failed_loads, 0);
    }
}

/// The next turn of a conversation begins where an answer ends, and may be written anew as well.
#[test]
fn a_branch_behind_an_answer_is_loaded_up_to_that() {
    for arch in ALL {
        let folder = folder();
        let mut stored = Stored::start(&one_slot(arch), folder.path());
        let plain = started(&one_slot(arch));
        let first = [message(60, 300), vec![1, 301]].concat();
        let request = asking(&first).predict(200).with("ignore_eos", true);
        let (answer, _) = stored.send(request.with("return_tokens", true));
        let said = answer.raw["tokens"].as_array().unwrap();
        let said = said.iter().map(|token| token.as_u64().unwrap() as u32);
        let head: Vec<u32> = first.into_iter().chain(said).collect();
        let turn = |seed| [&head[..], &[2], &message(seed, 300), &[1, 301]].concat();
        stored.ask(&turn(61));
        stored.ask(&tokens(62, 300));
        let (_, account) = stored.compare(&plain, &turn(63));
        assert!(
            account.from.store + 64 >= head.len() as u64,
            "{arch}: {account:?}"
        );
    }
}

/// Prompts of text alone: the second to leave a third one at a place is not evaluated up to there.
#[test]
fn where_a_prompt_has_left_another_one_the_next_is_loaded() {
    for arch in ALL {
        let folder = folder();
        let mut stored = Stored::start(&one_slot(arch), folder.path());
        let plain = started(&one_slot(arch));
        let tea = tokens(70, 900);
        let branch = |seed| joined(&tea[..500], seed, 300);
        stored.ask(&tea);
        stored.ask(&tokens(71, 300));
        stored.compare(&plain, &branch(72));
        stored.ask(&tokens(73, 300));
        let (_, account) = stored.compare(&plain, &branch(74));
        let loaded = account.from.store;
        assert!((436..=500).contains(&loaded), "{arch}: {account:?}");
    }
}

/// The texts s, s and b, s and c, and what has a half of b: in each life, after a restart.
#[test]
fn what_turns_off_within_another_prompt_comes_back_in_the_next_life() {
    for arch in ALL {
        let folder = folder();
        let s = tokens(80, 380);
        let b = joined(&s, 81, 380);
        let c = joined(&s, 82, 380);
        let d = joined(&b[..570], 83, 259);
        for life in 0..4 {
            let mut stored = Stored::start(&one_slot(arch), folder.path());
            let plain = started(&one_slot(arch));
            for prompt in [&s, &b, &c, &d] {
                let (_, account) = stored.compare(&plain, prompt);
                if life > 0 {
                    assert!(account.evaluated <= 72, "{arch} {life}: {account:?}");
                }
            }
            stored.end();
        }
    }
}
