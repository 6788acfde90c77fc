//! Programs that load llama.cpp as a library, as the Python package does. All calls must have the same
//! results as without the hook.

use std::path::PathBuf;
use std::process::Command;

use contextpilot_testbed::{Arch, Model, llama_server, skip};

use crate::runs::Bystander;
use crate::tools::{fixture, python};

/// The llama.cpp library of the real server, and how to run a program with it.
pub(crate) struct Engine {
    library: PathBuf,
    /// The dynamic loader of the server. The machine's own may be too old for this library.
    loader: PathBuf,
}

impl Engine {
    /// `None`, after a line on stderr, if the server is linked statically with llama.cpp.
    pub(crate) fn find() -> Option<Self> {
        let server = llama_server();
        // The server's loader lists the libraries, as with ldd.
        let output = Command::new(&server)
            .env("LD_TRACE_LOADED_OBJECTS", "1")
            .output()
            .expect("the server's loader starts");
        let listing = String::from_utf8_lossy(&output.stdout);
        let mut lines = listing.lines().map(str::trim);
        let library = lines.clone().find_map(|line| {
            let (name, rest) = line.split_once(" => ")?;
            name.starts_with("libllama.so").then_some(rest)
        });
        let loader = lines.find(|line| line.contains("ld-linux"));
        let (Some(library), Some(loader)) = (library, loader) else {
            skip(format!("{} has no libllama", server.display()));
            return None;
        };
        let loader = loader.rsplit_once(" => ").map_or(loader, |(_, path)| path);
        let path = |text: &str| {
            let (path, _) = text.rsplit_once(" (").expect("an address comes last");
            PathBuf::from(path)
        };
        Some(Self {
            library: path(library),
            loader: path(loader),
        })
    }

    /// The command line of a Python that makes all calls. `mode` says how it loads the library.
    pub(crate) fn calls(&self, mode: &str) -> Option<Vec<PathBuf>> {
        let model = Model::tiny(Arch::Llama);
        let folder = self.library.parent().expect("a library's path");
        Some(vec![
            self.loader.clone(),
            "--library-path".into(),
            folder.into(),
            python()?,
            fixture("calls.py"),
            self.library.clone(),
            model.path().canonicalize().expect("it was written"),
            mode.into(),
        ])
    }
}

fn bystander(mode: &str) -> Option<(Engine, Bystander)> {
    let engine = Engine::find()?;
    let line = engine.calls(mode)?;
    let bystander = Bystander::new(&line[0]).args(&line[1..]);
    Some((engine, bystander))
}

#[track_caller]
fn must_not_notice(mode: &str) {
    if let Some((_, bystander)) = bystander(mode) {
        bystander.must_not_notice();
    }
}

/// The default of `ctypes`.
#[test]
fn an_engine_loaded_with_rtld_local_behaves_as_without_the_hook() {
    must_not_notice("local");
}

#[test]
fn an_engine_loaded_with_rtld_global_behaves_as_without_the_hook() {
    must_not_notice("global");
}

#[test]
fn an_engine_loaded_with_rtld_deepbind_behaves_as_without_the_hook() {
    must_not_notice("deepbind");
}

/// The library is preloaded. For the dynamic linker, that is as if the program was linked with it.
#[test]
fn an_engine_loaded_at_the_start_behaves_as_without_the_hook() {
    if let Some((engine, bystander)) = bystander("local") {
        let bystander = bystander.preloading(&engine.library);
        bystander.may_look_at_itself().must_not_notice();
    }
}
