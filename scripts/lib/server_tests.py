"""llama.cpp's own server tests with local models: a plugin of pytest, and what compares its records. See scripts/server-tests.

    server_tests.py prepare TESTS TINY_MODEL       models where the tests look for them, and assertions that go on
    server_tests.py compare FOLDER                 what differs between FOLDER/plain, plain-again, store and store-again

The plugin writes a line of JSON for each test to SERVER_TESTS_RECORD: how it ended, which of its assertions failed, what each
request was answered, and what the prefix store did.
"""

import ast
import collections
import json
import os
import re
import subprocess
import sys
import threading
import types

COMMIT = "0" * 40
# Repository, file, and what tiny-model writes in place of it.
MODELS = [
    ("ggml-org/test-model-stories260K", "stories260K-F32.gguf", ["--seed", "1"]),
    ("ggml-org/test-model-stories260K-infill", "stories260K-infill-F32.gguf", ["--seed", "2"]),
    ("ggml-org/stories15M_MOE", "stories15M_MOE-F16.gguf", ["--seed", "3"]),
    ("ggml-org/models", "bert-bge-small/ggml-model-f16.gguf", ["--seed", "4"]),
    ("ggml-org/models", "jina-reranker-v1-tiny-en/ggml-model-f16.gguf", ["--seed", "5"]),
    ("ggml-org/tinygemma3-GGUF", "tinygemma3-Q8_0.gguf", ["--arch", "gemma2"]),
    ("ggml-org/tinygemma3-GGUF", "mmproj-tinygemma3.gguf", ["--projector", "llava"]),
]
FILES = [
    ("moe_shakespeare15M.gguf", ["--adapter", "--seed", "3"]),
    ("stories15M-q4_0.gguf", ["--arch", "draft", "--seed", "3"]),
]
# What the clock, a process or chance decides: also which slot is free first.
FLEETING = re.compile(r"(_ms|_seconds|_per_second|_at|_time)$|^(id|created|pid|model_path|media_marker|id_slot|item_id|call_id|t_.*)$")
# What is asked until it is so.
POLLED = re.compile(r"^/(health|models|v1/models|v1/stream|slots|props|tools|mcp)")
# Where requests are sent side by side: an answer's share of the cache, and whose tokens no longer fit.
SHARE = ("cache_n", "prompt_n")
FULL = "Context size has been exceeded."
PORT = re.compile(r"(127\.0\.0\.1|localhost):\d+")


def prepare(tests, tiny_model):
    cache = os.path.join(tests, "cache")
    for repository, name, options in MODELS:
        home = os.path.join(cache, "models--" + repository.replace("/", "--"))
        model = os.path.join(home, "snapshots", COMMIT, name)
        os.makedirs(os.path.dirname(model), exist_ok=True)
        os.makedirs(os.path.join(home, "refs"), exist_ok=True)
        with open(os.path.join(home, "refs/main"), "w") as file:
            file.write(COMMIT)
        subprocess.run([tiny_model, *options, model], check=True)
    os.makedirs(os.path.join(tests, "tmp"), exist_ok=True)
    for name, options in FILES:
        subprocess.run([tiny_model, *options, os.path.join(tests, "tmp", name)], check=True)
    for name in os.listdir(os.path.join(tests, "unit")):
        if name.endswith(".py"):
            path = os.path.join(tests, "unit", name)
            with open(path) as file:
                tree = ast.parse(file.read())
            tree = ast.fix_missing_locations(GoOn().visit(tree))
            with open(path, "w") as file:
                file.write(ast.unparse(tree))


class GoOn(ast.NodeTransformer):
    """The tests know what their models say. With other models many assertions fail, and what stands behind them would never be
    asked: so a failed assertion is noted, and the test goes on."""

    def visit_Assert(self, node):
        noted = f"__import__('server_tests').failed({node.lineno})"
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, ast.parse(noted).body)
        return ast.Try([node], [handler], [], [])


class Record:
    def __init__(self, test):
        self.lock = threading.Lock()
        self.test = test
        self.failed = []
        self.answers = []
        self.store = collections.Counter()
        self.refused = set()


current = Record("")


def failed(line):
    with current.lock:
        current.failed.append(line)


def answered(record, request, status, body):
    alone = threading.current_thread() is threading.main_thread()
    if not alone:
        request = [*request, "side by side"]
    said = [PORT.sub(r"\1", json.dumps(request, sort_keys=True)), status, lasting(body, () if alone else SHARE)]
    with record.lock:
        record.answers.append(said)


def lasting(value, but=()):
    """Without what differs from run to run, and without these."""
    if isinstance(value, dict):
        return {key: lasting(inner, but) for key, inner in value.items() if key not in but and not FLEETING.search(key)}
    if isinstance(value, list):
        return [lasting(inner, but) for inner in value]
    if isinstance(value, str):
        return "\n".join(line for line in value.splitlines() if "_seconds" not in line)
    return value


def picture(url):
    """A PNG of 32 by 32, another for each address."""
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    seed = zlib.crc32(url.encode())
    rows = b"".join(b"\0" + bytes((seed >> (x + y) % 24) & 255 for x in range(96)) for y in range(32))
    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def change_utils():
    """Before anything imports the tests' utils: their names are copied."""
    # PyPI has it as source only, and nothing is fetched here.
    sys.modules.setdefault("wget", types.ModuleType("wget"))
    import requests
    import utils

    plain_get = requests.get

    def get(url, *args, **kwargs):
        if url.startswith("https://"):
            answer = requests.Response()
            answer.status_code, answer._content = 200, picture(url)
            return answer
        return plain_get(url, *args, **kwargs)

    requests.get = get
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    server = utils.ServerProcess
    plain = {name: getattr(server, name) for name in ("start", "stop", "make_request", "make_stream_request")}

    def start(self, *args, **kwargs):
        self.offline = True
        if self.server_embeddings and self.pooling is None:
            # Of a model that is made for embeddings this is known.
            self.pooling = "cls"
        # In router mode the models' servers would all listen there.
        with_store = "CONTEXTPILOT_STORE" in os.environ and bool(self.model_hf_repo or self.model_file)
        os.environ.pop("CONTEXTPILOT_LISTEN", None)
        self.control = None
        if with_store:
            self.control = f"127.0.0.1:{self.server_port + 10000}"
            os.environ["CONTEXTPILOT_LISTEN"] = self.control
        plain["start"](self, *args, **kwargs)
        if self.control:
            for _ in range(600):
                store = stats(self).get("store")
                if store is None or store["ready"]:
                    break
                utils.time.sleep(0.05)

    def stats(self):
        try:
            return plain_get(f"http://{self.control}/stats", timeout=10).json()
        except (requests.RequestException, ValueError):
            return {}

    def stop(self):
        if self.process and getattr(self, "control", None):
            store = stats(self).get("store") or {}
            with current.lock:
                current.store["servers"] += bool(store)
                for name in ("loads", "loaded_tokens", "saves", "failed_loads", "lost_chunks"):
                    current.store[name] += store.get(name) or 0
                current.refused.update(json.dumps(store[name]) for name in ("refused", "problem") if store.get(name))
        plain["stop"](self)

    def make_request(self, method, path, data=None, *args, **kwargs):
        record = current
        result = plain["make_request"](self, method, path, data, *args, **kwargs)
        if not POLLED.match(path):
            answered(record, [method, path, data], result.status_code, result.body)
        return result

    def make_stream_request(self, method, path, data=None, *args, **kwargs):
        record, chunks = current, []
        try:
            for chunk in plain["make_stream_request"](self, method, path, data, *args, **kwargs):
                chunks.append(chunk)
                yield chunk
        finally:
            answered(record, [method, path, data], 0, chunks)

    server.start, server.stop = start, stop
    server.make_request, server.make_stream_request = make_request, make_stream_request


def pytest_runtest_logstart(nodeid, location):
    import random

    global current
    current = Record(nodeid)
    random.seed(nodeid)


def pytest_runtest_logreport(report):
    if report.when == "call" and not report.skipped:
        ended = "ended" if report.passed else "stopped: " + report.longreprtext.strip().splitlines()[-1]
    elif report.skipped:
        ended = "skipped"
    elif report.failed:
        ended = f"failed in its {report.when}"
    else:
        ended = None
    current.ended = ended or getattr(current, "ended", None)
    if report.when == "teardown":
        line = {
            "test": current.test,
            "ended": current.ended,
            "failed": sorted(current.failed),
            "answers": sorted(current.answers, key=json.dumps),
            "store": dict(current.store),
            "refused": sorted(current.refused),
        }
        with open(os.environ["SERVER_TESTS_RECORD"], "a") as file:
            file.write(json.dumps(line) + "\n")


def read(path):
    with open(path) as file:
        return {line["test"]: line for line in map(json.loads, file)}


def outcome(line):
    return None if line is None else (line["ended"], line["failed"])


def answers(line):
    """What each request of a test was answered: the same request may be sent several times."""
    grouped = collections.defaultdict(list)
    for request, status, body in (line or {}).get("answers", []):
        grouped[request].append(json.dumps([status, body], sort_keys=True))
    return {request: sorted(said) for request, said in grouped.items()}


def unlike(one, two):
    """The requests of a test that were not answered the same."""
    one, two = answers(one), answers(two)
    for request in sorted(one.keys() | two.keys()):
        left, right = one.get(request), two.get(request)
        full = "side by side" in request and FULL in str(left) + str(right)
        if left != right and not full:
            yield request, left, right


def compare(folder):
    plain, again = read(f"{folder}/plain"), read(f"{folder}/plain-again")
    noisy = {test for test in plain if outcome(plain[test]) != outcome(again.get(test))}
    noise = {(test, request) for test in plain for request, _, _ in unlike(plain[test], again.get(test))}
    ran = [line for line in plain.values() if line["ended"] != "skipped"]
    passed = sum(line["ended"] == "ended" and not line["failed"] for line in ran)
    count = sum(len(line["answers"]) for line in ran)
    print(f"{len(ran)} tests ran ({passed} passed with these models), {len(plain) - len(ran)} skipped, {count} answers")
    print(f"plain-again: {len(noisy)} tests and {len(noise)} requests differ from plain; this is noise")
    for test in sorted(noisy):
        print(f"  {test}\n    {outcome(plain[test])}\n    {outcome(again.get(test))}")
    for test, request in sorted(noise):
        print(f"  {test}\n    {request[:200]}")
    bad = False
    for run in ("store", "store-again"):
        lines = read(f"{folder}/{run}")
        tests = sorted(test for test in plain if outcome(plain[test]) != outcome(lines.get(test)) and test not in noisy)
        requests = [(test, *each) for test in plain for each in unlike(plain[test], lines.get(test))]
        requests = [each for each in requests if each[:2] not in noise]
        done, refused = collections.Counter(), collections.Counter()
        for line in lines.values():
            done.update(line["store"])
            refused.update(line["refused"])
        print(f"{run}: {len(tests)} tests and {len(requests)} requests differ beyond the noise; {dict(done)}")
        for reason, times in refused.items():
            print(f"  {times} times {reason}")
        for test in tests:
            print(f"  DIFFERS {test}\n    {outcome(plain[test])}\n    {outcome(lines.get(test))}")
        for test, request, one, two in requests:
            print(f"  DIFFERS {test}\n    {request[:400]}\n    {difference(one, two)}")
        bad = bad or bool(tests or requests)
        if not done["loads"]:
            print("  nothing was loaded, so this says nothing")
            bad = True
    return bad


def difference(one, two):
    """The part where two lists of answers begin to differ."""
    if one is None or two is None:
        return f"{'not ' if one is None else ''}asked without a store, {'not ' if two is None else ''}asked with it"
    if len(one) != len(two):
        return f"asked {len(one)} times, with a store {len(two)} times"
    for left, right in zip(one, two):
        if left != right:
            at = next((n for n, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))
            at = max(0, at - 60)
            return f"{left[at:at + 160]}\n    {right[at:at + 160]}"
    return ""


if __name__ != "__main__":
    change_utils()
else:
    if sys.argv[1] == "prepare":
        prepare(*sys.argv[2:])
    else:
        sys.exit(compare(sys.argv[2]))
