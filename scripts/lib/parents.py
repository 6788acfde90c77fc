"""Programs that start llama-server themselves, with the hook reaching it by the environment. A part of scripts/programs.

parents.py NAME PACKAGE COMPANION PORT COMMAND...      prints a row of a table

Three prompts with ids go to the server that COMMAND starts at PORT: a, b over it, and b again. Its truth is what the engine evaluates:
of b one token, and of a, which the index was told is gone, all but what both begin with. Then genai-electron is made to end the server while
it lives itself: a stopped process does not see SIGTERM, so it is killed in the end, and what it held must be told within a second. Others
get SIGINT with their server, as from a terminal.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

TEXTS = {
    "a": "Tea is picked in spring, and the best of it grows high on the mountains where it is cold and wet",
    "b": "Owls turn their heads, and see what moves in the grass below them when the night is darkest",
}


class Index(http.server.BaseHTTPRequestHandler):
    told = {}
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        now = time.monotonic()
        ids = body["request_ids"]
        for one in ids:
            self.told.setdefault(one, now)
        self.answers({"status": "success", "removed_count": len(ids), "evicted_request_ids": ids, "not_found": []})

    def do_GET(self):
        self.answers({"status": "ready"})

    def answers(self, body):
        answer = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def wait(what, look, seconds=300):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise SystemExit(f"never seen: {what}")


def serve():
    """An index. Returns its URL."""
    index = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=index.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{index.server_port}"


def main(name, package, companion, port, *command):
    more = {
        "CONTEXTPILOT_INDEX_URL": serve(),
        "CONTEXTPILOT_LISTEN": "auto",
        "CONTEXTPILOT_WATCHER": "auto",
    }
    parent = subprocess.Popen([companion, "run", *command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=os.environ | more, start_new_session=True)

    def answers():
        if parent.poll() is not None:
            raise SystemExit(f"{name} has ended")
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/health").status == 200
        except OSError:
            return False

    def evaluated(one, with_id):
        body = {"prompt": TEXTS[one], "max_tokens": 2, "temperature": 0} | ({"rid": one} if with_id else {})
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))["timings"]["prompt_n"]

    try:
        wait("an answer of the server", answers)
        first = [evaluated(one, True) for one in "ab"]
        wait("that a was lost", lambda: "a" in Index.told)
        again = [evaluated("b", False)]
        assert "b" not in Index.told, Index.told
        again.insert(0, evaluated("a", False))
        wait("that b was lost", lambda: "b" in Index.told)
        evaluated("a", True)
        evaluated("b", True)
        wait("that a was lost again", lambda: "a" in Index.told)
        Index.told.clear()
        # In the journal a moment later.
        time.sleep(1)
        stats = subprocess.run([companion, "stats", "--json", "--pid", str(child_of(parent.pid))], capture_output=True, text=True)
        attached = ", ".join(json.loads(stats.stdout)["engine"]["attached"])
        told = killed(parent) if name == "genai-electron" else interrupted(parent)
    finally:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)
    print(f"| {package} | {attached} | {first[0]}, {first[1]} | {again[0]}, {again[1]} | {told} |")


def child_of(parent):
    """The llama-server among what it has started."""
    for one in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = open(f"/proc/{one}/stat").read().rsplit(")", 1)
        except OSError:
            continue
        if int(stat[1].split()[1]) == parent and "llama-server" in stat[0]:
            return int(one)
    raise SystemExit("it has started no llama-server")


def killed(parent):
    child = child_of(parent.pid)
    os.kill(child, signal.SIGSTOP)
    begun = time.monotonic()
    parent.stdin.write(b"end\n")
    parent.stdin.flush()
    wait("the child's end", lambda: not os.path.exists(f"/proc/{child}"), 60)
    ended = time.monotonic()
    wait("what it held", lambda: "b" in Index.told, 20)
    assert parent.poll() is None, "the parent has ended, too"
    late = Index.told["b"] - ended
    assert late < 1, f"told after {late:.1f} s"
    return f"killed by it after {ended - begun:.1f} s, told {max(0, late) * 1000:.0f} ms later"


def interrupted(parent):
    os.killpg(parent.pid, signal.SIGINT)
    wait("what it held", lambda: "b" in Index.told, 20)
    parent.wait(60)
    return "told at SIGINT"


if __name__ == "__main__":
    main(*sys.argv[1:])
