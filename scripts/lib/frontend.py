"""Two llama-servers behind Dynamo's frontend: see scripts/frontend, which runs this in a namespace.

    frontend.py LAUNCHER MODEL FOLDER
"""

import json
import os
import subprocess
import sys
import time
import urllib.request

WORKER = os.path.join(os.path.dirname(__file__), "../../examples/dynamo/worker.py")
LAUNCHER, MODEL, FOLDER = sys.argv[1:4]
BLOCK = 16
FRONTEND = 18000
PATIENCE = 120
# Each server has a slot for each conversation, so nothing is overwritten.
SLOTS, CONTEXT = 8, 4096


def tokenizer(folder):
    """Writes the tokenizer of the tiny model: a character is a token (crates/test/tiny-model/src/vocab.rs)."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    tokens += [chr(code) for code in range(ord("!"), ord("~") + 1)]
    special = ["<unk>", "<s>", "</s>"]
    space = {"String": " "}
    begin = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    files = {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [
                {"id": number, "content": text, "single_word": False, "lstrip": False,
                 "rstrip": False, "normalized": False, "special": True}
                for number, text in enumerate(special)
            ],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": space, "content": "\u2581"},
            ]},
            "pre_tokenizer": None,
            "post_processor": {
                "type": "TemplateProcessing", "single": begin, "pair": begin,
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
            },
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
            ]},
            "model": {
                "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                "vocab": {text: number for number, text in enumerate(tokens)}, "merges": [],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
            "unk_token": "<unk>", "add_bos_token": True,
            "chat_template": "{%- for message in messages -%}{{- message['role'] + ': ' + "
            "message['content'] + '\\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}"
            "{{- 'assistant: ' -}}{%- endif -%}",
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
            "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128,
            "vocab_size": len(tokens), "max_position_embeddings": CONTEXT // SLOTS,
            "bos_token_id": 1, "eos_token_id": 2,
        },
    }
    os.makedirs(folder)
    for name, content in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def wait_for(what, condition):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            found = condition()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.05)
    sys.exit(f"waited {PATIENCE} s, but not yet: {what}; the logs are in {FOLDER}")


def start(name, command, **env):
    log = open(os.path.join(FOLDER, name + ".log"), "wb")
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        env={**os.environ, "DYN_FILE_KV": os.path.join(FOLDER, "discovery"), **env},
    )


def main():
    folder = os.path.join(FOLDER, "tokenizer")
    tokenizer(folder)
    servers, processes = [], []
    try:
        for number in range(2):
            port, control, events = 18080 + number, 18090 + number, 15557 + 10 * number
            processes.append(start(
                f"server-{number}",
                [LAUNCHER, "-m", MODEL, "--port", str(port), "--parallel", str(SLOTS),
                 "-c", str(CONTEXT), "--no-kv-unified", "--cache-ram", "0", "--slots"],
                CONTEXTPILOT_KV_EVENTS=f"tcp://127.0.0.1:{events}",
                CONTEXTPILOT_LISTEN=f"127.0.0.1:{control}",
            ))
            wait_for("the server is ready", lambda: ask(f"http://127.0.0.1:{port}/health"))
            processes.append(start(
                f"worker-{number}",
                [sys.executable, WORKER, "--server", f"http://127.0.0.1:{port}",
                 "--events", f"tcp://127.0.0.1:{events}", "--model-name", "tiny",
                 "--model-path", folder, "--context", str(CONTEXT // SLOTS),
                 "--blocks", str(CONTEXT // BLOCK)],
            ))
            servers.append(f"http://127.0.0.1:{control}/stats")
        processes.append(start(
            "frontend",
            [sys.executable, "-m", "dynamo.frontend", "--discovery-backend", "file",
             "--request-plane", "tcp", "--event-plane", "zmq", "--router-mode", "kv",
             "--kv-cache-block-size", str(BLOCK), "--http-host", "127.0.0.1",
             "--http-port", str(FRONTEND)],
        ))
        api = f"http://127.0.0.1:{FRONTEND}/v1"
        wait_for("the frontend has the model", lambda: ask(api + "/models")["data"])
        for stats in servers:
            wait_for("the workers follow the events",
                     lambda: ask(stats)["kv_events"]["subscribers"] > 0)
        talk(api, servers)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def talk(api, servers):
    """Eight conversations of four turns: each turn must reach the server that has the turn before."""
    def counts():
        return [ask(stats)["requests"]["finished"] for stats in servers]

    def settled():
        return all(one["kv_events"]["waiting"] == 0 and not one["undecided"]
                   for one in map(ask, servers))

    def prompt(who, turn):
        words = "".join(chr(97 + (who * 7 + at * (who + 3)) % 26) for at in range(60 + 50 * turn))
        return f"{chr(65 + who)}{words}"

    wrong = total = cached = 0
    home = {}
    for turn in range(4):
        for who in range(8):
            before = counts()
            answer = ask(api + "/completions", {
                "model": "tiny", "prompt": prompt(who, turn), "max_tokens": 4, "temperature": 0,
                "ignore_eos": True,
            })
            total += 1
            assert answer["choices"][0]["text"], answer
            after = wait_for("a server has answered", lambda: counts() if counts() != before else None)
            server = [number for number in range(2) if after[number] > before[number]]
            details = answer["usage"].get("prompt_tokens_details") or {}
            took = details.get("cached_tokens") or 0
            if turn > 0:
                cached += took
                right = server == home[who] and took >= 60 + 50 * (turn - 1)
                wrong += not right
                if not right:
                    print(f"conversation {who}, turn {turn}: server {server}, before {home[who]}, "
                          f"{took} tokens from its cache")
            home[who] = server
            wait_for("all events are published", settled)
    used = {number for servers in home.values() for number in servers}
    print(f"{total} requests through Dynamo's frontend to {len(used)} servers: of 24 later turns, "
          f"{24 - wrong} reached the server that has the turn before, and reused it; "
          f"{cached} tokens came from the caches")
    sys.exit(wrong > 0 or len(used) < 2)


main()
