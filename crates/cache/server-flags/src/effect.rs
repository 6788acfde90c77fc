//! What the server does by its flags, defaults included.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::flag::Flag;
use crate::generation::Generation::{self, Early2026, Late2026, Of2025};
use crate::read::{ServerFlags, Source, addresses};

#[cfg(test)]
mod tests;

/// An address at which the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A name or an IP address, and a port. The server takes port 0 for any free one, and of a larger
    /// number the lower 16 bits.
    Tcp(OsString, i32),
    /// A Unix socket.
    Unix(PathBuf),
}

/// The model that the server is told to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name in the server's answers.
    pub name: OsString,
    /// Where the name is from.
    pub source: Source,
}

impl ServerFlags {
    /// Where it listens, in the order of the command line.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        let text = self.text(Flag::Host);
        let hosts = match (text, self.generation) {
            (None, _) => vec!["127.0.0.1".into()],
            (Some(host), Of2025) => vec![host.to_owned()],
            (Some(hosts), _) => addresses(hosts.as_bytes()),
        };
        let port = self.port();
        let address = |host: OsString| {
            if host.as_bytes().ends_with(b".sock") {
                Address::Unix(host.into())
            } else {
                Address::Tcp(host, port)
            }
        };
        hosts.into_iter().map(address).collect()
    }

    /// The port of all addresses.
    #[must_use]
    pub fn port(&self) -> i32 {
        let usual = match self.generation {
            Late2026 => 9931,
            _ => 8080,
        };
        self.integer(Flag::Port).unwrap_or(usual)
    }

    /// Whether it speaks TLS: it needs both a key and a certificate.
    #[must_use]
    pub fn tls(&self) -> bool {
        [Flag::SslKeyFile, Flag::SslCertFile]
            .iter()
            .all(|&flag| self.text(flag).is_some_and(|path| !path.is_empty()))
    }

    /// Its model: by an alias, else by the repository or the file. `None`: no model is given, as to a
    /// router.
    #[must_use]
    pub fn model(&self) -> Option<Model> {
        if let Some(name) = self.alias().filter(|name| !name.is_empty()) {
            let source = self.source(Flag::Alias);
            return Some(Model { name, source });
        }
        let by_age: &[Flag] = match self.generation {
            Of2025 => &[Flag::Model, Flag::HfRepo],
            _ => &[Flag::HfRepo, Flag::DockerRepo, Flag::Model],
        };
        by_age.iter().find_map(|&flag| {
            let name = self.text(flag).filter(|name| !name.is_empty())?;
            Some(Model {
                name: name.to_owned(),
                source: self.source(flag),
            })
        })
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        let usual = match self.generation {
            Of2025 => 1,
            _ => 4,
        };
        self.given_slots().unwrap_or(usual)
    }

    fn given_slots(&self) -> Option<u32> {
        let given = self.integer(Flag::Parallel)?;
        u32::try_from(given).ok().filter(|&slots| slots > 0)
    }

    /// Whether the server chooses the number of slots. Then they share the context.
    #[must_use]
    pub fn chooses_slots(&self) -> bool {
        self.given_slots().is_none() && self.generation != Of2025
    }

    /// Whether `--kv-unified` is given and not taken back.
    #[must_use]
    pub fn asks_for_unified(&self) -> bool {
        self.is_on(Flag::KvUnified) == Some(true)
    }

    /// Whether slots share the context.
    #[must_use]
    pub fn kv_unified(&self) -> bool {
        self.chooses_slots() || self.asks_for_unified()
    }

    /// Tokens that a slot may hold at most, whatever its share of the context. `None`: all of that.
    #[must_use]
    pub fn kv_unified_per_slot(&self) -> Option<u32> {
        Some(self.size(Flag::KvUnifiedPerSlot, 0)).filter(|&tokens| tokens > 0)
    }

    /// MiB of the host prompt cache. 0: off, negative: no limit. `None`: this generation has none.
    ///
    /// For decision models the default is 0 since 0.7.0. The flags do not say what the model is, so
    /// that is not known here.
    #[must_use]
    pub fn cache_ram(&self) -> Option<i32> {
        match self.generation {
            Of2025 => None,
            _ => Some(self.integer(Flag::CacheRam).unwrap_or(8192)),
        }
    }

    /// Whether idle slots move to the host prompt cache, if there is one. The flag is younger than that
    /// cache.
    #[must_use]
    pub fn cache_idle_slots(&self) -> bool {
        let usual = self.generation > Early2026;
        self.is_on(Flag::CacheIdleSlots).unwrap_or(usual)
    }

    /// The share of a prompt that a slot must hold to be chosen for it.
    #[must_use]
    pub fn slot_prompt_similarity(&self) -> f32 {
        let usual = match self.generation {
            Of2025 => 0.5,
            _ => 0.1,
        };
        self.real(Flag::SlotPromptSimilarity).unwrap_or(usual)
    }

    /// Whether prompts of requests that do not say (`cache_prompt`) come from the cache.
    #[must_use]
    pub fn cache_prompt(&self) -> bool {
        self.is_on(Flag::CachePrompt).unwrap_or(true)
    }

    /// The shortest chunk that is moved, in tokens. 0: none is. A server with a projector moves none.
    #[must_use]
    pub fn cache_reuse(&self) -> u32 {
        if self.names_projector() {
            0
        } else {
            self.size(Flag::CacheReuse, 0)
        }
    }

    /// Whether a projector is named. With a repository (`--hf-repo`), the server may take one by itself.
    #[must_use]
    pub fn names_projector(&self) -> bool {
        [Flag::Mmproj, Flag::MmprojUrl]
            .iter()
            .any(|flag| self.text(*flag).is_some())
    }

    /// Whether a full slot drops its oldest tokens.
    #[must_use]
    pub fn context_shift(&self) -> bool {
        let usual = self.generation == Of2025;
        self.is_on(Flag::ContextShift).unwrap_or(usual)
    }

    /// Checkpoints of a slot, at most.
    #[must_use]
    pub fn ctx_checkpoints(&self) -> u32 {
        let usual = match self.generation {
            Of2025 => 3,
            _ => 32,
        };
        self.size(Flag::CtxCheckpoints, usual)
    }

    /// Tokens between two checkpoints, at least.
    #[must_use]
    pub fn checkpoint_min_step(&self) -> u32 {
        self.size(Flag::CheckpointMinStep, 8192)
    }

    /// Tokens in a batch, at most. The context may be smaller.
    #[must_use]
    pub fn batch_size(&self) -> u32 {
        self.size(Flag::BatchSize, 2048)
    }

    /// Tokens that are evaluated at once, at most: never more than a batch has.
    #[must_use]
    pub fn ubatch_size(&self) -> u32 {
        let most = self.batch_size();
        match self.integer(Flag::UbatchSize) {
            // The engine takes a negative number for a large one.
            Some(..=0) => most,
            _ => self.size(Flag::UbatchSize, 512).min(most),
        }
    }

    /// Whether sliding-window layers keep all positions.
    #[must_use]
    pub fn swa_full(&self) -> bool {
        self.is_on(Flag::SwaFull) == Some(true)
    }

    /// Seconds without work after which the server sleeps: it frees its model, and all KV with it. `None`: it never does.
    #[must_use]
    pub fn sleep_idle_seconds(&self) -> Option<u32> {
        u32::try_from(self.integer(Flag::SleepIdleSeconds)?).ok()
    }

    /// Whether infill prompts begin with the suffix.
    #[must_use]
    pub fn spm_infill(&self) -> bool {
        self.is_on(Flag::SpmInfill) == Some(true)
    }

    /// The generation by whose rules these were read.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// A number of things: a negative one is none.
    fn size(&self, flag: Flag, usual: u32) -> u32 {
        let given = self.integer(flag);
        given.map_or(usual, |number| u32::try_from(number).unwrap_or(0))
    }
}
