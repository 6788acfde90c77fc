//! Real programs, linked statically with a stub engine, under a preloaded library that
//! hooks it. They must do exactly what they do without the library, and every call must be seen.

#![cfg(target_os = "linux")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use contextpilot_inline::preflight;

/// In the driver's order. The first [`SILENT`] do not count themselves.
const ENGINE: [&str; 12] = [
    "llama_get_memory",
    "llama_memory_seq_rm",
    "llama_kv_self_clear",
    "llama_init_from_model",
    "llama_free",
    "llama_batch_ext_init",
    "llama_batch_ext_free",
    "llama_batch_ext_add_token",
    "llama_process",
    "llama_decode",
    "_ZN12server_queue10get_new_idEv",
    "_ZN19server_context_impl21launch_slot_with_taskER11server_slotO11server_task",
];

const SILENT: usize = 3;

/// Cargo builds an example only for a whole test run, so this asks it to.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let output = Command::new(env!("CARGO"))
            .args(["build", "--example", "counting", "--message-format=json"])
            .args(["--package", env!("CARGO_PKG_NAME"), "--manifest-path"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "the library cannot be built");
        let messages = String::from_utf8(output.stdout).expect("JSON is UTF-8");
        let path = messages
            .split('"')
            .rfind(|text| text.ends_with(".so") && text.contains("counting"))
            .expect("cargo says where the library is");
        PathBuf::from(path)
    })
}

struct Program {
    folder: tempfile::TempDir,
}

impl Program {
    fn build(compiler: &str, sources: &[&str], flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let mut command = Command::new(compiler);
        command
            .args(flags)
            .args(sources.iter().map(|source| fixtures.join(source)))
            .arg("-o")
            .arg(folder.path().join("program"));
        let output = command.output().expect("the compiler runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        Self { folder }
    }

    fn server(flags: &[&str]) -> Self {
        Self::build(
            "c++",
            &["server.cpp", "engine.cpp"],
            &[&["-pthread"], flags].concat(),
        )
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    fn command(&self) -> Command {
        Command::new(self.path())
    }

    /// Runs `command`, which is this program in some way, with `functions` hooked.
    fn hooked(&self, mut command: Command, functions: &[&str]) -> Hooked {
        let report = self.folder.path().join("report");
        let output = command
            .env("LD_PRELOAD", library())
            .env("COUNTING_FUNCTIONS", functions.join(" "))
            .env("COUNTING_REPORT", &report)
            .output()
            .expect("the program starts");
        let report = std::fs::read_to_string(report).expect("the library reports");
        let lines = report.lines().map(|line| {
            let mut fields = line.split('\t');
            let mut field = || fields.next().unwrap_or_default().to_owned();
            (field(), (field().parse().expect("a number"), field()))
        });
        Hooked {
            output,
            functions: lines.collect(),
        }
    }

    fn plain(&self) -> Output {
        self.command().output().expect("the program starts")
    }
}

struct Hooked {
    output: Output,
    /// Calls and fate, by name.
    functions: HashMap<String, (u64, String)>,
}

impl Hooked {
    fn fate(&self, name: &str) -> &str {
        &self.functions[name].1
    }

    fn calls(&self, name: &str) -> u64 {
        self.functions[name].0
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// How often each function says that it was called, by its plain name.
fn own_counts(output: &Output) -> HashMap<&str, u64> {
    let lines = text(&output.stdout).lines();
    let counts = lines.filter_map(|line| {
        let (name, count) = line.strip_prefix("count ")?.split_once(' ')?;
        Some((name, count.parse().ok()?))
    });
    counts.collect()
}

fn assert_undisturbed(program: &Program, hooked: &Hooked) {
    let plain = program.plain();
    assert!(plain.status.success());
    assert_eq!(
        hooked.output.status,
        plain.status,
        "{}",
        text(&hooked.output.stderr)
    );
    assert_eq!(text(&hooked.output.stdout), text(&plain.stdout));
    assert_eq!(text(&hooked.output.stderr), "");
}

fn assert_every_call_is_seen(program: &Program, command: Command) {
    let hooked = program.hooked(command, &ENGINE);
    assert_undisturbed(program, &hooked);
    let own = own_counts(&hooked.output);
    for name in ENGINE {
        assert_eq!(hooked.fate(name), "hooked", "{name}");
        let plain_name = own
            .keys()
            .find(|own| name == **own || name.contains(&format!("{}{own}", own.len())));
        let expected = match plain_name {
            Some(own_name) => own[own_name],
            None => 18,
        };
        assert_eq!(hooked.calls(name), expected, "{name}");
    }
    assert_eq!(own.len(), ENGINE.len() - SILENT);
    // No memory is left that could be both written and run.
    assert_eq!(hooked.calls(""), 0);
}

#[test]
fn in_executables_of_all_kinds_every_call_is_seen() {
    let kinds: [&[&str]; 6] = [
        &["-O2", "-fPIE", "-pie"],
        &["-O0", "-fPIE", "-pie"],
        &["-O2", "-no-pie", "-fno-pie"],
        &["-O3", "-fPIE", "-pie", "-fcf-protection=full"],
        &[
            "-O2",
            "-no-pie",
            "-fno-pie",
            "-fcf-protection=full",
            "-Wl,-z,relro,-z,now",
        ],
        &[
            "-Os",
            "-fPIE",
            "-pie",
            "-static-libstdc++",
            "-static-libgcc",
        ],
    ];
    for flags in kinds {
        println!("{flags:?}");
        if cfg!(not(target_arch = "x86_64")) && flags.contains(&"-fcf-protection=full") {
            continue;
        }
        let program = Program::server(flags);
        assert_every_call_is_seen(&program, program.command());
    }
}

#[test]
fn an_exception_passes_through_a_hook_with_a_frame() {
    let program = Program::server(&["-O2", "-fPIE", "-pie"]);
    let mut command = program.command();
    command.env("COUNTING_FRAMES", "1");
    assert_every_call_is_seen(&program, command);
    let plain = program.plain();
    assert!(text(&plain.stdout).contains("failed: negative token"));
    assert!(text(&plain.stdout).contains("not cleared: no memory"));
    assert!(text(&plain.stdout).contains("\ncleared: "));
}

/// As for the engines of a program, one after the other: every batch writes into the memory of the ones before.
#[test]
fn functions_may_be_hooked_in_several_batches() {
    let program = Program::server(&["-O2", "-fPIE", "-pie"]);
    for size in ["1", "5"] {
        let mut command = program.command();
        command.env("COUNTING_BATCHES", size);
        assert_every_call_is_seen(&program, command);
    }
}

#[test]
fn a_program_started_through_the_dynamic_linker_is_hooked() {
    let program = Program::server(&["-O2", "-fPIE", "-pie"]);
    let inspected = contextpilot_inspect::Program::open(&program.path()).expect("it is readable");
    let linkage = &inspected.executable().expect("it is an ELF file").linkage;
    let contextpilot_inspect::Linkage::Dynamic { interpreter, .. } = linkage else {
        panic!("{linkage:?}");
    };
    let mut command = Command::new(interpreter);
    command.arg(program.path());
    assert_every_call_is_seen(&program, command);
}

#[test]
fn a_stripped_program_is_not_changed() {
    let program = Program::server(&["-O2", "-s"]);
    let hooked = program.hooked(program.command(), &ENGINE);
    assert_undisturbed(&program, &hooked);
    for name in ENGINE {
        assert_eq!(hooked.fate(name), "missing");
    }
    // Unless it exports its functions.
    let program = Program::server(&["-O2", "-s", "-rdynamic"]);
    assert_every_call_is_seen(&program, program.command());
}

#[test]
fn if_code_may_not_be_changed_nothing_is_patched_and_the_reason_is_given() {
    let program = Program::server(&["-O2"]);
    let mut command = program.command();
    command.env("COUNTING_FORBID", "1");
    let report = program.folder.path().join("report");
    std::fs::write(&report, "").expect("writable");
    let hooked = program.hooked(command, &ENGINE);
    assert_undisturbed(&program, &hooked);
    if hooked.functions.is_empty() {
        println!("this kernel cannot forbid it (before Linux 6.3)");
        return;
    }
    for name in ENGINE {
        assert!(
            hooked.fate(name).contains("the system forbids it"),
            "{}",
            hooked.fate(name)
        );
        assert_eq!(hooked.calls(name), 0);
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn functions_that_cannot_be_hooked_are_refused_and_the_others_are_hooked() {
    let fates = [
        ("too_short", "is too short (3 bytes)"),
        ("loops_back", "branches back to its beginning (at +0xc)"),
        ("begins_with_call", "hooked"),
        ("begins_with_indirect_call", "begins with a call (at +0x1)"),
        ("relative", "hooked"),
        ("branches_early", "hooked"),
        ("one_name", "hooked"),
        ("other_name", "shares its code with one_name"),
        ("no_such_function", "missing"),
        // An object, not a function.
        ("counter", "missing"),
    ];
    for flags in [["-O2", "-fPIE", "-pie"], ["-O2", "-fno-pie", "-no-pie"]] {
        let program = Program::build("cc", &["awkward.c"], &flags);
        let hooked = program.hooked(program.command(), &fates.map(|(name, _)| name));
        assert_undisturbed(&program, &hooked);
        for (name, fate) in fates {
            assert_eq!(hooked.fate(name), fate, "{name}");
        }
        // The same can be told from the file.
        let names = fates.map(|(name, _)| name);
        let verdicts = preflight::of_file(&program.path(), &names).expect("it is sound");
        let verdicts = verdicts.into_iter().map(|verdict| match verdict {
            None => "missing".to_owned(),
            Some(Err(refusal)) => refusal.to_string(),
            Some(Ok(())) => "hooked".to_owned(),
        });
        for ((name, fate), verdict) in fates.iter().zip(verdicts) {
            // Each by itself, that is.
            let fate = if *name == "other_name" {
                "hooked"
            } else {
                fate
            };
            assert_eq!(verdict, fate, "{name}");
        }
        assert_eq!(hooked.calls("begins_with_call"), 5);
        assert_eq!(hooked.calls("relative"), 5);
        assert_eq!(hooked.calls("branches_early"), 5);
        // Both names lead there.
        assert_eq!(hooked.calls("one_name"), 10);
    }
}
