//! Which of a server's flags the KV of a token depends on: for code that keeps KV longer than a server runs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::OnceLock;

use crate::generation::Generation;
use crate::name_of;
use crate::read::truth;

/// Flags that KV does not depend on: each with all of its names, behind `/` those that turn it off, `=` if it has a value, and the
/// variables that stand for it, without `LLAMA_ARG_`. Where the model comes from does not matter, as its file's content is known
/// by itself; nor does the length of the context, where it matters. On which device something is computed changes roundings only.
const HARMLESS: &str = "
-h --help --usage
--version
-cl --cache-list
--completion-bash
-t --threads = $THREADS
-tb --threads-batch =
-C --cpu-mask =
-Cr --cpu-range =
--cpu-strict =
--prio =
--poll =
-Cb --cpu-mask-batch =
-Crb --cpu-range-batch =
--cpu-strict-batch =
--prio-batch =
--poll-batch =
-c --ctx-size = $CTX_SIZE
-n --predict --n-predict = $N_PREDICT
-b --batch-size = $BATCH
-ub --ubatch-size = $UBATCH
--keep =
--perf / --no-perf $PERF
-e --escape / --no-escape
-kvo --kv-offload / -nkvo --no-kv-offload $KV_OFFLOAD
--repack / -nr --no-repack $REPACK
--no-host $NO_HOST
-dt --defrag-thold = $DEFRAG_THOLD
--rpc = $RPC
-lm --load-mode = $LOAD_MODE
-lzm --lazy-mode = $LAZY_MODE
--numa = $NUMA
-dev --device = $DEVICE
--list-devices
-ot --override-tensor = $OVERRIDE_TENSOR
-cmoe --cpu-moe $CPU_MOE
-ncmoe --n-cpu-moe = $N_CPU_MOE
--moe-cache-mib = $MOE_CACHE_MIB
-ncffn --n-cpu-ffn = $N_CPU_FFN
-ngl --gpu-layers --n-gpu-layers = $N_GPU_LAYERS
-sm --split-mode = $SPLIT_MODE
-ts --tensor-split = $TENSOR_SPLIT
-mg --main-gpu = $MAIN_GPU
-fit --fit = $FIT
-fitt --fit-target = $FIT_TARGET
-fitc --fit-ctx = $FIT_CTX
--check-tensors
--op-offload / --no-op-offload
--lora =
--lora-scaled =
-m --model = $MODEL
-mu --model-url = $MODEL_URL
-dr --docker-repo = $DOCKER_REPO
-hf -hfr --hf-repo = $HF_REPO
-hff --hf-file = $HF_FILE
-hft --hf-token =
--log-disable
--log-file = $LOG_FILE
--log-jsonl / --no-log-jsonl $LOG_JSONL
--log-colors = $LOG_COLORS
-v --verbose --log-verbose
--offline $OFFLINE
-lv --verbosity --log-verbosity = $LOG_VERBOSITY
--log-prefix / --no-log-prefix $LOG_PREFIX
--log-timestamps / --no-log-timestamps $LOG_TIMESTAMPS
--samplers =
-s --seed =
--sampler-seq --sampling-seq =
--ignore-eos
--temp --temperature = $TEMPERATURE
--top-k = $TOP_K
--top-p = $TOP_P
--min-p = $MIN_P
--top-nsigma --top-n-sigma =
--xtc-probability =
--xtc-threshold =
--typical --typical-p =
--repeat-last-n =
--repeat-penalty = $REPEAT_PENALTY
--presence-penalty = $PRESENCE_PENALTY
--frequency-penalty = $FREQUENCY_PENALTY
--dry-multiplier =
--dry-base =
--dry-allowed-length =
--dry-penalty-last-n =
--dry-sequence-breaker =
--adaptive-target =
--adaptive-decay =
--dynatemp-range =
--dynatemp-exp =
--mirostat =
--mirostat-lr =
--mirostat-ent =
-l --logit-bias =
--grammar =
--grammar-file =
-j --json-schema =
-jf --json-schema-file =
-bs --backend-sampling $BACKEND_SAMPLING
--spec-draft-hf -hfd -hfrd --hf-repo-draft = $SPEC_DRAFT_HF_REPO
--spec-draft-threads -td --threads-draft =
--spec-draft-threads-batch -tbd --threads-batch-draft =
--spec-draft-cpu-mask -Cd --cpu-mask-draft =
--spec-draft-cpu-range -Crd --cpu-range-draft =
--spec-draft-cpu-strict --cpu-strict-draft =
--spec-draft-prio --prio-draft =
--spec-draft-poll --poll-draft =
--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft =
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft =
--spec-draft-prio-batch --prio-batch-draft =
--spec-draft-poll-batch --poll-batch-draft =
--spec-draft-override-tensor -otd --override-tensor-draft =
--spec-draft-cpu-moe -cmoed --cpu-moe-draft $SPEC_DRAFT_CPU_MOE
--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft = $SPEC_DRAFT_N_CPU_MOE
--spec-draft-n-max = $SPEC_DRAFT_N_MAX
--spec-draft-n-min = $SPEC_DRAFT_N_MIN
--spec-draft-n-ubatch = $SPEC_DRAFT_N_UBATCH
--spec-synth-len = $SPEC_SYNTH_LEN
--spec-synth-rates = $SPEC_SYNTH_RATES
--spec-draft-p-split --draft-p-split = $SPEC_DRAFT_P_SPLIT
--spec-draft-p-min --draft-p-min = $SPEC_DRAFT_P_MIN
--spec-draft-backend-sampling / --no-spec-draft-backend-sampling $SPEC_DRAFT_BACKEND_SAMPLING
--spec-draft-sampling = $SPEC_DRAFT_SAMPLING
--spec-draft-device -devd --device-draft =
--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft = $N_GPU_LAYERS_DRAFT
--spec-draft-model -md --model-draft = $SPEC_DRAFT_MODEL $MODEL_DRAFT
--spec-type = $SPEC_TYPE
--spec-ngram-mod-n-min =
--spec-ngram-mod-n-max =
--spec-ngram-mod-n-match =
--spec-ngram-simple-size-n =
--spec-ngram-simple-size-m =
--spec-ngram-simple-min-hits =
--spec-ngram-map-k-size-n =
--spec-ngram-map-k-size-m =
--spec-ngram-map-k-min-hits =
--spec-ngram-map-k4v-size-n =
--spec-ngram-map-k4v-size-m =
--spec-ngram-map-k4v-min-hits =
--draft --draft-n --draft-max = $DRAFT_MAX
--draft-min --draft-n-min = $DRAFT_MIN
--spec-ngram-size-n =
--spec-ngram-size-m =
--spec-ngram-min-hits =
-lcs --lookup-cache-static =
-lcd --lookup-cache-dynamic =
--kv-unified-per-slot = $KV_UNIFIED_PER_SLOT
-ctxcp --ctx-checkpoints --swa-checkpoints = $CTX_CHECKPOINTS $SWA_CHECKPOINTS
-cms --checkpoint-min-step = $CHECKPOINT_MIN_SPACING_NT
-cram --cache-ram = $CACHE_RAM
-kvu --kv-unified / -no-kvu --no-kv-unified $KV_UNIFIED $KV_SPLIT
--cache-idle-slots / --no-cache-idle-slots $CACHE_IDLE_SLOTS
--context-shift / --no-context-shift $CONTEXT_SHIFT
-r --reverse-prompt =
-sp --special
--warmup / --no-warmup
--spm-infill
-np --parallel = $N_PARALLEL
-cb --cont-batching / -nocb --no-cont-batching $CONT_BATCHING
-mm --mmproj = $MMPROJ
-mmu --mmproj-url = $MMPROJ_URL
--mmproj-auto / --no-mmproj --no-mmproj-auto $MMPROJ_AUTO
--mmproj-offload / --no-mmproj-offload $MMPROJ_OFFLOAD
-mmdev --mmproj-device =
--image-min-tokens = $IMAGE_MIN_TOKENS
--image-max-tokens = $IMAGE_MAX_TOKENS
--mtmd-batch-max-tokens = $MTMD_BATCH_MAX_TOKENS
--video-fps = $VIDEO_FPS
--video-timestamp-interval = $VIDEO_TIMESTAMP_INTERVAL
--video-ffmpeg-dir = $VIDEO_FFMPEG_DIR
-a --alias = $ALIAS
--tags = $TAGS
--embd-normalize =
--host = $HOST
--port = $PORT
--reuse-port $REUSE_PORT
--path = $STATIC_PATH
--cors-origins = $CORS_ORIGINS
--cors-methods = $CORS_METHODS
--cors-headers = $CORS_HEADERS
--cors-credentials / --no-cors-credentials $CORS_CREDENTIALS
--api-prefix = $API_PREFIX
--ui-config --webui-config = $UI_CONFIG
--ui-config-file --webui-config-file = $UI_CONFIG_FILE
--ui-mcp-proxy --webui-mcp-proxy / --no-ui-mcp-proxy --no-webui-mcp-proxy $UI_MCP_PROXY
--tools = $TOOLS
--tools-runtime = $TOOLS_RUNTIME
--mcp-servers-config = $MCP_SERVERS_CONFIG
--mcp-servers-json = $MCP_SERVERS_JSON
-ag --agent / -no-ag --no-agent $AGENT
--ui --webui / --no-ui --no-webui $UI
--api-key =
--api-key-file = $API_KEY_FILE
--ssl-key-file = $SSL_KEY_FILE
--ssl-cert-file = $SSL_CERT_FILE
--chat-template-kwargs = $CHAT_TEMPLATE_KWARGS
-to --timeout = $TIMEOUT
--sse-ping-interval = $SSE_PING_INTERVAL
--threads-http = $THREADS_HTTP
--cache-prompt / --no-cache-prompt $CACHE_PROMPT
--cache-reuse = $CACHE_REUSE
--metrics $ENDPOINT_METRICS
--props $ENDPOINT_PROPS
--slots / --no-slots $ENDPOINT_SLOTS
--slot-save-path = $SLOT_SAVE_PATH
--media-path =
--models-dir = $MODELS_DIR
--models-preset = $MODELS_PRESET
--models-max = $MODELS_MAX
--models-autoload / --no-models-autoload $MODELS_AUTOLOAD
--jinja / --no-jinja $JINJA
--reasoning-format = $THINK
-rea --reasoning = $REASONING
--reasoning-effort = $REASONING_EFFORT
--reasoning-budget = $THINK_BUDGET
--reasoning-budget-message = $THINK_BUDGET_MESSAGE
--reasoning-preserve / --no-reasoning-preserve $REASONING_PRESERVE
--chat-template = $CHAT_TEMPLATE
--chat-template-file = $CHAT_TEMPLATE_FILE
--skip-chat-parsing / --no-skip-chat-parsing $SKIP_CHAT_PARSING
--prefill-assistant / --no-prefill-assistant $PREFILL_ASSISTANT
-sps --slot-prompt-similarity =
--lora-init-without-apply
--sleep-idle-seconds =
--log-prompts-dir =
";

/// Flags of older servers that KV does not depend on.
const HARMLESS_OLD: &str = "
--mlock $MLOCK
--mmap / --no-mmap $MMAP
-cpent --checkpoint-every-n-tokens = $CHECKPOINT_EVERY_NT
-vp --verbose-prompt
";

/// Flags that KV depends on.
const RELEVANT: &str = "
--swa-full $SWA_FULL
-fa --flash-attn = $FLASH_ATTN
--rope-scaling = $ROPE_SCALING_TYPE
--rope-scale = $ROPE_SCALE
--rope-freq-base = $ROPE_FREQ_BASE
--rope-freq-scale = $ROPE_FREQ_SCALE
--yarn-orig-ctx = $YARN_ORIG_CTX
--yarn-ext-factor = $YARN_EXT_FACTOR
--yarn-attn-factor = $YARN_ATTN_FACTOR
--yarn-beta-slow = $YARN_BETA_SLOW
--yarn-beta-fast = $YARN_BETA_FAST
-ctk --cache-type-k = $CACHE_TYPE_K
-ctv --cache-type-v = $CACHE_TYPE_V
--override-kv =
--control-vector =
--control-vector-scaled =
--control-vector-layer-range =
--spec-draft-type-k -ctkd --cache-type-k-draft = $SPEC_DRAFT_CACHE_TYPE_K
--spec-draft-type-v -ctvd --cache-type-v-draft = $SPEC_DRAFT_CACHE_TYPE_V
--pooling = $POOLING
--embedding --embeddings $EMBEDDINGS
--rerank --reranking $RERANKING
--embd-gemma-default
--fim-qwen-1.5b-default
--fim-qwen-3b-default
--fim-qwen-7b-default
--fim-qwen-7b-spec
--fim-qwen-14b-spec
--fim-qwen-30b-default
--gpt-oss-20b-default
--gpt-oss-120b-default
--vision-gemma-4b-default
--vision-gemma-12b-default
--spec-default
";

/// A flag that is known.
#[derive(Debug)]
struct Known {
    names: Vec<&'static str>,
    off: Vec<&'static str>,
    has_value: bool,
    variables: Vec<&'static str>,
    is_relevant: bool,
}

impl Known {
    fn new(row: &'static str, is_relevant: bool) -> Self {
        let mut known = Self {
            names: Vec::new(),
            off: Vec::new(),
            has_value: false,
            variables: Vec::new(),
            is_relevant,
        };
        let mut turns_off = false;
        for word in row.split_whitespace() {
            match (word, word.strip_prefix('$')) {
                ("/", _) => turns_off = true,
                ("=", _) => known.has_value = true,
                (_, Some(variable)) => known.variables.push(variable),
                _ if turns_off => known.off.push(word),
                _ => known.names.push(word),
            }
        }
        known
    }

    /// The one name that stands for all of its names: its first long one.
    fn name(&self) -> &'static str {
        let mut long = self.names.iter().filter(|name| name.starts_with("--"));
        long.next().or(self.names.first()).copied().unwrap_or("")
    }

    /// Whether several uses of the flag add up.
    fn adds_up(&self) -> bool {
        matches!(
            self.name(),
            "--override-kv" | "--control-vector" | "--control-vector-scaled"
        )
    }
}

fn all() -> &'static [Known] {
    static ALL: OnceLock<Vec<Known>> = OnceLock::new();
    ALL.get_or_init(|| {
        let lists = [(HARMLESS, false), (HARMLESS_OLD, false), (RELEVANT, true)];
        let rows = lists.into_iter().flat_map(|(list, is_relevant)| {
            let rows = list.lines().filter(|row| !row.is_empty());
            rows.map(move |row| Known::new(row, is_relevant))
        });
        rows.collect()
    })
}

/// The flag of this name, and whether the name turns it on.
fn by_name(name: &str) -> Option<(&'static Known, bool)> {
    all().iter().find_map(|known| {
        let on = known.names.contains(&name);
        (on || known.off.contains(&name)).then_some((known, on))
    })
}

/// The flag that a variable stands for, and whether it is the one that turns it off.
fn by_variable(name: &str) -> Option<(&'static Known, bool)> {
    let name = name.strip_prefix("LLAMA_ARG_")?;
    let find = |name: &str| all().iter().find(|known| known.variables.contains(&name));
    match find(name) {
        Some(known) => Some((known, true)),
        None => {
            let known = find(name.strip_prefix("NO_")?)?;
            (!known.off.is_empty()).then_some((known, false))
        }
    }
}

/// Whether KV may depend on a flag or on a variable (`LLAMA_ARG_…`): it does, or the name is not known. `None`: this is neither.
#[must_use]
pub fn may_change_kv(name: &str) -> Option<bool> {
    let known = if name.starts_with('-') {
        by_name(&name_of(OsStr::new(name)))
    } else if name.starts_with("LLAMA_ARG_") {
        by_variable(name)
    } else {
        return None;
    };
    Some(known.is_none_or(|(known, _)| known.is_relevant))
}

/// Whether a flag is on one of the lists, with a value or without one, as given. For a test with the server's own help.
#[must_use]
pub fn is_listed(name: &str, variable: Option<&str>) -> bool {
    let by_name = by_name(name).map(|(known, _)| known);
    let by_variable = variable.map(|name| by_variable(name).map(|(known, _)| known));
    let same = |other: Option<&Known>| matches!((by_name, other), (Some(a), Some(b)) if std::ptr::eq(a, b));
    by_name.is_some() && by_variable.is_none_or(same)
}

/// Those of a server's arguments (without its own name) and variables that KV depends on, as words. The words are the same
/// whether a flag was given by one of its names or by its variable, in whatever order, and however numbers are spelled.
/// What is not known counts as it is.
pub fn relevant_flags(
    arguments: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<OsString> {
    let mut given: BTreeMap<&str, Vec<OsString>> = BTreeMap::new();
    let mut unknown = Vec::new();
    let mut unknown_variables = Vec::new();
    for (name, value) in variables {
        let text = name.to_string_lossy();
        match by_variable(&text) {
            Some((known, _)) if !known.is_relevant => {}
            Some((known, on)) => {
                let is_on = if known.has_value {
                    Some(on)
                } else {
                    truth(&value, Generation::Late2026).map(|truth| truth == on)
                };
                if is_on == Some(true) {
                    let value = known.has_value.then(|| spelled(&value));
                    given.insert(known.name(), value.into_iter().collect());
                }
            }
            None if text.starts_with("LLAMA_ARG_") => unknown_variables.push([name, value]),
            None => {}
        }
    }
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let Some((known, on)) = by_name(&name_of(&argument)) else {
            unknown.push(argument);
            continue;
        };
        // Some have none on older servers.
        let is_flag = |next: &OsString| {
            let name = name_of(next);
            name.starts_with('-') && known.is_relevant && by_name(&name).is_some()
        };
        let value = if known.has_value && !arguments.peek().is_some_and(is_flag) {
            arguments.next()
        } else {
            None
        };
        if !known.is_relevant {
            continue;
        }
        let value = value.map(|value| spelled(&value));
        match (known.adds_up(), on) {
            (_, false) => drop(given.insert(known.off[0], Vec::new())),
            (true, _) => given.entry(known.name()).or_default().extend(value),
            (false, _) => drop(given.insert(known.name(), value.into_iter().collect())),
        }
    }
    unknown_variables.sort();
    let flags = given.into_iter();
    let known = flags.flat_map(|(name, values)| [name.into()].into_iter().chain(values));
    known
        .chain(unknown)
        .chain(unknown_variables.into_iter().flatten())
        .collect()
}

/// A number in one spelling; anything else as it is.
fn spelled(value: &OsStr) -> OsString {
    match value.to_str().map(|text| (text, text.parse::<f64>())) {
        Some((text, Ok(number)))
            if number.is_finite() && text.bytes().any(|byte| byte.is_ascii_digit()) =>
        {
            number.to_string().into()
        }
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags_of(arguments: &str, variables: &[(&str, &str)]) -> String {
        let arguments = arguments.split_whitespace().map(OsString::from);
        let variables = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        let flags = relevant_flags(arguments, variables);
        let words: Vec<_> = flags.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn harmless_flags_do_not_count_and_unknown_ones_do() {
        assert_eq!(
            flags_of(
                "--port 1 -np 4 -m a.gguf --cache_ram 9 --no-mmap --temp 1",
                &[]
            ),
            ""
        );
        assert_eq!(
            flags_of("--hf-token secret -hf a/b", &[("LLAMA_ARG_HF_FILE", "c")]),
            ""
        );
        assert_eq!(
            flags_of(
                "",
                &[
                    ("LLAMA_ARG_PORT", "1"),
                    ("LLAMA_ARG_NO_MMAP", "1"),
                    ("HOME", "/")
                ]
            ),
            ""
        );
        assert_eq!(
            flags_of("--from-next-year 5 --port 2", &[]),
            "--from-next-year 5"
        );
        assert_eq!(flags_of("", &[("LLAMA_ARG_NEW", "1")]), "LLAMA_ARG_NEW 1");
        assert_eq!(
            flags_of("--rope-freq-base 5000", &[]),
            "--rope-freq-base 5000"
        );
    }

    #[test]
    fn what_means_the_same_is_the_same_however_it_is_said() {
        let yarn = flags_of(
            "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 4096",
            &[],
        );
        let variables = [
            ("LLAMA_ARG_ROPE_SCALING_TYPE", "yarn"),
            ("LLAMA_ARG_ROPE_SCALE", "4.0"),
            ("LLAMA_ARG_YARN_ORIG_CTX", "4096"),
        ];
        assert_eq!(flags_of("", &variables), yarn);
        assert_eq!(flags_of("--yarn_orig_ctx 4096", &variables[..2]), yarn);
        assert_eq!(
            flags_of(
                "--yarn-orig-ctx 4096 --port 8 --rope-scale 4 --rope-scaling yarn",
                &[]
            ),
            yarn
        );
        // The command line counts more, and the last of several.
        assert_eq!(
            flags_of(
                "--rope-scale 2 --rope-scale 4",
                &[variables[0], variables[2], ("LLAMA_ARG_ROPE_SCALE", "9")]
            ),
            yarn
        );
        assert_ne!(flags_of("--rope-scale 5", &variables), yarn);
        assert_eq!(
            flags_of("-ctk q8_0", &[]),
            flags_of("", &[("LLAMA_ARG_CACHE_TYPE_K", "q8_0")])
        );
        assert_eq!(
            flags_of("--swa-full", &[]),
            flags_of("", &[("LLAMA_ARG_SWA_FULL", "true")])
        );
        assert_eq!(flags_of("", &[("LLAMA_ARG_SWA_FULL", "off")]), "");
        // Several of these count.
        assert_ne!(
            flags_of("--override-kv a=int:1 --override-kv b=int:2", &[]),
            flags_of("--override-kv b=int:2", &[])
        );
    }

    /// Servers of 2025 have flags without a value that have one now.
    #[test]
    fn a_flag_is_not_taken_for_the_value_of_another() {
        assert_eq!(flags_of("-fa --port 8080", &[]), "--flash-attn");
        assert_eq!(flags_of("-fa on --port 8080", &[]), "--flash-attn on");
        assert_eq!(
            flags_of("--yarn-ext-factor -1.0 --port 1", &[]),
            "--yarn-ext-factor -1"
        );
    }

    #[test]
    fn no_name_and_no_variable_is_on_two_lists() {
        let mut seen = std::collections::BTreeSet::new();
        for known in all() {
            for word in known.names.iter().chain(&known.off).chain(&known.variables) {
                assert!(seen.insert(*word), "{word}");
            }
        }
        assert_eq!(may_change_kv("--port"), Some(false));
        assert_eq!(may_change_kv("LLAMA_ARG_ROPE_SCALE"), Some(true));
        assert_eq!(may_change_kv("LLAMA_ARG_NEW"), Some(true));
        assert_eq!(may_change_kv("HOME"), None);
    }
}
