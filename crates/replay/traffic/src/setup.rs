//! What a recording says of the server.

use crate::bytes::{Bytes, put, put_signed, put_text};
use crate::row::LONGEST_ROW;

/// Which positions a context keeps, and so can go back to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// All positions.
    #[default]
    Full,
    /// Some layers keep a sliding window of this many tokens only (`llama_model_n_swa`).
    Window(u32),
    /// A recurrent model: one state, at the last position.
    Recurrent,
}

/// Which of llama.cpp's functions the server calls. They tell how old it is, even if its build has no
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// Not recorded.
    #[default]
    Unknown,
    /// `llama_kv_self_…` or `llama_kv_cache_…`: up to mid 2025.
    KvCache,
    /// `llama_memory_…` and `llama_decode`: up to mid 2026.
    Decode,
    /// `llama_process`: since mid 2026.
    Process,
}

/// The server as it was started: its build, and the flags that decide what is reused.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The build, as llama.cpp states it, for example `b11669-Debian`. Empty where it states none.
    pub engine: String,
    /// Slots (`--parallel`).
    pub parallel: u32,
    /// Neither `--parallel` nor `--kv-unified` was given. Then the slots share the context. With
    /// `--parallel` they divide it, unless `--kv-unified` is given.
    pub auto_parallel: bool,
    /// Tokens that fit into the whole context (`llama_n_ctx`).
    pub context: u32,
    /// Tokens that a slot can hold (`llama_n_ctx_seq`).
    pub slot_context: u32,
    /// The slots share the context (`--kv-unified`, or no `--parallel`).
    pub kv_unified: bool,
    /// `--cache-ram`: MiB of the host prompt cache. 0: none, negative: no limit. `None`: the server is
    /// too old to have one.
    pub cache_ram: Option<i64>,
    /// `--cache-idle-slots`.
    pub cache_idle_slots: bool,
    /// `--slot-prompt-similarity`. 0: off. Older recordings have it rounded to thousandths.
    pub slot_prompt_similarity: f32,
    /// `--cache-reuse`: the smallest chunk, tokens. 0: off.
    pub cache_reuse: u32,
    /// `--context-shift`.
    pub context_shift: bool,
    /// `--ctx-checkpoints`: the most for each slot.
    pub ctx_checkpoints: u32,
    /// `--checkpoint-min-step`: tokens.
    pub checkpoint_min_step: u32,
    /// `--batch-size`: tokens.
    pub batch_size: u32,
    /// `--ubatch-size`: tokens.
    pub ubatch_size: u32,
    /// Which positions the context keeps.
    pub memory: Memory,
    /// Which functions of llama.cpp the server calls.
    pub calls: Calls,
    /// The version, as llama.cpp states it. Empty where it states none.
    pub version: String,
    /// A projector for images and sounds is named. Then no chunks are moved. Older recordings do not say.
    pub projector: bool,
    /// `--sleep-idle-seconds`. `None`: it never sleeps. Older recordings do not say.
    pub sleep_idle_seconds: Option<u32>,
    /// `--swa-full`: sliding windows keep all positions, and the prefix store keeps nothing. Older recordings do not say.
    pub whole_windows: bool,
    /// The sliding window of a model whose windows keep all positions (`llama_model_n_swa`): a saved state has no more of them.
    /// 0: the model has none, or the recording is older and does not say.
    pub whole_window: u32,
    /// How large its prefix store may become, bytes. `None`: it has none. A frame of its own has it.
    pub store: Option<u64>,
}

impl Default for Setup {
    /// llama-server 0.7.0 without flags.
    fn default() -> Self {
        Self {
            engine: String::new(),
            parallel: 4,
            auto_parallel: true,
            context: 4096,
            slot_context: 4096,
            kv_unified: true,
            cache_ram: Some(8192),
            cache_idle_slots: true,
            slot_prompt_similarity: 0.1,
            cache_reuse: 0,
            context_shift: false,
            ctx_checkpoints: 32,
            checkpoint_min_step: 8192,
            batch_size: 2048,
            ubatch_size: 512,
            memory: Memory::Full,
            calls: Calls::Unknown,
            version: String::new(),
            projector: false,
            sleep_idle_seconds: None,
            whole_windows: false,
            whole_window: 0,
            store: None,
        }
    }
}

impl Setup {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::new();
        put_text(&mut into, &self.engine);
        let (memory, window) = match self.memory {
            // Older programs read no window here.
            Memory::Full => (0, self.whole_window),
            Memory::Window(window) => (1, window),
            Memory::Recurrent => (2, 0),
        };
        for number in [
            self.parallel,
            u32::from(self.auto_parallel),
            self.context,
            self.slot_context,
            u32::from(self.kv_unified),
            u32::from(self.cache_ram.is_some()),
            u32::from(self.cache_idle_slots),
            thousandths(self.slot_prompt_similarity),
            self.cache_reuse,
            u32::from(self.context_shift),
            self.ctx_checkpoints,
            self.checkpoint_min_step,
            self.batch_size,
            self.ubatch_size,
            memory,
            window,
        ] {
            put(&mut into, u64::from(number));
        }
        put_signed(&mut into, self.cache_ram.unwrap_or(0));
        put(&mut into, self.calls as u64);
        put_text(&mut into, &self.version);
        // What older programs leave out.
        put(&mut into, u64::from(self.slot_prompt_similarity.to_bits()));
        put(&mut into, u64::from(self.projector));
        // The server refuses 0.
        put(&mut into, u64::from(self.sleep_idle_seconds.unwrap_or(0)));
        put(&mut into, u64::from(self.whole_windows));
        into
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(body);
        let engine = bytes.text()?;
        let mut number = || bytes.small();
        let parallel = number()?;
        let auto_parallel = number()? != 0;
        let context = number()?;
        let slot_context = number()?;
        let kv_unified = number()? != 0;
        let has_cache = number()? != 0;
        let cache_idle_slots = number()? != 0;
        let thousandths = number()?;
        let cache_reuse = number()?;
        let context_shift = number()? != 0;
        let ctx_checkpoints = number()?;
        let checkpoint_min_step = number()?;
        let batch_size = number()?;
        let ubatch_size = number()?;
        let (memory, whole_window) = match (number()?, number()?) {
            (0, window) => (Memory::Full, window),
            (1, window) => (Memory::Window(window), 0),
            (2, _) => (Memory::Recurrent, 0),
            _ => return None,
        };
        let cache_ram = bytes.signed()?;
        // Version 1 ends here.
        let calls = match bytes.number() {
            Some(1) => Calls::KvCache,
            Some(2) => Calls::Decode,
            Some(3) => Calls::Process,
            _ => Calls::Unknown,
        };
        let version = bytes.text().unwrap_or_default();
        let exact = bytes.small().map(f32::from_bits);
        let slot_prompt_similarity = exact
            .filter(|share| share.is_finite())
            .unwrap_or(thousandths as f32 / 1000.0);
        let projector = bytes.small() == Some(1);
        let sleep_idle_seconds = bytes.small().filter(|&seconds| seconds > 0);
        let whole_windows = bytes.small() == Some(1);
        let setup = Self {
            engine,
            parallel,
            auto_parallel,
            context,
            slot_context,
            kv_unified,
            cache_ram: has_cache.then_some(cache_ram),
            cache_idle_slots,
            slot_prompt_similarity,
            cache_reuse,
            context_shift,
            ctx_checkpoints,
            checkpoint_min_step,
            batch_size,
            ubatch_size,
            memory,
            calls,
            version,
            projector,
            sleep_idle_seconds,
            whole_windows,
            whole_window,
            store: None,
        };
        setup.is_possible().then_some(setup)
    }

    /// Whether there can be such a server. What simulates it takes memory for each slot, each token of the context, and
    /// each of a batch.
    fn is_possible(&self) -> bool {
        let tokens = [self.context, self.slot_context];
        let batches = [self.batch_size, self.ubatch_size];
        let in_slots = u64::from(self.slot_context) * u64::from(self.parallel);
        self.parallel <= MOST_SLOTS
            && tokens.iter().all(|tokens| *tokens <= LONGEST_ROW)
            && batches.iter().all(|tokens| *tokens <= LONGEST_ROW)
            && (self.kv_unified || in_slots <= 2 * u64::from(LONGEST_ROW))
    }
}

/// The similarity for programs that know thousandths only. 0 would be something else to them: off.
fn thousandths(share: f32) -> u32 {
    let rounded = (share * 1000.0).round() as u32;
    rounded.max(u32::from(share > 0.0))
}

/// More than llama.cpp has (`LLAMA_MAX_SEQ`, 256).
const MOST_SLOTS: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_a_model_whose_windows_keep_all_positions_comes_back() {
        let whole = Setup {
            whole_windows: true,
            whole_window: 512,
            ..Setup::default()
        };
        assert_eq!(Setup::decode(&whole.encode()), Some(whole));
    }

    /// As it was written before: without the exact value at the end.
    #[test]
    fn a_similarity_in_thousandths_is_read_and_a_small_one_is_never_off() {
        let small = Setup {
            slot_prompt_similarity: 0.0003,
            ..Setup::default()
        };
        let bytes = small.encode();
        assert_eq!(Setup::decode(&bytes), Some(small.clone()));
        let bits = small.slot_prompt_similarity.to_bits();
        let mut exact = Vec::new();
        put(&mut exact, u64::from(bits));
        put(&mut exact, u64::from(small.projector));
        put(&mut exact, 0);
        put(&mut exact, 0);
        let old = bytes.strip_suffix(&exact[..]).expect("it is at the end");
        let read = Setup::decode(old).map(|setup| setup.slot_prompt_similarity);
        assert_eq!(read, Some(0.001));
    }
}
