"""Plays recorded sessions of agents against a llama-server, so that it can be recorded and looked at.

    python3 scripts/lib/play_sessions.py sessions.jsonl[.xz] http://127.0.0.1:9931 [--at-a-time 6] [--scale 16]

Each line of the file is a session: {"id", "requests": [[seconds, agent, tokens in, tokens out, kept, [new ids],
seconds], ...]}. A prompt is a list of ids, one for each block of 64 tokens: the first `kept` of this agent's last
prompt, then the new ones. An id becomes 64 / scale letters, the same ones wherever it stands in its session.
"""

import argparse
import json
import lzma
import random
import threading
import urllib.request
from queue import Empty, Queue


def prompts(session, letters):
    """Each prompt as text, how many tokens its answer has, and who asks."""
    last = {}
    for _, agent, _, out, kept, new, _ in session["requests"]:
        blocks = last.get(agent, [])[:kept] + new
        last[agent] = blocks
        if blocks:
            yield "".join(letters(block) for block in blocks), out, agent


def letters_of(session, length):
    def letters(block):
        draw = random.Random(f"{session}/{block}")
        return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(length))

    return letters


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sessions")
    parser.add_argument("server")
    parser.add_argument("--at-a-time", type=int, default=6)
    parser.add_argument("--scale", type=int, default=16)
    parser.add_argument("--most", type=int, default=0, help="so many requests of a session, 0: all")
    parser.add_argument("--answers", type=int, default=64, help="the most tokens of an answer")
    parser.add_argument("--longest", type=int, default=16000, help="longer prompts are left out")
    given = parser.parse_args()
    opener = lzma.open if given.sessions.endswith(".xz") else open
    with opener(given.sessions, "rt") as file:
        sessions = Queue()
        for line in file:
            sessions.put(json.loads(line))
    done, refused = [0], [0]

    def work():
        while True:
            try:
                session = sessions.get_nowait()
            except Empty:
                return
            letters = letters_of(session["id"], max(1, 64 // given.scale))
            for nth, (prompt, out, agent) in enumerate(prompts(session, letters)):
                if given.most and nth >= given.most:
                    break
                if len(prompt) > given.longest:
                    continue
                body = {
                    "prompt": prompt,
                    "n_predict": max(1, min(given.answers, out // given.scale)),
                    "rid": f"{session['id']}/{agent}/{nth}",
                }
                request = urllib.request.Request(
                    f"{given.server}/completion",
                    json.dumps(body).encode(),
                    {"Content-Type": "application/json"},
                )
                try:
                    with urllib.request.urlopen(request) as answer:
                        answer.read()
                except OSError:
                    refused[0] += 1
                done[0] += 1

    workers = [threading.Thread(target=work) for _ in range(given.at_a_time)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"{done[0]} requests, {refused[0]} of them refused")


if __name__ == "__main__":
    main()
