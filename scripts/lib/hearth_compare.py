"""Conversations with a plain llama-server, with one behind hearth-llm, and with one that has a prefix store.

hearth_compare.py SERVER COMMAND MODEL FOLDER

SERVER is a llama-server, COMMAND our launcher. Prints a table for Markdown. Exits with 1 if an answer differs.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from statistics import median

CONVERSATIONS = int(os.environ.get("CONVERSATIONS", "4"))
TURNS = int(os.environ.get("TURNS", "5"))
LENGTH = int(os.environ.get("WORDS", "60"))
CACHE_RAM = os.environ.get("CACHE_RAM", "0")
THREADS = os.environ.get("THREADS", "1")
WORDS = "river stone lantern winter market copper letter garden engine island mirror thunder saddle harbour".split()
KINDS = {"plain": "llama-server", "hearth": "hearth-llm", "store": "prefix store"}
STEPS = ["turns", "branches", "after a restart"]
PATIENCE = 120


def words(seed, count):
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(count))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
        return json.load(answer)


class Life:
    """A server, and what stands before it."""

    def __init__(self, kind, server, command, model, folder):
        self.kind, self.port = kind, free_port()
        port, self.control, self.processes = self.port, free_port(), []
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CONTEXTPILOT_")}
        arguments = ["-m", model, "-np", "1", "-c", "8192", "-t", THREADS, "-tb", THREADS, "--cache-ram", CACHE_RAM]
        program = server
        if kind == "store":
            program = command
            environment |= {
                "LLAMA_SERVER_BIN": server,
                "CONTEXTPILOT_STORE": folder,
                "CONTEXTPILOT_LISTEN": f"127.0.0.1:{self.control}",
            }
        if kind == "hearth":
            port = free_port()
            arguments += ["--slot-save-path", folder]
        self.run([program, *arguments, "--port", str(port)], environment)
        self.wait(port, "/health")
        if kind == "hearth":
            here = ["--upstream", f"http://127.0.0.1:{port}", "--port", str(self.port), "--cache-dir", folder]
            self.run([sys.executable, "-m", "hearth", "serve", *here], environment)
            self.wait(self.port, "/health")
        if kind == "store":
            while not get(self.control, "/stats")["store"]["ready"]:
                time.sleep(0.05)

    def run(self, line, environment):
        with open(os.devnull, "wb") as nothing:
            self.processes.append(subprocess.Popen(line, env=environment, stdout=nothing, stderr=nothing))

    def wait(self, port, path):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self.processes[-1].poll() is not None:
                sys.exit(f"{self.processes[-1].args[0]} has ended")
            try:
                return get(port, path)
            except OSError:
                time.sleep(0.05)
        sys.exit(f"{self.processes[-1].args[0]} does not answer")

    def loaded(self):
        return get(self.control, "/stats")["store"]["loaded_tokens"] if self.kind == "store" else 0

    def ask(self, messages):
        """The answer, the seconds to its first token and of all of it, and the tokens that were evaluated."""
        before = self.loaded()
        body = {"messages": messages, "max_tokens": 12, "temperature": 0, "seed": 1, "stream": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        begun, first, text, timings = time.perf_counter(), None, "", None
        with urllib.request.urlopen(request, timeout=10 * PATIENCE) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                timings = event.get("timings", timings)
                said = event["choices"][0]["delta"].get("content") if event["choices"] else None
                if said:
                    first = first or time.perf_counter() - begun
                    text += said
        whole = time.perf_counter() - begun
        # The server counts loaded tokens as evaluated, because it does not know.
        return text, first, whole, timings["prompt_n"] - (self.loaded() - before)

    def end(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=PATIENCE)


def size_of(folder):
    files = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)
    return sum(os.path.getsize(file) for file in files)


def play(kind, server, command, model, folder):
    """For each step: what each question cost. Then all answers, and the bytes on the disk."""
    costs, answers = {step: [] for step in STEPS}, []
    system = {"role": "system", "content": "You are brief. " + words("system", 3 * LENGTH)}
    talks = [[system] for _ in range(CONVERSATIONS)]

    def ask(life, step, talk, seed):
        talk.append({"role": "user", "content": words(seed, LENGTH)})
        text, *cost = life.ask(talk)
        talk.append({"role": "assistant", "content": text})
        answers.append(text)
        costs[step].append(cost)

    life = Life(kind, server, command, model, folder)
    for turn in range(TURNS):
        for nth, talk in enumerate(talks):
            ask(life, "turns", talk, f"{nth} {turn}")
    for nth, talk in enumerate(talks):
        # The user changes a question in the middle, and goes on from there.
        ask(life, "branches", talk[: 2 * (TURNS // 2) + 1], f"{nth} other")
    life.end()
    life = Life(kind, server, command, model, folder)
    for nth, talk in enumerate(talks):
        ask(life, "after a restart", talk, f"{nth} again")
    life.end()
    return costs, answers, size_of(folder)


def main(server, command, model, folder):
    played = {}
    for kind in KINDS:
        os.mkdir(os.path.join(folder, kind), 0o700)
        played[kind] = play(kind, server, command, model, os.path.join(folder, kind))
    print("| | | " + " | ".join(KINDS.values()) + " |")
    print("|---|---|" + "--:|" * len(KINDS))
    for step in STEPS:
        rows = [("evaluated, tokens", 2, 0), ("first token, s", 0, 2), ("whole answer, s", 1, 2)]
        for row, (what, index, digits) in enumerate(rows):
            of = [median(cost[index] for cost in played[kind][0][step]) for kind in KINDS]
            print(f"| {'' if row else step} | {what} | " + " | ".join(f"{one:.{digits}f}" for one in of) + " |")
    sizes = [f"{played[kind][2] / 1e6:.0f}" if kind != "plain" else "" for kind in KINDS]
    print("| on the disk at the end | MB | " + " | ".join(sizes) + " |")
    different = [
        f"{KINDS[kind]}, answer {nth}: {ours!r}, not {plain!r}"
        for kind in KINDS
        for nth, (plain, ours) in enumerate(zip(played["plain"][1], played[kind][1], strict=True))
        if plain != ours
    ]
    print("\n".join(different) or "All answers are equal.", file=sys.stderr)
    sys.exit(bool(different))


main(*sys.argv[1:])
