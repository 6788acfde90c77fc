//! The flags that callers ask about, and how each generation of servers spells them.

use crate::generation::Generation;

/// A flag of llama-server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// Addresses to listen at.
    Host,
    /// The port to listen at.
    Port,
    /// Names for the model.
    Alias,
    /// The file of the model.
    Model,
    /// The repository of the model.
    HfRepo,
    /// The repository of the model, in Docker's registry.
    DockerRepo,
    /// The key for TLS.
    SslKeyFile,
    /// The certificate for TLS.
    SslCertFile,
    /// Number of slots.
    Parallel,
    /// Slots share the context.
    KvUnified,
    /// Tokens that a slot may hold, at most.
    KvUnifiedPerSlot,
    /// MiB of the host prompt cache.
    CacheRam,
    /// Idle slots move to the host prompt cache.
    CacheIdleSlots,
    /// Requests that do not say take their prompts from the cache.
    CachePrompt,
    /// The shortest chunk that is moved, in tokens.
    CacheReuse,
    /// How much of a prompt a slot must hold to be chosen for it.
    SlotPromptSimilarity,
    /// A full slot drops its oldest tokens.
    ContextShift,
    /// Checkpoints of a slot, at most.
    CtxCheckpoints,
    /// Tokens between two checkpoints, at least.
    CheckpointMinStep,
    /// Tokens in a batch.
    BatchSize,
    /// Tokens that are evaluated at once.
    UbatchSize,
    /// Sliding-window layers keep all positions.
    SwaFull,
    /// Seconds without work after which the server frees its model.
    SleepIdleSeconds,
    /// Infill prompts begin with the suffix.
    SpmInfill,
    /// A file that makes rows of images and sounds.
    Mmproj,
    /// Where that file is fetched from.
    MmprojUrl,
}

/// How a flag is spelled.
#[derive(Clone, Copy, Debug)]
pub struct Spelling {
    /// Names of the flag.
    pub names: &'static [&'static str],
    /// Names that turn it off.
    pub off: &'static [&'static str],
    /// The variable that stands for it; empty if there is none.
    pub variable: &'static str,
    pub(crate) kind: Kind,
}

/// What is given with a flag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A text.
    Text,
    /// At least one address.
    Addresses,
    /// A number that passes a check.
    Integer(fn(i32) -> bool),
    /// A number with a fraction.
    Real,
    /// Nothing: it can only be turned on. (Or only off, if it has no name that turns it on.)
    Switch,
    /// Nothing: it can be turned on and off.
    Toggle,
}

impl Flag {
    pub(crate) const COUNT: usize = Self::ALL.len();

    /// All flags.
    pub const ALL: [Self; 26] = [
        Self::Host,
        Self::Port,
        Self::Alias,
        Self::Model,
        Self::HfRepo,
        Self::DockerRepo,
        Self::SslKeyFile,
        Self::SslCertFile,
        Self::Parallel,
        Self::KvUnified,
        Self::KvUnifiedPerSlot,
        Self::CacheRam,
        Self::CacheIdleSlots,
        Self::CachePrompt,
        Self::CacheReuse,
        Self::SlotPromptSimilarity,
        Self::ContextShift,
        Self::CtxCheckpoints,
        Self::CheckpointMinStep,
        Self::BatchSize,
        Self::UbatchSize,
        Self::SwaFull,
        Self::SleepIdleSeconds,
        Self::SpmInfill,
        Self::Mmproj,
        Self::MmprojUrl,
    ];

    /// How servers of this generation spell it. `None`: they do not know it.
    #[must_use]
    pub fn spelling(self, generation: Generation) -> Option<Spelling> {
        use Generation::{Early2026, Of2025};
        let any = |_| true;
        let (names, variable, kind): (&[&str], _, _) = match (self, generation) {
            (
                Self::DockerRepo
                | Self::CacheRam
                | Self::CacheIdleSlots
                | Self::CachePrompt
                | Self::CheckpointMinStep
                | Self::KvUnifiedPerSlot
                | Self::SleepIdleSeconds,
                Of2025,
            ) => return None,
            (Self::Host, Of2025) => (&["--host"], "LLAMA_ARG_HOST", Kind::Text),
            (Self::Host, _) => (&["--host"], "LLAMA_ARG_HOST", Kind::Addresses),
            (Self::Port, _) => (&["--port"], "LLAMA_ARG_PORT", Kind::Integer(any)),
            (Self::Alias, _) => (&["-a", "--alias"], "LLAMA_ARG_ALIAS", Kind::Text),
            (Self::Model, _) => (&["-m", "--model"], "LLAMA_ARG_MODEL", Kind::Text),
            (Self::HfRepo, _) => (
                &["-hf", "-hfr", "--hf-repo"],
                "LLAMA_ARG_HF_REPO",
                Kind::Text,
            ),
            (Self::DockerRepo, _) => (
                &["-dr", "--docker-repo"],
                "LLAMA_ARG_DOCKER_REPO",
                Kind::Text,
            ),
            (Self::SslKeyFile, _) => (&["--ssl-key-file"], "LLAMA_ARG_SSL_KEY_FILE", Kind::Text),
            (Self::SslCertFile, _) => (&["--ssl-cert-file"], "LLAMA_ARG_SSL_CERT_FILE", Kind::Text),
            (Self::Parallel, _) => {
                let kind = Kind::Integer(match generation {
                    Of2025 => any,
                    _ => |slots| slots != 0,
                });
                (&["-np", "--parallel"], "LLAMA_ARG_N_PARALLEL", kind)
            }
            (Self::KvUnified, Of2025) => (
                &["-kvu", "--kv-unified"],
                "LLAMA_ARG_KV_SPLIT",
                Kind::Switch,
            ),
            (Self::KvUnified, _) => (
                &["-kvu", "--kv-unified"],
                "LLAMA_ARG_KV_UNIFIED",
                Kind::Toggle,
            ),
            (Self::KvUnifiedPerSlot, _) => (
                &["--kv-unified-per-slot"],
                "LLAMA_ARG_KV_UNIFIED_PER_SLOT",
                Kind::Integer(any),
            ),
            (Self::CacheRam, _) => (
                &["-cram", "--cache-ram"],
                "LLAMA_ARG_CACHE_RAM",
                Kind::Integer(any),
            ),
            (Self::CacheIdleSlots, _) => (
                &["--cache-idle-slots"],
                "LLAMA_ARG_CACHE_IDLE_SLOTS",
                Kind::Toggle,
            ),
            (Self::CachePrompt, _) => (&["--cache-prompt"], "LLAMA_ARG_CACHE_PROMPT", Kind::Toggle),
            (Self::CacheReuse, _) => (
                &["--cache-reuse"],
                "LLAMA_ARG_CACHE_REUSE",
                Kind::Integer(any),
            ),
            (Self::SlotPromptSimilarity, _) => {
                (&["-sps", "--slot-prompt-similarity"], "", Kind::Real)
            }
            (Self::ContextShift, Of2025) => (&[], "LLAMA_ARG_NO_CONTEXT_SHIFT", Kind::Switch),
            (Self::ContextShift, _) => (
                &["--context-shift"],
                "LLAMA_ARG_CONTEXT_SHIFT",
                Kind::Toggle,
            ),
            (Self::CtxCheckpoints, Of2025) => (
                &["--swa-checkpoints"],
                "LLAMA_ARG_SWA_CHECKPOINTS",
                Kind::Integer(any),
            ),
            (Self::CtxCheckpoints, _) => (
                &["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"],
                "LLAMA_ARG_CTX_CHECKPOINTS",
                Kind::Integer(any),
            ),
            // Another flag to much the same end.
            (Self::CheckpointMinStep, Early2026) => (
                &["-cpent", "--checkpoint-every-n-tokens"],
                "LLAMA_ARG_CHECKPOINT_EVERY_NT",
                Kind::Integer(any),
            ),
            (Self::CheckpointMinStep, _) => (
                &["-cms", "--checkpoint-min-step"],
                "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
                Kind::Integer(|tokens| tokens >= 0),
            ),
            (Self::BatchSize, _) => (
                &["-b", "--batch-size"],
                "LLAMA_ARG_BATCH",
                Kind::Integer(any),
            ),
            (Self::UbatchSize, _) => (
                &["-ub", "--ubatch-size"],
                "LLAMA_ARG_UBATCH",
                Kind::Integer(any),
            ),
            (Self::SwaFull, _) => (&["--swa-full"], "LLAMA_ARG_SWA_FULL", Kind::Switch),
            (Self::SleepIdleSeconds, _) => (
                &["--sleep-idle-seconds"],
                "",
                Kind::Integer(|seconds| seconds == -1 || seconds > 0),
            ),
            (Self::SpmInfill, _) => (&["--spm-infill"], "", Kind::Switch),
            (Self::Mmproj, Of2025) => (&["--mmproj"], "LLAMA_ARG_MMPROJ", Kind::Text),
            (Self::Mmproj, _) => (&["-mm", "--mmproj"], "LLAMA_ARG_MMPROJ", Kind::Text),
            (Self::MmprojUrl, Of2025) => (&["--mmproj-url"], "LLAMA_ARG_MMPROJ_URL", Kind::Text),
            (Self::MmprojUrl, _) => (
                &["-mmu", "--mmproj-url"],
                "LLAMA_ARG_MMPROJ_URL",
                Kind::Text,
            ),
        };
        let off = self.off(generation);
        Some(Spelling {
            names,
            off,
            variable,
            kind,
        })
    }

    fn off(self, generation: Generation) -> &'static [&'static str] {
        match (self, generation) {
            (Self::ContextShift, _) => &["--no-context-shift"],
            (_, Generation::Of2025) => &[],
            (Self::KvUnified, _) => &["-no-kvu", "--no-kv-unified"],
            (Self::CacheIdleSlots, _) => &["--no-cache-idle-slots"],
            (Self::CachePrompt, _) => &["--no-cache-prompt"],
            _ => &[],
        }
    }
}
