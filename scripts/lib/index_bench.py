"""Sends requests to a llama-server, with documents ordered by an index in front of it: for scripts/index-*."""

import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def program(name):
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found = [target / kind / name for kind in ("release", "debug")]
    found = [path for path in found if path.is_file()]
    if not found:
        sys.exit(f"{name} is not built: cargo build --bins")
    return str(max(found, key=lambda path: path.stat().st_mtime))


def port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


class Process:
    """A program that answers at a URL. It is ended with the `with` statement."""

    def __init__(self, command, url, statuses=(200,), **env):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, env={**os.environ, **env}, stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    if answer.status in statuses:
                        return
            except urllib.error.HTTPError as error:
                if error.code in statuses:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                sys.exit(f"{command[0]} does not answer at {url}: {self.log.read()[-2000:]!r}")
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def first_token(url, body):
    """Seconds until the first token, and the timings at the end of the stream."""
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=300)
    start = time.perf_counter()
    connection.request("POST", "/completion", json.dumps({**body, "stream": True}),
                       {"Content-Type": "application/json"})
    first = timings = None
    for line in connection.getresponse():
        if line.startswith(b"data: "):
            first = first or time.perf_counter() - start
            timings = json.loads(line[6:]).get("timings", timings)
    connection.close()
    return first, timings


# ---- policies. Each yields (context in the policy's order, request id or None) for each request

def as_retrieved(contexts, _):
    for context in contexts:
        yield context, None


def frequency(contexts, _):
    seen = {}
    for context in contexts:
        for one in context:
            seen[one] = seen.get(one, 0) + 1
        yield sorted(context, key=lambda one: -seen[one]), None


def online(contexts, url, texts):
    numbers = {text: number for number, text in enumerate(texts)}
    for context in contexts:
        answer = ask(f"{url}/reorder", {"contexts": [[texts[n] for n in context]]})
        yield [numbers[text] for text in answer["reordered_contexts"][0]], answer["request_ids"][0]


def batches(contexts, url, path, texts, size=20):
    numbers = {text: number for number, text in enumerate(texts)}
    for start in range(0, len(contexts), size):
        batch = [[texts[n] for n in context] for context in contexts[start : start + size]]
        answer = ask(f"{url}{path}", {"contexts": batch})
        ids = answer.get("request_ids")
        for context, at in zip(answer["reordered_contexts"], answer["original_indices"]):
            yield [numbers[text] for text in context], ids[at] if ids else None


def python_batches(contexts, python, size=20):
    """As /schedule of ContextPilot answers, but without its pool of processes, which hangs."""
    code = (
        "import sys, json, io, contextlib, logging; logging.disable(50)\n"
        "from contextpilot.server.live_index import ContextPilot\n"
        "from contextpilot import ContextIndex\n"
        "for line in sys.stdin:\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        "        index = ContextPilot(use_gpu=False); index.num_workers = 1\n"
        "        answer = index.schedule_only(json.loads(line))\n"
        "    print(json.dumps([[int(b) for b in c] for c in answer['reordered_contexts']]), flush=True)\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "CONTEXTPILOT_INDEX_URL"}
    process = subprocess.Popen(
        [python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=env,
    )
    for start in range(0, len(contexts), size):
        print(json.dumps(contexts[start : start + size]), file=process.stdin, flush=True)
        line = process.stdout.readline()
        while not line.startswith("[["):
            line = process.stdout.readline()
        for context in json.loads(line):
            yield context, None
    process.stdin.close()
    process.wait()


POLICIES = {
    "as retrieved": "as retrieved",
    "frequency": "frequency sort (five lines)",
    "python": "ContextPilot 0.5.0, online",
    "python, told": "the same, told every eviction",
    "ours, guess": "this index, online, without a hook",
    "ours": "**this index, online**",
    "python, batches": "ContextPilot 0.5.0, batches of 20",
    "ours, batches": "this index, batches of 20, stateless",
    "ours, batches live": "**this index, batches of 20**",
}


class Bench:
    """What a measurement needs: the commands, a model, and the Python index if there is one."""

    def __init__(self, model=None, store=False):
        self.store = store
        self.companion = program("contextpilot-llama")
        self.launcher = program("contextpilot-llama-server")
        self.model = str(model or next((ROOT / "target" / "testbed").glob("llama-2x64-*.gguf")))
        self.python = subprocess.run(
            [ROOT / "scripts" / "index-server"], stdout=subprocess.PIPE, text=True, check=False
        ).stdout.strip()

    def policies(self, only):
        """The policies that were asked for (NAME;NAME) and can be run."""
        wanted = [name.strip() for name in only.split(";") if name.strip()] or list(POLICIES)
        return [name for name in wanted if self.python or not name.startswith("python")]

    def index(self, policy, index, url, control):
        """The index that a policy asks, listening at a port; None: it asks none."""
        at = f"http://127.0.0.1:{index}"
        if policy in ("python", "python, told"):
            serve = [self.python, "-m", "contextpilot.server.http_server", "--host", "127.0.0.1",
                     "--port", str(index), "--infer-api-url", url]
            return Process(serve, f"{at}/health", (200, 503))
        if not policy.startswith("ours"):
            return None
        serve = [self.companion, "index", "--port", str(index), "--engine", url]
        guess = policy == "ours, guess"
        server = Process(serve + ([] if guess else ["--control", control]), f"{at}/ready")
        while not guess and ask(f"{at}/ready")["cache_truth"] != "engine":
            time.sleep(0.02)
        return server

    def figures(self, control):
        """What the hook says."""
        stats = subprocess.run([self.companion, "stats", "--control", control, "--json"],
                               stdout=subprocess.PIPE, check=True)
        return json.loads(stats.stdout)

    def order(self, policy, contexts, texts, url):
        if policy == "as retrieved":
            return as_retrieved(contexts, None)
        if policy == "frequency":
            return frequency(contexts, None)
        if policy == "python, batches":
            return python_batches(contexts, self.python)
        if policy == "ours, batches":
            return batches(contexts, url, "/schedule", texts)
        if policy == "ours, batches live":
            return batches(contexts, url, "/reorder", texts)
        return online(contexts, url, texts)

    def run(self, policy, contexts, texts, queries, server=(), clients=1, timed=False):
        """The share of prompt tokens that the engine reused (with a store: or loaded), in percent; the index's
        own errors; the seconds until each first token; and the tokens that were evaluated."""
        engine, index = port(), port()
        url, index_url = f"http://127.0.0.1:{engine}", f"http://127.0.0.1:{index}"
        folder = tempfile.mkdtemp(prefix="index-bench-")
        control = f"unix:{folder}/control.sock"
        command = [self.launcher, "-m", self.model, "--port", str(engine), "--parallel", "4", "--threads", "1",
                   "-c", "32768", "--cache-ram", "6", *server]
        env = {"CONTEXTPILOT_LISTEN": control}
        if policy == "python, told":
            env["CONTEXTPILOT_INDEX_URL"] = index_url
        if self.store:
            env |= {"CONTEXTPILOT_STORE": f"{folder}/store", "CONTEXTPILOT_STORE_GB": "4"}
        counts, first = [0, 0], []
        with Process(command, f"{url}/health", **env) as _:
            while self.store and not self.figures(control)["store"]["ready"]:
                time.sleep(0.02)
            before = self.index(policy, index, url, control)
            through = index_url if policy.startswith("ours") else url
            ordered = enumerate(self.order(policy, contexts, texts, index_url))
            one_at_a_time = threading.Lock()

            def client():
                while True:
                    with one_at_a_time:
                        number, (context, identity) = next(ordered, (None, (None, None)))
                    if number is None:
                        return
                    body = {"prompt": "Answer by these documents.\n" + "\n".join(texts[n] for n in context)
                            + "\n" + queries[number], "n_predict": 4, "temperature": 0, "seed": 1,
                            "cache_prompt": True, "rid": identity or f"plain-{number}"}
                    if timed:
                        seconds, timings = first_token(through, body)
                        first.append(seconds)
                    else:
                        timings = ask(f"{through}/completion", body)["timings"]
                    with one_at_a_time:
                        counts[0] += timings["cache_n"]
                        counts[1] += timings["cache_n"] + timings["prompt_n"]

            threads = [threading.Thread(target=client) for _ in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            prediction = None
            if policy in ("ours", "ours, guess", "ours, batches live"):
                prediction = ask(f"{index_url}/stats")["prediction"]
            if self.store:
                total = self.figures(control)["reuse"]["total"]
                counts = [total["reused"], total["reused"] + total["evaluated"]]
            if before:
                before.__exit__()
        return 100 * counts[0] / counts[1], prediction, first, counts[1] - counts[0]
