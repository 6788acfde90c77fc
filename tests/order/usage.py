"""OpenAI's and Anthropic's clients for Python, each with a conversation of its own, streamed and whole. For each line on stdin, which
begins the ids of its requests, each sends its next turn. Then a line of JSON has what the clients read: [id, cached, evaluated].

  python usage.py URL     the proxy's
"""

import json
import sys

from anthropic import Anthropic
from openai import OpenAI

URL = sys.argv[1]
openai = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
anthropic = Anthropic(base_url=URL, api_key="none", max_retries=0)


def of_openai(prompt, cached):
    return cached, prompt - cached


def chat(messages, stream, extra):
    body = dict(model="any", messages=messages, max_tokens=4, temperature=0, extra_body=extra)
    if not stream:
        usage = openai.chat.completions.create(**body).usage
    else:
        options = dict(stream=True, stream_options={"include_usage": True})
        for chunk in openai.chat.completions.create(**body, **options):
            usage = chunk.usage
    return of_openai(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)


def responses(messages, stream, extra):
    def said(text):
        content = [{"type": "output_text", "text": text}]
        return {"type": "message", "role": "assistant", "status": "completed", "content": content}

    inputs = [said(one["content"]) if one["role"] == "assistant" else one for one in messages]
    body = dict(model="any", input=inputs, max_output_tokens=4, temperature=0, extra_body=extra)
    if not stream:
        usage = openai.responses.create(**body).usage
    else:
        for event in openai.responses.create(**body, stream=True):
            if event.type == "response.completed":
                usage = event.response.usage
    return of_openai(usage.input_tokens, usage.input_tokens_details.cached_tokens)


def messages_api(messages, stream, extra):
    extra = {**extra, "temperature": 0}
    body = dict(model="any", messages=messages, max_tokens=4, extra_body=extra)
    if not stream:
        usage = anthropic.messages.create(**body).usage
    else:
        with anthropic.messages.stream(**body) as answer:
            usage = answer.get_final_message().usage
    return usage.cache_read_input_tokens, usage.input_tokens


def text(seed):
    return " ".join(f"{seed}-{n}" for n in range(40))


APIS = {"chat": chat, "responses": responses, "messages": messages_api}
CHATS = [(name, stream, []) for name in APIS for stream in (False, True)]

for line in sys.stdin:
    read = []
    for name, stream, messages in CHATS:
        messages.append({"role": "user", "content": text(f"{name} {stream} {len(messages)}")})
        rid = f"{line.strip()}-{name}-{stream}"
        read.append([rid, *APIS[name](messages, stream, {"rid": rid})])
        messages.append({"role": "assistant", "content": "Well."})
    print(json.dumps(read), flush=True)
