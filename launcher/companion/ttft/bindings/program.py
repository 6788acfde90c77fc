"""Answers prompts with llama-cpp-python, one sequence in one object, and measures.

Reads a line of JSON for each thing to do, and prints a line of JSON for each.
"""

import json
import sys
import time

try:
    import llama_cpp
except ImportError as error:
    sys.exit(f"it has no llama_cpp ({error})")

model, n_ctx, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
llm = llama_cpp.Llama(
    model_path=model, n_ctx=n_ctx, n_batch=2048, n_threads=threads, n_threads_batch=threads, seed=1, verbose=False
)


def evaluated():
    """Tokens that the engine evaluated since the last time, by its own count, which is 1 for none."""
    llama_cpp.llama_synchronize(llm.ctx)
    perf = llama_cpp.llama_perf_context(llm.ctx)
    llama_cpp.llama_perf_context_reset(llm.ctx)
    return (perf.n_p_eval if perf.t_p_eval_ms > 0 else 0) + (perf.n_eval if perf.t_eval_ms > 0 else 0)


def count(text):
    return len(llm.tokenize(text.encode(), add_bos=True))


def complete(prompt):
    evaluated()
    begun = time.perf_counter()
    for _ in llm.create_completion(prompt, max_tokens=1, temperature=0, stream=True):
        break
    took = time.perf_counter() - begun
    tokens, new = count(prompt), evaluated()
    return {"first_token_ms": 1000 * took, "prompt_tokens": tokens, "cached": max(0, tokens - new), "evaluated": new}


def say(line):
    print(json.dumps(line), flush=True)


say({"version": llama_cpp.__version__})
for line in sys.stdin:
    wish = json.loads(line)
    say(complete(wish["prompt"]) if "prompt" in wish else {"tokens": count(wish["count"])})
llm.close()
