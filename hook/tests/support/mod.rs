//! Builds the library and the fixtures, and runs the latter under the former.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// The built library. Cargo builds no cdylib for integration tests, so this asks it to; it takes
/// a moment if nothing has changed.
pub(crate) fn hook_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let output = Command::new(env!("CARGO"))
            .args(["build", "--lib", "--message-format=json", "--profile"])
            .arg(if cfg!(debug_assertions) {
                "dev"
            } else {
                "release"
            })
            .args(["--package", env!("CARGO_PKG_NAME"), "--manifest-path"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "the library cannot be built");
        let messages = String::from_utf8(output.stdout).expect("JSON is UTF-8");
        let path = messages
            .split('"')
            .rfind(|text| text.ends_with("libcontextpilot_llama_hook.so"))
            .expect("cargo says where the library is");
        PathBuf::from(path)
    })
}

/// A program that poses as llama-server, with a libllama.so that poses as the engine.
pub(crate) struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    /// `defines` leave functions out of the engine; see `fixtures/llama.cpp`.
    pub(crate) fn build(defines: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fixture = Self { folder };
        fixture.build_library(defines);
        fixture.build_program(&[]);
        fixture
    }

    /// A program that contains the server's own functions, with the engine in a library.
    pub(crate) fn build_with_own_server() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fixture = Self { folder };
        fixture.build_library(&["WITHOUT_SERVER"]);
        fixture.build_program(&[source("server.cpp")]);
        fixture
    }

    /// A program with TLS, with the engine and what poses as OpenSSL in a library each. `flags`
    /// are for the compiler.
    pub(crate) fn build_with_tls(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fixture = Self { folder };
        fixture.build_library(&[]);
        let mut library = compiler();
        library
            .args(["-shared", "-fPIC", "-Wl,-soname,libssl.so", "-o"])
            .arg(fixture.path("libssl.so"))
            .arg(source("ssl.cpp"));
        run_to_success(&mut library);
        let mut program = compiler();
        program
            .args(flags)
            .arg("-o")
            .arg(fixture.path("host"))
            .arg(source("tls_host.cpp"))
            .args(["-L".as_ref(), fixture.folder.path().as_os_str()])
            .args(["-lllama", "-lssl", "-Wl,-rpath,$ORIGIN"]);
        run_to_success(&mut program);
        fixture
    }

    fn build_library(&self, defines: &[&str]) {
        let mut library = compiler();
        library
            .args(defines.iter().map(|define| format!("-D{define}")))
            .args(["-shared", "-fPIC", "-o"])
            .arg(self.path("libllama.so"))
            .arg(source("llama.cpp"));
        run_to_success(&mut library);
    }

    fn build_program(&self, sources: &[PathBuf]) {
        let mut program = compiler();
        program
            .arg("-o")
            .arg(self.path("host"))
            .arg(source("host.cpp"))
            .args(sources)
            .args(["-L".as_ref(), self.folder.path().as_os_str()])
            .args(["-lllama", "-lpthread", "-Wl,-rpath,$ORIGIN"]);
        run_to_success(&mut program);
    }

    /// One program that contains the engine. `flags` are for the compiler.
    pub(crate) fn build_in_one(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fixture = Self { folder };
        let mut program = compiler();
        program
            .args(flags)
            .arg("-o")
            .arg(fixture.path("host"))
            .args([source("host.cpp"), source("llama.cpp")])
            .arg("-lpthread");
        run_to_success(&mut program);
        fixture
    }

    /// Gives the program another file name.
    pub(crate) fn called(self, name: &str) -> Self {
        fs::rename(self.path("host"), self.path(name)).expect("it can be renamed");
        std::os::unix::fs::symlink(name, self.path("host")).expect("and found");
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program, to be run under the library with this index.
    pub(crate) fn host(&self, task: &str, index: &str) -> Command {
        let mut command = preloaded(self.path("host"), index);
        command
            .arg(task)
            .env("XDG_STATE_HOME", self.folder.path())
            .env("CONTEXTPILOT_TRACE_FILE", self.path("trace"));
        command
    }

    /// What the ledger learned, as lines.
    pub(crate) fn trace(&self) -> String {
        std::fs::read_to_string(self.path("trace")).unwrap_or_default()
    }
}

/// A C++ program of one file that has nothing to do with llama-server.
pub(crate) fn plain_program() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("plain");
    run_to_success(compiler().arg("-o").arg(&program).arg(source("plain.cpp")));
    (folder, program)
}

/// A command that runs under the library with this index.
pub(crate) fn preloaded(program: impl AsRef<OsStr>, index: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", hook_library())
        .env("CONTEXTPILOT_INDEX_URL", index)
        .stdin(Stdio::null());
    command
}

/// Runs it, for 20 seconds at most.
pub(crate) fn finish(command: &mut Command) -> (Output, Duration) {
    let start = Instant::now();
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let id = child.id().to_string();
    let (done, wait) = mpsc::channel();
    let watchdog = thread::spawn(move || {
        if wait.recv_timeout(Duration::from_secs(20)).is_err() {
            let _ = Command::new("kill").args(["-ABRT", &id]).status();
        }
    });
    let output = child.wait_with_output().expect("the program ends");
    let _ = done.send(());
    watchdog.join().expect("the watchdog ends");
    (output, start.elapsed())
}

/// What it wrote to stderr.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What it wrote to stdout.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn compiler() -> Command {
    let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    cc::Build::new()
        .cpp(true)
        .opt_level(1)
        .cargo_metadata(false)
        .target(&triple)
        .host(&triple)
        .out_dir(env::temp_dir())
        .get_compiler()
        .to_command()
}

fn run_to_success(command: &mut Command) {
    let output = command.output().expect("a C++ compiler");
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
}

/// An index on a port of its own.
pub(crate) struct Index {
    /// Its base URL.
    pub url: String,
    bodies: Arc<Mutex<Vec<String>>>,
}

/// How an [`Index`] behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Takes note and says so.
    Answers,
    /// Accepts connections and never says a word.
    Hangs,
}

impl Index {
    /// Starts one.
    pub(crate) fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let bodies = Arc::default();
        let heard = Arc::clone(&bodies);
        thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                if manner == Manner::Hangs {
                    silent.push(stream);
                    continue;
                }
                let heard = Arc::clone(&heard);
                thread::spawn(move || while answer(&stream, &heard).is_some() {});
            }
        });
        Self { url, bodies }
    }

    /// All bodies that were posted so far, one after the other.
    pub(crate) fn heard(&self) -> String {
        self.bodies.lock().expect("not poisoned").join("\n")
    }
}

fn answer(mut stream: &TcpStream, heard: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    heard.lock().expect("not poisoned").push(body);
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        .ok()
}
