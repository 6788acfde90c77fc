//! `contextpilot-llama run`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use contextpilot_testbed::{or_return, skip_optional};

use crate::program::{Program, Run, without_ours};

/// The command, with these variables and no others of ours.
fn run(line: &[&Path], variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    without_ours(&mut command);
    command
        .arg("run")
        .args(line)
        .envs(variables.iter().copied())
        .output()
        .expect("it starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_program_that_is_run_has_the_store() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let line = program.line("again");
    let line: Vec<&Path> = line.iter().map(AsRef::as_ref).collect();
    let mut sums = Vec::new();
    for separator in [&["--".as_ref()][..], &[]] {
        let line = [separator, &line].concat();
        let output = run(&line, &[("CONTEXTPILOT_STORE", store.path())]);
        let run = Run::of(&output);
        assert!(run.step("each 1").evaluated < 100, "{run:?}");
        assert!(run.stderr.contains("Active: llama.cpp"), "{run:?}");
        let last = run.stderr.lines().last().unwrap_or_default();
        let sum = last
            .strip_prefix("[ContextPilot] Prefix store, in tokens: ")
            .unwrap();
        let (loaded, rest) = sum.split_once(" loaded instead of evaluated, ").unwrap();
        let saved = rest.strip_suffix(" stored").unwrap();
        // The second run begins with what the first has stored.
        let [loaded, saved] = [loaded, saved].map(|number| number.parse::<u64>().unwrap());
        sums.push((loaded, saved));
    }
    let [first, second] = sums[..] else { panic!() };
    assert!(first.0 > 500 && first.1 > 500, "{sums:?}");
    assert!(second.0 > first.0 && second.1 < first.1, "{sums:?}");
}

/// What it starts inherits the setting, as a server's worker or a script's program must.
#[test]
fn a_program_that_a_script_starts_has_the_store_too() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let script = ["sh", "-c", "\"$@\" & wait $!", "sh"].map(Path::new);
    let line = program.line("again");
    let line: Vec<&Path> = script
        .into_iter()
        .chain(line.iter().map(AsRef::as_ref))
        .collect();
    let run = Run::of(&run(&line, &[("CONTEXTPILOT_STORE", store.path())]));
    assert!(run.step("each 1").evaluated < 100, "{run:?}");
    assert_eq!(
        run.stderr.matches("Active: llama.cpp").count(),
        1,
        "{run:?}"
    );
}

#[test]
fn arguments_and_the_exit_code_are_the_programs_own() {
    let script = "echo $CONTEXTPILOT_ENGINE \"$@\"; exit 5";
    let line = ["sh", "-c", script, "sh", "--help", "-x", "--", "a b"];
    let line = line.map(Path::new);
    let folder = tempfile::tempdir().unwrap();
    let output = run(&line, &[("CONTEXTPILOT_STORE", folder.path())]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert_eq!(output.stdout, b"1 --help -x -- a b\n", "{output:?}");
    // Some shells end without a chance to say that they had no llama.cpp.
    let said = stderr(&output);
    assert!(
        said.is_empty() || said.contains("had no llama.cpp until its end"),
        "{said}"
    );
    assert!(said.lines().count() <= 1, "{said}");
    // The hook has nothing to do.
    let output = run(&line, &[]);
    assert_eq!(output.stdout, b"--help -x -- a b\n", "{output:?}");
    assert!(stderr(&output).contains("set CONTEXTPILOT_STORE or CONTEXTPILOT_LISTEN"));
}

#[test]
fn a_program_that_is_not_there_or_cannot_be_executed_is_named() {
    let output = run(&["/no/such/program".as_ref()], &[]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(stderr(&output).contains("/no/such/program was not found"));
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = run(&[manifest.as_ref()], &[]);
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    assert!(stderr(&output).contains("Cargo.toml is no program that can be run"));
    let output = run(
        &["true".as_ref()],
        &[("CONTEXTPILOT_STORE", "relative".as_ref())],
    );
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// A shared object with the texts that each llama.cpp has, and as large as one, and these flags.
pub(crate) fn module_with_texts(folder: &Path, flags: &[&str]) -> PathBuf {
    let (source, built) = (folder.join("module.c"), folder.join("module.so"));
    let code = r#"
        const char texts[] = "%s: failed to decode, ret = %d\n\0general.architecture";
        static volatile char room[1 << 21] = {1};
        int plugin(void) { return texts[1] + room[9]; }
        #ifdef A_PART
        int llama_decode(void) { return plugin(); }
        void *llama_init_from_model(void) { return 0; }
        #endif
        #ifdef A_PROGRAM
        int llama_memory_seq_rm(void) { return plugin(); }
        int main(void) { return llama_decode() + llama_memory_seq_rm() == 1; }
        #endif
    "#;
    std::fs::write(&source, code).unwrap();
    let mut compiler = Command::new("cc");
    if !flags.contains(&"-DA_PROGRAM") {
        compiler.arg("-shared");
    }
    let flags = compiler
        .args(["-fPIC", "-Wl,--no-as-needed", "-o"])
        .arg(&built)
        .args(flags);
    assert!(flags.arg(&source).status().unwrap().success());
    built
}

/// As a static Rust program with llama.cpp inside (examples/static-rust without its build.rs).
#[test]
fn a_program_of_which_the_linker_has_removed_functions_names_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let program = module_with_texts(folder.path(), &["-DA_PART", "-DA_PROGRAM"]);
    let store = ("CONTEXTPILOT_STORE", folder.path());
    let said = stderr(&run(&[&program], &[store]));
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    without_ours(&mut doctor);
    let doctor = doctor.arg("doctor").arg(&program).output().unwrap();
    let report = String::from_utf8_lossy(&doctor.stdout);
    for said in [&said, &*report] {
        for part in [
            "llama_memory_clear, ",
            ", llama_memory_seq_cp, ",
            ", llama_state_seq_load_file",
            "--gc-sections removes what a program does not call",
            "build.rs keeps it: println!(\"cargo:rustc-link-arg=-Wl,--export-dynamic-symbol=llama_*\");",
        ] {
            assert!(said.contains(part), "{part}\n{said}");
        }
    }
    assert_eq!(said.lines().count(), 1, "{said}");
    // It is no server, and is not judged as one.
    assert!(
        report.contains("ok     llama.cpp     ") && !report.contains("request ids"),
        "{report}"
    );
}

/// A program that loads modules, as Python and Node do.
pub(crate) fn loader(folder: &Path) -> PathBuf {
    let (source, built) = (folder.join("loader.c"), folder.join("loader"));
    let code = r#"
        #include <dlfcn.h>
        #include <unistd.h>
        int main(int count, char **arguments) {
            void *module = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
            int result = module && dlsym(module, "plugin") ? 0 : count;
            char line;
            return write(1, "loaded\n", 7) == 7 && read(0, &line, 1) >= 0 ? result : count;
        }
    "#;
    std::fs::write(&source, code).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&built).arg(&source).arg("-ldl");
    assert!(compiler.status().unwrap().success());
    built
}

#[test]
fn an_engine_that_cannot_be_followed_is_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let loader = loader(folder.path());
    let store = folder.path().join("store");
    let store = ("CONTEXTPILOT_STORE", store.as_path());
    for (flag, why) in [
        (
            "-fvisibility=default",
            "its functions cannot be found (hidden, stripped, or inlined",
        ),
        (
            "-DA_PART",
            "llama_state_load_file; its prompts are evaluated as ever: --gc-sections removes",
        ),
    ] {
        let module = module_with_texts(folder.path(), &[flag]);
        let output = run(&[&loader, &module], &[store]);
        assert!(output.status.success(), "{output:?}");
        let said = stderr(&output);
        let name = module.display().to_string();
        assert!(said.contains(&name) && said.contains(why), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        // Another library may have one that can be followed.
        let strict = ("CONTEXTPILOT_STRICT", "1".as_ref());
        let output = run(&[&loader, &module], &[store, strict]);
        assert!(output.status.success(), "{output:?}");
        assert!(stderr(&output).contains(why), "{output:?}");
    }
    // What has no llama.cpp inside is not named.
    let plugin = folder.path().join("plain.so");
    let flags = ["-shared", "-fPIC", "-Wl,-z,now,-z,relro"];
    crate::loading::compile("cc", &plugin, "plugin.c", &flags);
    let said = stderr(&run(&[&loader, &plugin], &[store]));
    assert!(said.contains("had no llama.cpp until its end"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_static_program_is_refused_by_name_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (source, built) = (folder.path().join("a.c"), folder.path().join("static"));
    // As large as a program with an engine in it.
    let code = "static volatile char room[1 << 21] = {1}; int main(void) { return 5 + room[9]; }";
    std::fs::write(&source, code).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-static").arg("-o").arg(&built).arg(&source);
    if !compiler
        .output()
        .expect("the compiler starts")
        .status
        .success()
    {
        return skip_optional("no static C library here");
    }
    let store = ("CONTEXTPILOT_STORE", folder.path());
    let output = run(&[&built], &[store]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let said = stderr(&output);
    let name = built.display().to_string();
    assert!(
        said.contains(&name) && said.contains("linked fully statically"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let output = run(&[&built], &[store, ("CONTEXTPILOT_STRICT", "1".as_ref())]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}
