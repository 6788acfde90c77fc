//! `LLAMA_SERVER_BIN` is not the server itself, but a link, a script or another program.

use std::path::{Path, PathBuf};
use std::process::Command;

use contextpilot_testbed::{Index, Request, Server, llama_server};
use tempfile::TempDir;

use crate::support::hooked;
use crate::{assert_told, lines, server};

/// A folder next to the folders in which the servers run.
fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Writes a shell script, in which `REAL` stands for the path of the server. Another process writes
/// it. If this process did, a child that another test starts at that moment could still have it
/// open, and then it could not be executed.
fn script(folder: &TempDir, body: &str) -> PathBuf {
    let path = folder.path().join("llama-server");
    let real = llama_server();
    let written = Command::new("/bin/sh")
        .args(["-c", "printf '%s' \"$1\" > \"$0\" && chmod 755 \"$0\""])
        .arg(&path)
        .arg(body.replace("REAL", real.to_str().unwrap()))
        .status();
    assert!(written.unwrap().success());
    path
}

fn start(program: &Path, index: &Index) -> Server {
    hooked(&server().program(program), index)
}

fn ask(server: &Server) {
    for id in ["req-a", "req-b"] {
        let prompt = format!("{id} begins like no other");
        let request = Request::completion(prompt).id(id).slot(0);
        server.complete(&request).unwrap();
    }
}

/// The hook must work in this server, and nothing else may be printed.
#[track_caller]
fn assert_watched(server: &Server, index: &Index) {
    ask(server);
    assert_told(server, index, &["req-a"]);
    let said = lines(server);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("Launching with LD_PRELOAD"), "{said:?}");
    assert!(said[1].contains("Active: "), "{said:?}");
}

#[test]
fn through_a_symbolic_link_the_hook_works() {
    let folder = folder();
    let link = folder.path().join("any-name");
    std::os::unix::fs::symlink(llama_server(), &link).unwrap();
    let index = Index::start().unwrap();
    assert_watched(&start(&link, &index), &index);
}

#[test]
fn with_a_relative_path_the_hook_works() {
    let folder = folder();
    std::os::unix::fs::symlink(llama_server(), folder.path().join("llama-server")).unwrap();
    // The server runs in a folder next to this one.
    let name = Path::new(folder.path().file_name().unwrap());
    let path = Path::new("..").join(name).join("llama-server");
    let index = Index::start().unwrap();
    assert_watched(&start(&path, &index), &index);
}

#[test]
fn in_a_script_that_calls_exec_the_hook_works() {
    let folder = folder();
    let index = Index::start().unwrap();
    let body = "#!/bin/sh\nset -e\ntrue | cat\nexec REAL \"$@\"\n";
    assert_watched(&start(&script(&folder, body), &index), &index);
}

/// The shell waits for the server. The hook is loaded into the shell, too, and must be inert there.
#[test]
fn in_a_script_that_waits_for_the_server_the_hook_works() {
    let folder = folder();
    let index = Index::start().unwrap();
    let body = "#!/bin/sh\ntrap 'kill $!' TERM\nREAL \"$@\" &\nwait $!\nwait $!\n";
    let server = start(&script(&folder, body), &index);
    assert_watched(&server, &index);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    assert!(maps.contains("libcontextpilot_llama_hook"), "{maps}");
    assert!(!maps.contains("libllama"), "this is no shell:\n{maps}");
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    assert_eq!(threads.count(), 1);
}

#[test]
fn if_a_script_resets_the_environment_the_launcher_gives_advice() {
    let folder = folder();
    let index = Index::start().unwrap();
    let body = "#!/bin/sh\nexec env -i REAL \"$@\"\n";
    let server = start(&script(&folder, body), &index);
    ask(&server);
    assert_told(&server, &index, &[]);
    let said = lines(&server);
    assert!(
        said[0].contains("\"env -i\", which may keep the hook from the server"),
        "{said:?}"
    );
    assert!(
        said[0].contains(llama_server().to_str().unwrap()),
        "{said:?}"
    );
    assert!(!said.iter().any(|line| line.contains("Active")), "{said:?}");
}

/// The script follows the advice that the launcher prints for the script above.
#[test]
fn if_a_script_keeps_the_hooks_variables_the_hook_works() {
    let folder = folder();
    let index = Index::start().unwrap();
    let body = "#!/bin/sh\nexec env -i \"LD_PRELOAD=$LD_PRELOAD\" \
                \"CONTEXTPILOT_INDEX_URL=$CONTEXTPILOT_INDEX_URL\" \
                \"XDG_STATE_HOME=$XDG_STATE_HOME\" REAL \"$@\"\n";
    let server = start(&script(&folder, body), &index);
    ask(&server);
    assert_told(&server, &index, &["req-a"]);
}

/// `llama server …`: one program for all commands of llama.cpp. Debian has no such program, so the
/// test compiles one with the libraries of Debian's llama-server.
#[test]
fn in_one_program_for_all_commands_the_hook_works() {
    let folder = folder();
    let source = folder.path().join("llama.cpp");
    std::fs::write(
        &source,
        "#include <cstring>\n\
         int llama_server(int, char **);\n\
         int main(int argc, char **argv) {\n\
             if (argc > 1 && !strcmp(argv[1], \"server\")) return llama_server(argc - 1, argv + 1);\n\
             return 64;\n\
         }\n",
    )
    .unwrap();
    let real = llama_server();
    let parts = real.parent().unwrap();
    let program = folder.path().join("llama");
    let [loader, library, backend] = [
        "ld-linux-x86-64.so.2",
        "libllama-server-impl.so",
        "libggml-cpu-x64.so",
    ]
    .map(|name| parts.join(name));
    if ![&loader, &library, &backend]
        .iter()
        .all(|path| path.exists())
    {
        contextpilot_testbed::skip_optional("this llama-server has other parts than Debian's");
        return;
    }
    let built = Command::new("c++")
        .args([&source, Path::new("-o"), &program, &library])
        .args(["-Wl,--allow-shlib-undefined", "-Wl,--disable-new-dtags"])
        .arg(format!("-Wl,--dynamic-linker={}", loader.display()))
        .arg(format!("-Wl,-rpath,{}", parts.display()))
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let index = Index::start().unwrap();
    let llama = server().program(&program).subcommand("server");
    // Without this, the program looks for the backend next to its executable.
    let llama = llama.env("GGML_BACKEND_PATH", backend);
    assert_watched(&hooked(&llama, &index), &index);
}
