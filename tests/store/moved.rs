//! A conversation moves to another folder, and another server goes on with it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use contextpilot_testbed::{Builder, until};
use serde_json::Value;

use super::{Stored, asking, chunk_files, exact, folder, one_slot, started, tokens};

pub(crate) fn companion(folder: &Path, arguments: &[&str]) -> Output {
    companion_command(folder, arguments).output().unwrap()
}

pub(crate) fn companion_command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    command
        .arg("store")
        .args(arguments)
        .env("CONTEXTPILOT_STORE", folder);
    command.env_remove("CONTEXTPILOT_STORE_GB");
    // No server of this user runs there.
    command.env("XDG_RUNTIME_DIR", folder).env("HOME", folder);
    command
}

#[track_caller]
pub(crate) fn good(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
pub(crate) fn refused(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{output:?}");
    assert!(stderr.starts_with("[ContextPilot] "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

/// A server evaluates these prompts and ends.
fn store(builder: &Builder, folder: &Path, prompts: &[&[u32]]) {
    let mut stored = Stored::start(builder, folder);
    for prompt in prompts {
        stored.ask(prompt);
    }
    stored.end();
}

fn path(folder: &Path, name: &str) -> (PathBuf, String) {
    let path = folder.join(name);
    let text = path.to_string_lossy().into_owned();
    (path, text)
}

#[test]
fn a_conversation_goes_on_in_another_folder_as_if_it_had_been_there() {
    let (here, there, desk) = (folder(), folder(), folder());
    let tea = tokens(60, 900);
    let sea = tokens(61, 700);
    store(&one_slot(), here.path(), &[&sea, &tea]);

    // The other folder has the same first 300 tokens, and then something else.
    let mut other = tea[..300].to_vec();
    other.extend(tokens(62, 300));
    store(&one_slot(), there.path(), &[&other]);

    let (pack, name) = path(desk.path(), "tea.pack");
    let wanted = serde_json::json!({ "tokens": tea }).to_string();
    let (ids, ids_name) = path(desk.path(), "tea.json");
    fs::write(ids, wanted).unwrap();
    let said = good(&companion(
        here.path(),
        &["export", &name, "--tokens", &ids_name, "--json"],
    ));
    assert!(said["tokens"].as_u64().unwrap() >= 900, "{said}");
    assert_eq!(said["asked_tokens"], 900, "{said}");
    let mode = fs::metadata(&pack).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The same as an array, and with pieces.
    for more in [
        serde_json::json!(tea),
        serde_json::json!(
            tea.iter()
                .map(|id| serde_json::json!({"id": id, "piece": "a"}))
                .collect::<Vec<_>>()
        ),
    ] {
        let (same, same_name) = path(desk.path(), "same.pack");
        fs::write(desk.path().join("tea.json"), more.to_string()).unwrap();
        good(&companion(
            here.path(),
            &["export", &same_name, "--tokens", &ids_name, "--json"],
        ));
        assert_eq!(fs::read(&same).unwrap(), fs::read(&pack).unwrap());
        fs::remove_file(same).unwrap();
    }
    let again = refused(&companion(here.path(), &["export", &name]));
    assert!(again.contains("is there already"), "{again}");

    let said = good(&companion(there.path(), &["import", &name, "--json"]));
    let new = said["tokens"].as_u64().unwrap();
    assert!((600..=610).contains(&new), "{said}");
    let twice = good(&companion(there.path(), &["import", &name, "--json"]));
    assert_eq!((&twice["chunks"], &twice["tokens"]), (&0.into(), &0.into()));
    for file in chunk_files(there.path()) {
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }

    let plain = started(&one_slot());
    let mut next = Stored::start(&one_slot(), there.path());
    // Of the second prompt, the slot has what both have in common.
    for (prompt, least) in [(&tea, 890), (&other, 290)] {
        let mut prompt = prompt.clone();
        prompt.extend(tokens(63, 40));
        let ([ours, _], account) = next.compare(&plain, &prompt);
        assert!(account.from.store >= least, "{account:?}");
        assert!(account.evaluated <= 50, "{account:?}");
        assert_eq!(
            ours.content,
            plain.complete(&asking(&prompt)).unwrap().content
        );
    }
    let (_, account) = next.ask(&sea);
    assert_eq!(account.from.store, 0, "it was not asked for: {account:?}");
}

/// Models whose cache cannot go back to any position: the states that were taken move along.
#[test]
fn a_conversation_of_a_model_that_cannot_go_back_moves_with_its_states() {
    for arch in exact::ALL {
        let one_slot = exact::one_slot(arch);
        let (here, there, desk) = (folder(), folder(), folder());
        let (tea, sea) = (tokens(70, 900), tokens(71, 700));
        store(&one_slot, here.path(), &[&sea, &tea]);
        // Its chunk divides one of the pack.
        let mut other = tea[..300].to_vec();
        other.extend(tokens(72, 300));
        store(&one_slot, there.path(), &[&other]);

        let (_, name) = path(desk.path(), "tea.pack");
        let said = good(&companion(
            here.path(),
            &["export", &name, "--last", "1", "--json"],
        ));
        let exported = said["tokens"].as_u64().unwrap();
        assert!((900..=910).contains(&exported), "{arch}: {said}");
        let said = good(&companion(there.path(), &["import", &name, "--json"]));
        assert_eq!(said["tokens"], exported - 300, "{arch}: {said}");
        assert_eq!(said["there_tokens"], 300, "{arch}: {said}");
        let twice = good(&companion(there.path(), &["import", &name, "--json"]));
        assert_eq!(twice["chunks"], 0, "{arch}: {twice}");

        let plain = started(&one_slot);
        let mut next = Stored::start(&one_slot, there.path());
        let more = tokens(73, 40);
        let prompt: Vec<u32> = tea.iter().copied().chain(more).collect();
        let (_, account) = next.compare(&plain, &prompt);
        assert!(account.from.store >= 800, "{arch}: {account:?}");
        assert_eq!(account.from.store + account.evaluated, 940, "{arch}");
        let mut stayed = Stored::start(&one_slot, here.path());
        let (_, there) = stayed.ask(&prompt);
        assert_eq!(account.from.store, there.from.store, "{arch}: {there:?}");
        let (_, account) = next.ask(&sea);
        assert_eq!(account.from.store, 0, "{arch}: it was not asked for");
    }
}

/// A running server sees what is imported.
#[test]
fn everything_moves_under_a_running_server() {
    let (here, there, desk) = (folder(), folder(), folder());
    let prompts = [tokens(64, 500), tokens(65, 400)];
    store(&one_slot(), here.path(), &[&prompts[0], &prompts[1]]);
    let (_, name) = path(desk.path(), "all.pack");
    good(&companion(here.path(), &["export", &name, "--json"]));
    let mut next = Stored::start(&one_slot(), there.path());
    let said = good(&companion(there.path(), &["import", &name, "--json"]));
    let chunks = said["chunks"].as_u64().unwrap();
    until("the server has seen the chunks", || {
        (next.figures().chunks >= chunks).then_some(())
    });
    for prompt in &prompts {
        let (_, account) = next.ask(prompt);
        assert!(account.from.store + 8 >= prompt.len() as u64, "{account:?}");
    }
}

#[test]
fn a_pack_of_other_flags_or_another_size_is_refused_and_leaves_nothing() {
    let (here, there, desk) = (folder(), folder(), folder());
    store(&one_slot(), here.path(), &[&tokens(66, 600)]);
    let flags = one_slot().args(["--rope-freq-base", "5000"]);
    store(&flags, there.path(), &[&tokens(67, 300)]);
    let before = chunk_files(there.path());
    let (pack, name) = path(desk.path(), "tea.pack");
    good(&companion(
        here.path(),
        &["export", &name, "--last", "1", "--json"],
    ));

    let why = refused(&companion(there.path(), &["import", &name]));
    assert!(
        why.contains("flags differ: none, here --rope-freq-base 5000"),
        "{why}"
    );
    assert_eq!(chunk_files(there.path()), before);

    let fresh = folder();
    let mut small = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    small.args(["store", "import", &name]);
    small.env("CONTEXTPILOT_STORE", fresh.path());
    small.env("CONTEXTPILOT_STORE_GB", "0.0001");
    let why = refused(&small.output().unwrap());
    assert!(why.contains("budget"), "{why}");

    let mut bytes = fs::read(&pack).unwrap();
    let end = bytes.len();
    bytes[end / 2] ^= 1;
    fs::write(&pack, bytes).unwrap();
    let why = refused(&companion(fresh.path(), &["import", &name]));
    assert!(why.contains("damaged"), "{why}");
    assert_eq!(chunk_files(fresh.path()), [] as [PathBuf; 0]);
}
