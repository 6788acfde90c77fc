// What embedding.py does, with node-llama-cpp. Prints a line of JSON.
//
// embedding.mjs FOLDER MODEL PROMPTS     FOLDER has node_modules, PROMPTS is JSON
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, modelPath, prompts] = process.argv.slice(2);
const require = createRequire(join(folder, "package.json"));
const { getLlama, LlamaCompletion, TokenMeter } = await import(pathToFileURL(require.resolve("node-llama-cpp")));
const version = JSON.parse(readFileSync(join(folder, "node_modules/node-llama-cpp/package.json"))).version;
const llama = await getLlama({ gpu: false, build: "never", usePrebuiltBinaries: true, logLevel: "error", progressLogs: false });
const threads = Number(process.env.THREADS ?? 1);
const model = await llama.loadModel({ modelPath });
const context = await model.createContext({ contextSize: 2048, batchSize: 2048, threads });
const sequence = context.getSequence();
const { tag } = JSON.parse(readFileSync(join(folder, "node_modules/node-llama-cpp/llama/llama.cpp.info.json")));
// Where the hook tells its count, if it does.
const told = process.env.CONTEXTPILOT_LISTEN?.includes(":") ? `http://${process.env.CONTEXTPILOT_LISTEN}/stats` : undefined;
let before = { prompts: 0, evaluated: 0 };
async function evaluatedByTheHook() {
    for (let tries = 0; tries < 100; tries++) {
        const answer = await fetch(told).catch(() => null);
        // It follows nothing.
        if (!answer) return null;
        const stats = await answer.json();
        if (stats.engine.not_followed) return null;
        const { total } = stats.reuse;
        if (total.prompts > before.prompts) {
            const evaluated = total.evaluated - before.evaluated;
            before = total;
            return evaluated;
        }
        await new Promise((done) => setTimeout(done, 100));
    }
    return null;
}
const line = { program: `node-llama-cpp ${version}`, engine: tag, answers: [], evaluated: [], ms: [] };
for (const prompt of JSON.parse(prompts)) {
    const completion = new LlamaCompletion({ contextSequence: sequence });
    const begun = performance.now();
    const meter = sequence.tokenMeter.getState();
    let first;
    const answer = await completion.generateCompletion(prompt, {
        maxTokens: 8,
        temperature: 0,
        onTextChunk: () => (first ??= performance.now() - begun),
    });
    line.ms.push(first ?? performance.now() - begun);
    // What node-llama-cpp gave to the engine: it has no count of what the engine evaluated.
    const given = TokenMeter.diff(sequence.tokenMeter, meter).usedInputTokens;
    line.evaluated.push((told && (await evaluatedByTheHook())) ?? given);
    line.answers.push(answer);
    completion.dispose({ disposeSequence: false });
}
line.resident_kb = Math.round(process.memoryUsage.rss() / 1024);
console.log(JSON.stringify(line));
await context.dispose();
await model.dispose();
process.exit(0);
