"""Large traces, and every format: see scripts/traffic."""

import gzip
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = os.environ["CONTEXTPILOT_LLAMA"]


def read(path):
    """The requests of a trace."""
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(Path(path).suffix, open)
    with opener(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def measured(arguments, lines=(), quiet=False):
    """Runs the program, and says what it took: seconds, of processors too, and the most memory."""
    begin = time.monotonic()
    child = subprocess.Popen([PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for line in lines:
        child.stdin.write(line)
    child.stdin.close()
    said = child.stdout.read().decode()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if not quiet:
        print(said, end="")
        seconds = time.monotonic() - begin
        processors = used.ru_utime + used.ru_stime
        print(f"{seconds:.1f} s (of processors {processors:.1f} s), {used.ru_maxrss / 1024:.0f} MiB, exit code {child.returncode}", flush=True)
    return said, child.returncode


def copies(requests, count, apart):
    """The trace many times, with ids of its own each time: one after the other, or side by side.

    The number of the time stands before the digits of each id, and of each moment if they follow each other."""

    def line(one):
        ids = ",".join([f"@{known:07}" for known in one["hash_ids"]])
        at = f"@{one['timestamp']:010}" if apart else one["timestamp"]
        known = f'"input_length":{one["input_length"]},"output_length":{one["output_length"]}'
        return f'{{"timestamp":{at},{known},"hash_ids":[{ids}]}}\n'.encode()

    numbers = [str(1 + nth).encode() for nth in range(count)]
    lines = [line(one) for one in requests]
    if apart:
        whole = b"".join(lines)
        return (whole.replace(b"@", number) for number in numbers)
    return (line.replace(b"@", number) for line in lines for number in numbers)


def many(path):
    requests = read(path)
    count = -(-10_000_000 // len(requests))
    print(f"{count * len(requests):,} requests", flush=True)
    measured(["traffic", "curve", "-"], copies(requests, count, True))


def fleet(path, routes="round-robin,session,prefix,load+prefix", stores="own,shared"):
    requests = read(path)
    count = -(-1_000_000 // len(requests))
    print(f"{count * len(requests):,} requests", flush=True)
    measured(
        ["simulate", "-", "--servers", "1000", "--route", routes, "--store", stores],
        copies(requests, count, False),
    )


def ceilings(arguments, path):
    said, status = measured(["traffic", "import", "--json", *arguments, str(path)], quiet=True)
    if status != 0:
        sys.exit(f"{path}: exit code {status}")
    return json.loads(said)


def formats(path):
    """Texts have one block of bytes for each id, so what prompts share is the same to the block."""
    requests = read(path)[:600]
    sessions = {}
    for nth, one in enumerate(requests):
        sessions.setdefault(one["hash_ids"][min(1, len(one["hash_ids"]) - 1)], []).append(nth)
    of = {nth: number for number, all in enumerate(sessions.values()) for nth in all}
    text = lambda one: "".join(f"{known:<256}" for known in one["hash_ids"])

    def as_mooncake(nth, one):
        return one

    def as_bailian(nth, one):
        return {"chat_id": nth, "parent_chat_id": -1, "timestamp": one["timestamp"] / 1000, "input_length": 16 * len(one["hash_ids"]),
                "output_length": one["output_length"], "type": "text", "turn": 1, "hash_ids": one["hash_ids"]}

    def as_lmcache(nth, one):
        return {"session_id": f"s{of[nth]}", "model": "m", "input": [{"role": "user", "content": text(one)}],
                "output_length": one["output_length"], "pre_gap": 0.5}

    def as_openai(nth, one):
        return {"prompt": text(one), "timestamp": one["timestamp"] / 1000, "user": f"s{of[nth]}"}

    def as_weka(all):
        inner = [{"t": requests[nth]["timestamp"] / 1000, "type": "n", "model": "m", "in": 64 * len(requests[nth]["hash_ids"]),
                  "out": 1, "hash_ids": requests[nth]["hash_ids"], "api_time": 0.1} for nth in all]
        return {"id": f"s{all[0]}", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": inner}

    def lines(make):
        return [json.dumps(make(nth, one)) for nth, one in enumerate(requests)]

    # What there is to reuse: blocks that an earlier prompt had. WEKA's sessions share nothing.
    blocks = sum(len(one["hash_ids"]) for one in requests)
    distinct = len({known for one in requests for known in one["hash_ids"]})
    apart = len({(of[nth], known) for nth, one in enumerate(requests) for known in one["hash_ids"]})
    whole = len({tuple(one["hash_ids"]) for one in requests})
    every = {
        "Mooncake": (lines(as_mooncake), [], 1 - distinct / blocks),
        "Qwen-Bailian": (lines(as_bailian), [], 1 - distinct / blocks),
        "WEKA": ([json.dumps(as_weka(all)) for all in sessions.values()], ["--users", "600"], 1 - apart / blocks),
        # The role before a text moves it by a few bytes, so each prompt has one more block.
        "LMCache": (lines(as_lmcache), ["--tokenizer", "bytes"], 1 - (distinct + whole) / (blocks + len(requests))),
        "OpenAI": (lines(as_openai), ["--tokenizer", "bytes"], 1 - distinct / blocks),
    }
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, (all, arguments, expected) in every.items():
            plain = Path(folder, f"{name}.jsonl")
            packed = Path(folder, f"{name}.jsonl.gz")
            damaged = Path(folder, f"{name}-damaged.jsonl")
            content = "\n".join(all) + "\n"
            plain.write_text(content)
            packed.write_bytes(gzip.compress(content.encode()))
            damaged.write_text("\n".join([*all[:3], all[3][: len(all[3]) // 2], *all[3:]]) + "\n")
            seen = [ceilings(arguments, one) for one in (plain, packed, damaged)]
            share = seen[0]["cold"]["blocks"]
            print(f"{name}: recognised as {seen[0]['format']}, {seen[0]['requests']} requests, {100 * share:.3f} % of blocks, expected {100 * expected:.3f} %")
            same = [one["cold"] == seen[0]["cold"] for one in seen]
            if same != [True] * 3 or seen[0]["requests"] != len(requests):
                failed = True
                print(f"  packed or damaged differ: {same}")
            if abs(share - expected) > 1e-4:
                failed = True
                print("  not as expected")
    sys.exit(1 if failed else 0)


{"formats": formats, "many": many, "fleet": fleet}[sys.argv[1]](*sys.argv[2:])
