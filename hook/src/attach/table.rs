//! Every function that this library hooks, declared once.
//!
//! A row reads `module generation need fn name(arguments) -> result;`:
//!
//! - **module**: the file in `hooks/` that has the hook's body;
//! - **generation**: which versions have the function. `any`: llama.cpp since 2025. [`MEMORY`],
//!   [`EVALUATION`], [`NUMBERS`], [`LAUNCH`] and others: the versions listed below. `prompts`: used if
//!   functions of `NUMBERS` or `LAUNCH` cannot be hooked ([`ties_by_prompts`]). `cxx`: the C++ runtime.
//!   `libc`: the C library. `store`, `straight`, `encoder`: hooked only if a prefix store is asked for ([`STORE`],
//!   [`STRAIGHT`], [`ENCODER`]);
//! - **need**: without a `required` function the library does not attach (of several
//!   generations, those of the newest that the engine has count). It attaches without `optional`
//!   functions, and the banner says what is missing.
//!
//! Macros make two things of these rows: the functions that are called in place of the host's
//! (`replacements.rs`), and the originals (`original.rs`). The lists and functions below say what follows
//! from a missing function, both for the hook and for `contextpilot-llama doctor`.
//!
//! Deprecated wrappers are either unused or counted once, through the new name: see
//! `guard::EngineCall`.
//!
//! Left out on purpose: `llama_encode` and encoding `llama_process` calls, because they use no KV cache.

/// The generations of one API, the newest first. Each has a name, and a function that only this
/// generation has.
pub(crate) type Generations = &'static [(&'static str, &'static str)];

/// How the KV cache is changed: through a context's memory (since mid-2025), or through the
/// context itself, under two names.
pub(crate) const MEMORY: Generations = &[
    ("memory", "llama_memory_seq_rm"),
    ("kv_self", "llama_kv_self_seq_rm"),
    ("kv_cache", "llama_kv_cache_seq_rm"),
];

/// How batches are evaluated: with an opaque `llama_batch_ext` (0.5 and later), or with a `llama_batch`
/// by value.
pub(crate) const EVALUATION: Generations =
    &[("extended", "llama_process"), ("legacy", "llama_decode")];

/// The function that gives a request the numbers of its tasks. In the servers of 2025, which are one
/// file, compilers inline that function. There, a later function counts, with which a request says
/// for which tasks it is going to wait.
pub(crate) const NUMBERS: Generations = &[
    ("server_queue", "_ZN12server_queue10get_new_idEv"),
    (
        "server_waiting",
        "_ZN15server_response17add_waiting_tasksERKSt6vectorI11server_taskSaIS1_EE",
    ),
];

/// The function with which a slot takes a task. The name changed between years.
pub(crate) const LAUNCH: Generations = &[
    (
        "server26",
        "_ZN19server_context_impl21launch_slot_with_taskER11server_slotO11server_task",
    ),
    (
        "server25",
        "_ZN14server_context21launch_slot_with_taskER11server_slotO11server_task",
    ),
];

/// How LoRA adapters are applied to a context: all at once (since early 2026), or one after the other,
/// under two names.
pub(crate) const ADAPTERS: Generations = &[
    ("adapters", "llama_set_adapters_lora"),
    ("adapter", "llama_set_adapter_lora"),
    ("lora_adapter", "llama_lora_adapter_set"),
];

/// What a server remembers of a prompt with `"cache_prompt": false` (the default
/// is true in all versions). With libmtmd (since May 2025, b5332) it remembers all of it, as of any other
/// prompt. Before that it remembers nothing, and the engine only sees that it begins at position 0.
pub(crate) const UNCACHED: Generations = &[
    ("remembered", "llama_memory_seq_rm"),
    ("remembered", "mtmd_helper_decode_image_chunk"),
    (FORGOTTEN, "llama_kv_self_seq_rm"),
    (FORGOTTEN, "llama_kv_cache_seq_rm"),
];

/// A function that only servers with a host prompt cache have (October 2025). The functions that save a
/// sequence to memory are older, and also used for checkpoints. (This function came three weeks after
/// the host prompt cache, with slots that share a KV cache. Builds from these three weeks are followed as
/// well; only the banner does not mention it.)
pub(crate) const HOST_CACHE: &str = "llama_n_ctx_seq";

/// Returns the socket of a TLS session. Without it, the other functions of TLS are of no use.
pub(crate) const SESSIONS_SOCKET: &str = "SSL_get_fd";

/// The functions that are hooked only for the prefix store (`CONTEXTPILOT_STORE`): what the server can
/// ask about a batch or a sequence that is shorter or longer than the server knows, and what says for what
/// a context is used.
#[allow(dead_code, reason = "`contextpilot-llama doctor` has the table, too")]
pub(crate) const STORE: &str = "store";

/// Functions that are hooked only for the prefix store, too, and without which it works: it is faster with them, and takes
/// less memory.
#[allow(dead_code, reason = "`contextpilot-llama doctor` has the table, too")]
pub(crate) const STRAIGHT: &str = "straight";

/// Functions that encode images and sounds (since 2026). They are hooked only for the prefix store, and used if all of them are:
/// then it also saves encoding.
#[allow(dead_code, reason = "`contextpilot-llama doctor` has the table, too")]
pub(crate) const ENCODER: &str = "encoder";

/// Makes tokens of a prompt with images. For [`ENCODER`], it is hooked also where requests need not be tied by their prompts.
#[allow(dead_code, reason = "`contextpilot-llama doctor` has the table, too")]
pub(crate) const WITH_MEDIA: &str = "mtmd_tokenize";

/// Functions behind those of llama.cpp's interface. Where link-time optimisation has copied an interface function into its
/// callers, the calls of these are left. They are hooked in a module that a program loads ([`of_modules`]), and in nothing
/// else: a server, and each program with a library of llama.cpp, calls the interface.
///
/// [`of_modules`]: super::inline::Inside::has_members
#[allow(dead_code, reason = "`contextpilot-llama doctor` has the table, too")]
pub(crate) const MEMBER: &str = "member";

/// See [`UNCACHED`].
pub(crate) const FORGOTTEN: &str = "forgotten";

/// The newest of `generations` that the server `has`.
pub(crate) fn newest(generations: Generations, has: impl Fn(&str) -> bool) -> Option<&'static str> {
    let mut found = generations.iter().filter(|(_, anchor)| has(anchor));
    found.next().map(|(generation, _)| *generation)
}

/// The function that makes tokens of a request's prompt. By it, requests can be tied to slots, less
/// exactly than by [`NUMBERS`] and [`LAUNCH`] together. It is used if one of these is missing.
pub(crate) const PROMPTS: (&str, &str) = ("prompts", "llama_tokenize");

/// Whether requests are tied to slots by their prompts, in a server that `has` these functions.
pub(crate) fn ties_by_prompts(has: impl Fn(&str) -> bool) -> bool {
    let directly = newest(NUMBERS, &has).is_some() && newest(LAUNCH, &has).is_some();
    !directly && has(PROMPTS.1)
}

/// Whether a server that `has` these functions calls those of this generation.
pub(crate) fn is_called(generation: &str, has: impl Fn(&str) -> bool) -> bool {
    if generation == PROMPTS.0 {
        return ties_by_prompts(has);
    }
    for generations in [MEMORY, EVALUATION, NUMBERS, LAUNCH, ADAPTERS] {
        if generations.iter().any(|(name, _)| *name == generation) {
            // If the server has none, the functions of the newest count as missing.
            let newest = newest(generations, &has).unwrap_or(generations[0].0);
            return newest == generation;
        }
    }
    true
}

/// Functions whose compiled code may begin with the call of another one, which cannot be moved, and that other one.
/// Every call of the first reaches the second.
const MEMBERS: &[(&str, &str)] = &[
    (
        "llama_set_adapter_lora",
        "_ZN13llama_context16set_adapter_loraEP18llama_adapter_loraf",
    ),
    (
        "llama_rm_adapter_lora",
        "_ZN13llama_context15rm_adapter_loraEP18llama_adapter_lora",
    ),
    (
        "llama_set_adapter_cvec",
        "_ZN13llama_context16set_adapter_cvecEPKfmiii",
    ),
    // As llama_get_memory, and then the other.
    ("llama_kv_self_seq_pos_max", "llama_memory_seq_pos_max"),
    (
        "llama_apply_adapter_cvec",
        "_ZN13llama_context18apply_adapter_cvecEPKfmiii",
    ),
];

/// Whether each call of this function reaches another one that is hooked, in an engine that `has` these.
fn is_seen_behind(name: &str, has: impl Fn(&str) -> bool) -> bool {
    let mut members = MEMBERS.iter();
    members.any(|(wrapper, member)| *wrapper == name && has(member))
}

/// As [`is_seen_elsewhere`], in a program that is no llama-server: it may remove one adapter of several.
#[allow(dead_code, reason = "`contextpilot-llama doctor` has the table, too")]
pub(crate) fn is_seen_in_program(name: &str, generation: &str, has: impl Fn(&str) -> bool) -> bool {
    match name {
        "llama_rm_adapter_lora" | "llama_lora_adapter_remove" => {
            is_seen_behind(name, &has) || !is_called(generation, &has)
        }
        _ => is_seen_elsewhere(name, generation, has),
    }
}

/// If this function cannot be hooked: whether another hook sees the same, in a server that
/// `has` these functions, or no code calls the function.
pub(crate) fn is_seen_elsewhere(name: &str, generation: &str, has: impl Fn(&str) -> bool) -> bool {
    if is_seen_behind(name, &has) {
        return true;
    }
    let through = match name {
        // Every context is seen when it is created.
        "llama_get_memory" | "llama_new_context_with_model" => "llama_init_from_model",
        // These announce a model. The creation of the context shows it as well.
        "llama_model_load_from_file" | "mtmd_init_from_file" => "llama_init_from_model",
        "llama_state_seq_get_data" => "llama_state_seq_get_data_ext",
        "llama_state_seq_set_data" => "llama_state_seq_set_data_ext",
        // Host buffers are vectors, which are not released with `delete[]`.
        "_ZdaPv" | "_ZdaPvm" => return true,
        // This identifies an image. The evaluation that it calls is seen all the same.
        "mtmd_helper_decode_image_chunk" => return true,
        // The server clears all adapters and then sets those that it wants.
        "llama_rm_adapter_lora" | "llama_lora_adapter_remove" => return true,
        // This gives the tokens of a prompt with images. Prompts without images are seen all the same.
        "mtmd_tokenize" => return true,
        // Old names in a newer engine, whose server calls the newer names.
        _ => return !is_called(generation, has),
    };
    has(through)
}

/// Passes the functions that can be hooked on every platform, and `$more` after them, to a macro.
macro_rules! for_each_interposed {
    ($then:ident $($more:tt)*) => {
        $then! {
            models    any       optional fn llama_model_load_from_file(path: *const c_char, params: ContextParams) -> Pointer;
            models    any       optional fn mtmd_init_from_file(path: *const c_char, model: Pointer, params: ContextParams) -> Pointer;

            contexts  any       required fn llama_init_from_model(model: Pointer, params: ContextParams) -> Pointer;
            contexts  any       optional fn llama_new_context_with_model(model: Pointer, params: ContextParams) -> Pointer;
            contexts  any       required fn llama_free(context: Pointer);
            contexts  memory    required fn llama_get_memory(context: Pointer) -> Pointer;

            memory    memory    required fn llama_memory_clear(memory: Pointer, data: bool);
            memory    memory    required fn llama_memory_seq_rm(memory: Pointer, sequence: i32, from: i32, to: i32) -> bool;
            memory    memory    required fn llama_memory_seq_cp(memory: Pointer, source: i32, target: i32, from: i32, to: i32);
            memory    memory    required fn llama_memory_seq_keep(memory: Pointer, sequence: i32);
            memory    memory    required fn llama_memory_seq_add(memory: Pointer, sequence: i32, from: i32, to: i32, delta: i32);
            memory    memory    required fn llama_memory_seq_div(memory: Pointer, sequence: i32, from: i32, to: i32, divisor: i32);

            memory    kv_self   required fn llama_kv_self_clear(context: Pointer);
            memory    kv_self   required fn llama_kv_self_seq_rm(context: Pointer, sequence: i32, from: i32, to: i32) -> bool;
            memory    kv_self   required fn llama_kv_self_seq_cp(context: Pointer, source: i32, target: i32, from: i32, to: i32);
            memory    kv_self   required fn llama_kv_self_seq_keep(context: Pointer, sequence: i32);
            memory    kv_self   required fn llama_kv_self_seq_add(context: Pointer, sequence: i32, from: i32, to: i32, delta: i32);
            memory    kv_self   required fn llama_kv_self_seq_div(context: Pointer, sequence: i32, from: i32, to: i32, divisor: i32);

            memory    kv_cache  required fn llama_kv_cache_clear(context: Pointer);
            memory    kv_cache  required fn llama_kv_cache_seq_rm(context: Pointer, sequence: i32, from: i32, to: i32) -> bool;
            memory    kv_cache  required fn llama_kv_cache_seq_cp(context: Pointer, source: i32, target: i32, from: i32, to: i32);
            memory    kv_cache  required fn llama_kv_cache_seq_keep(context: Pointer, sequence: i32);
            memory    kv_cache  required fn llama_kv_cache_seq_add(context: Pointer, sequence: i32, from: i32, to: i32, delta: i32);
            memory    kv_cache  required fn llama_kv_cache_seq_div(context: Pointer, sequence: i32, from: i32, to: i32, divisor: i32);

            batch     extended  required fn llama_batch_ext_init(context: Pointer) -> Pointer;
            batch     extended  required fn llama_batch_ext_free(batch: Pointer);
            batch     extended  required fn llama_batch_ext_clear(batch: Pointer);
            batch     extended  required fn llama_batch_ext_add(batch: Pointer, sequence: i32) -> i32;
            batch     extended  required fn llama_batch_ext_add_token(batch: Pointer, sequence: i32, token: i32) -> i32;
            batch     extended  required fn llama_batch_ext_add_embd(batch: Pointer, sequence: i32, row: Embeddings) -> i32;
            batch     extended  required fn llama_batch_ext_add_seq(batch: Pointer, index: i32, sequence: i32) -> bool;
            batch     extended  required fn llama_batch_ext_set_embd_token(batch: Pointer, index: i32, row: Embeddings) -> bool;
            batch     extended  required fn llama_batch_ext_set_pos(batch: Pointer, index: i32, position: *const i32) -> bool;
            batch     extended  required fn llama_batch_ext_set_output_logits(batch: Pointer, index: i32, value: bool) -> bool;
            batch     extended  required fn llama_batch_ext_set_output_embd(batch: Pointer, index: i32, value: bool) -> bool;

            evaluate  extended  required fn llama_process(context: Pointer, kind: i32, batch: Pointer) -> i32;
            evaluate  legacy    required fn llama_decode(context: Pointer, batch: Batch) -> i32;

            media     any       optional fn mtmd_helper_decode_image_chunk(projector: Pointer, context: Pointer, chunk: Pointer, rows: Pointer, position: i32, sequence: i32, most: i32, end: Pointer, callback: Pointer, data: Pointer) -> i32;

            adapters  adapters     optional fn llama_set_adapters_lora(context: Pointer, adapters: *const Pointer, count: usize, scales: *const f32) -> i32;
            adapters  adapter      optional fn llama_set_adapter_lora(context: Pointer, adapter: Pointer, scale: f32) -> i32;
            adapters  adapter      optional fn llama_rm_adapter_lora(context: Pointer, adapter: Pointer) -> i32;
            adapters  adapter      optional fn llama_clear_adapter_lora(context: Pointer);
            adapters  adapter      optional fn _ZN13llama_context16set_adapter_loraEP18llama_adapter_loraf(context: Pointer, adapter: Pointer, scale: f32);
            adapters  adapter      optional fn _ZN13llama_context15rm_adapter_loraEP18llama_adapter_lora(context: Pointer, adapter: Pointer) -> bool;
            adapters  lora_adapter optional fn llama_lora_adapter_set(context: Pointer, adapter: Pointer, scale: f32) -> i32;
            adapters  lora_adapter optional fn llama_lora_adapter_remove(context: Pointer, adapter: Pointer) -> i32;
            adapters  lora_adapter optional fn llama_lora_adapter_clear(context: Pointer);

            state     any       optional fn llama_state_seq_get_data(context: Pointer, target: *mut u8, size: usize, sequence: i32) -> usize;
            state     any       optional fn llama_state_seq_get_data_ext(context: Pointer, target: *mut u8, size: usize, sequence: i32, flags: u32) -> usize;
            state     any       required fn llama_state_seq_set_data(context: Pointer, source: *const u8, size: usize, sequence: i32) -> usize;
            state     any       optional fn llama_state_seq_set_data_ext(context: Pointer, source: *const u8, size: usize, sequence: i32, flags: u32) -> usize;
            state     any       required fn llama_state_seq_load_file(context: Pointer, path: *const c_char, sequence: i32, tokens: *mut i32, capacity: usize, count: *mut usize) -> usize;
            state     any       required fn llama_state_set_data(context: Pointer, source: *const u8, size: usize) -> usize;
            state     any       required fn llama_state_load_file(context: Pointer, path: *const c_char, tokens: *mut i32, capacity: usize, count: *mut usize) -> bool;

            server    server_queue   optional fn _ZN12server_queue10get_new_idEv(queue: Pointer) -> i32;
            server    server_waiting optional fn _ZN15server_response17add_waiting_tasksERKSt6vectorI11server_taskSaIS1_EE(responses: Pointer, tasks: Pointer);
            server    server26       optional fn _ZN19server_context_impl21launch_slot_with_taskER11server_slotO11server_task(server: Pointer, slot: *const i32, task: *const i32) -> bool;
            server    server25       optional fn _ZN14server_context21launch_slot_with_taskER11server_slotO11server_task(server: Pointer, slot: *const i32, task: *const i32) -> bool;

            prompts   prompts   optional fn llama_tokenize(vocabulary: Pointer, text: *const c_char, length: i32, tokens: *mut i32, capacity: i32, special: bool, parse: bool) -> i32;
            prompts   prompts   optional fn mtmd_tokenize(projector: Pointer, chunks: Pointer, text: Pointer, media: Pointer, count: usize) -> i32;

            buffers   cxx       optional fn _ZdlPv(memory: Pointer);
            buffers   cxx       optional fn _ZdlPvm(memory: Pointer, size: usize);
            buffers   cxx       optional fn _ZdaPv(memory: Pointer);
            buffers   cxx       optional fn _ZdaPvm(memory: Pointer, size: usize);

            http      libc      optional fn listen(socket: c_int, backlog: c_int) -> c_int;
            http      libc      required fn accept(listener: c_int, address: Pointer, length: Pointer) -> c_int;
            // macOS has none.
            http      libc      optional fn accept4(listener: c_int, address: Pointer, length: Pointer, flags: c_int) -> c_int;
            http      libc      required fn recv(socket: c_int, buffer: Pointer, length: usize, flags: c_int) -> isize;
            http      libc      required fn send(socket: c_int, buffer: Pointer, length: usize, flags: c_int) -> isize;
            http      libc      required fn shutdown(socket: c_int, how: c_int) -> c_int;

            $($more)*
        }
    };
}

/// Passes every function of the table to a macro. OpenSSL's functions and those of the prefix store
/// are left out on macOS: an interpose pair would affect every program that inherits the preload. A Python, for
/// instance, may have two versions of OpenSSL at once, for libraries that were linked with one or the other.
macro_rules! for_each_hooked {
    ($then:ident) => {
        for_each_interposed! { $then
            tls       openssl   optional fn SSL_accept(session: Pointer) -> c_int;
            tls       openssl   optional fn SSL_read(session: Pointer, buffer: Pointer, length: c_int) -> c_int;
            tls       openssl   optional fn SSL_write(session: Pointer, buffer: Pointer, length: c_int) -> c_int;

            outputs   store     optional fn llama_get_logits_ith(context: Pointer, index: i32) -> Pointer;
            outputs   store     optional fn llama_get_embeddings_ith(context: Pointer, index: i32) -> Pointer;
            outputs   store     optional fn llama_get_sampled_token_ith(context: Pointer, index: i32) -> i32;
            outputs   store     optional fn llama_get_sampled_probs_ith(context: Pointer, index: i32) -> Pointer;
            outputs   store     optional fn llama_get_sampled_probs_count_ith(context: Pointer, index: i32) -> u32;
            outputs   store     optional fn llama_get_sampled_logits_ith(context: Pointer, index: i32) -> Pointer;
            outputs   store     optional fn llama_get_sampled_logits_count_ith(context: Pointer, index: i32) -> u32;
            outputs   store     optional fn llama_get_sampled_candidates_ith(context: Pointer, index: i32) -> Pointer;
            outputs   store     optional fn llama_get_sampled_candidates_count_ith(context: Pointer, index: i32) -> u32;
            outputs   store     optional fn _Z26llama_get_embeddings_nextnP13llama_context(context: Pointer) -> Pointer;
            outputs   store     optional fn _Z30llama_get_embeddings_nextn_ithP13llama_contexti(context: Pointer, index: i32) -> Pointer;
            outputs   store     optional fn _Z30llama_get_embeddings_layer_inpP13llama_contextj(context: Pointer, layer: u32) -> Pointer;
            outputs   store     optional fn llama_sampler_sample(sampler: Pointer, context: Pointer, index: i32) -> i32;

            lengths   store     optional fn llama_memory_seq_pos_min(memory: Pointer, sequence: i32) -> i32;
            lengths   store     optional fn llama_memory_seq_pos_max(memory: Pointer, sequence: i32) -> i32;
            lengths   store     optional fn llama_kv_self_seq_pos_max(context: Pointer, sequence: i32) -> i32;
            lengths   store     optional fn llama_kv_cache_seq_pos_max(context: Pointer, sequence: i32) -> i32;
            lengths   store     optional fn llama_state_seq_get_size(context: Pointer, sequence: i32) -> usize;
            lengths   store     optional fn llama_state_seq_get_size_ext(context: Pointer, sequence: i32, flags: u32) -> usize;
            lengths   store     optional fn llama_state_seq_save_file(context: Pointer, path: *const c_char, sequence: i32, tokens: *const i32, count: usize) -> usize;
            lengths   store     optional fn llama_state_get_size(context: Pointer) -> usize;
            lengths   store     optional fn llama_state_get_data(context: Pointer, target: *mut u8, size: usize) -> usize;
            lengths   store     optional fn llama_state_save_file(context: Pointer, path: *const c_char, tokens: *const i32, count: usize) -> bool;

            media     encoder   optional fn mtmd_input_chunk_copy(chunk: Pointer) -> Pointer;
            media     encoder   optional fn mtmd_input_chunk_free(chunk: Pointer);
            media     encoder   optional fn mtmd_input_chunks_free(chunks: Pointer);
            media     encoder   optional fn mtmd_batch_init(projector: Pointer) -> Pointer;
            media     encoder   optional fn mtmd_batch_add_chunk(batch: Pointer, chunk: Pointer) -> i32;
            media     encoder   optional fn mtmd_batch_encode(batch: Pointer) -> i32;
            media     encoder   optional fn mtmd_batch_get_output_embd(batch: Pointer, chunk: Pointer) -> Pointer;
            media     encoder   optional fn mtmd_batch_free(batch: Pointer);

            rows      straight  optional fn ggml_backend_tensor_set(tensor: Pointer, source: *const u8, offset: usize, size: usize);
            rows      straight  optional fn ggml_backend_tensor_get(tensor: Pointer, target: *mut u8, offset: usize, size: usize);

            purpose   store     optional fn llama_set_embeddings(context: Pointer, value: bool);
            purpose   store     optional fn _Z26llama_set_embeddings_nextnP13llama_contextbb(context: Pointer, value: bool, masked: bool);
            purpose   store     optional fn _Z30llama_set_embeddings_layer_inpP13llama_contextjb(context: Pointer, layer: u32, value: bool);
            purpose   store     optional fn llama_set_causal_attn(context: Pointer, value: bool);
            purpose   store     optional fn llama_set_adapter_cvec(context: Pointer, data: *const f32, length: usize, width: i32, first: i32, last: i32) -> i32;
            purpose   store     optional fn llama_apply_adapter_cvec(context: Pointer, data: *const f32, length: usize, width: i32, first: i32, last: i32) -> i32;
            purpose   store     optional fn _ZN13llama_context16set_adapter_cvecEPKfmiii(context: Pointer, data: *const f32, length: usize, width: i32, first: i32, last: i32) -> bool;
            purpose   store     optional fn _ZN13llama_context18apply_adapter_cvecEPKfmiii(context: Pointer, data: *const f32, length: usize, width: i32, first: i32, last: i32) -> bool;
            purpose   store     optional fn llama_opt_epoch(context: Pointer, data: Pointer, trained: Pointer, evaluated: Pointer, split: i64, on_train: Pointer, on_evaluation: Pointer);
            purpose   store     optional fn llama_model_free(model: Pointer);
            purpose   store     optional fn llama_adapter_lora_init(model: Pointer, path: *const c_char) -> Pointer;
            purpose   store     optional fn llama_adapter_lora_init_from_file_ptr(model: Pointer, file: Pointer) -> Pointer;
            purpose   store     optional fn llama_adapter_lora_free(adapter: Pointer);
            purpose   store     optional fn llama_batch_ext_set_embd_state(batch: Pointer, index: i32, row: Embeddings) -> bool;
            purpose   store     optional fn _Z34llama_batch_ext_set_decision_orderP15llama_batch_exti20llama_decision_order(batch: Pointer, index: i32, order: i32) -> bool;

            evaluate  member    optional fn _ZN13llama_context6decodeERK11llama_batch(context: Pointer, batch: *const Batch) -> i32;
            evaluate  member    optional fn _ZN13llama_context6decodeER11llama_batch(context: Pointer, batch: *const Batch) -> i32;
            contexts  member    optional fn _ZN13llama_contextD1Ev(context: Pointer);
            adapters  member    optional fn _ZN13llama_context17set_adapters_loraEPP18llama_adapter_loramPf(context: Pointer, adapters: *const Pointer, count: usize, scales: *const f32);
            state     member    optional fn _ZN13llama_context18state_seq_set_dataEiPKhmj(context: Pointer, sequence: i32, source: *const u8, size: usize, flags: u32) -> usize;
            state     member    optional fn _ZN13llama_context14state_set_dataEPKhm(context: Pointer, source: *const u8, size: usize) -> usize;
            memory    member    optional fn _ZN14llama_kv_cache5clearEb(memory: Pointer, data: bool);
            memory    member    optional fn _ZN14llama_kv_cache6seq_rmEiii(memory: Pointer, sequence: i32, from: i32, to: i32) -> bool;
            memory    member    optional fn _ZN14llama_kv_cache6seq_cpEiiii(memory: Pointer, source: i32, target: i32, from: i32, to: i32);
            memory    member    optional fn _ZN14llama_kv_cache8seq_keepEi(memory: Pointer, sequence: i32);
            memory    member    optional fn _ZN14llama_kv_cache7seq_addEiiii(memory: Pointer, sequence: i32, from: i32, to: i32, delta: i32);
            memory    member    optional fn _ZN14llama_kv_cache7seq_divEiiii(memory: Pointer, sequence: i32, from: i32, to: i32, divisor: i32);
            memory    member    optional fn _ZN19llama_kv_cache_iswa5clearEb(memory: Pointer, data: bool);
            memory    member    optional fn _ZN19llama_kv_cache_iswa6seq_rmEiii(memory: Pointer, sequence: i32, from: i32, to: i32) -> bool;
            memory    member    optional fn _ZN19llama_kv_cache_iswa6seq_cpEiiii(memory: Pointer, source: i32, target: i32, from: i32, to: i32);
            memory    member    optional fn _ZN19llama_kv_cache_iswa8seq_keepEi(memory: Pointer, sequence: i32);
            memory    member    optional fn _ZN19llama_kv_cache_iswa7seq_addEiiii(memory: Pointer, sequence: i32, from: i32, to: i32, delta: i32);
            memory    member    optional fn _ZN19llama_kv_cache_iswa7seq_divEiiii(memory: Pointer, sequence: i32, from: i32, to: i32, divisor: i32);
            memory    member    optional fn _ZN22llama_memory_recurrent5clearEb(memory: Pointer, data: bool);
            memory    member    optional fn _ZN22llama_memory_recurrent6seq_rmEiii(memory: Pointer, sequence: i32, from: i32, to: i32) -> bool;
            memory    member    optional fn _ZN22llama_memory_recurrent6seq_cpEiiii(memory: Pointer, source: i32, target: i32, from: i32, to: i32);
            memory    member    optional fn _ZN22llama_memory_recurrent8seq_keepEi(memory: Pointer, sequence: i32);
            memory    member    optional fn _ZN22llama_memory_recurrent7seq_addEiiii(memory: Pointer, sequence: i32, from: i32, to: i32, delta: i32);
            memory    member    optional fn _ZN22llama_memory_recurrent7seq_divEiiii(memory: Pointer, sequence: i32, from: i32, to: i32, divisor: i32);
            memory    member    optional fn _ZN19llama_memory_hybrid5clearEb(memory: Pointer, data: bool);
            memory    member    optional fn _ZN19llama_memory_hybrid6seq_rmEiii(memory: Pointer, sequence: i32, from: i32, to: i32) -> bool;
            memory    member    optional fn _ZN19llama_memory_hybrid6seq_cpEiiii(memory: Pointer, source: i32, target: i32, from: i32, to: i32);
            memory    member    optional fn _ZN19llama_memory_hybrid8seq_keepEi(memory: Pointer, sequence: i32);
            memory    member    optional fn _ZN19llama_memory_hybrid7seq_addEiiii(memory: Pointer, sequence: i32, from: i32, to: i32, delta: i32);
            memory    member    optional fn _ZN19llama_memory_hybrid7seq_divEiiii(memory: Pointer, sequence: i32, from: i32, to: i32, divisor: i32);
            memory    member    optional fn _ZN24llama_memory_hybrid_iswa5clearEb(memory: Pointer, data: bool);
            memory    member    optional fn _ZN24llama_memory_hybrid_iswa6seq_rmEiii(memory: Pointer, sequence: i32, from: i32, to: i32) -> bool;
            memory    member    optional fn _ZN24llama_memory_hybrid_iswa6seq_cpEiiii(memory: Pointer, source: i32, target: i32, from: i32, to: i32);
            memory    member    optional fn _ZN24llama_memory_hybrid_iswa8seq_keepEi(memory: Pointer, sequence: i32);
            memory    member    optional fn _ZN24llama_memory_hybrid_iswa7seq_addEiiii(memory: Pointer, sequence: i32, from: i32, to: i32, delta: i32);
            memory    member    optional fn _ZN24llama_memory_hybrid_iswa7seq_divEiiii(memory: Pointer, sequence: i32, from: i32, to: i32, divisor: i32);
        }
    };
}
