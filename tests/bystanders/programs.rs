//! Programs of all kinds. Each does things that the library would hook in a llama-server: it sends and
//! receives, starts processes and threads, frees memory.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use contextpilot_testbed::skip;

use crate::runs::Bystander;
use crate::tools::{cc, compiles, fixture, program, python};

#[test]
fn a_shell_behaves_as_without_the_hook() {
    let Some(shell) = program("sh") else { return };
    let script = "echo $(echo inside); ls /proc/$$/task | wc -l; echo aside >&2; exit 3";
    Bystander::new(shell)
        .args(["-c", script])
        .exits(3)
        .must_not_notice();
}

#[test]
fn python_with_sockets_threads_and_children_behaves_as_without_the_hook() {
    let Some(python) = python() else { return };
    Bystander::new(python)
        .arg(fixture("sockets.py"))
        .exits(5)
        .must_not_notice();
}

#[test]
fn perl_with_sockets_and_children_behaves_as_without_the_hook() {
    let Some(perl) = program("perl") else { return };
    Bystander::new(perl)
        .arg(fixture("sockets.pl"))
        .exits(6)
        .must_not_notice();
}

#[test]
fn node_with_a_server_behaves_as_without_the_hook() {
    let Some(node) = program("node") else { return };
    Bystander::new(node)
        .arg(fixture("server.js"))
        .exits(7)
        .with_threads()
        .must_not_notice();
}

#[test]
fn git_and_its_hooks_behave_as_without_the_hook() {
    let (Some(shell), Some(_)) = (program("sh"), program("git")) else {
        return;
    };
    Bystander::new(shell)
        .arg(fixture("git.sh"))
        .must_not_notice();
}

/// Starts a server that always gives the same answer, and returns its port.
fn answering() -> u16 {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut asked = Vec::new();
            let mut part = [0; 512];
            while !asked.ends_with(b"\r\n\r\n") {
                match client.read(&mut part) {
                    Ok(count @ 1..) => asked.extend(&part[..count]),
                    _ => break,
                }
            }
            let _ = client.write_all(ANSWER.as_bytes());
        }
    });
    port
}

#[test]
fn curl_behaves_as_without_the_hook() {
    let Some(curl) = program("curl") else { return };
    let url = format!("http://127.0.0.1:{}/", answering());
    Bystander::new(curl)
        .args([
            "--silent",
            "--show-error",
            "--noproxy",
            "*",
            "--dump-header",
            "-",
        ])
        .arg(url)
        .must_not_notice();
}

#[test]
fn ssh_behaves_as_without_the_hook() {
    let Some(ssh) = program("ssh") else { return };
    Bystander::new(ssh).arg("-V").must_not_notice();
}

#[test]
fn a_java_program_behaves_as_without_the_hook() {
    let Some(java) = program("java") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Without these options the JVM writes files to /tmp, whose names differ.
    let quiet = ["-XX:-UsePerfData", "-Xshare:auto", "-XX:+UseSerialGC"];
    let bystander = Bystander::new(java).args(quiet).with_threads();
    let Some(javac) = program("javac") else {
        return bystander.arg("-version").must_not_notice();
    };
    let mut compiler = std::process::Command::new(javac);
    compiler.arg("-d").arg(folder.path());
    if compiles(compiler.arg(fixture("Sockets.java")), "Sockets.java") {
        bystander
            .arg("-cp")
            .arg(folder.path())
            .arg("Sockets")
            .exits(8)
            .must_not_notice();
    }
}

/// A Go program, first without the C library, so that a preload does not reach it, then with it.
#[test]
fn go_programs_behave_as_without_the_hook() {
    let Some(go) = program("go") else { return };
    for cgo in ["0", "1"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let built = folder.path().join("sockets");
        let mut compiler = std::process::Command::new(&go);
        compiler
            .args(["build", "-tags", "netcgo", "-o"])
            .arg(&built)
            .arg(fixture("sockets.go"))
            .env("CGO_ENABLED", cgo)
            .env("GOCACHE", folder.path().join("cache"))
            .env("GOPROXY", "off")
            .env("GOTOOLCHAIN", "local");
        if compiles(&mut compiler, "sockets.go") {
            let bystander = Bystander::new(built).exits(9);
            bystander.with_threads().must_not_notice();
        }
    }
}

fn compiled(folder: &Path, name: &str, flags: &[&str]) -> Option<Bystander> {
    let built = folder.join(name);
    let mut compiler = cc(flags);
    compiler.arg("-o").arg(&built).arg(fixture("sockets.c"));
    compiles(compiler.arg("-lpthread"), name).then(|| Bystander::new(built).exits(4))
}

#[test]
fn a_static_program_behaves_as_without_the_hook() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if let Some(bystander) = compiled(folder.path(), "static", &["-static"]) {
        bystander.must_not_notice();
    }
}

/// Programs with the name of llama-server that are not one.
#[test]
fn programs_with_the_name_of_llama_server_behave_as_without_the_hook() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    match compiled(folder.path(), "llama-server", &[]) {
        Some(bystander) => bystander.may_look_at_itself().must_not_notice(),
        None => skip("a program by the name of llama-server cannot be built"),
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stripped = ["-s", "-rdynamic", "-Wl,-z,now"];
    if let Some(bystander) = compiled(folder.path(), "llama-server", &stripped) {
        bystander.may_look_at_itself().must_not_notice();
    }
}
