//! The options of a server, what follows from them, and its start.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::{READY, STDERR, STDOUT, Server};
use crate::flags::Flags;
use crate::{
    Arch, Certificate, Error, Model, ProjectorKind, Result, Spec, engine, llama_server,
    private_folder,
};

/// How to run a server. Clone it to run the same server again.
#[derive(Clone, Debug)]
pub struct Builder {
    program: Option<PathBuf>,
    subcommand: Option<OsString>,
    model: Option<Model>,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    launcher: Option<PathBuf>,
    preload: Option<PathBuf>,
    index_url: Option<String>,
    saves_slots: bool,
    certificate: Option<Arc<Certificate>>,
    chooses_address: bool,
    ready: Duration,
}

impl Server {
    /// A server with a context of 4096 tokens, one thread, and a folder for saved slots. All other
    /// settings are llama-server's defaults.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The same with the tiny llama.
    pub fn tiny() -> Builder {
        Self::builder().model(&Model::tiny(Arch::Llama))
    }
}

impl Builder {
    fn new() -> Self {
        Self {
            program: None,
            subcommand: None,
            model: None,
            args: Vec::new(),
            env: Vec::new(),
            launcher: None,
            preload: None,
            index_url: None,
            saves_slots: true,
            certificate: None,
            chooses_address: true,
            ready: READY,
        }
    }

    /// The model to serve. Without a model the server runs in router mode.
    pub fn model(mut self, model: &Model) -> Self {
        self.model = Some(model.clone());
        self
    }

    /// A Llama of four layers, and a draft that follows them (EAGLE-3, DFlash, DSpark), with weights from `seed`.
    pub fn followed_by(self, draft: Arch, seed: u64) -> Self {
        let followed = Model::of(&Spec {
            layers: 4,
            ..Spec::new(Arch::Llama)
        });
        let file = Model::of(&Spec {
            seed,
            ..Spec::new(draft)
        });
        self.model(&followed)
            .args(["--spec-type".to_owned(), format!("draft-{draft}")])
            .args(["-md".into(), file.path().as_os_str().to_owned()])
    }

    /// The llama-server to run instead of [`llama_server`].
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// A word before all arguments, for programs with subcommands.
    pub fn subcommand(mut self, word: impl Into<OsString>) -> Self {
        self.subcommand = Some(word.into());
        self
    }

    /// More command line arguments.
    pub fn args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Runs `slots` slots, without a host prompt cache and without a unified KV cache. So KV is kept in
    /// slots only.
    pub fn bare_slots(self, slots: u32) -> Self {
        self.args(["--no-kv-unified", "--cache-ram", "0", "--parallel"])
            .args([slots.to_string()])
    }

    /// Leaves out `--slot-save-path`. Then slots cannot be saved, restored or erased.
    pub fn no_saved_slots(mut self) -> Self {
        self.saves_slots = false;
        self
    }

    /// Leaves out `--host` and `--port`. Then the server listens where it does by default.
    pub fn default_address(mut self) -> Self {
        self.chooses_address = false;
        self
    }

    /// Accepts images, by a tiny projector (`--mmproj`) for a tiny model.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn projector(self, kind: ProjectorKind) -> Self {
        let file = engine::projector(kind).into_os_string();
        self.args(["--mmproj".into(), file])
    }

    /// Adds a LoRA adapter (`--lora`) for the tiny model that was given before. Equal seeds make equal
    /// adapters. With an `invocation`, the adapter is activated by these tokens.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn adapter(self, seed: u64, invocation: &[u32]) -> Self {
        let arch = self.model.as_ref().map_or(Arch::Llama, Model::arch);
        let file = engine::adapter(arch, seed, invocation).into_os_string();
        self.args(["--lora".into(), file])
    }

    /// Serves TLS with a new certificate. Connections check the certificate.
    ///
    /// # Panics
    /// If the certificate cannot be written.
    pub fn tls(mut self) -> Self {
        let certificate = match Certificate::new() {
            Ok(certificate) => Arc::new(certificate),
            Err(error) => panic!("no certificate: {error}"),
        };
        self = self
            .args(["--ssl-key-file"])
            .args([certificate.key_file()])
            .args(["--ssl-cert-file"])
            .args([certificate.file()]);
        self.certificate = Some(certificate);
        self
    }

    /// With a control endpoint, so that [`Server::come_to_rest`] can be called.
    pub fn observed(self) -> Self {
        self.env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    /// Removes an environment variable.
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.env.push((name.into(), None));
        self
    }

    /// Runs the launcher, which finds the server through `LLAMA_SERVER_BIN`.
    pub fn launcher(mut self, launcher: impl Into<PathBuf>) -> Self {
        self.launcher = Some(launcher.into());
        self
    }

    /// Preloads the hook library into the server, without a launcher.
    pub fn preload(mut self, hook: impl Into<PathBuf>) -> Self {
        self.preload = Some(hook.into());
        self
    }

    /// Sets `CONTEXTPILOT_INDEX_URL`.
    pub fn index_url(mut self, url: impl Into<String>) -> Self {
        self.index_url = Some(url.into());
        self
    }

    /// How long the server may take until it is ready. The default is a minute.
    pub fn ready_within(mut self, patience: Duration) -> Self {
        self.ready = patience;
        self
    }

    /// The same server without hook and launcher. It answers for the truth.
    pub fn plain(&self) -> Self {
        let mut plain = self.clone();
        plain.launcher = None;
        plain.preload = None;
        plain.index_url = None;
        let ours = |name: &OsString| name.to_string_lossy().starts_with("CONTEXTPILOT_");
        plain.env.retain(|(name, _)| !ours(name));
        plain
    }

    /// Whether any of these flags was given.
    fn has(&self, options: &[&str]) -> bool {
        let option = |arg: &OsString| options.iter().any(|option| arg == option);
        self.args.iter().any(option)
    }

    /// The first argument that the server does not know and that cannot be left out. Always `None`
    /// with the server that the tests are written for.
    pub fn lacking(&self) -> Option<String> {
        self.flags().lacking(&self.args)
    }

    fn flags(&self) -> Flags {
        Flags::of(&self.program.clone().unwrap_or_else(llama_server))
    }

    /// Whether the server knows the architecture of its model, and the type of its projector. An older
    /// server may not.
    ///
    /// # Errors
    /// If it does not start for another reason.
    pub fn knows_model(&self) -> Result<bool> {
        const UNKNOWN: [&str; 2] = ["unknown model architecture", "unknown projector type"];
        match self.plain().spawn() {
            Ok(_) => Ok(true),
            Err(error) if UNKNOWN.iter().any(|text| error.to_string().contains(text)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether prompts that leave a slot may go to the host prompt cache.
    pub fn has_host_cache(&self) -> bool {
        if !self.flags().has("--cache-ram") {
            return false;
        }
        let mut pairs = self.args.iter().zip(self.args.iter().skip(1));
        !pairs.any(|(name, value)| (name == "--cache-ram" || name == "-cram") && value == "0")
    }

    /// Whether a request in one slot can leave the KV of the others alone.
    pub(crate) fn has_separate_slots(&self) -> bool {
        let separate = self.has(&["--no-kv-unified", "-no-kvu"]);
        !self.has_host_cache() && (separate || !self.flags().has("--no-kv-unified"))
    }

    /// Whether its model can go back to any prefix of what a slot holds.
    pub fn keeps_any_prefix(&self) -> bool {
        let model = self.model.as_ref();
        model.is_none_or(Model::keeps_any_prefix) || self.has(&["--swa-full"])
    }

    /// Whether a state of it goes back to any prefix: with `--swa-full`, only what a slot has evaluated itself does.
    pub fn saves_any_prefix(&self) -> bool {
        self.model.as_ref().is_none_or(Model::keeps_any_prefix)
    }

    /// Whether this is its model.
    pub fn serves(&self, model: &Model) -> bool {
        let own = self.model.as_ref();
        own.is_some_and(|own| own.path() == model.path())
    }

    /// Whether it has a draft model.
    pub fn drafts(&self) -> bool {
        self.has(&["-md"])
    }

    /// Whether it has LoRA adapters.
    pub fn has_adapters(&self) -> bool {
        self.adapters() > 0
    }

    /// How many LoRA adapters it has.
    pub fn adapters(&self) -> usize {
        self.args.iter().filter(|arg| *arg == "--lora").count()
    }

    /// How many addresses it will listen on.
    fn hosts(&self) -> usize {
        let mut pairs = self.args.iter().zip(self.args.iter().skip(1));
        let hosts = pairs.find(|(name, _)| *name == "--host");
        hosts.map_or(1, |(_, hosts)| hosts.to_string_lossy().split(',').count())
    }
}

impl Builder {
    fn command(&self, folder: &Path) -> Result<Command> {
        let server = self.program.clone().unwrap_or_else(llama_server);
        let mut command = match &self.launcher {
            Some(launcher) => {
                let mut command = Command::new(launcher);
                command.env("LLAMA_SERVER_BIN", &server);
                command
            }
            None => Command::new(&server),
        };
        // Variables of the environment of the test run must not change its result.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let meant_for_servers = ["CONTEXTPILOT_", "LLAMA_ARG_", "GGML_", "LD_PRELOAD"];
            if meant_for_servers
                .iter()
                .any(|start| text.starts_with(start))
            {
                command.env_remove(&name);
            }
        }
        command.args(&self.subcommand);
        if let Some(model) = &self.model {
            command.arg("--model").arg(model.path());
        }
        // One thread: if cores are scarce, two threads spin while they wait for each other, and an
        // evaluation of 1 ms takes 500 ms.
        let defaults: [(&[&str], &str); 5] = [
            (&["--host"], "127.0.0.1"),
            (&["--port"], "0"),
            (&["--threads", "-t"], "1"),
            (&["--ctx-size", "-c"], "4096"),
            (&["--slot-save-path"], "."),
        ];
        for (names, value) in defaults {
            let wanted = match names[0] {
                "--slot-save-path" => self.saves_slots,
                "--host" | "--port" => self.chooses_address,
                _ => true,
            };
            if wanted && !self.has(names) {
                command.arg(names[0]).arg(value);
            }
        }
        let flags = self.flags();
        // Servers without a host cache do not show their slots unless they are told to.
        if !flags.has("--cache-ram") {
            command.arg("--slots");
        }
        command.args(flags.fitting(&self.args)).current_dir(folder);
        // Each server has a journal of its own, unless a test makes two share one.
        command.env("XDG_STATE_HOME", folder);
        // What a server says of itself is the truth that tests compare with.
        if self
            .env
            .iter()
            .any(|(name, _)| name == "CONTEXTPILOT_STORE")
        {
            command.env("CONTEXTPILOT_STORE_USAGE", "0");
        }
        if let Some(hook) = &self.preload {
            command.env("LD_PRELOAD", std::path::absolute(hook)?);
        }
        if let Some(url) = &self.index_url {
            command.env("CONTEXTPILOT_INDEX_URL", url);
        }
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let file = |name| File::create(folder.join(name));
        command
            .stdin(Stdio::null())
            .stdout(file(STDOUT)?)
            .stderr(file(STDERR)?);
        Ok(command)
    }

    /// Starts the server and waits until it is ready to serve.
    ///
    /// It listens on a loopback port that it chooses itself (`--port 0`) and
    /// names in its log; with `--host`, wherever that says.
    ///
    /// # Errors
    /// When it cannot be started, ends, or is not ready in time: with the end
    /// of what it said on stderr.
    pub fn spawn(&self) -> Result<Server> {
        let mut server = self.start()?;
        server.await_ready()?;
        Ok(server)
    }

    /// Starts the server and does not wait until it is ready. No connection can be made before
    /// [`Server::await_ready`] has returned.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self) -> Result<Server> {
        // The journal's folder is in it.
        let folder = private_folder();
        let mut command = self.command(folder.path())?;
        let child = command
            .spawn()
            .map_err(|error| Error::new(format!("{:?}: {error}", command.get_program())))?;
        Ok(Server {
            child,
            // The endpoints are known when the server listens.
            endpoints: Vec::new(),
            chosen: 0,
            certificate: self.certificate.clone(),
            folder,
            exited: None,
            hosts: self.hosts(),
            ready: self.ready,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_recognised() {
        let default = Server::builder();
        assert!(default.has_host_cache() && !default.has_separate_slots());
        let bare = Server::builder().bare_slots(2);
        assert!(!bare.has_host_cache() && bare.has_separate_slots());
        let small = Server::builder().args(["-cram", "1"]);
        assert!(small.has_host_cache());
    }

    #[test]
    fn a_plain_server_has_nothing_of_ours() {
        let hooked = Server::builder()
            .launcher("/launcher")
            .preload("/hook.so")
            .index_url("http://localhost:1")
            .env("CONTEXTPILOT_STRICT", "1")
            .env("OTHER", "kept");
        let plain = hooked.plain();
        assert!(plain.launcher.is_none() && plain.preload.is_none());
        assert!(plain.index_url.is_none());
        assert_eq!(plain.env, [("OTHER".into(), Some("kept".into()))]);
    }
}
