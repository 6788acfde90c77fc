"""A document, another one, and the first again, in a program with llama.cpp inside. Prints a line of JSON.

embedding.py MODEL            with llama-cpp-python
embedding.py --tool NAME COMMAND...    with a program that is given a prompt as its last argument, a process for each
embedding.py --text           prints the three prompts, as JSON
embedding.py --table FILE     a table of such lines, those without and with the hook side by side
"""

import json
import os
import random
import re
import resource
import subprocess
import sys
import time

WORDS = "river stone lantern winter market copper letter garden engine island mirror thunder saddle harbour".split()


def prompts():
    def document(seed):
        chosen = random.Random(seed)
        return " ".join(chosen.choice(WORDS) for _ in range(int(os.environ.get("WORDS", "400"))))

    question = "\nQuestion: which word is missing?\nAnswer:"
    return [document(1) + question, document(2) + question, document(1) + question]


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def main(model):
    import llama_cpp

    @llama_cpp.llama_log_callback
    def silent(_level, _text, _data):
        pass

    threads = int(os.environ.get("THREADS", "1"))
    options = {"n_ctx": 2048, "n_batch": 2048, "n_threads": threads, "n_threads_batch": threads, "seed": 1}
    # verbose=False would hide the hook's line, too.
    llm = llama_cpp.Llama(model_path=model, verbose=True, **options)
    llama_cpp.llama_log_set(silent, None)
    line = {"program": f"llama-cpp-python {llama_cpp.__version__}", "answers": [], "evaluated": [], "ms": []}
    for prompt in prompts():
        begun, answer = time.perf_counter(), ""
        for chunk in llm.create_completion(prompt, max_tokens=8, temperature=0, stream=True):
            if not answer:
                line["ms"].append(1000 * (time.perf_counter() - begun))
                # It counts when the outputs are there.
                llama_cpp.llama_synchronize(llm.ctx)
                perf = llama_cpp.llama_perf_context(llm.ctx)
                evaluated = (perf.n_p_eval if perf.t_p_eval_ms > 0 else 0) + (perf.n_eval if perf.t_eval_ms > 0 else 0)
                line["evaluated"].append(evaluated)
            answer += chunk["choices"][0]["text"]
        line["answers"].append(answer)
        llama_cpp.llama_synchronize(llm.ctx)
        llama_cpp.llama_perf_context_reset(llm.ctx)
    line["resident_kb"] = resident()
    print(json.dumps(line), flush=True)
    llm.close()


def tool(name, command):
    """A program that prints llama_perf_context_print's lines on stderr. Times are of whole processes."""
    line = {"program": name, "answers": [], "evaluated": [], "ms": []}
    for prompt in prompts():
        begun = time.perf_counter()
        run = subprocess.run([*command, prompt], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        line["ms"].append(1000 * (time.perf_counter() - begun))
        sys.stderr.write(run.stderr)
        found = re.search(r"prompt eval time *= *[\d.]+ ms / *(\d+) tokens", run.stderr)
        if run.returncode != 0 or not found:
            sys.exit(f"{name} has failed: {run.returncode}\n{run.stdout}{run.stderr}")
        line["evaluated"].append(int(found[1]))
        line["answers"].append(run.stdout)
    line["resident_kb"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps(line), flush=True)


def attached(said):
    """What the hook has said: functions, and milliseconds."""
    found = re.search(r"(\d+) functions hooked in ([\d.]+) ms", said)
    return found.groups() if found else ("–", "–")


def table(file):
    lines = {}
    with open(file) as rows:
        for row in map(json.loads, rows):
            lines.setdefault(row["program"], {})[row["hook"]] = row
    print("| program | functions, attached in | answers | evaluated, the document again | first token then | resident memory |")
    print("|---|--:|---|--:|--:|--:|")
    for program, rows in lines.items():
        if set(rows) != {False, True}:
            print(f"| {program} | | not run: {rows} | | | |")
            continue
        plain, ours = rows[False], rows[True]
        functions, ms = attached(ours["said"])
        equal = "equal" if plain["answers"] == ours["answers"] else f"DIFFER: {plain['answers']} {ours['answers']}"
        cells = [f"{functions}, {ms} ms", equal, "{} → {}".format(*(row["evaluated"][2] for row in (plain, ours)))]
        cells += ["{:,.0f} → {:,.0f} ms".format(*(row["ms"][2] for row in (plain, ours)))]
        more = (ours["resident_kb"] - plain["resident_kb"]) / 1024
        cells += [f"{plain['resident_kb'] / 1024:,.0f} MiB, {more:+,.1f}"]
        print(f"| {program} | " + " | ".join(cells) + " |")


if sys.argv[1] == "--text":
    print(json.dumps(prompts()))
elif sys.argv[1] == "--tool":
    tool(sys.argv[2], sys.argv[3:])
elif sys.argv[1] == "--table":
    table(sys.argv[2])
else:
    main(sys.argv[1])
