"""Documents that come back, with one kind of cache. Prints a line of JSON for each kind of question.

python_caches.py MODEL none|ram|disk|store FOLDER LIFE
python_caches.py --table FILE

FOLDER: where the cache keeps its files. LIFE 2: a new process with the files of life 1.
"""

import json
import os
import random
import sys
import time
from statistics import median

DOCUMENTS = int(os.environ.get("DOCUMENTS", "4"))
TOKENS = int(os.environ.get("TOKENS", "1000"))
WORDS = "river stone lantern winter market copper letter garden engine island mirror thunder saddle harbour".split()
NAMES = {
    "none": "none",
    "ram": "LlamaRAMCache",
    "disk": "LlamaDiskCache",
    "store": "prefix store",
}
STEPS = ["first", "again", "another question", "branch", "restarted"]


def text_of(seed, words):
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words))


def size_of(folder):
    files = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)
    return sum(os.path.getsize(file) for file in files)


def main(model, kind, folder, life):
    import llama_cpp

    llm = llama_cpp.Llama(model_path=model, n_ctx=2 * TOKENS, n_batch=2 * TOKENS, n_threads=1, n_threads_batch=1, seed=1, verbose=False)
    caches = {"ram": lambda: llama_cpp.LlamaRAMCache(), "disk": lambda: llama_cpp.LlamaDiskCache(folder)}
    cache = caches[kind]() if kind in caches else None
    llm.set_cache(cache)
    words = TOKENS * 100 // len(llm.tokenize(text_of(0, 100).encode()))

    def evaluated():
        llama_cpp.llama_synchronize(llm.ctx)
        perf = llama_cpp.llama_perf_context(llm.ctx)
        llama_cpp.llama_perf_context_reset(llm.ctx)
        return (perf.n_p_eval if perf.t_p_eval_ms > 0 else 0) + (perf.n_eval if perf.t_eval_ms > 0 else 0)

    def ask(step, prompts):
        firsts, wholes, counts, answers = [], [], [], []
        for prompt in prompts:
            evaluated()
            begun, first, answer = time.perf_counter(), None, ""
            for chunk in llm.create_completion(prompt, max_tokens=8, temperature=0, stream=True):
                if first is None:
                    first = time.perf_counter() - begun
                    counts.append(evaluated())
                answer += chunk["choices"][0]["text"]
            firsts.append(first)
            wholes.append(time.perf_counter() - begun)
            answers.append(answer)
        size = cache.cache_size if kind == "ram" else size_of(folder) if os.path.isdir(folder) else 0
        line = {"kind": kind, "step": step, "first": median(firsts), "whole": median(wholes)}
        line |= {"evaluated": median(counts), "size": size, "answers": answers}
        print(json.dumps(line), flush=True)

    documents = [text_of(seed, words) for seed in range(1, DOCUMENTS + 1)]
    asked = [document + "\nQuestion: which word is missing?\nAnswer:" for document in documents]
    if life == 2:
        ask("restarted", asked)
        return llm.close()
    ask("first", asked)
    ask("again", asked)
    ask("another question", [document + "\nQuestion: how many rivers are there?\nAnswer:" for document in documents])
    # As of an edited document: the first half is the same.
    half = [document[: len(document) // 2] + text_of(-seed, words // 2) for seed, document in enumerate(documents, 1)]
    ask("branch", half)
    llm.close()


def table(file):
    with open(file) as lines:
        lines = [json.loads(line) for line in lines]
    found = {(line["kind"], line["step"]): line for line in lines}
    print(f"{DOCUMENTS} documents of about {TOKENS} tokens, one after the other; medians\n")
    print("| | | " + " | ".join(NAMES.values()) + " |")
    print("|---|---|" + "--:|" * len(NAMES))
    rows = [
        ("first token, ms", lambda line: f"{1000 * line['first']:,.0f}"),
        ("whole call, ms", lambda line: f"{1000 * line['whole']:,.0f}"),
        ("evaluated", lambda line: f"{line['evaluated']:,.0f}"),
    ]
    for step in STEPS:
        for what, text in rows:
            cells = [text(found[kind, step]) for kind in NAMES]
            print(f"| {step} | {what} | " + " | ".join(cells) + " |")
    sizes = [f"{found[kind, 'branch']['size'] / 1e6:,.0f}" for kind in NAMES]
    print("| at the end | MB | " + " | ".join(sizes) + " |")
    for step in STEPS:
        equal = [name for kind, name in NAMES.items() if found[kind, step]["answers"] == found["none", step]["answers"]]
        if len(equal) < len(NAMES):
            print(f"\nAnswers of «{step}» are equal only for: {', '.join(equal)}")


if sys.argv[1] == "--table":
    table(sys.argv[2])
else:
    main(*sys.argv[1:4], int(sys.argv[4]))
