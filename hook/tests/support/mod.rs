//! Builds the library and the fixtures, and runs the fixtures under the library.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "this is no library")]

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_testbed::Index;

pub(crate) mod linked;

/// The built library. Cargo builds no cdylib for integration tests, so this function runs Cargo. That
/// takes a moment if nothing has changed.
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

/// The generation of the API that the engine has and its server calls. `fixtures/engine.h` has the same
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// `llama_kv_cache_*`
    KvCache = 1,
    /// `llama_kv_self_*`
    KvSelf,
    /// `llama_memory_*` and `llama_decode`
    Memory,
    /// `llama_memory_*` and `llama_process`
    Extended,
}

/// Which functions are in which file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linking {
    /// All functions in a library, as in Debian since 2026. The dynamic linker finds them.
    Library,
    /// The engine in a library, the server's own functions in the executable: shared builds of
    /// 2025.
    Own,
    /// All functions in the executable, which calls them directly: static builds.
    Inside,
}

/// A program that poses as llama-server.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) generation: Generation,
    pub(crate) linking: Linking,
    folder: tempfile::TempDir,
    /// The folder for journals. It is not in the checkout, because on some systems the group may write
    /// there, and then the journal is refused.
    state: tempfile::TempDir,
    program: PathBuf,
}

impl Fixture {
    pub(crate) fn new(generation: Generation, linking: Linking) -> Self {
        Self::with(generation, linking, &[])
    }

    /// All generations, in each way in which they were linked.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        use Generation::{Extended, KvCache, KvSelf, Memory};
        let library = [(Extended, Linking::Library)];
        let others = [Extended, Memory, KvSelf, KvCache]
            .into_iter()
            .flat_map(|generation| [(generation, Linking::Own), (generation, Linking::Inside)]);
        let all = library.into_iter().chain(others);
        all.map(|(generation, linking)| Self::new(generation, linking))
    }

    /// `flags` are for the compiler. See `fixtures` for the parts that they leave out.
    pub(crate) fn with(generation: Generation, linking: Linking, flags: &[&str]) -> Self {
        let built = built(generation, linking, flags);
        // On the same file system, so that built files can be hard-linked. (A copy could not be executed
        // while another thread forks: the child inherits the open descriptor for a moment.)
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let name = match linking {
            // The executable's file says nothing more.
            Linking::Own => "llama-server",
            Linking::Library | Linking::Inside => "host",
        };
        let program = folder.path().join(name);
        fs::hard_link(built.join("host"), &program).expect("it was built");
        let library = built.join("libllama.so");
        if library.exists() {
            fs::hard_link(library, folder.path().join("libllama.so")).expect("so was this");
        }
        Self {
            generation,
            linking,
            folder,
            state: tempfile::Builder::new()
                .permissions(Permissions::from_mode(0o700))
                .tempdir()
                .expect("a folder"),
            program,
        }
    }

    /// A program with TLS. The engine and the stand-in for OpenSSL are in a library each. `flags`
    /// are for the compiler.
    pub(crate) fn with_tls(flags: &[&str]) -> Self {
        let mut fixture = Self::new(Generation::Extended, Linking::Library);
        let folder = fixture.folder.path();
        let mut library = compiler();
        library
            .current_dir(folder)
            .args([
                "-shared",
                "-fPIC",
                "-Wl,-soname,libssl.so",
                "-o",
                "libssl.so",
            ])
            .arg(source("ssl.cpp"));
        run_to_success(&mut library);
        let mut program = compiler();
        program
            .current_dir(folder)
            .args(flags)
            .args(["-o", "tls-host"])
            .arg(source("tls_host.cpp"))
            .args(["-L.", "-lllama", "-lssl", "-Wl,-rpath,$ORIGIN"]);
        run_to_success(&mut program);
        fixture.program = folder.join("tls-host");
        fixture
    }

    /// The same in one executable, which needs no library.
    pub(crate) fn with_tls_inside(flags: &[&str]) -> Self {
        let mut fixture = Self::new(Generation::Extended, Linking::Library);
        let objects = compiled(Generation::Extended, &[]);
        let folder = fixture.folder.path();
        let mut program = compiler();
        program.current_dir(folder).args(flags);
        program.args(["-o", "tls-host"]);
        program.args([source("tls_host.cpp"), source("ssl.cpp")]);
        program.args(["llama.o", "server.o"].map(|object| objects.join(object)));
        run_to_success(program.arg("-lpthread"));
        fixture.program = folder.join("tls-host");
        fixture
    }

    /// Gives the program another file name.
    pub(crate) fn called(mut self, name: &str) -> Self {
        let renamed = self.folder.path().join(name);
        fs::rename(&self.program, &renamed).expect("it can be renamed");
        self.program = renamed;
        self
    }

    /// The program, to be run under the library with this index.
    pub(crate) fn host(&self, task: &str, index: &str) -> Command {
        let mut command = preloaded(&self.program, index);
        command
            .arg(task)
            .env("XDG_STATE_HOME", self.state.path())
            .env("CONTEXTPILOT_TRACE_FILE", self.folder.path().join("trace"));
        command
    }

    /// A library with an allocator that prints what it was asked for.
    pub(crate) fn allocator(&self) -> PathBuf {
        let library = self.folder.path().join("liballocator.so");
        let mut compiler = compiler();
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library);
        run_to_success(compiler.arg(source("allocator.cpp")));
        library
    }

    /// The same with an index that answers. The exit waits until everything was reported, even on a slow
    /// machine.
    pub(crate) fn told(&self, task: &str, index: &Index) -> Command {
        let mut command = self.host(task, &index.url());
        command.env("CONTEXTPILOT_EXIT_DRAIN_MS", "15000");
        command
    }

    /// The events and effects of the ledger, as lines.
    pub(crate) fn trace(&self) -> String {
        fs::read_to_string(self.folder.path().join("trace")).unwrap_or_default()
    }

    /// The path of another of its files.
    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        format!("{:?}, {:?}", self.generation, self.linking)
    }
}

/// The folder with the program, built once in a test run.
fn built(generation: Generation, linking: Linking, flags: &[&str]) -> PathBuf {
    once(&format!("{generation:?}-{linking:?}"), flags, |folder| {
        let objects = compiled(generation, flags);
        let (library, program): (&[&str], &[&str]) = match linking {
            Linking::Library => (&["llama.o", "server.o"], &["host.o"]),
            Linking::Own => (&["llama.o"], &["host.o", "server.o"]),
            Linking::Inside => (&[], &["host.o", "llama.o", "server.o"]),
        };
        let mut host = compiler();
        host.current_dir(folder).args(flags).args(["-o", "host"]);
        host.args(program.iter().map(|object| objects.join(object)));
        if !library.is_empty() {
            let mut llama = compiler();
            llama
                .current_dir(folder)
                .args(flags)
                .args(["-shared", "-o", "libllama.so"])
                .args(library.iter().map(|object| objects.join(object)));
            run_to_success(&mut llama);
            host.args(["-L.", "-lllama", "-Wl,-rpath,$ORIGIN"]);
        }
        run_to_success(host.args(["-lpthread", "-ldl"]));
    })
}

/// The folder with the objects, which are the same for every way of linking. (Code that was compiled for
/// a library makes direct calls when it is linked into a program.)
fn compiled(generation: Generation, flags: &[&str]) -> PathBuf {
    once(&format!("{generation:?}"), flags, |folder| {
        let sources = ["host.cpp", "llama.cpp", "server.cpp"].map(source);
        run_to_success(
            compiler()
                .current_dir(folder)
                .arg(format!("-DGENERATION={}", generation as i32))
                .args(["-c", "-fPIC"])
                .args(flags)
                .args(sources),
        );
    })
}

/// A folder that `fill` fills at the first call with this name.
fn once(name: &str, flags: &[&str], fill: impl FnOnce(&Path)) -> PathBuf {
    static DONE: Mutex<BTreeMap<String, Arc<OnceLock<()>>>> = Mutex::new(BTreeMap::new());
    let key = format!("{name}{}", flags.concat()).replace(['/', '='], "_");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("fixtures-{}", env!("CARGO_CRATE_NAME")))
        .join(&key);
    let cell = {
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(done.entry(key).or_default())
    };
    cell.get_or_init(|| {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        fill(&folder);
    });
    folder
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

/// Runs the command, for 20 seconds at most.
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

/// The process's stderr.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The process's stdout.
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

/// An index that takes note and says so.
pub(crate) fn index() -> Index {
    Index::start().expect("a free port")
}

/// All bodies that were posted to it so far, one after the other.
pub(crate) fn heard(index: &Index) -> String {
    let posts = index.posts();
    let bodies: Vec<_> = posts
        .iter()
        .map(|post| String::from_utf8_lossy(&post.body))
        .collect();
    bodies.join("\n")
}
