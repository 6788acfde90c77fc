#!/usr/bin/env python3
"""Plays coding agents against a scripted server, and what they sent against the real one (scripts/agents)."""

import argparse, http.server, json, os, pathlib, re, shutil, signal, socket, subprocess, sys, tempfile, threading, time, urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
HOME = REPOSITORY / "target/agents"

# What the user asks. Each has a word by which the scripted server finds the last one.
QUESTIONS = [
    "Marigold: read README.md and list the files here, then say in one sentence what this project is.",
    "Cornflower: read main.py and say in one sentence what it prints.",
    "Snapdragon: read notes.txt and say in one sentence what is missing.",
]
WORDS = [question.split(":")[0] for question in QUESTIONS]
# What the scripted model does for each: calls, and at last a text.
STEPS = [["read", "shell"], ["read"], ["read"]]
PATHS = ["README.md", "main.py", "notes.txt"]
FILES = {
    "README.md": "# Counter\n\nCounts the words of a text.\n",
    "main.py": "import sys\n\nprint(len(sys.stdin.read().split()))\n",
    "notes.txt": "Missing: a test, and a version.\n",
}
REASONING = "The user wants to know something of file {}. I look at it first, and answer then."
ANSWER = "It is a small program that counts words; that was question {}."


# ---- the scripted server

def text_of(content):
    if isinstance(content, str):
        return content
    return "".join(text_of(part.get("text") or part.get("content") or "") for part in content or [] if isinstance(part, dict))


def messages_of(body):
    """Of any API: (role, text) of each message; a tool's result has the role `tool`."""
    said = []
    items = body.get("messages", body.get("input", []))
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    for item in items:
        if item.get("type") == "function_call_output":
            said.append(("tool", text_of(item.get("output"))))
        elif item.get("role"):
            results = [part for part in item.get("content") or [] if isinstance(part, dict) and part.get("type") == "tool_result"]
            said += [("tool", text_of(part.get("content"))) for part in results]
            if not results:
                said.append((item["role"], text_of(item.get("content"))))
    return said


def tools_of(body):
    """Name and schema of each function, whatever the API."""
    found = []
    for tool in body.get("tools") or []:
        for one in tool.get("tools", [tool]) if tool.get("type") == "namespace" else [tool]:
            function = one.get("function", one)
            if function.get("name"):
                found.append((function["name"], function.get("parameters") or function.get("input_schema") or {}))
    return found


def value_of(name, schema, path, folder, is_shell):
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    if "enum" in schema:
        return schema["enum"][0]
    if kind in ("integer", "number"):
        return 1
    if kind == "boolean":
        return False
    if kind == "array":
        items = schema.get("items", {})
        if is_shell and name in ("command", "cmd"):
            return ["ls", "-1"]
        return [value_of(name, items, path, folder, is_shell)]
    if kind == "object":
        properties = schema.get("properties", {})
        return {one: value_of(one, properties.get(one, {}), path, folder, is_shell) for one in schema.get("required", [])}
    if is_shell and name in ("command", "cmd", "code", "script"):
        return "ls -1"
    if re.search("path|file", name):
        return os.path.join(folder, path)
    if name in ("command", "cmd", "code", "script"):
        return "cat " + path
    return "look at " + path


def call_of(step, tools, path, folder):
    """A call that this agent's tools allow. None: there is none."""
    shells = r"^(bash|shell|exec_command|run_shell_command|execute|terminal|exec|run_command|Bash|run_commands|execute_command|execute_bash|agent_run_shell_command|local_shell|powershell)$"
    reads = r"^(read|read_file|Read|view|view_file|read_files|readfile|ReadFile|open_file|cat)$|read_?file"
    for pattern, is_shell in [(shells, True), (reads, False)] if step == "shell" else [(reads, False), (shells, True)]:
        for name, schema in tools:
            if re.search(pattern, name):
                properties = schema.get("properties", {})
                wanted = schema.get("required") or list(properties)[:1]
                shell = is_shell and step == "shell"
                return name, {one: value_of(one, properties.get(one, {}), path, folder, shell) for one in wanted}
    return None


class Script(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.split("?")[0].endswith("/models"):
            model = {"id": "local", "object": "model", "created": 1, "owned_by": "llamacpp", "meta": {"n_ctx_train": 131072}}
            return self.whole({"object": "list", "data": [model], "models": [{"name": "local", "model": "local"}]})
        if self.path.startswith("/props"):
            return self.whole({"default_generation_settings": {"n_ctx": 131072}, "total_slots": 4, "model_alias": "local"})
        return self.whole({"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}, 404)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        length = self.headers.get("Content-Length")
        if length is not None:
            raw = self.rfile.read(int(length))
        else:
            raw = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        path = self.path.split("?")[0]
        try:
            body = json.loads(raw)
        except ValueError:
            return self.whole({"error": {"code": 400, "message": "no JSON"}}, 400)
        answers = {"/chat/completions": self.say_chat, "/responses": self.say_responses, "/messages": self.say_anthropic}
        answer = next((answers[end] for end in answers if path.endswith(end)), None)
        if answer is None:
            return self.whole({"error": {"code": 404, "message": "File Not Found"}}, 404)
        said = messages_of(body)
        last = max((n for n, (role, text) in enumerate(said) if role == "user" and any(word + ":" in text for word in WORDS)), default=None)
        reasoning, text, call = "", "A title", None
        nth = None
        if last is not None:
            nth = max(n for n, word in enumerate(WORDS) if word + ":" in said[last][1])
            reasoning, text = REASONING.format(PATHS[nth]), ANSWER.format(nth + 1)
            done = sum(role == "tool" for role, _ in said[last + 1:])
            if done < len(STEPS[nth]):
                call = call_of(STEPS[nth][done], tools_of(body), PATHS[nth], self.server.folder)
        with self.server.lock:
            self.server.requests += 1
            number = self.server.requests
            record = {"path": path, "agent": self.headers.get("User-Agent", ""), "body": body, "call": call and call[0]}
            self.server.record.write(json.dumps(record) + "\n")
            self.server.record.flush()
        answer(body, number, reasoning, text, call)

    def whole(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def events(self, events, named=False, done=False):
        lines = [(f"event: {one['type']}\n" if named else "") + "data: " + json.dumps(one) + "\n\n" for one in events]
        data = ("".join(lines) + ("data: [DONE]\n\n" if done else "")).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))

    def say_chat(self, body, number, reasoning, text, call):
        message = {"role": "assistant", "content": "" if call else text, "reasoning_content": reasoning}
        if call:
            function = {"name": call[0], "arguments": json.dumps(call[1], separators=(",", ":"))}
            message["tool_calls"] = [{"id": f"call{number:05}", "type": "function", "function": function}]
        finish = "tool_calls" if call else "stop"
        usage = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050, "prompt_tokens_details": {"cached_tokens": 900}}
        common = {"id": f"chatcmpl-{number}", "created": int(time.time()), "model": body.get("model", "local")}
        if not body.get("stream"):
            choice = {"index": 0, "finish_reason": finish, "message": message}
            return self.whole({**common, "object": "chat.completion", "choices": [choice], "usage": usage})
        deltas = [{"role": "assistant", "content": None}]
        deltas += [{"reasoning_content": reasoning}] if reasoning else []
        deltas += [{"tool_calls": [{"index": 0, **message["tool_calls"][0]}]}] if call else [{"content": text}]
        chunks = [{**common, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({**common, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        chunks.append({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        self.events(chunks, done=True)

    def say_responses(self, body, number, reasoning, text, call):
        output = []
        if reasoning:
            output.append({"id": f"rs_{number}", "type": "reasoning", "summary": [], "encrypted_content": "",
                           "content": [{"type": "reasoning_text", "text": reasoning}], "status": "completed"})
        if call:
            output.append({"id": f"fc_{number}", "type": "function_call", "status": "completed", "call_id": f"call{number:05}",
                           "name": call[0], "arguments": json.dumps(call[1], separators=(",", ":"))})
        else:
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            output.append({"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": [part]})
        usage = {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050, "input_tokens_details": {"cached_tokens": 900},
                 "output_tokens_details": {"reasoning_tokens": 0}}
        whole = {"id": f"resp_{number}", "object": "response", "created_at": int(time.time()), "completed_at": int(time.time()),
                 "model": body.get("model", "local"), "status": "completed", "output": output, "usage": usage,
                 "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": False,
                 "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0}
        if not body.get("stream"):
            return self.whole(whole)
        events = [{"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}}]
        for nth, item in enumerate(output):
            at = {"output_index": nth, "item_id": item["id"]}
            empty = {**item, "status": "in_progress", **({"content": []} if "content" in item else {"arguments": ""})}
            events.append({"type": "response.output_item.added", "output_index": nth, "item": empty})
            if item["type"] == "message":
                part = item["content"][0]
                events += [
                    {"type": "response.content_part.added", **at, "content_index": 0, "part": {**part, "text": ""}},
                    {"type": "response.output_text.delta", **at, "content_index": 0, "delta": text, "logprobs": []},
                    {"type": "response.output_text.done", **at, "content_index": 0, "text": text, "logprobs": []},
                    {"type": "response.content_part.done", **at, "content_index": 0, "part": part},
                ]
            elif item["type"] == "function_call":
                events += [
                    {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]},
                    {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"], "name": item["name"]},
                ]
            else:
                events.append({"type": "response.reasoning_text.delta", **at, "content_index": 0, "delta": reasoning})
            events.append({"type": "response.output_item.done", "output_index": nth, "item": item})
        events.append({"type": "response.completed", "response": whole})
        self.events([{**one, "sequence_number": n} for n, one in enumerate(events)], named=True)

    def say_anthropic(self, body, number, reasoning, text, call):
        blocks = [{"type": "thinking", "thinking": reasoning, "signature": ""}] if reasoning else []
        blocks.append({"type": "tool_use", "id": f"toolu_{number}", "name": call[0], "input": call[1]} if call else {"type": "text", "text": text})
        usage = {"input_tokens": 100, "cache_read_input_tokens": 900, "output_tokens": 50}
        stop = "tool_use" if call else "end_turn"
        whole = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body.get("model", "local"), "content": blocks,
                 "stop_reason": stop, "stop_sequence": None, "usage": usage}
        if not body.get("stream"):
            return self.whole(whole)
        events = [{"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}]
        for nth, block in enumerate(blocks):
            kinds = {"thinking": ("thinking", "thinking_delta"), "text": ("text", "text_delta"), "tool_use": ("input", "input_json_delta")}
            name, delta = kinds[block["type"]]
            empty = {**block, name: {} if name == "input" else ""}
            said = {"partial_json": json.dumps(block["input"])} if name == "input" else {name: block[name]}
            events += [{"type": "content_block_start", "index": nth, "content_block": empty},
                       {"type": "content_block_delta", "index": nth, "delta": {"type": delta, **said}},
                       {"type": "content_block_stop", "index": nth}]
        events += [{"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}, {"type": "message_stop"}]
        self.events(events, named=True)


# ---- the agents

def opencode(variable):
    def prepare(home, url):
        provider = {"local": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": url + "/v1", "apiKey": "none"},
                              "models": {"local": {"limit": {"context": 131072, "output": 8192}}}}}
        return {variable: json.dumps({"model": "local/local", "provider": provider, "permission": "allow"})}
    return prepare


def openai(home, url):
    return {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": url + "/v1", "OPENAI_API_BASE": url + "/v1", "OPENAI_MODEL": "local"}


def writes(path, make):
    """Settings in a file below the home folder."""
    def prepare(home, url):
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(make(url))
        return openai(home, url)
    return prepare


def pi(url):
    models = [{"id": "local", "reasoning": True, "contextWindow": 131072}]
    return json.dumps({"providers": {"local": {"baseUrl": url + "/v1", "api": "openai-completions", "apiKey": "none", "models": models}}})


def codex(home, url):
    return {"LOCAL_KEY": "none", "LOCAL": f'model_providers.local={{name="local", base_url="{url}/v1", wire_api="responses", env_key="LOCAL_KEY"}}'}


def cn(url):
    return f"name: local\nversion: 1.0.0\nmodels: [{{name: local, provider: openai, model: local, apiBase: {url}/v1, apiKey: none}}]\n"


def vibe(url):
    return f"""active_model = "local"
enable_telemetry = false
enable_update_checks = false
[[providers]]
name = "llamacpp"
api_base = "{url}/v1"
api_key_env_var = ""
reasoning_field_name = "reasoning_content"
[[models]]
name = "local"
provider = "llamacpp"
alias = "local"
"""


def puppy(home, url):
    endpoint = {"url": url + "/v1", "api_key": "none"}
    models = {"local": {"type": "custom_openai", "name": "local", "custom_endpoint": endpoint, "context_length": 131072}}
    settings = "[puppy]\npuppy_name = local\nowner_name = me\n"
    for path, text in [(".code_puppy/extra_models.json", json.dumps(models)), (".code_puppy/puppy.cfg", settings)]:
        writes(path, lambda _: text)(home, url)
    return {}


def llm(url):
    return f"- model_id: local\n  model_name: local\n  api_base: {url}/v1\n"


# How to fetch each (scripts/node-agents, npm, or PyPI with a version of Python), its settings, and the lines of a shell for the first and
# for later questions.
AGENTS = {
    "pi": ("node-agents js", writes(".pi/agent/models.json", pi),
           "pi --provider local --model local -p \"$Q\"", "pi --provider local --model local -c -p \"$Q\""),
    "qwen": ("npm @qwen-code/qwen-code@0.24.4", openai, "qwen -y --auth-type openai \"$Q\"", "qwen -y --auth-type openai -c \"$Q\""),
    "codex": ("node-agents", codex,
              "codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m local -c model_provider=local -c \"$LOCAL\" \"$Q\"",
              "codex exec resume --last --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m local -c model_provider=local -c \"$LOCAL\" \"$Q\""),
    "opencode": ("node-agents", opencode("OPENCODE_CONFIG_CONTENT"), "opencode run \"$Q\"", "opencode run --continue \"$Q\""),
    "copilot": ("npm @github/copilot@1.0.102", lambda home, url: {"COPILOT_OFFLINE": "true", "COPILOT_PROVIDER_BASE_URL": url + "/v1", "COPILOT_MODEL": "local",
                                                                  "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "120000"},
                "copilot --allow-all-tools --allow-all-paths -s -p \"$Q\"", "copilot --allow-all-tools --allow-all-paths -s --continue -p \"$Q\""),
    "cn": ("node-agents js", writes("local.yaml", cn), "cn --config \"$HOME/local.yaml\" --auto -p \"$Q\"",
           "cn --config \"$HOME/local.yaml\" --auto --resume -p \"$Q\""),
    "cline": ("npm cline@3.0.65", openai, "cline auth -p openai -k none -m local -b \"$URL/v1\" && cline --auto-approve true \"$Q\"",
              None),
    "grok": ("npm @vibe-kit/grok-cli@0.0.34", openai, "grok -k none -u \"$URL/v1\" -m local -p \"$Q\"", None),
    "kon": ("python3.12 kon-coding-agent==0.4.3", openai, "kon --provider openai -m local -u \"$URL/v1\" -k none --openai-compat-auth none -p \"$Q\"", None),
    "vibe": ("python3.12 mistral-vibe==3.0.2", writes(".vibe/config.toml", vibe), "vibe --trust --auto-approve -p \"$Q\"", "vibe --trust --auto-approve -c -p \"$Q\""),
    "gptme": ("python3.12 gptme==0.35.1", openai, "gptme -n -m local/local --name one \"$Q\"", "gptme -n -m local/local -r \"$Q\""),
    "code-puppy": ("python3.12 code-puppy==0.0.946", puppy, "code-puppy -m local --yolo true -p \"$Q\"", "code-puppy -m local --yolo true -qr -p \"$Q\""),
    "mini": ("python3.11 mini-swe-agent==2.4.6", openai,
             "MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors mini -m openai/local -y --exit-immediately -t \"$Q\"", None),
    "llm": ("python3.11 llm==0.36", writes(".config/io.datasette.llm/extra-openai-models.yaml", llm), "llm -m local \"$Q\"", "llm -m local -c \"$Q\""),
    "aider": ("python3.11 aider-chat==0.86.2", openai,
              "aider --model openai/local --yes-always --no-show-model-warnings --no-check-update --analytics-disable --no-gitignore --message \"$Q\" README.md main.py notes.txt",
              "aider --model openai/local --yes-always --no-show-model-warnings --no-check-update --analytics-disable --no-gitignore --restore-chat-history --message \"$Q\" README.md main.py notes.txt"),
    "cecli": ("python3.12 cecli-dev==1.10.0", openai,
              "cecli --model openai/local --yes-always --no-show-model-warnings --no-check-update --no-gitignore --agent --message \"$Q\"",
              "cecli --model openai/local --yes-always --no-show-model-warnings --no-check-update --no-gitignore --agent --restore-chat-history --message \"$Q\""),
    "claude": ("node-agents", lambda home, url: {"CLAUDE_CODE_ATTRIBUTION_HEADER": "0", "ANTHROPIC_BASE_URL": url,
               "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "local", "IS_SANDBOX": "1"},
               "claude --dangerously-skip-permissions -p \"$Q\"", "claude --dangerously-skip-permissions -c -p \"$Q\""),
}


# ---- playing one

def shell(command, folder, environment, limit):
    """Runs a line in a process group of its own. Its output, and whether it ended in time."""
    process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
        said = f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        output, said = b"", f"stopped after {limit} s"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if not output:
        output, _ = process.communicate()
    return output.decode(errors="replace"), said


def fetch(name):
    kind, *packages = AGENTS[name][0].split()
    if kind == "node-agents":
        fetched = subprocess.run([REPOSITORY / "scripts/node-agents", *packages], stdout=subprocess.PIPE, text=True)
        return None if fetched.returncode else pathlib.Path(fetched.stdout.strip())
    home = HOME / name
    made = home / ".made-for"
    if not made.exists() or made.read_text() != AGENTS[name][0]:
        print(f"[ContextPilot] fetching {name} into target/agents/{name}", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        if kind == "npm":
            lines = [["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", home, *packages]]
        else:
            lines = [[kind, "-m", "venv", home], [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]]
        for line in lines:
            if subprocess.run(line, stdout=sys.stderr).returncode:
                return None
        made.write_text(AGENTS[name][0])
    return home / ("node_modules/.bin" if kind == "npm" else "bin")


def play(name, limit):
    programs = fetch(name)
    if programs is None:
        return print(f"| {name} | could not be fetched |")
    _, prepare, first, later = AGENTS[name]
    with tempfile.TemporaryDirectory() as folder:
        home, project = pathlib.Path(folder, "home"), pathlib.Path(folder, "project")
        home.mkdir(), project.mkdir()
        for file, text in FILES.items():
            (project / file).write_text(text)
        git = "git init -q && git add . && git -c user.name=me -c user.email=me@localhost commit -qm first"
        subprocess.run(["bash", "-c", git], cwd=project, check=True, env={**os.environ, "HOME": str(home)})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Script)
        server.daemon_threads = True
        server.folder, server.lock, server.requests = str(project), threading.Lock(), 0
        record = HOME / f"{name}.jsonl"
        said = []
        with open(record, "w") as server.record:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}"
            keep = {one: os.environ[one] for one in ("LANG", "TERM", "USER", "NODE_EXTRA") if one in os.environ}
            environment = {**keep, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", "NO_PROXY": "127.0.0.1,localhost", "URL": url,
                           "DO_NOT_TRACK": "1", **prepare(home, url)}
            for nth, question in enumerate(QUESTIONS):
                line = first if nth == 0 else later
                if line is None:
                    break
                output, ended = shell(line, project, {**environment, "Q": question}, limit)
                said.append(f"$ {line}\n{output}\n[{ended}]\n")
            server.shutdown()
        (HOME / f"{name}.log").write_text("".join(said))
    print(row(name, [json.loads(line) for line in open(record)]), flush=True)


def conversation(requests):
    """Of what an agent sent: the requests of its conversation, and the others."""
    asks = [one for one in requests if any(any(word + ":" in text for word in WORDS) for role, text in messages_of(one["body"]) if role == "user")]
    most = max((len(tools_of(one["body"])) for one in asks), default=0)
    main = [one for one in asks if len(tools_of(one["body"])) == most]
    return main, [one for one in requests if one not in main]


def bare(item):
    """Without what no prompt has."""
    if isinstance(item, dict):
        if isinstance(item.get("content"), list) and [part.get("type") for part in item["content"]] == ["text"]:
            item = {**item, "content": item["content"][0]["text"]}
        return {key: bare(value) for key, value in item.items() if key not in ("cache_control", "id", "status", "refusal")}
    return [bare(one) for one in item] if isinstance(item, list) else item


def items_of(body):
    """What a prompt is made of, in the order of most templates."""
    items = body.get("messages", body.get("input", []))
    items = [items] if isinstance(items, str) else items
    plain = [json.dumps(bare(item)) if isinstance(item, dict) else item for item in items]
    return [json.dumps(bare(body.get("tools"))), json.dumps(bare(body.get("system"))), json.dumps(body.get("instructions")), *plain]


def row(name, requests):
    main, others = conversation(requests)
    if not main:
        return f"| {name} | nothing was asked ({len(requests)} requests) |"
    differs = []
    for before, after in zip(main, main[1:]):
        one, other = items_of(before["body"]), items_of(after["body"])
        if other[:len(one)] != one:
            at = first_difference(one, other)
            differs.append(["tools", "system", "instructions"][at] if at < 3 else f"message {at - 3} of {len(one) - 3}")
    raw = json.dumps([one["body"].get("messages", one["body"].get("input")) for one in main])
    back = "back" if REASONING.split("{")[0] in raw else "left out"
    first = main[0]
    sizes = [len(json.dumps(one["body"])) for one in main]
    side = ", ".join(f"{len(tools_of(one['body']))} tools {len(json.dumps(one['body']))} bytes" for one in others) or "none"
    return (f"| {name} | {first['path']}{'' if first['body'].get('stream') else ', not streamed'} | {len(tools_of(first['body']))} | {len(main)} | "
            f"{sizes[0]}–{sizes[-1]} bytes | {'no: ' + ', '.join(differs) if differs else 'yes'} | {back} | {side} |")


def first_difference(one, other):
    return next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


# ---- what was recorded, against the real server

def ask(url, path, body, timeout=900):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{path}: {error.code} {error.read()[:500]}")


class Server:
    """llama-server with the hook, and a random model with Qwen3-Coder's template: it says what a grammar wants, in tokens of its own."""

    def __init__(self, model, template, setting):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [REPOSITORY / "target/debug/contextpilot-llama-server", "-m", model, "--jinja", "--chat-template-file", template,
                   "-c", "262144", "--parallel", "4", "-t", "1", "--port", str(port)]
        self.log = open(HOME / "server.log", "w")
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log, env={**os.environ, "CONTEXTPILOT_KEEP_TOKENS": setting})
        while True:
            if self.process.poll() is not None:
                raise SystemExit("the server has ended: " + (HOME / "server.log").read_text()[-1000:])
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.2)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def planned(server, requests):
    """The prompt of each request, and what is said to it: what the next request of its conversation has there."""
    prompts = []
    for one in requests:
        body = {key: value for key, value in one["body"].items() if key in ("messages", "tools", "chat_template_kwargs")}
        prompts.append(ask(server.url, "/apply-template", body)["prompt"])
    said = []
    for nth, prompt in enumerate(prompts):
        later = next((other[len(prompt):] for other in prompts[nth + 1:] if other.startswith(prompt)), None)
        text, end, _ = (later or "").partition("<|im_end|>")
        said.append(text if end else None)
    return list(zip(prompts, said))


def replay(name, model, template):
    requests = [json.loads(line) for line in open(HOME / f"{name}.jsonl")]
    if not requests or not requests[0]["path"].endswith("/chat/completions"):
        return print(f"| {name} | not replayed: {requests[0]['path'] if requests else 'it asked nothing'} |")
    main, _ = conversation(requests)
    costs = {}
    for setting in ["0", "1"]:
        with Server(model, template, setting) as server:
            evaluated, new, held = [], [], None
            for nth, (one, (prompt, text)) in enumerate(zip(requests, planned(server, requests))):
                body = {"prompt": prompt, "n_predict": 4000 if text else 16, "temperature": 1, "seed": nth}
                if text:
                    body["grammar"] = "root ::= " + json.dumps(text, ensure_ascii=False)
                answer = ask(server.url, "/completion", body)
                if text and answer["stop_type"] != "eos":
                    raise SystemExit(f"{name}: request {nth} did not end: {answer['stop_type']}")
                if one not in main:
                    continue
                if held is not None:
                    evaluated.append(answer["timings"]["prompt_n"])
                    new.append(max(answer["tokens_evaluated"] - held, 1))
                else:
                    first = answer["tokens_evaluated"]
                held = answer["tokens_evaluated"] + answer["tokens_predicted"] - 1 if text else answer["tokens_evaluated"]
            costs[setting] = evaluated, sum(new)
    without, kept = costs["0"][0], costs["1"][0]
    numbers = lambda all: ", ".join(f"{one:,}" for one in all)
    print(f"| {name} | {first:,} | {numbers(without)} | {numbers(kept)} | {sum(without):,} | {sum(kept):,} | {costs['1'][1]:,} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["play", "rows", "replay"])
    parser.add_argument("agent", nargs="*", metavar="AGENT", help="(all) " + ", ".join(AGENTS))
    parser.add_argument("--limit", type=float, default=120, metavar="SECONDS", help="for a question (120)")
    parser.add_argument("--model", help="replay: a model's file")
    parser.add_argument("--template", help="replay: a chat template's file, whose turns end with <|im_end|>")
    options = parser.parse_intermixed_args()
    HOME.mkdir(parents=True, exist_ok=True)
    for name in options.agent or AGENTS:
        if options.command == "play":
            play(name, options.limit)
        elif not (HOME / f"{name}.jsonl").exists():
            print(f"| {name} | not played |")
        elif options.command == "replay":
            replay(name, options.model, options.template)
        else:
            print(row(name, [json.loads(line) for line in open(HOME / f"{name}.jsonl")]))


if __name__ == "__main__":
    main()
