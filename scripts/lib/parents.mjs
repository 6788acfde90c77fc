// Starts llama-server as a program with genai-electron does, and ends it when it reads a line; goes on until its input ends.
//
// parents.mjs FOLDER SERVER MODEL PORT      FOLDER has genai-electron installed

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, server, model, port] = process.argv.slice(2);
const found = createRequire(folder + "/").resolve("genai-electron/llama-server-launch", { conditions: new Set(["import"]) });
const { startLlamaServerRunner } = await import(pathToFileURL(found));
const config = { threads: 1, gpuLayers: 0, cacheRam: 0, flashAttention: "off" };
const options = { binaryPath: server, model: { path: model }, config, contextSize: 2048, parallelRequests: 1, startupTimeoutMs: 300000 };
const running = await startLlamaServerRunner({ ...options, port: Number(port) });
console.log("started", running.args.join(" "));
for await (const line of createInterface({ input: process.stdin })) {
    await running.stop();
    console.log("stopped", JSON.stringify(await running.exitPromise));
}
