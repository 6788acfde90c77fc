"""A llama-server behind NVIDIA Dynamo's frontend, for ai-dynamo 1.6.1.

The frontend tokenizes, finds the worker that has most of the prompt cached, and sends it token ids.
This worker hands them to the llama-server beside it, and tells the router where that publishes its
KV cache events. One worker for each server:

    export CONTEXTPILOT_KV_EVENTS=tcp://127.0.0.1:5557
    contextpilot-llama-server -m model.gguf --port 8080
    python worker.py --server http://127.0.0.1:8080 --events tcp://127.0.0.1:5557 \
        --model-name llama --model-path tokenizer/ --context 8192 --blocks 2048

`tokenizer/` is the folder that the GGUF was converted from, or its config.json, tokenizer.json and
tokenizer_config.json: the ids must be those of the GGUF. `--blocks` is the server's whole context
(`-c`) in blocks of 16 tokens.
"""

import argparse
import json

import aiohttp
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.publisher import ZmqSource
from dynamo.common.backend.run import run

BLOCK = 16


class LlamaServer(LLMEngine):
    def __init__(self, options):
        self.options = options
        self.session = None

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description="A llama-server behind Dynamo's frontend")
        parser.add_argument("--server", default="http://127.0.0.1:8080")
        parser.add_argument("--events", default="tcp://127.0.0.1:5557")
        parser.add_argument("--model-name", required=True)
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--context", type=int, required=True, help="tokens of a slot")
        parser.add_argument("--blocks", type=int, required=True)
        parser.add_argument("--discovery-backend", default="file")
        options = parser.parse_args(argv)
        return cls(options), WorkerConfig(
            namespace="dynamo",
            component="llama",
            endpoint="generate",
            model_name=options.model_path,
            served_model_name=options.model_name,
            endpoint_types="chat,completions",
            discovery_backend=options.discovery_backend,
            request_plane="tcp",
            event_plane="zmq",
            enable_kv_routing=True,
        )

    async def start(self, worker_id):
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        return EngineConfig(
            model=self.options.model_path,
            served_model_name=self.options.model_name,
            llm=LlmRegistration(
                context_length=self.options.context,
                kv_cache_block_size=BLOCK,
                total_kv_blocks=self.options.blocks,
                max_num_batched_tokens=2048,
            ),
        )

    async def kv_event_sources(self):
        return [ZmqSource(endpoint=self.options.events)]

    async def generate(self, request, context):
        prompt = list(request["token_ids"])
        body = {"prompt": prompt, "stream": True, "return_tokens": True, "cache_prompt": True}
        sampling = request.get("sampling_options") or {}
        for name in ("temperature", "top_p", "top_k", "seed"):
            if sampling.get(name) is not None:
                body[name] = sampling[name]
        stop = request.get("stop_conditions") or {}
        if stop.get("max_tokens") is not None:
            body["n_predict"] = stop["max_tokens"]
        body["ignore_eos"] = bool(stop.get("ignore_eos"))
        generated = 0
        url = self.options.server + "/completion"
        # Leaving the connection is how llama-server learns that nobody waits any more.
        async with self.session.post(url, json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if context.is_stopped():
                    return
                if not line.startswith(b"data: "):
                    continue
                chunk = json.loads(line[len(b"data: "):])
                tokens = chunk.get("tokens") or []
                generated += len(tokens)
                answer = {"token_ids": tokens, "index": 0}
                if chunk.get("stop"):
                    limit = chunk.get("stop_type") == "limit"
                    answer["token_ids"] = []
                    answer["finish_reason"] = "length" if limit else "stop"
                    answer["completion_usage"] = {
                        "prompt_tokens": len(prompt),
                        "completion_tokens": generated,
                        "total_tokens": len(prompt) + generated,
                        "prompt_tokens_details": {
                            "cached_tokens": chunk["timings"].get("cache_n", 0)
                        },
                    }
                yield answer

    async def abort(self, context):
        pass

    async def cleanup(self):
        if self.session is not None:
            await self.session.close()


if __name__ == "__main__":
    run(LlamaServer)
