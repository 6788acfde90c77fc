// Builds the page: one HTML file with its style and script inside, and the policy that names the hashes of both.
//
//   node build.mjs FOLDER
//
// Equal sources give equal bytes: the versions of the tools are in package-lock.json.
import { createHash } from "node:crypto";
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { build } from "esbuild";

const MOST = 150 * 1024;
const folder = process.argv[2];
if (!folder) throw new Error("say where to: node build.mjs FOLDER");
const here = import.meta.dirname;

const bundled = await build({
    absWorkingDir: here,
    bundle: true,
    entryPoints: ["src/main.ts", "src/style.css"],
    format: "iife",
    legalComments: "none",
    minify: true,
    outdir: "built",
    target: ["es2022", "firefox115", "chrome115"],
    write: false,
});
// Within an element, nothing may look like its end.
const text = (ending) => {
    const file = bundled.outputFiles.find((one) => one.path.endsWith(ending));
    return file.text.trim().replaceAll("</", "<\\/");
};
const [script, style] = [text(".js"), text(".css")];
const hash = (content) => `'sha256-${createHash("sha256").update(content).digest("base64")}'`;
const policy = [
    "default-src 'none'",
    `script-src ${hash(script)}`,
    `style-src ${hash(style)}`,
    "img-src data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
].join("; ");

const template = await readFile(join(here, "src/index.html"), "utf8");
const page = template
    .replaceAll(/>\s+</g, "><")
    .replace("{{policy}}", () => policy)
    .replace("{{style}}", () => style)
    .replace("{{script}}", () => script);
if (Buffer.byteLength(page) > MOST) throw new Error(`the page has ${Buffer.byteLength(page)} bytes, at most ${MOST} are allowed`);
await mkdir(folder, { recursive: true });
await writeFile(join(folder, "page.html"), page);
await writeFile(join(folder, "policy.txt"), `${policy}\n`);

// What it was built from. A test compares this with the sources where there is no node.
const sources = ["build.mjs", "package-lock.json", "package.json", "tsconfig.json"];
for (const entry of await readdir(join(here, "src"), { recursive: true, withFileTypes: true })) {
    if (entry.isFile()) sources.push(relative(here, join(entry.parentPath ?? entry.path, entry.name)));
}
const lines = [];
for (const source of sources.sort()) {
    const digest = createHash("sha256").update(await readFile(join(here, source))).digest("hex");
    lines.push(`${digest}  ${source}\n`);
}
await writeFile(join(folder, "sources.txt"), lines.join(""));
