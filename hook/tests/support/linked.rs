//! Fixtures that are linked in unusual ways: with their own C++ runtime or allocator, bound early or
//! late, from files that are loaded later.

use std::fs;
use std::path::PathBuf;

use super::{Fixture, Generation, Linking, compiler, once, run_to_success, source};

/// Which part is in which file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The server is the program, and the engine a library.
    Program,
    /// The engine and the server's own functions in a library. The program saves and releases entries of
    /// the host prompt cache.
    Beside,
    /// The program starts a server that is a library, as since 2026.
    Library,
    /// Everything in the program.
    Inside,
    /// The program loads server and engine when it runs.
    Later,
}

/// How to build a fixture: flags for the compiler and the linker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linked<'a> {
    pub(crate) form: Form,
    /// For all sources.
    pub(crate) compile: &'a [&'a str],
    /// For the program, objects and sources included.
    pub(crate) program: &'a [&'a str],
    /// For each library.
    pub(crate) library: &'a [&'a str],
}

impl<'a> Linked<'a> {
    pub(crate) fn new(form: Form) -> Self {
        Self {
            form,
            compile: &[],
            program: &[],
            library: &[],
        }
    }

    pub(crate) fn program(self, program: &'a [&'a str]) -> Self {
        Self { program, ..self }
    }

    pub(crate) fn library(self, library: &'a [&'a str]) -> Self {
        Self { library, ..self }
    }

    pub(crate) fn compile(self, compile: &'a [&'a str]) -> Self {
        Self { compile, ..self }
    }

    /// A program that poses as the latest llama-server.
    pub(crate) fn build(self) -> Fixture {
        let built = self.built();
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        for file in fs::read_dir(&built).expect("it was built") {
            let file = file.expect("it was built");
            let name = file.file_name();
            if name == "llama-server" || name.to_string_lossy().ends_with(".so") {
                fs::hard_link(file.path(), folder.path().join(name)).expect("it can be linked to");
            }
        }
        Fixture {
            generation: Generation::Extended,
            linking: match self.form {
                Form::Inside => Linking::Inside,
                Form::Program => Linking::Own,
                Form::Beside | Form::Library | Form::Later => Linking::Library,
            },
            program: folder.path().join("llama-server"),
            folder,
            state: tempfile::tempdir().expect("a folder"),
        }
    }

    fn server_is_library(self) -> bool {
        matches!(self.form, Form::Library | Form::Later)
    }

    /// The folder with the objects, which are the same however they are linked.
    fn objects(self) -> PathBuf {
        let is_library = self.server_is_library();
        once(&format!("linked-{is_library}"), self.compile, |folder| {
            let mut objects = compiler();
            objects.current_dir(folder).args(["-c", "-fPIC"]);
            if is_library {
                objects.arg("-DSERVER_IS_LIBRARY");
            }
            objects.args(self.compile);
            objects.args(["host.cpp", "llama.cpp", "server.cpp", "plugin.cpp"].map(source));
            run_to_success(&mut objects);
        })
    }

    fn built(self) -> PathBuf {
        let form = self.form;
        let flags = [self.compile, &["--"], self.program, &["--"], self.library].concat();
        once(&format!("linked-{form:?}"), &flags, |folder| {
            let objects = self.objects();
            // Objects exist already, libraries are linked here.
            let place = |part: &str| {
                if part.ends_with(".o") {
                    objects.join(part)
                } else {
                    PathBuf::from(part)
                }
            };
            let library = |name: &str, parts: &[&str]| {
                let mut library = compiler();
                library.current_dir(folder).args(["-shared", "-o", name]);
                library.arg(format!("-Wl,-soname,{name}"));
                library.args(parts.iter().map(|part| place(part)));
                library.args(self.library).arg("-Wl,-rpath,$ORIGIN");
                run_to_success(&mut library);
            };
            let (engine, server, program): (&[&str], &[&str], &[&str]) = match form {
                Form::Program => (&["llama.o"], &[], &["host.o", "server.o"]),
                Form::Beside => (&["llama.o", "server.o"], &[], &["host.o"]),
                Form::Library | Form::Later => (&["llama.o"], &["host.o", "server.o"], &[]),
                Form::Inside => (&[], &[], &["host.o", "server.o", "llama.o"]),
            };
            let mut linked_with: Vec<&str> = Vec::new();
            if !engine.is_empty() {
                library("libllama.so", engine);
                linked_with.push("libllama.so");
            }
            if !server.is_empty() {
                library(
                    "libllama-server-impl.so",
                    &[server, &["libllama.so"]].concat(),
                );
                linked_with.insert(0, "libllama-server-impl.so");
            }
            let plugin: &[&str] = if engine.is_empty() {
                &[]
            } else {
                &["libllama.so"]
            };
            library("plugin.so", &[&["plugin.o"], plugin].concat());

            let mut command = compiler();
            command.current_dir(folder).args(["-o", "llama-server"]);
            command.args(program.iter().map(|part| place(part)));
            if self.server_is_library() {
                command.arg(source("entry.cpp"));
            }
            command.args(self.program);
            if form != Form::Later {
                command.args(linked_with);
            }
            run_to_success(command.args(["-Wl,-rpath,$ORIGIN", "-lpthread", "-ldl"]));
        })
    }
}

/// The path of a fixture's source, for [`Linked::program`].
pub(crate) fn source_file(name: &str) -> String {
    source(name).to_str().expect("a path in UTF-8").to_owned()
}

/// A library that the compiler finds by its file name, if there is one.
pub(crate) fn library_file(name: &str) -> Option<String> {
    let output = compiler()
        .arg(format!("-print-file-name={name}"))
        .output()
        .expect("a C++ compiler");
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    // If there is none, the compiler prints the name unchanged.
    PathBuf::from(&path).is_absolute().then_some(path)
}
