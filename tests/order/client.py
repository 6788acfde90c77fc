"""ContextPilot's client and the examples of its documentation, against the index at the given port."""

import sys

import requests
from contextpilot.server.http_client import ContextPilotIndexClient

url = f"http://127.0.0.1:{sys.argv[1]}"
client = ContextPilotIndexClient(url)

# The quick start: build, infer, build again, deduplicate.
documents = {n: f"Document {n} says something of its own, number {n * 37}." for n in range(7)}
contexts = [[0, 1, 2], [0, 1, 5], [3, 4, 0]]
build = requests.post(f"{url}/build", json={"contexts": contexts}).json()
assert build["mode"] == "initial", build
assert len(build["request_ids"]) == 3, build
for ordered, at in zip(build["reordered_contexts"], build["original_indices"]):
    assert sorted(ordered) == sorted(contexts[at]), build
    prompt = "\n".join(documents[n] for n in ordered) + "\nQuestion?"
    answer = requests.post(
        f"{url}/v1/completions",
        json={"prompt": prompt, "request_id": build["request_ids"][at], "max_tokens": 4},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] is not None

assert client.is_ready(), client.health()
ordered, order = client.reorder([[0, 1, 3]])
assert sorted(ordered[0]) == [0, 1, 3] and order == [0], ordered
raw = client.reorder_raw([["some text", "more text"], ["more text", "other"]])
assert raw["mode"] == "incremental" and raw["input_type"] == "string", raw
stateless = client.schedule([[1, 2], [2, 1]])
assert stateless["num_contexts"] == 2, stateless
first = client.build([[4, 3, 1]], deduplicate=True, parent_request_ids=[None])["request_ids"][0]
turn = client.deduplicate([[4, 3, 2]], [first])
assert turn["results"][0]["new_docs"] == [2], turn
assert client.search([0, 1])["status"] == "success"
inserted = client.insert([5, 6], [0])
assert inserted["request_id"].startswith("req-"), inserted
assert client.get_stats()["index_stats"]["num_requests"] > 0
listed = client.get_requests()["request_ids"]
assert inserted["request_id"] in listed, listed
evicted = client.evict([inserted["request_id"], "unknown"])
assert evicted["removed_count"] == 1 and evicted["not_found"] == ["unknown"], evicted
assert client.reset()["status"] == "success"
assert client.get_requests()["num_requests"] == 0
client.close()
