// What programs.py does, with @fugood/llama.node. Prints a line of JSON.
//
// programs.mjs FOLDER MODEL DOCUMENTS     FOLDER has node_modules, DOCUMENTS is JSON
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [folder, model, documents] = process.argv.slice(2);
const require = createRequire(resolve(folder, "package.json"));
const { loadModel } = require("@fugood/llama.node");
const context = await loadModel({ model, n_ctx: 4096, n_batch: 2048, n_gpu_layers: 0, n_threads: 1 });
const line = { answers: [], evaluated: [], ms: [] };
for (const prompt of JSON.parse(documents)) {
    const begun = performance.now();
    const { text, timings } = await context.completion({ prompt, n_predict: 8, temperature: 0, seed: 1 });
    line.ms.push(performance.now() - begun);
    line.answers.push(text);
    line.evaluated.push(timings.prompt_n);
}
console.log("\n" + JSON.stringify(line));
await context.release();
