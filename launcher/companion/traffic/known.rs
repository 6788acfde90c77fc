//! What a trace does not say of servers: it comes from options, a model's file, or a recording; what none of them says is assumed.

use std::path::{Path, PathBuf};

use clap::Args;
use contextpilot_simulate::{Rates, Sizes};
use contextpilot_traffic::Traffic;

use super::model;
use crate::companion::bounds::{is_speed, number};
use crate::companion::recorded;
use crate::companion::show::{bytes, count, counted};

/// What a server is.
#[derive(Args, Clone)]
pub(in crate::companion) struct Machine {
    /// Slots of a server [default: as recorded, or 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    slots: Option<u32>,
    /// Its host cache in MiB [default: as recorded, or 8192]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=1 << 30))]
    host_cache: Option<u64>,
    /// Prompt tokens that it evaluates in a second [default: as recorded, or 2000]
    #[arg(long, value_name = "TOKENS", value_parser = rate)]
    prompt_rate: Option<f64>,
    /// Tokens of an answer in a second, in each slot [default: as recorded, or 30]
    #[arg(long, value_name = "TOKENS", value_parser = rate)]
    answer_rate: Option<f64>,
    /// The KV of a token in bytes [default: of --model, as recorded, or 131072]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    kv_bytes: Option<u64>,
    /// A GGUF file: the KV of its tokens, in 16-bit numbers
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// A recording of a server like these: its rates, slots, caches, and the KV of its tokens
    #[arg(long, value_name = "FILE")]
    like: Option<PathBuf>,
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, is_speed, "a rate is a number above 0")
}

/// What is known of a server, and from where.
pub(in crate::companion) struct ServerFigures {
    pub(in crate::companion) slots: u32,
    pub(in crate::companion) host_bytes: u64,
    pub(in crate::companion) similarity: f64,
    pub(in crate::companion) prompt_rate: f64,
    pub(in crate::companion) answer_rate: f64,
    pub(in crate::companion) token_bytes: u64,
    /// Each of these in words, with its source.
    pub(in crate::companion) said: Vec<String>,
}

/// What a recording says of its server.
struct Recorded {
    slots: u32,
    host_mib: Option<u64>,
    similarity: f64,
    prompt_rate: Option<f64>,
    answer_rate: Option<f64>,
    token_bytes: Option<u64>,
}

impl Machine {
    /// An option of these that is given.
    pub(in crate::companion) fn given_option(&self) -> Option<&'static str> {
        let options = [
            (self.slots.is_some(), "--slots"),
            (self.host_cache.is_some(), "--host-cache"),
            (self.prompt_rate.is_some(), "--prompt-rate"),
            (self.answer_rate.is_some(), "--answer-rate"),
            (self.kv_bytes.is_some(), "--kv-bytes"),
            (self.model.is_some(), "--model"),
            (self.like.is_some(), "--like"),
        ];
        let given = options.iter().find(|(is_given, _)| *is_given);
        given.map(|(_, name)| *name)
    }

    /// `recording`: the traffic itself is one.
    pub(in crate::companion) fn known(
        &self,
        recording: Option<&Traffic>,
    ) -> Result<ServerFigures, String> {
        let recorded = match (&self.like, recording) {
            (Some(path), _) => Some(Recorded::at(path)?),
            (None, Some(traffic)) => Recorded::from_traffic(traffic),
            (None, None) => None,
        };
        let of = |pick: fn(&Recorded) -> Option<f64>| recorded.as_ref().and_then(pick);
        let mut said = Vec::new();
        let pick = |given: Option<f64>, recorded: Option<f64>, usual: f64| match (given, recorded) {
            (Some(given), _) => (given, "as given"),
            (None, Some(recorded)) => (recorded, "as recorded"),
            (None, None) => (usual, "assumed"),
        };
        let slots = pick(
            self.slots.map(f64::from),
            of(|r| Some(f64::from(r.slots))),
            4.0,
        );
        let host = pick(
            self.host_cache.map(|mib| mib as f64),
            of(|r| r.host_mib.map(|mib| mib as f64)),
            8192.0,
        );
        let prompt = pick(self.prompt_rate, of(|r| r.prompt_rate), 2000.0);
        let answer = pick(self.answer_rate, of(|r| r.answer_rate), 30.0);
        let of_model = self.model.as_deref().map(model::token_bytes).transpose()?;
        let token = match (self.kv_bytes, of_model) {
            (None, Some(bytes)) => (bytes as f64, "of the model's file"),
            (given, _) => pick(
                given.map(|bytes| bytes as f64),
                of(|r| r.token_bytes.map(|bytes| bytes as f64)),
                131_072.0,
            ),
        };
        said.push(format!("{} ({})", counted(slots.0 as u64, "slot"), slots.1));
        let host_bytes = (host.0 as u64) << 20;
        said.push(format!("host cache {} ({})", bytes(host_bytes), host.1));
        said.push(format!("{:.0} prompt tokens/s ({})", prompt.0, prompt.1));
        said.push(format!("{:.0} answer tokens/s ({})", answer.0, answer.1));
        said.push(format!(
            "KV of a token {} B ({})",
            count(token.0 as u64),
            token.1
        ));
        Ok(ServerFigures {
            slots: slots.0 as u32,
            host_bytes,
            similarity: recorded
                .as_ref()
                .map_or(0.1, |recorded| recorded.similarity),
            prompt_rate: prompt.0,
            answer_rate: answer.0,
            token_bytes: (token.0 as u64).max(1),
            said,
        })
    }
}

impl Recorded {
    fn at(path: &Path) -> Result<Self, String> {
        let (traffic, _) = recorded::open(path)?;
        Self::from_traffic(&traffic)
            .ok_or_else(|| format!("{} does not say what server it is of", path.display()))
    }

    fn from_traffic(traffic: &Traffic) -> Option<Self> {
        let setup = traffic.setup.as_ref()?;
        let rates = Rates::new(traffic);
        let per_second = |micros: f64| (micros > 0.0).then(|| 1e6 / micros);
        Some(Self {
            slots: setup.parallel.max(1),
            host_mib: match setup.cache_ram {
                // Without limit: more than any machine has.
                Some(mib) => Some(u64::try_from(mib).unwrap_or(1 << 30)),
                None => Some(0),
            },
            similarity: f64::from(setup.slot_prompt_similarity),
            prompt_rate: per_second(rates.prompt_token),
            answer_rate: per_second(rates.answer_token),
            token_bytes: Some(Sizes::new(&traffic.sizes).of_token()).filter(|bytes| *bytes > 0),
        })
    }
}
