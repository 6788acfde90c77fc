//! Functions of the host that we call but do not hook.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use super::slot::AddressSlot;
use crate::base::abi::{Batch, ContextParams, Pointer};

macro_rules! plain {
    ($($name:ident, $symbol:literal, fn($($argument:ident : $type:ty),*) -> $result:ty;)*) => {
        #[allow(non_upper_case_globals)]
        mod slot {
            $(pub(super) static $name: super::AddressSlot =
                super::AddressSlot::new(concat!($symbol, "\0"));)*
        }
        /// All of them.
        pub(crate) static SLOTS: &[&AddressSlot] = &[$(&slot::$name),*];
        $(
            /// Calls the function, if the host has it.
            ///
            /// # Safety
            /// As the function itself requires.
            #[allow(dead_code, reason = "for some, only the address matters")]
            pub(crate) unsafe fn $name($($argument: $type),*) -> Option<$result> {
                slot::$name.get().map(|address| {
                    // SAFETY: as for the hooked ones: the name stands for the signature.
                    let function = unsafe {
                        std::mem::transmute::<NonNull<c_void>, unsafe extern "C-unwind" fn($($type),*) -> $result>(address)
                    };
                    // SAFETY: the caller's promise.
                    unsafe { function($($argument),*) }
                })
            }
        )*
    };
}

plain! {
    last_in_memory, "llama_memory_seq_pos_max", fn(memory: Pointer, sequence: i32) -> i32;
    last_in_self, "llama_kv_self_seq_pos_max", fn(context: Pointer, sequence: i32) -> i32;
    last_in_cache, "llama_kv_cache_seq_pos_max", fn(context: Pointer, sequence: i32) -> i32;
    first_in_memory, "llama_memory_seq_pos_min", fn(memory: Pointer, sequence: i32) -> i32;
    first_in_self, "llama_kv_self_seq_pos_min", fn(context: Pointer, sequence: i32) -> i32;
    can_shift, "llama_memory_can_shift", fn(memory: Pointer) -> bool;
    kv_self, "llama_get_kv_self", fn(context: Pointer) -> Pointer;
    window, "llama_model_n_swa", fn(model: Pointer) -> i32;
    is_recurrent, "llama_model_is_recurrent", fn(model: Pointer) -> bool;
    has_encoder, "llama_model_has_encoder", fn(model: Pointer) -> bool;
    is_hybrid, "llama_model_is_hybrid", fn(model: Pointer) -> bool;
    media_name, "mtmd_input_chunk_get_id", fn(chunk: Pointer) -> *const c_char;
    get_model, "llama_get_model", fn(context: Pointer) -> Pointer;
    embedding_size_in, "llama_model_n_embd_inp", fn(model: Pointer) -> i32;
    embedding_size, "llama_model_n_embd", fn(model: Pointer) -> i32;
    embedding_size_out, "llama_model_n_embd_out", fn(model: Pointer) -> i32;
    other_context, "_Z19llama_get_ctx_otherP13llama_context", fn(context: Pointer) -> Pointer;
    context_size, "llama_n_ctx", fn(context: Pointer) -> u32;
    context_size_of_one, "llama_n_ctx_seq", fn(context: Pointer) -> u32;
    trained_size, "llama_model_n_ctx_train", fn(model: Pointer) -> i32;
    sequences_or_cells, "llama_n_seq_max", fn(context: Pointer) -> u32;
    metadata, "llama_model_meta_val_str", fn(model: Pointer, key: *const c_char, text: *mut c_char, size: usize) -> i32;
    model_desc, "llama_model_desc", fn(model: Pointer, text: *mut c_char, size: usize) -> i32;
    invocation_count, "llama_adapter_get_alora_n_invocation_tokens", fn(adapter: Pointer) -> u64;
    invocation, "llama_adapter_get_alora_invocation_tokens", fn(adapter: Pointer) -> *const i32;
    state_size, "llama_state_seq_get_size", fn(context: Pointer, sequence: i32) -> usize;
    version, "llama_version", fn() -> *const c_char;
    build, "_Z16llama_build_infov", fn() -> *const c_char;
    chunk_count, "mtmd_input_chunks_size", fn(chunks: Pointer) -> usize;
    chunk, "mtmd_input_chunks_get", fn(chunks: Pointer, index: usize) -> Pointer;
    chunk_text, "mtmd_input_chunk_get_tokens_text", fn(chunk: Pointer, count: *mut usize) -> *const i32;
    chunk_rows, "mtmd_input_chunk_get_n_tokens", fn(chunk: Pointer) -> usize;
    chunk_positions, "mtmd_input_chunk_get_n_pos", fn(chunk: Pointer) -> i32;
    chunk_image, "mtmd_input_chunk_get_tokens_image", fn(chunk: Pointer) -> Pointer;
    image_columns, "mtmd_image_tokens_get_nx", fn(image: Pointer) -> usize;
    bitmap_name, "mtmd_bitmap_get_id", fn(bitmap: Pointer) -> *const c_char;
    bitmap_data, "mtmd_bitmap_get_data", fn(bitmap: Pointer) -> Pointer;
    bitmap_bytes, "mtmd_bitmap_get_n_bytes", fn(bitmap: Pointer) -> usize;
    bitmap_width, "mtmd_bitmap_get_nx", fn(bitmap: Pointer) -> u32;
    bitmap_height, "mtmd_bitmap_get_ny", fn(bitmap: Pointer) -> u32;
    is_sound, "mtmd_bitmap_is_audio", fn(bitmap: Pointer) -> bool;
    shares_positions, "mtmd_decode_use_mrope", fn(projector: Pointer) -> bool;
    infill_prefix, "llama_vocab_fim_pre", fn(vocabulary: Pointer) -> i32;
    infill_suffix, "llama_vocab_fim_suf", fn(vocabulary: Pointer) -> i32;
    infill_middle, "llama_vocab_fim_mid", fn(vocabulary: Pointer) -> i32;
    infill_repository, "llama_vocab_fim_rep", fn(vocabulary: Pointer) -> i32;
    infill_separator, "llama_vocab_fim_sep", fn(vocabulary: Pointer) -> i32;
    vocabulary, "llama_model_get_vocab", fn(model: Pointer) -> Pointer;
    vocabulary_kind, "llama_vocab_type", fn(vocabulary: Pointer) -> c_int;
    vocabulary_size, "llama_vocab_n_tokens", fn(vocabulary: Pointer) -> i32;
    attribute, "llama_vocab_get_attr", fn(vocabulary: Pointer, token: i32) -> c_int;
    piece, "llama_token_to_piece", fn(vocabulary: Pointer, token: i32, text: *mut c_char, size: i32, strip: i32, special: bool) -> i32;
    begins_with, "llama_vocab_bos", fn(vocabulary: Pointer) -> i32;
    has_beginning, "llama_vocab_get_add_bos", fn(vocabulary: Pointer) -> bool;
    default_context, "llama_context_default_params", fn() -> ContextParams;
    default_model, "llama_model_default_params", fn() -> ContextParams;
    default_media, "mtmd_context_params_default", fn() -> ContextParams;
    batch_of_tokens, "llama_batch_get_one", fn(tokens: *const i32, count: i32) -> Batch;
    batch_with_room, "llama_batch_init", fn(count: i32, width: i32, sequences: i32) -> Batch;
    socket_of_session, "SSL_get_fd", fn(session: Pointer) -> c_int;
}

/// All chunks of a prompt. Do not call this within the guard.
///
/// # Safety
/// The list is alive, and no thread changes it.
pub(crate) unsafe fn chunks(list: Pointer) -> impl Iterator<Item = Pointer> {
    // SAFETY: the caller's promise.
    let count = unsafe { chunk_count(list) }.unwrap_or(0);
    // SAFETY: `index` is less than the number of chunks.
    let chunks = (0..count).filter_map(move |index| unsafe { chunk(list, index) });
    chunks.filter(|chunk| !chunk.is_null())
}

/// The name by which the server identifies a chunk: the hash of the file that it came from. Do not call this
/// within the guard.
///
/// # Safety
/// The chunk is alive, and longer than the name is used.
pub(crate) unsafe fn name_of_chunk<'a>(chunk: Pointer) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    let name = unsafe { media_name(chunk) }?;
    // SAFETY: a C string that belongs to the chunk.
    unsafe { words(name) }
}

/// The same of an image or a sound before its prompt is tokenized.
///
/// # Safety
/// The image is alive, and longer than the name is used.
pub(crate) unsafe fn name_of_bitmap<'a>(bitmap: Pointer) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    let name = unsafe { bitmap_name(bitmap) }?;
    // SAFETY: a C string that belongs to the image.
    unsafe { words(name) }
}

/// # Safety
/// If it is not null, a C string that lives long enough.
unsafe fn words<'a>(text: *const c_char) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    (!text.is_empty()).then_some(text)
}

/// How many sequences a context may have. `None`: the engine does not tell.
///
/// # Safety
/// The context is a living one.
pub(crate) unsafe fn sequences(context: Pointer) -> Option<u32> {
    // SAFETY: the caller's promise, here and below.
    let answer = unsafe { sequences_or_cells(context) }?;
    // SAFETY: see above.
    let cells = unsafe { context_size(context) };
    (!is_cells(answer, cells)).then_some(answer)
}

/// Until March 2025 (b4753 at least) engines answered with the number of cells when they were asked for sequences.
fn is_cells(answer: u32, cells: Option<u32>) -> bool {
    /// No engine has more.
    const MOST: u32 = 256;
    answer > MOST && Some(answer) == cells
}

/// Whether the host has the function with this name.
pub(crate) fn has(name: &str) -> bool {
    SLOTS
        .iter()
        .any(|slot| slot.name() == name && slot.get().is_some())
}

/// The address of the host's function with this name.
pub(super) fn address(name: &str) -> Option<Pointer> {
    let slot = SLOTS.iter().find(|slot| slot.name() == name)?;
    slot.get().map(NonNull::as_ptr)
}

/// Sets the function with this name to the address that `find` returns. False if
/// it returns none.
pub(crate) fn set(name: &str, find: impl FnOnce(&CStr) -> Option<usize>) -> bool {
    let slot = SLOTS.iter().find(|slot| slot.name() == name);
    let found = slot.and_then(|slot| Some((slot, find(slot.c_name())?)));
    if let Some((slot, address)) = found {
        slot.set(std::ptr::with_exposed_provenance(address));
    }
    found.is_some()
}

/// A text that the host never frees.
pub(crate) fn text(pointer: Option<*const c_char>) -> Option<&'static str> {
    let pointer = pointer.filter(|p| !p.is_null())?;
    // SAFETY: the functions that return it return string literals or statics, ended by a zero byte.
    unsafe { CStr::from_ptr(pointer) }.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::is_cells;

    /// A store of node-llama-cpp 3.4 to 3.6 kept prompts and loaded none: each of 2,048 sequences had one cell.
    #[test]
    fn an_old_engine_that_answers_with_its_cells_does_not_tell_its_sequences() {
        assert!(is_cells(2048, Some(2048)));
        for (answer, cells) in [(1, 2048), (256, 2048), (4, 4), (64, 64), (512, 131_072)] {
            assert!(!is_cells(answer, Some(cells)), "{answer} {cells}");
        }
        assert!(!is_cells(1, None));
    }
}
