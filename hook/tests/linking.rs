//! Servers with a host prompt cache that are linked in many ways: bound early or late, with
//! their own C++ runtime or allocator in one file or another.
//!
//! Entries of the host prompt cache are released with an `operator delete` that may be in any file. For
//! each way of linking, the test says what must come of it: the reports are exact, or no host prompt
//! cache is claimed (or the claim is withdrawn) and no eviction is missed, or the library does not attach.
//! In all cases the program behaves as without us.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod support;

use std::collections::BTreeSet;
use std::process::Command;

use contextpilot_testbed::skip_optional;
use support::linked::{Form, Linked, library_file, source_file};
use support::{Fixture, finish, heard, index, stderr, stdout};

use Outcome::{Exact, NotAttached, NothingClaimed};

/// The number of prompts that are saved to the host prompt cache, one by one.
const PROMPTS: usize = 64;
/// The number of prompts that are in it at the end.
const HELD: usize = 8;

/// The result of a run.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// A host prompt cache is claimed, and all reports are exact.
    Exact,
    /// No host prompt cache is claimed, or the claim was withdrawn, or requests cannot be tied to slots.
    /// No eviction was missed.
    NothingClaimed,
    /// The library did not attach.
    NotAttached,
}

fn ids(numbers: std::ops::Range<usize>) -> BTreeSet<String> {
    numbers.map(|number| format!("id-{number}")).collect()
}

/// Runs the program. `setting` is added to its environment.
#[track_caller]
fn outcome_with(fixture: &Fixture, setting: Option<(&str, String)>) -> Outcome {
    let run = |command: &mut Command| {
        command.args(["--cache-ram", "1"]);
        command.envs(setting.clone());
        let (output, _) = finish(command);
        assert!(output.status.success(), "{output:?}");
        (stdout(&output), stderr(&output))
    };
    let plain = run(fixture.host("host-cache", "").env_remove("LD_PRELOAD"));
    assert!(plain.0.contains("entries 8"), "{plain:?}");
    let index = index();
    let seen = run(&mut fixture.told("host-cache", &index));
    assert_eq!(seen.0, plain.0);
    // The program's own output on stderr must be as without us. An allocator prints, for instance.
    let ours = |line: &&str| line.starts_with("[ContextPilot]");
    let theirs: Vec<_> = seen.1.lines().filter(|line| !ours(line)).collect();
    assert_eq!(theirs, plain.1.lines().collect::<Vec<_>>(), "{}", seen.1);

    let lines: Vec<_> = seen.1.lines().filter(ours).collect();
    let banner = lines.first().copied().unwrap_or_default();
    if !banner.contains("] Active: ") {
        assert_eq!(heard(&index), "", "{lines:?}");
        return Outcome::NotAttached;
    }
    let trace = fixture.trace();
    let mut told = BTreeSet::new();
    for line in trace.lines() {
        let Some((_, rest)) = line.split_once("Evicted { id: \"") else {
            continue;
        };
        let (id, reason) = rest.split_once("\", reason: ").expect("a reason");
        // At the end everything is reported as evicted, so that proves nothing.
        if !reason.starts_with("ContextFreed") {
            assert!(told.insert(id.to_owned()), "{id} was told twice: {lines:?}");
        }
    }
    let gone = ids(0..PROMPTS - HELD);
    let untold: Vec<_> = gone.difference(&told).collect();
    assert!(untold.is_empty(), "{lines:?} untold: {untold:?}");
    let (claims, _) = banner.split_once("; ").unwrap_or((banner, ""));
    if !claims.contains("host prompt cache") {
        return Outcome::NothingClaimed;
    }
    if lines.len() > 1 {
        assert!(lines[1].contains("host prompt cache"), "{lines:?}");
        return Outcome::NothingClaimed;
    }
    if !claims.contains("slot assignment") {
        return Outcome::NothingClaimed;
    }
    let early: Vec<_> = told.difference(&gone).collect();
    assert!(early.is_empty(), "{lines:?} told, and held: {early:?}");
    Outcome::Exact
}

#[track_caller]
fn outcome(linked: Linked<'_>) -> Outcome {
    outcome_with(&linked.build(), None)
}

#[track_caller]
fn is_exact(linked: Linked<'_>) {
    results_in(linked, Exact);
}

#[track_caller]
fn results_in(linked: Linked<'_>, expected: Outcome) {
    assert_eq!(outcome(linked), expected, "{linked:?}");
}

const FORMS: [Form; 4] = [Form::Program, Form::Beside, Form::Library, Form::Inside];

/// The forms whose engine is a library.
const SHARED: [Form; 3] = [Form::Program, Form::Beside, Form::Library];

/// Links a C++ runtime into the file.
const RUNTIME: [&str; 2] = ["-static-libstdc++", "-static-libgcc"];

#[test]
fn linked_in_the_usual_ways() {
    for form in FORMS {
        is_exact(Linked::new(form));
    }
}

#[test]
fn bound_at_the_start_with_read_only_got() {
    const NOW: [&str; 1] = ["-Wl,-z,now,-z,relro"];
    for form in SHARED {
        is_exact(Linked::new(form).program(&NOW).library(&NOW));
    }
}

#[test]
fn bound_lazily() {
    const LAZY: [&str; 1] = ["-Wl,-z,lazy,-z,norelro"];
    for form in SHARED {
        is_exact(Linked::new(form).program(&LAZY).library(&LAZY));
    }
}

#[test]
fn called_without_a_plt_entry() {
    for form in SHARED {
        is_exact(Linked::new(form).compile(&["-fno-plt"]));
    }
}

/// In a non-PIE program, the address of a library function is that of its PLT entry.
#[test]
fn a_program_at_a_fixed_address() {
    for form in [Form::Program, Form::Beside] {
        is_exact(Linked::new(form).program(&["-no-pie"]));
    }
}

/// With `DT_HASH`, and with packed relocations if the linker supports them.
#[test]
fn with_the_older_hash_table_and_packed_relocations() {
    const OLDER: [&str; 1] = ["-Wl,--hash-style=sysv"];
    for form in SHARED {
        is_exact(Linked::new(form).program(&OLDER).library(&OLDER));
    }
}

#[test]
fn libraries_that_prefer_their_own_functions() {
    for (form, expected) in [
        (Form::Program, Exact),
        (Form::Beside, Exact),
        // The server's calls of its own functions do not go through the dynamic linker.
        (Form::Library, NothingClaimed),
    ] {
        results_in(Linked::new(form).library(&["-Wl,-Bsymbolic"]), expected);
    }
}

/// As releases for old systems are built.
#[test]
fn a_runtime_in_each_file() {
    for form in FORMS {
        is_exact(Linked::new(form).program(&RUNTIME).library(&RUNTIME));
    }
}

/// The dynamic linker finds it before all libraries, a preloaded one included.
#[test]
fn a_runtime_in_the_program() {
    for form in FORMS {
        is_exact(Linked::new(form).program(&RUNTIME));
    }
}

#[test]
fn a_runtime_that_a_library_keeps_to_itself() {
    const HIDDEN: [&str; 3] = [
        "-static-libstdc++",
        "-static-libgcc",
        "-Wl,--exclude-libs,ALL",
    ];
    const SYMBOLIC: [&str; 3] = ["-static-libstdc++", "-static-libgcc", "-Wl,-Bsymbolic"];
    for (form, hidden, symbolic) in [
        (Form::Program, Exact, Exact),
        (Form::Beside, NothingClaimed, Exact),
        (Form::Library, NothingClaimed, NothingClaimed),
    ] {
        results_in(Linked::new(form).library(&HIDDEN), hidden);
        results_in(Linked::new(form).library(&SYMBOLIC), symbolic);
    }
}

#[test]
fn an_allocator_in_the_program() {
    let allocator = source_file("allocator.cpp");
    let program = [allocator.as_str()];
    // Hidden, so no other file can bind to it.
    let hidden = [allocator.as_str(), "-fvisibility=hidden", "-s"];
    for (form, if_hidden) in [
        // Entries are released in the program, by a function without a name.
        (Form::Program, NothingClaimed),
        (Form::Beside, Exact),
        (Form::Library, Exact),
        // Nothing in the program has a name.
        (Form::Inside, NotAttached),
    ] {
        is_exact(Linked::new(form).program(&program));
        results_in(Linked::new(form).program(&hidden), if_hidden);
    }
}

#[test]
fn an_allocator_in_a_library() {
    let allocator = source_file("allocator.cpp");
    let library = ["-fPIC", allocator.as_str()];
    for form in SHARED {
        is_exact(Linked::new(form).library(&library));
    }
}

#[test]
fn jemalloc_in_the_program() {
    let Some(jemalloc) = library_file("libjemalloc_pic.a") else {
        return skip_optional("no libjemalloc_pic.a here");
    };
    let program = ["-Wl,--whole-archive", &jemalloc, "-Wl,--no-whole-archive"];
    let program = [&program[..], &["-lpthread", "-ldl", "-lm"]].concat();
    for form in FORMS {
        is_exact(Linked::new(form).program(&program));
    }
}

/// IFUNC: the dynamic linker calls a resolver that chooses the implementation.
#[test]
fn functions_that_are_chosen_when_the_program_is_loaded() {
    for form in FORMS {
        results_in(Linked::new(form).compile(&["-DCHOSEN"]), NotAttached);
    }
}

/// The constructor ran before, when there was no server to recognise.
#[test]
fn a_server_that_is_loaded_later() {
    for how in [
        "RTLD_NOW|RTLD_LOCAL",
        "RTLD_LAZY|RTLD_LOCAL",
        "RTLD_NOW|RTLD_GLOBAL",
    ] {
        let later = format!("-DLATER={how}");
        results_in(Linked::new(Form::Later).program(&[&later]), NotAttached);
    }
}

/// Calls from files that are loaded later count as the server's, too.
#[test]
fn a_plugin_that_drops_what_the_server_saved() {
    for form in SHARED {
        let fixture = Linked::new(form).build();
        let plugin = fixture.file("plugin.so");
        let outcome = outcome_with(&fixture, Some(("FIXTURE_PLUGIN", plugin)));
        assert_eq!(outcome, Exact, "{form:?}");
    }
}
