// OpenAI's and Anthropic's clients, each with a conversation of its own, streamed and whole. For each line on stdin, which begins
// the ids of its requests, each sends its next turn. Then a line of JSON has what the clients read: [id, cached, evaluated].
//
//   node client.mjs FOLDER URL     FOLDER has node_modules, URL is the proxy's

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, url] = process.argv.slice(2);
const require = createRequire(`${folder}/client.js`);
const OpenAI = require("openai").default;
const Anthropic = require("@anthropic-ai/sdk").default;
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });

const ofOpenai = (prompt, cached) => [cached, prompt - cached];

const apis = {
  async chat(messages, stream, rid) {
    const body = { model: "any", messages, max_tokens: 4, temperature: 0, rid };
    if (!stream) {
      const { usage } = await openai.chat.completions.create(body);
      return ofOpenai(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens);
    }
    let usage;
    const options = { stream, stream_options: { include_usage: true } };
    for await (const chunk of await openai.chat.completions.create({ ...body, ...options })) usage = chunk.usage ?? usage;
    return ofOpenai(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens);
  },
  async responses(messages, stream, rid) {
    const said = (text) => ({ type: "message", role: "assistant", status: "completed", content: [{ type: "output_text", text }] });
    const input = messages.map((one) => (one.role === "assistant" ? said(one.content) : one));
    const body = { model: "any", input, max_output_tokens: 4, temperature: 0, rid };
    let answer;
    if (!stream) answer = await openai.responses.create(body);
    else
      for await (const event of await openai.responses.create({ ...body, stream }))
        if (event.type === "response.completed") answer = event.response;
    return ofOpenai(answer.usage.input_tokens, answer.usage.input_tokens_details.cached_tokens);
  },
  async messages(messages, stream, rid) {
    const body = { model: "any", messages, max_tokens: 4, temperature: 0, rid };
    const { usage } = stream ? await anthropic.messages.stream(body).finalMessage() : await anthropic.messages.create(body);
    return [usage.cache_read_input_tokens, usage.input_tokens];
  },
};

const text = (seed) => Array.from({ length: 40 }, (_, n) => `${seed}-${n}`).join(" ");
const chats = Object.entries(apis).flatMap(([name, api]) => [false, true].map((stream) => ({ name, api, stream, messages: [] })));

for await (const id of createInterface({ input: process.stdin })) {
  const read = [];
  for (const { name, api, stream, messages } of chats) {
    messages.push({ role: "user", content: text(`${name} ${stream} ${messages.length}`) });
    const rid = `${id}-${name}-${stream}`;
    read.push([rid, ...(await api(messages, stream, rid))]);
    messages.push({ role: "assistant", content: "Well." });
  }
  console.log(JSON.stringify(read));
}
