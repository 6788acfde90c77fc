//! `doctor` of a library, a module, a wheel, and a process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::{Program, hooked, without_ours};
use crate::run::module_with_texts;
use contextpilot_testbed::or_return;

/// What it prints, and its exit code.
fn doctor(arguments: &[&Path]) -> (String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    without_ours(&mut command);
    let output = command.arg("doctor").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (said, output.status.code())
}

/// Whether it says that llama.cpp's library would be followed.
#[track_caller]
fn must_follow(said: &str) {
    for line in [
        "ok     KV cache      followed",
        "ok     prefix store  possible",
    ] {
        assert!(said.contains(line), "{said}");
    }
    let inline = said
        .lines()
        .find(|line| line.starts_with("ok     functions "));
    assert!(
        inline
            .unwrap_or_default()
            .contains(" will be hooked: 0 imported, "),
        "{said}"
    );
    assert!(!said.contains("static"), "{said}");
}

#[test]
fn a_library_and_a_wheel_with_it_would_be_followed() {
    let program = or_return!(Program::find());
    let (said, code) = doctor(&[program.library()]);
    must_follow(&said);
    assert_eq!(code, Some(0), "{said}");

    let wheel = program.folder().join("engine-1.0-py3-none-any.whl");
    let pack = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w', zipfile.ZIP_DEFLATED) as wheel:
    wheel.write(sys.argv[2], 'engine/lib/libllama.so')
    wheel.writestr('engine/__init__.py', 'x = 1')
    wheel.writestr('../outside.so', 'x')";
    let mut packs = Command::new("python3");
    packs.args(["-c", pack]).arg(&wheel).arg(program.library());
    assert!(packs.status().unwrap().success());
    let (said, _) = doctor(&[&wheel]);
    must_follow(&said);
    assert!(
        said.contains("ok     llama.cpp     engine/lib/libllama.so"),
        "{said}"
    );
}

#[test]
fn a_module_whose_functions_are_hidden_would_not_be_followed_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let module = module_with_texts(folder.path(), &["-fvisibility=default"]);
    let (said, code) = doctor(&[&module]);
    let why = "fails  KV cache      not followed: its functions cannot be found (hidden, stripped";
    assert!(said.contains(why) && code == Some(2), "{said}");
    std::fs::write(folder.path().join("bad.whl"), "PK").unwrap();
    let (said, code) = doctor(&[&folder.path().join("bad.whl")]);
    assert!(said.contains("fails  wheel ") && code == Some(2), "{said}");
}

/// ik_llama.cpp has the functions and a longer structure: `doctor` said "followed" of it, and "All good".
#[test]
fn a_fork_with_another_batch_would_not_be_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (source, built) = (
        folder.path().join("fork.c"),
        folder.path().join("libllama.so"),
    );
    let code = "#include <stdint.h>
        struct batch { int32_t len, *token; void *rest[5]; MORE };
        struct batch llama_batch_get_one(int32_t *token, int32_t len) { return (struct batch){len, token}; }
        int llama_decode(void *context, struct batch batch) { return context ? batch.len : 1; }
        int llama_memory_seq_rm(void) { return 1; }";
    std::fs::write(&source, code).unwrap();
    for (more, is_other) in [("", false), ("int32_t first, step, sequence;", true)] {
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&built);
        compiler.arg(format!("-DMORE={more}")).arg(&source);
        assert!(compiler.status().unwrap().success());
        let (said, code) = doctor(&[&built]);
        // The compiler may pad it.
        let other = said.contains(
            "not followed: it is another llama.cpp, whose llama_batch is not the known one (",
        );
        assert_eq!(other, is_other, "{said}");
        assert_eq!(code, Some(2), "{said}");
    }
}

#[test]
fn of_a_process_it_says_which_engine_it_has_and_whether_the_hook_is_in_it() {
    let program = or_return!(Program::find());
    let store = program.folder().join("store");
    for (variables, line) in [
        (
            &[][..],
            "limit  hook          not in it: start it by contextpilot-llama run",
        ),
        (&hooked(&store)[..], "ok     hook          in it: "),
    ] {
        let mut command = program.command("wait", variables);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap);
        assert!(lines.any(|line| line.contains("waiting")));
        let pid = child.id().to_string();
        let (said, _) = doctor(&["--pid".as_ref(), pid.as_ref()]);
        must_follow(&said);
        assert!(said.contains(line), "{said}");
        let library = program.library().canonicalize().unwrap();
        assert!(
            said.contains(&format!("llama.cpp     {}", library.display())),
            "{said}"
        );
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
    }
    let (said, code) = doctor(&["--pid".as_ref(), "4194305".as_ref()]);
    assert!(said.contains("fails  process       4194305 cannot be looked at") && code == Some(2));
}
