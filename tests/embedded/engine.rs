//! Attaching to an engine that is loaded later, and the prefix store there.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;

use contextpilot_client::Control;
use contextpilot_testbed::{Arch, adapter, chunk_files, or_return};

use crate::program::{Program, Run, Step, hooked};

/// The least tokens that a prompt from the store leaves to the engine: the eight of the answer but the last, and
/// one for each batch.
const FEW: u32 = 24;

#[track_caller]
fn must_load(run: &Run, names: &[&str]) {
    for name in names {
        let evaluated = run.step(name).evaluated;
        assert!(evaluated <= FEW, "{name}: {evaluated} evaluated\n{run:?}");
    }
}

#[test]
fn a_document_that_was_evaluated_before_is_loaded_also_by_the_next_process() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("again");
    let first = program.run_stored("again", store.path());
    first.must_answer_as(&plain);
    assert!(first.step("last 1").evaluated >= 1500, "{first:?}");
    assert!(plain.step("last 1").evaluated >= 1500 && plain.step("each 2").evaluated >= 1500);
    let later = ["each 1", "each 2", "twice at once"];
    must_load(&first, &later);
    // What both have in common is loaded.
    let branch = first.step("branch").evaluated;
    assert!((300..=300 + FEW).contains(&branch), "{first:?}");

    let second = program.run_stored("again", store.path());
    second.must_answer_as(&plain);
    must_load(&second, &["last 2", "branch"]);
    must_load(&second, &later);
    // What is in the model's file, and in the engine's, is not computed again, unless they are new.
    let [model, library] = [program.model(), program.library()].map(|path| {
        let found = std::fs::metadata(path).unwrap().created().unwrap();
        found.elapsed().unwrap() > std::time::Duration::from_secs(60)
    });
    let kept = std::fs::read_dir(store.path().join("v1/digests")).map_or(0, Iterator::count);
    assert!(kept >= usize::from(model) + usize::from(library), "{kept}");
    let library = program.library().display().to_string();
    for run in [&first, &second] {
        let mut lines = run.stderr.lines();
        // It is active when it was seen to evaluate, and not before.
        for (beginning, end) in [
            ("Attached", "nothing evaluated yet"),
            ("Active", "is followed"),
        ] {
            let line = lines.next().unwrap_or_default();
            let beginning = format!("[ContextPilot] {beginning}: llama.cpp ");
            let is_right = line.starts_with(&beginning) && line.ends_with(end);
            assert!(is_right && line.contains(&library), "{run:?}");
        }
        assert_eq!(lines.next(), None, "{run:?}");
    }
}

#[test]
fn sequences_and_contexts_side_by_side_load_what_each_other_evaluated() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("many");
    let run = program.run_stored("many", store.path());
    run.must_answer_as(&plain);
    must_load(&run, &["other again"]);
    let (ours, theirs) = (run.step("back").evaluated, plain.step("back").evaluated);
    assert!(
        ours <= 3 * FEW && theirs >= 2400,
        "{ours} {theirs}\n{run:?}"
    );
}

#[test]
fn two_contexts_load_at_the_same_time_what_either_evaluated() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("beside");
    let run = program.run_stored("beside", store.path());
    run.must_answer_as(&plain);
    // Each of the four documents was evaluated in the first four steps at the latest. What a context lost a moment
    // ago is in memory still.
    for thread in 0..2 {
        let later: Vec<String> = (4..12)
            .map(|step| format!("thread {thread}, {step}"))
            .collect();
        let later: Vec<&str> = later.iter().map(String::as_str).collect();
        must_load(&run, &later);
        assert!(plain.step(later[0]).evaluated >= 700, "{plain:?}");
    }
}

#[test]
fn a_state_that_the_program_saves_has_only_what_the_program_evaluated() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("saves");
    // The second life finds all of the document, and holds more of it than the program asked for.
    for life in 0..2 {
        let run = program.run_stored("saves", store.path());
        run.must_answer_as(&plain);
        for kind in ["memory saved", "file saved"] {
            assert_eq!(run.step(kind).rest, plain.step(kind).rest, "{life}");
        }
    }
}

#[test]
fn creating_and_freeing_models_leaves_nothing_behind() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("cycles");
    let run = program.run_stored("cycles", store.path());
    run.must_answer_as(&plain);
    let of = |run: &Run, cycle: u32, what: &str| run.step(&format!("after {cycle}")).rest[what];
    assert_eq!(of(&run, 12, "threads"), of(&run, 3, "threads"), "{run:?}");
    // One of the store may be open for a moment.
    assert!(of(&run, 12, "files") <= of(&run, 3, "files") + 1, "{run:?}");
    // In kB. Buffers are used again.
    let growth = of(&run, 12, "memory") - of(&run, 3, "memory");
    let theirs = of(&plain, 12, "memory") - of(&plain, 3, "memory");
    assert!(growth - theirs.max(0) < 4096, "{growth} {theirs}\n{run:?}");
    must_load(&run, &["cycle 4", "cycle 12"]);
}

#[test]
fn what_a_context_is_created_with_decides_what_it_may_load() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("purposes");
    // The numbers of frequencies were found: without them, answers are others.
    let answers = ["plain 0", "scaled 0"].map(|name| plain.step(name).top[0][0].1);
    assert!((answers[0] - answers[1]).abs() > 0.01, "{answers:?}");
    let run = program.run_stored("purposes", store.path());
    run.must_answer_as(&plain);
    must_load(&run, &["plain 2", "scaled 2"]);
    // Nothing is left out if the program looks at each token, and nothing of other frequencies is loaded.
    for name in [
        "looking 0",
        "looking 2",
        "embedding 0",
        "embedding 2",
        "scaled 0",
    ] {
        let (ours, theirs) = (run.step(name).evaluated, plain.step(name).evaluated);
        assert!(
            ours >= theirs && theirs >= 1000,
            "{name} {ours} {theirs}\n{run:?}"
        );
    }
}

/// What was evaluated under one must not be loaded under another one that is at its address now.
#[test]
fn an_adapter_that_is_freed_and_another_one_at_its_address_are_two() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let files = [7, 8].map(|seed| adapter(Arch::Llama, seed, &[]).canonicalize().unwrap());
    let [tea, sea] = files.each_ref().map(|file| file.to_str().unwrap());
    let adapters = [("TEA", tea), ("SEA", sea)];
    let plain = program.run_with("adapters", &adapters);
    assert_ne!(
        plain.step("applied 0").tokens,
        plain.step("applied 1").tokens
    );
    let mut variables = hooked(store.path()).to_vec();
    variables.extend(adapters);
    // Also what an earlier process has stored.
    for _ in 0..2 {
        let run = program.run_with("adapters", &variables);
        run.must_answer_as(&plain);
        must_load(&run, &["applied 2", "plain 1", "plain 2"]);
    }
}

/// Nothing of these is stored or loaded, and each has its reason in `store.refused`.
#[test]
fn what_no_file_says_and_what_programs_look_at_has_no_store_and_that_is_said() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let tea = adapter(Arch::Llama, 7, &[]).canonicalize().unwrap();
    let tea = ("TEA", tea.to_str().unwrap());
    let socket = program.folder().join("control.sock");
    let listen = format!("unix:{}", socket.display());
    let mut variables = hooked(store.path()).to_vec();
    variables.extend([tea, ("CONTEXTPILOT_LISTEN", &listen)]);
    let mut command = program.command("unknown", &variables);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let steps = lines.map(|line| serde_json::from_str::<Step>(&line.unwrap()).unwrap());
    let steps: Vec<Step> = steps.take_while(|step| step.name != "waiting").collect();
    assert_eq!(steps.len(), 12);
    for step in &steps {
        assert!(step.evaluated >= 600, "{}: {}", step.name, step.evaluated);
    }
    let figures = Control::new(&listen).unwrap().stats().unwrap().store;
    let refused = figures.unwrap().refused;
    for why in [
        "an adapter whose file is not known",
        "a control vector",
        "the program looks at each evaluation (cb_eval)",
        "the file of the model is not known",
    ] {
        assert!(
            refused.iter().any(|one| one.contains(why)),
            "{why}: {refused:?}"
        );
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(chunk_files(store.path()), [""; 0].map(PathBuf::from));
}

/// In whatever context it was trained, and whatever is evaluated later.
#[test]
fn a_model_that_was_trained_in_the_process_has_no_store_any_more() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("trains");
    let run = program.run_stored("trains", store.path());
    run.must_answer_as(&plain);
    must_load(&run, &["before 2", "beside 0", "beside 2"]);
    let evaluated = |name: &str| run.step(name).evaluated;
    for name in ["beside again 1", "beside again 2", "later 0", "later 2"] {
        assert!(evaluated(name) >= 390, "{name}: {run:?}");
    }
    // What was evaluated before is what the file says.
    let second = program.run_stored("trains", store.path());
    must_load(&second, &["before 1", "beside 0"]);
}

/// For the dynamic linker, a library that is preloaded is one that the program was linked with.
#[test]
fn a_program_that_is_linked_with_the_engine_is_attached_to_at_its_start() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("many");
    let mut variables = hooked(store.path());
    let preload = format!("{}:{}", variables[0].1, program.library().display());
    variables[0].1 = &preload;
    let run = program.run_with("many", &variables);
    run.must_answer_as(&plain);
    must_load(&run, &["other again"]);
}

/// The child has none of our threads, so it has no store.
#[test]
fn a_forked_child_goes_on_without_the_hook() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("fork");
    let run = program.run_stored("fork", store.path());
    run.must_answer_as(&plain);
    assert_eq!(run.step("child ended").rest["status"], 0);
    assert!(run.step("child").evaluated >= 1500, "{run:?}");
    must_load(&run, &["parent again"]);
}

/// As web servers do that fork their workers.
#[test]
fn forked_workers_that_load_their_own_models_have_the_store() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("workers");
    let run = program.run_stored("workers", store.path());
    run.must_answer_as(&plain);
    must_load(&run, &["worker 0 2", "worker 1 0", "worker 1 1"]);
    for life in ["worker 0 ended", "worker 1 ended"] {
        assert_eq!(run.step(life).rest["status"], 0, "{run:?}");
    }
}

#[test]
fn two_engines_in_one_process_have_the_store_side_by_side() {
    let program = or_return!(Program::find());
    let copy = program.folder().join("libllama.so.0");
    std::fs::copy(program.library(), &copy).unwrap();
    let store = tempfile::tempdir().unwrap();
    let plain = program.run("two");
    let run = program.run_stored("two", store.path());
    run.must_answer_as(&plain);
    assert!(run.step("first 0").evaluated >= 1000, "{run:?}");
    // Both files have the same content, so the second engine has what the first one evaluated.
    must_load(&run, &["first 2", "second 1", "second 2"]);
    // Its first batch of 512 may come before the digest of its file is made: nothing waits for that.
    assert!(run.step("second 0").evaluated <= 522, "{run:?}");
    for thread in 0..2 {
        for step in 4..12 {
            must_load(&run, &[&format!("thread {thread}, {step}")]);
        }
    }
    let copy = copy.display();
    for said in [
        format!("Attached, too: llama.cpp of {copy}, "),
        format!(" of {copy}: it evaluates, and is followed"),
    ] {
        assert_eq!(run.stderr.matches(&said).count(), 1, "{run:?}");
    }
    assert_eq!(run.stderr.lines().count(), 4, "{run:?}");
}

#[test]
fn without_the_setting_the_program_is_left_alone() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let folder = store.path().join("store");
    let hook = env!("CONTEXTPILOT_EMBEDDED_HOOK");
    for engine in ["", "0"] {
        let run = program.run_with(
            "again",
            &[
                ("LD_PRELOAD", hook),
                ("CONTEXTPILOT_STORE", folder.to_str().unwrap()),
                ("CONTEXTPILOT_ENGINE", engine),
            ],
        );
        assert_eq!(run.stderr, "");
        assert!(run.step("each 1").evaluated >= 1500, "{run:?}");
        assert!(!folder.exists());
    }
}
