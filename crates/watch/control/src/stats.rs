//! `GET /stats`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Causes, Flags, Memory, Reason, Timestamp, Title};

/// Everything at one moment: the worker thread takes it between two events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// When this was taken.
    pub at: Timestamp,
    /// Random, drawn when the process started. What was reported under another epoch is void.
    pub epoch: String,
    /// The server's process number.
    pub process: u32,
    /// Seconds since the hook started, which is when the server began to load its first model.
    pub uptime_seconds: f64,
    /// The hook's own version.
    pub hook_version: String,
    /// The mode of the hook.
    pub mode: Mode,
    /// Where the server itself listens: `http://127.0.0.1:9931`, `https://[::1]:9931` or
    /// `unix:/path`, with the port that the system chose. `http://0.0.0.0:…` and `http://[::]:…` are
    /// all addresses of the machine. Empty: not seen, or an older hook.
    #[serde(default)]
    pub listening: Vec<String>,
    /// It is a child of a llama-server in router mode, which listens elsewhere and passes requests on
    /// to it.
    #[serde(default)]
    pub routed: bool,
    /// The engine, and how the hook is attached to it.
    pub engine: Engine,
    /// The model that is served.
    pub model: Option<Model>,
    /// Whether the server has a model to answer with.
    #[serde(default)]
    pub model_state: ModelState,
    /// The server's flags that decide what it reuses. `None`: an older hook.
    #[serde(default)]
    pub flags: Option<Flags>,
    /// The contexts of a program that is no llama-server, side by side. Empty: a server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contexts: Vec<ProgramContext>,
    /// Each slot that a task was ever launched in, by number. In a program: each sequence that had a prompt, of all
    /// contexts.
    pub slots: Vec<Slot>,
    /// The host prompt cache.
    pub host: HostCache,
    /// Tokens, everywhere.
    pub tokens: Tokens,
    /// Size of the KV cache.
    pub kv: KvBytes,
    /// Requests for inference.
    pub requests: Requests,
    /// Prompt tokens, by what became of them.
    pub reuse: Reuse,
    /// Requests that fell out of the cache since the start, by reason. Reasons that never
    /// occurred are left out.
    pub evictions: BTreeMap<Reason, u64>,
    /// Something is lost unless the engine evaluates it again at once, which a silence of a second
    /// at most will tell. False: all that was lost so far is counted.
    #[serde(default)]
    pub undecided: bool,
    /// The delivery of evictions to the index; `None` if there is no index ([`Mode::Observing`]).
    pub delivery: Option<Delivery>,
    /// The URL of an index that stands in front of the server and asks this endpoint
    /// (`CONTEXTPILOT_INDEX_IN_FRONT`, which `contextpilot-llama up` sets); `None`: no such index is known.
    #[serde(default)]
    pub index_in_front: Option<String>,
    /// The clients of the control endpoint; `None` from a server that does not count them.
    #[serde(default)]
    pub control: Option<ControlEndpoint>,
    /// What is published for routers; `None` where nothing is (`CONTEXTPILOT_KV_EVENTS`).
    #[serde(default)]
    pub kv_events: Option<KvEvents>,
    /// What is recorded of the traffic; `None` where nothing is (`CONTEXTPILOT_TRAFFIC_FILE`).
    #[serde(default)]
    pub recording: Option<Recording>,
    /// The prefix store; `None` where there is none (`CONTEXTPILOT_STORE`).
    #[serde(default)]
    pub store: Option<PrefixStore>,
    /// Prompts that got the tokens of earlier answers; `None` where none do (`CONTEXTPILOT_KEEP_TOKENS`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptTokens>,
    /// What went by without being noticed.
    pub losses: Losses,
}

/// Prompts whose text goes on as an earlier answer did, and so got its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptTokens {
    /// How many prompts these are.
    pub prompts: u64,
    /// Tokens in them that the tokenizer would have divided otherwise.
    pub tokens: u64,
}

/// A recording of traffic without its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recording {
    /// The file, on the server's machine.
    pub file: String,
    /// Bytes that were written to it.
    pub bytes: u64,
    /// Why it ended, if it has: the disk, or its limit.
    pub ended: Option<String>,
}

/// The prefix store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefixStore {
    /// The folder, on the server's machine.
    pub folder: String,
    /// Whether it is in use: its folder was read, and so were the files of the models, which takes some
    /// seconds for a large one. Until then prompts are evaluated as ever.
    pub ready: bool,
    /// Its folder cannot be used, so there is no store; [`problem`](Self::problem) says why.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// Files of models, adapters and engines that are being read to know what is in them; `None`: there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reading: Option<FilesRead>,
    /// Bytes that its files take.
    pub bytes: u64,
    /// Bytes that they may take.
    pub limit_bytes: u64,
    /// Chunks: runs of at most 256 tokens, a file each.
    pub chunks: u64,
    /// What clients have asked to keep.
    pub kept: KeptPrompts,
    /// Answers that count what was loaded as cached.
    pub counted: CountedAnswers,
    /// Sequences that were loaded, since the server's start, as are all numbers below.
    pub loads: u64,
    /// Loads whose rows went from the files into the engine without a copy of the state in between.
    pub direct_loads: u64,
    /// Tokens that were loaded and not evaluated, those of draft models included.
    pub loaded_tokens: u64,
    /// Seconds that searching, reading and loading took.
    pub load_seconds: f64,
    /// Sequences that something new was taken from.
    pub saves: u64,
    /// Copies for which only what was new was copied out of the engine.
    pub partial_saves: u64,
    /// Tokens that were new, and are written.
    pub saved_tokens: u64,
    /// Seconds that copying sequences out of the engine took, where the server does not do it itself.
    pub save_seconds: f64,
    /// Times that the engine did not take a state. The tokens were evaluated.
    pub failed_loads: u64,
    /// Chunks that were not kept: the disk was too slow, or refused them.
    pub lost_chunks: u64,
    /// Chunks that were fetched from the remote because a prompt wanted them.
    pub fetched_chunks: u64,
    /// Seconds that prompts have waited for such chunks.
    pub fetch_seconds: f64,
    /// Images and sounds that the server has encoded.
    pub encoded: u64,
    /// Seconds that this took.
    pub encode_seconds: f64,
    /// Images and sounds that it did not encode, because what its encoder makes of them was loaded.
    pub encodings_loaded: u64,
    /// Seconds that loading took.
    pub encodings_load_seconds: f64,
    /// Bytes of [`bytes`](Self::bytes) that all of that takes in the folder. It leaves only for more of it, as long as that is no more
    /// than an eighth of [`limit_bytes`](Self::limit_bytes).
    pub encodings_bytes: u64,
    /// Why contexts have no store, or some prompts are neither loaded nor kept, each reason once. They are evaluated as ever.
    pub refused: Vec<String>,
    /// How often each of these was met, in the same order: once for a context, or for each batch of a prompt.
    pub refused_times: Vec<u64>,
    /// The fingerprints under which prompts are looked up: of models, with their adapters and all else that KV depends on.
    /// The one that came last is at the end. At most 16.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fingerprints: Vec<String>,
    /// What the disk refused last; `None`: nothing.
    pub problem: Option<String>,
    /// The Redis or the bucket that the folder is kept alike with; `None`: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<StoreRemote>,
}

/// Why the store does not keep what a request asked it to keep, as [`PrefixStore::refused`] has it.
pub const KEEPS_NO_MORE: &str = "what is to be kept would take more than a quarter of the budget, or be more than 1,024 \
                                 prompts (cache_control): raise CONTEXTPILOT_STORE_GB, or let something go with \
                                 contextpilot-llama release";

/// How far files have been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesRead {
    /// Bytes that have been read.
    pub bytes_read: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// In which answers the server itself counts what was loaded as cached (`CONTEXTPILOT_STORE_USAGE`), so that no proxy needs
/// to put them right. It is known of a kind when the first one was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountedAnswers {
    /// Those in one piece.
    pub whole: bool,
    /// Streams.
    pub streamed: bool,
}

/// Prompts in a prefix store that clients have asked to keep (`cache_control`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptPrompts {
    /// How many prompts these are.
    pub prompts: u64,
    /// Their tokens. Beginnings that they share count once.
    pub tokens: u64,
    /// Bytes that these take.
    pub bytes: u64,
    /// Bytes that they may take: a share of the store's.
    pub limit_bytes: u64,
    /// When the last of them may leave like others; `None`: there are none.
    pub until: Option<Timestamp>,
}

impl PrefixStore {
    /// Each reason of [`refused`](Self::refused), and how often it was met: 0 if the server does not count.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, u64)> {
        let times = self.refused_times.iter().copied();
        let times = times.chain(std::iter::repeat(0));
        self.refused.iter().map(String::as_str).zip(times)
    }
}

/// A Redis or a bucket that a prefix store's folder is kept alike with, as reported by the process that does it. The
/// numbers count from when that process began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreRemote {
    /// The address, without a password.
    pub address: String,
    /// Whether it could be used when it was asked last.
    pub reachable: bool,
    /// Since when that is so.
    pub since: Option<Timestamp>,
    /// Why it cannot be used; `None`: it can.
    pub problem: Option<String>,
    /// Chunks that were sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Chunks that were fetched.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Chunks that wait to be sent, if the remote lacks them.
    pub waiting: u64,
    /// Chunks that the remote is known to have. A prompt gets these at once; what else is there is found at the next look.
    pub known: u64,
    /// What is there and was not taken: it cannot be what a server sent, or was damaged.
    pub refused: u64,
    /// Why the last of these was not taken; `None`: there was none.
    pub last_refused: Option<String>,
    /// Milliseconds from one look for what is to be sent or fetched to the next, on average over the last ones. What a server
    /// writes is sent at the first look, and others see it at theirs.
    pub look_ms: u64,
    /// When the process reported this.
    pub at: Option<Timestamp>,
}

impl StoreRemote {
    /// Reads a report of the process from JSON. `None`: the JSON is no such report.
    pub fn read(json: &[u8], now: Timestamp) -> Option<Self> {
        /// A report that is older counts as out of date: the process reports every few seconds.
        const SILENT_MS: u64 = 60_000;
        let mut said: Self = serde_json::from_slice(json).ok()?;
        let at = said.at.map_or(0, Timestamp::unix_ms);
        if now.unix_ms().saturating_sub(at) > SILENT_MS {
            said.reachable = false;
            said.since = said.at;
            said.problem = Some("the process that keeps it alike says nothing any more".to_owned());
        }
        Some(said)
    }
}

/// What the hook is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Evictions are reported to an index (`CONTEXTPILOT_INDEX_URL`).
    Reporting,
    /// There is no index: only this endpoint, or the log file, reports evictions.
    Observing,
    /// The hook has stopped after an internal error: what stands here is from before.
    Stopped,
    /// A newer server's.
    #[serde(other)]
    Other,
}

/// The engine, and how the hook is attached to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Engine {
    /// `llama.cpp`.
    pub name: String,
    /// As `llama_version()` or the server's own functions say; `None` where they are missing.
    pub version: Option<String>,
    /// The build, in the engine's words.
    pub build: Option<String>,
    /// The engine is linked into the server's executable.
    pub inside_executable: bool,
    /// What the hook sees of it: `KV cache`, `host prompt cache`, `request ids`,
    /// `slot assignment`.
    pub attached: Vec<String>,
    /// What it does not see, and what follows from that.
    pub missing: Vec<String>,
    /// What was seen of the engine at work. `None`: this hook does not say it.
    pub seen: Option<Seen>,
    /// Why nothing of it is followed, though functions are hooked: calls that must have come did not.
    pub not_followed: Option<String>,
    /// Each function of the engine, of its server and of the libraries below them that the hook
    /// knows and this server has.
    pub functions: Vec<HookedFunction>,
}

/// What was seen of an engine: calls, which alone prove that it is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// It has loaded a model, or made a context.
    pub loaded: bool,
    /// It has evaluated tokens.
    pub evaluated: bool,
    /// It has removed tokens from its KV cache, or changed them otherwise.
    pub changed: bool,
}

/// What is known of a function that the hook stands in front of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HookedFunction {
    /// The name by which the linker knows it.
    pub name: String,
    /// How the hook gets in front of it: `import` (the words through which others call it),
    /// `inline` (its own first instructions), `none` (nothing that could be patched calls it).
    pub way: String,
    /// Places that lead to it.
    pub found: u32,
    /// Places that were patched, read back, and now lead to the hook.
    pub patched: u32,
    /// Whether a call was seen.
    pub called: bool,
}

/// A model, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// `--alias`, else the file's name from the command line or the environment, else what
    /// `llama_model_desc` says.
    pub name: String,
    /// Where the name is from: `command line`, `environment` or `engine`.
    pub from: String,
}

/// Whether a server has a model to answer with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelState {
    /// None was ever loaded: the server says 503 to requests for inference.
    Loading,
    /// There is one.
    Loaded,
    /// There was one. The server has freed it (`--sleep-idle-seconds`) and loads it again for the
    /// next request, which waits for that.
    Asleep,
    /// An older server does not say; or a newer one's word.
    #[default]
    #[serde(other)]
    Other,
}

/// A slot of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slot {
    /// Its number: llama-server's `id_slot`, the engine's sequence. In a program: the sequence, and 1000 times the
    /// number of its context.
    pub slot: i32,
    /// Its context, in a program: see [`ProgramContext::context`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// Tokens that it holds, from its beginning.
    pub tokens: u32,
    /// Tokens that it could hold (`llama_n_ctx_seq`); with one cache for all slots
    /// (`--kv-unified`), those of all.
    pub capacity: Option<u32>,
    /// [`Slot::tokens`] at [`KvBytes::bytes_per_token`].
    pub bytes: Option<u64>,
    /// A task is at work in it: launched, and not answered yet. In a program, where nothing says when an answer is over:
    /// tokens of it are being evaluated, or were within the last second.
    pub busy: bool,
    /// The ids of live requests whose prompts it holds whole, at most 1000 of them, in the
    /// order in which their prompts end.
    pub requests: Vec<String>,
    /// How many there are of those.
    pub requests_total: u64,
    /// The id of the request that was launched in it last; `None` if that had none.
    pub last_request: Option<String>,
    /// When the last request was launched in it.
    pub last_launch: Option<Timestamp>,
    /// The prompt that it evaluates now. `None`: there is none, or an older hook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<UnfinishedPrompt>,
    /// What the request is about that was launched in it last, with `CONTEXTPILOT_EXPLAIN_TEXT=1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_title: Option<Title>,
}

/// A prompt that is being evaluated, as far as batches have come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnfinishedPrompt {
    /// The number of its request, as in lists; 0: the request was not seen.
    pub number: u64,
    /// The id of its request, if it has one.
    pub id: Option<String>,
    /// Tokens that need not be evaluated.
    pub reused: u64,
    /// Tokens in batches that the engine has evaluated.
    pub evaluated: u64,
    /// Tokens in the batch that the engine evaluates now.
    pub in_batch: u64,
    /// The client has left while this batch is evaluated: the server stops behind it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub client_left: bool,
    /// All tokens of the prompt. `None`: not known (it has media, is for `/infill`, or is one of several of its request).
    pub tokens: Option<u64>,
    /// About how many seconds the others will take, at the rate of this prompt or, before its first batch has ended, of
    /// the last one. `None`: not known.
    pub seconds_left: Option<f64>,
    /// Seconds since the slot took its task.
    pub seconds: f64,
    /// [`evaluated`](Self::evaluated) over the time from then to the end of the last batch. `None`: no batch
    /// of it has ended yet.
    pub tokens_per_second: Option<f64>,
}

/// A context of a program that is no llama-server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramContext {
    /// Its number, from 0. The number of a context that was freed is used again.
    pub context: u32,
    /// Its model, in the engine's words (`llama_model_desc`).
    pub model: Option<String>,
    /// Its sequences (`llama_n_seq_max`).
    pub sequences: Option<u32>,
    /// Tokens that one of them can hold.
    pub capacity: Option<u32>,
    /// Whether its tokens can be moved to other positions.
    pub can_shift: Option<bool>,
    /// Which positions it keeps.
    pub memory: Memory,
    /// Tokens that its sequences hold.
    pub tokens: u64,
    /// Bytes of one.
    pub bytes_per_token: Option<f64>,
    /// What its prompts reused, since it was created.
    pub reuse: ReuseOver,
}

/// The host prompt cache, `--cache-ram`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostCache {
    /// Saved sequences.
    pub entries: u64,
    /// Their tokens, added up: those that two entries share count twice.
    pub tokens: u64,
    /// Bytes of the buffers that they were saved to. Without the engine's own bookkeeping and
    /// without context checkpoints, which are listed in [`HostCache::checkpoint_bytes`].
    pub bytes: u64,
    /// Buffers that hold checkpoints of sliding-window and recurrent models.
    pub checkpoints: u64,
    /// Their bytes.
    pub checkpoint_bytes: u64,
    /// What [`HostCache::bytes`] may grow to; `None`: not known, or without limit.
    pub limit_bytes: Option<u64>,
    /// Where the limit is from: `command line`, `environment`, `default of 0.7`; or
    /// `unlimited`, or `off`, or `unknown`.
    pub limit_from: String,
}

/// Tokens in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// Distinct ones, in slots and in host memory: a prefix that several hold counts once.
    pub resident: u64,
    /// Those that slots and host entries hold, added up, less [`Tokens::resident`]: what would
    /// be saved if every prefix were kept once.
    pub shared: u64,
    /// Requests that are on their way or cached.
    pub live_requests: u64,
}

/// How large the KV cache is, from sizes that the engine itself states for a sequence's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvBytes {
    /// [`KvBytes::measured_bytes`] / [`KvBytes::measured_tokens`].
    pub bytes_per_token: Option<f64>,
    /// Tokens of the longest sequence whose size was asked for.
    pub measured_tokens: u64,
    /// Its state's size (`llama_state_seq_get_size_ext`): keys and values of all layers, and a
    /// few bytes a token for positions.
    pub measured_bytes: u64,
}

/// Requests for inference, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requests {
    /// Received in whole on connections that could be read.
    pub seen: u64,
    /// Those with a usable request id.
    pub with_id: u64,
    /// Those without a request id.
    pub without_id: u64,
    /// Those with a request id that cannot be used (too long, not a string).
    pub refused_id: u64,
    /// Answered, or left by their clients.
    pub finished: u64,
}

/// Prompt tokens, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reuse {
    /// Since the start.
    pub total: ReuseOver,
    /// Prompts that were completed within the last 60 seconds.
    pub last_minute: ReuseOver,
    /// Why tokens were evaluated, since the start. All zero with `CONTEXTPILOT_EXPLAIN_MB=0`.
    pub causes: Causes,
    /// The time that evaluating them took, since the start, summed over the prompts: see
    /// [`Evaluation::seconds`](crate::Evaluation::seconds).
    pub seconds: f64,
}

/// Prompt tokens over some time. Counts prompts whose evaluation was completed, each at that
/// moment: the sums are those of `cache_n` and `prompt_n` in the engine's `timings`, but for what the prefix
/// store loaded: the engine counts that in `prompt_n`, and we as reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReuseOver {
    /// Prompts.
    pub prompts: u64,
    /// Their tokens that were not evaluated.
    pub reused: u64,
    /// Their tokens that the engine evaluated.
    pub evaluated: u64,
    /// reused / (reused + evaluated); `None` without tokens.
    pub hit_ratio: Option<f64>,
}

impl ReuseOver {
    /// Computes the hit ratio, too.
    #[must_use]
    pub fn new(prompts: u64, reused: u64, evaluated: u64) -> Self {
        let tokens = reused + evaluated;
        Self {
            prompts,
            reused,
            evaluated,
            hit_ratio: (tokens > 0).then(|| reused as f64 / tokens as f64),
        }
    }
}

/// The delivery of evictions to the index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Delivery {
    /// The URL evictions are posted to, without user and password.
    pub endpoint: String,
    /// Ids waiting to be sent.
    pub waiting: u64,
    /// Ids of these that were refused when they were sent alone. They are tried again one at a
    /// time, and keep no others waiting.
    pub set_aside: u64,
    /// Ids in the POST under way.
    pub in_flight: u64,
    /// Ids that the index confirmed.
    pub sent: u64,
    /// Ids that an index that was not initialized did not need.
    pub not_needed: u64,
    /// Ids that the index itself named as ones that it does not take: dropped.
    pub rejected: u64,
    /// Ids dropped because too many waited.
    pub dropped: u64,
    /// POSTs that were answered in a way that settles them.
    pub posts: u64,
    /// POSTs that failed and are retried.
    pub failed_posts: u64,
    /// Failures since the last POST that was settled: more than zero means that it fails now.
    pub failures_in_a_row: u32,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// When that was.
    pub last_error_at: Option<Timestamp>,
    /// When the index confirmed a POST last.
    pub last_success_at: Option<Timestamp>,
}

/// What the clients of the control endpoint did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlEndpoint {
    /// Connections and requests that were refused: one too many, too large, too late, malformed, or of a client
    /// that may not ask.
    pub refused: u64,
    /// Microseconds of processor time for what clients asked. It is bounded.
    pub work_us: u64,
}

/// What is published for routers: KV cache events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvEvents {
    /// Where subscribers connect to, as `tcp://127.0.0.1:5557`; `None`: nowhere yet.
    pub publish: Option<String>,
    /// Where replays are asked for; `None`: nowhere.
    pub replay: Option<String>,
    /// Why nothing, or less than it should, is published; `None`: all is well.
    pub problem: Option<String>,
    /// Tokens of a block.
    pub block_size: u32,
    /// Peers that are subscribed now.
    pub subscribers: u64,
    /// Blocks in slots, as they are published now.
    pub gpu_blocks: u64,
    /// Blocks of the host prompt cache.
    pub cpu_blocks: u64,
    /// Blocks of the prefix store.
    pub disk_blocks: u64,
    /// The number of the newest batch; `None`: there is none yet.
    pub sequence: Option<u64>,
    /// Events that wait to be published.
    pub waiting: u64,
    /// Batches of events since the start. Signs of life do not count.
    pub batches: u64,
    /// Blocks that were announced as stored.
    pub stored: u64,
    /// Blocks that were announced as removed.
    pub removed: u64,
    /// Batches that a subscriber was too slow for, counted for each.
    pub dropped: u64,
    /// Replays that were asked for.
    pub replays: u64,
    /// Times that everything was announced again, because too much waited to be published.
    pub started_over: u64,
    /// Connections that were closed: one too many, not of a router, or too much work.
    pub refused: u64,
    /// Connections that took nothing and had to make room for others.
    pub displaced: u64,
    /// Microseconds of processor time for what routers sent. It is bounded.
    pub work_us: u64,
}

/// What the hook did not see. All zero in a healthy process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Losses {
    /// Events that found no room on their way to the ledger.
    pub events: u64,
    /// Times that the ledger had to start anew because of that.
    pub gaps: u64,
    /// Request ids that were lost: the index may believe in them for ever.
    pub ids: u64,
    /// Evaluations of batches whose content is not known.
    pub untracked_batches: u64,
    /// Saved sequences whose release could not have been noticed.
    pub untracked_buffers: u64,
    /// Connections on which one request cannot be told from the next.
    pub unreadable_connections: u64,
    /// Lines that the log file could not take.
    pub log_lines: u64,
    /// Claims that were withdrawn because calls that they depend on did not come.
    pub claims: u64,
}
