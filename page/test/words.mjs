// Compares what the page says with what `contextpilot-llama why` says of the same (page/test/words.json).
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { build } from "esbuild";

const here = import.meta.dirname;
const { outputFiles } = await build({ absWorkingDir: join(here, ".."), bundle: true, entryPoints: ["src/sentence.ts"], format: "esm", write: false });
const sentence = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
const examples = JSON.parse(await readFile(join(here, "words.json"), "utf8"));
assert.ok(examples.left.length > 100 && examples.lost.length > 30 && examples.kept.length > 1 && examples.under_way.length > 4 && examples.not_in_use.length > 1);

for (const { diverged, tokens, evaluated, says } of examples.left) {
    assert.equal(`it left ${sentence.whose(diverged)}${sentence.left(diverged, tokens, evaluated)}`, says);
}
for (const { lost, evicted, says } of examples.lost) {
    const by = lost.by === null || sentence.through(lost) !== null ? "" : `#${lost.by}`;
    assert.equal(`${sentence.lost(lost, evicted)}${by}`.replace(/ at [\d:]+: /, " at then: "), says);
}
for (const { kept, says } of examples.kept) assert.equal(sentence.asGenerated(kept), says);
for (const { prompt, says } of examples.under_way) assert.equal(sentence.soFar(prompt), says);
for (const { reading, says } of examples.not_in_use) assert.equal(sentence.notInUse(reading), says);
console.log(`ok ${Object.values(examples).flat().length} sentences are those of why and stats`);
