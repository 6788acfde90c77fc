// Looks at the page in a real browser, and prints a line for each thing that is as it should be.
//
//   CHROMIUM=/usr/bin/chromium node page/test/browser.mjs WHAT…
//
//   endpoint URL ADDRESS   the page at URL says what the endpoint at ADDRESS (http://…) says
//   token URL TOKEN        the page asks for the token, and works with it
//   made-up                hostile ids and texts, keyboard, accessibility, frame times
//   report FILE REQUESTS   a report of so many requests
//   pictures URL FOLDER    screenshots at three sizes, light and dark
//   readme FILE FOLDER     the pictures in README, of a report
//
// BROWSER=firefox uses FIREFOX=/usr/bin/firefox-esr in its place.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import puppeteer from "puppeteer-core";
import { World, serve } from "./endpoint.mjs";

const here = import.meta.dirname;
const built = join(here, "../../crates/watch/page/built");
const VIEWS = ["tree", "time", "requests", "bill"];

async function launch() {
    if (process.env.BROWSER === "firefox") return puppeteer.launch({ browser: "firefox", executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr", headless: true });
    const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
    return puppeteer.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", headless: true, args });
}

function say(what) {
    console.log(`ok ${what}`);
}

/** Opens a page, and fails if it complains. */
async function open(browser, url, { width = 1280, height = 800, scheme = "light", allow = [] } = {}) {
    const page = await browser.newPage();
    // Only a failure takes this long: the machine may be busy.
    page.setDefaultTimeout(120_000);
    const complaints = [];
    page.on("pageerror", (error) => complaints.push(String(error.stack ?? error)));
    page.on("console", (message) => {
        if (["error", "warn"].includes(message.type())) complaints.push(message.text());
    });
    page.complaints = () => complaints.filter((one) => !allow.some((part) => one.includes(part)));
    await page.setViewport({ width, height });
    if (process.env.BROWSER !== "firefox") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    await page.goto(url, { waitUntil: "domcontentloaded" });
    return page;
}

/** Waits for a condition in the page. */
async function until(what, page, condition, ...args) {
    try {
        await page.waitForFunction(condition, { timeout: 120_000 }, ...args);
    } catch {
        const body = await page.evaluate(() => document.body.innerText.slice(0, 1500));
        throw new Error(`${what} did not come about; the page says:\n${body}\n${page.complaints().join("\n")}`);
    }
}

async function show(page, view) {
    // Not by the pointer: what comes in at the top could move the tab away meanwhile.
    await page.$eval(`#tab-${view}`, (tab) => tab.click());
    await page.waitForSelector(`#view-${view}:not([hidden])`);
    await new Promise((done) => setTimeout(done, 150));
}

const figures = (page) =>
    page.evaluate(() => Object.fromEntries([...document.querySelectorAll("#figures div")].map((one) => [one.querySelector("dt").textContent, one.querySelector("dd").textContent])));

const count = (value) => new Intl.NumberFormat("en").format(value);

/** The rows of the table of requests that exist, by the request's name. */
const rows = (page) =>
    page.evaluate(() => [...document.querySelectorAll("table.requests tbody tr[data-place]")].map((row) => [...row.cells].map((cell) => (cell.querySelector(".unseen") ?? cell).textContent)));

const bars = (page) =>
    page.evaluate(() => [...document.querySelectorAll("#view-tree [role=treeitem]")].map((bar) => ({ label: bar.querySelector(".unseen").textContent, level: Number(bar.getAttribute("aria-level")), width: bar.getBoundingClientRect().width, left: bar.getBoundingClientRect().left })));

/** Each view says what the endpoint says. */
async function endpoint(browser, url, address) {
    const ask = async (path) => (await fetch(`${address}${path}`)).json();
    const page = await open(browser, url, {});
    const stats = await ask("/stats");
    await until("the figures", page, (prompts) => [...document.querySelectorAll("#figures dd")].some((one) => one.textContent === prompts), count(stats.reuse.total.prompts));
    const shown = await figures(page);
    assert.equal(shown.evaluated, `${count(stats.reuse.total.evaluated)} tokens`);
    assert.equal(shown.held, `${count(stats.tokens.resident)} tokens`);
    say("the figures are those of /stats");

    const tree = await ask("/tree?most=1000");
    await until("the tree", page, (bars) => document.querySelectorAll("#view-tree [role=treeitem]").length === bars, tree.branches.length);
    const drawn = await bars(page);
    const said = tree.branches.map((one) => {
        const where = [];
        if (one.slots.length > 0) where.push(`in ${one.slots.length === 1 ? "slot" : "slots"} ${one.slots.join(", ")}`);
        if (one.host > 0) where.push(`in ${one.host === 1 ? "1 host entry" : `${one.host} host entries`}`);
        return `tokens ${count(one.from)} to ${count(one.to)}, ${where.join(" and ") || "lost"}`;
    });
    assert.deepEqual(drawn.map((bar) => bar.label.split(";")[0]).sort(), said.sort());
    const longest = tree.branches.reduce((most, one) => Math.max(most, one.to - one.from), 0);
    const widest = drawn.reduce((most, bar) => Math.max(most, bar.width), 0);
    for (const bar of drawn) {
        const [from, to] = bar.label.match(/[\d,]+/g).map((one) => Number(one.replaceAll(",", "")));
        assert.ok(Math.abs(bar.width - (widest * (to - from)) / longest) < 4, `${bar.label} is ${bar.width} wide`);
    }
    for (const branch of tree.branches) for (const request of branch.requests.slice(-5)) assert.ok(drawn.some((bar) => bar.label.includes(String(request))), `${request} is drawn`);
    say(`the tree has the ${drawn.length} branches of /tree, as wide as their tokens`);

    await show(page, "requests");
    const { requests } = await ask("/requests/last?n=1000");
    await until("the requests", page, (all) => document.querySelector("#view-requests .note").textContent === all, count(requests.length));
    const table = await rows(page);
    assert.ok(table.length >= Math.min(10, requests.length));
    table.forEach((row, nth) => {
        const { id, number, slot, evaluation } = requests[nth];
        const store = evaluation.from.store;
        assert.equal(row[0], String(id ?? `#${number}`));
        assert.equal(row[2], String(slot));
        assert.equal(row[3], count(evaluation.prompt_tokens));
        assert.equal(row[4], `${count(evaluation.reused - store)} reused, ${count(store)} loaded, ${count(evaluation.evaluated)} evaluated`);
        if (evaluation.diverged) {
            const where = `${evaluation.diverged.request ?? "a request that is not known"} at ${count(evaluation.diverged.at)}: `.replace(/^(\d)/, "#$1");
            assert.ok(row[7].startsWith(where) && row[7].length > where.length, row[7]);
        }
    });
    const parts = await page.evaluate(() => [...document.querySelectorAll("table.requests tbody tr[data-place]")].map((row) => row.querySelector("i.repeated").getBoundingClientRect().width));
    parts.forEach((width, nth) => assert.equal(width > 0, requests[nth].evaluation.causes.repeated > 0, `the part of request ${nth}`));
    assert.ok(parts.some((width) => width > 0));
    say(`the table has the ${requests.length} requests of /requests/last`);

    // The account of one that was evaluated again, if there is one.
    const again = requests.findIndex((one) => one.id && one.evaluation.causes.evicted > 0);
    const one = requests[Math.max(0, again)];
    const state = await ask(`/requests/${encodeURIComponent(one.id)}`);
    await page.type("#view-requests input[type=search]", one.id);
    await until("the one that was looked for", page, (id) => document.querySelector("table.requests tbody th button")?.textContent === id, one.id);
    await page.click("table.requests tbody th button");
    await until("where it is", page, () => document.querySelector("#account p.state") !== null);
    const account = await page.evaluate(() => document.querySelector("#account").innerText);
    assert.ok(account.includes(`${count(state.evaluation.prompt_tokens)} tokens: ${count(state.evaluation.reused)} reused, ${count(state.evaluation.evaluated)} evaluated`), account);
    assert.ok(account.includes(state.state === "cached" ? "Cached in" : "Evicted at"), account);
    if (state.evaluation.causes.evicted > 0) assert.match(account, new RegExp(`evicted\\s+${count(state.evaluation.causes.evicted)}`));
    say("a click shows the account of /requests/{id}");

    await show(page, "bill");
    const causes = stats.reuse.causes;
    const bill = await page.evaluate(() => Object.fromEntries([...document.querySelectorAll("table.bill tbody tr")].map((row) => [row.querySelector("button").textContent, row.cells[1].textContent])));
    assert.ok(causes.repeated > 0, "a prompt was sent before behind something else");
    const expected = { new: causes.new, "sent before behind something else": causes.repeated, "last token": causes.last_token, evicted: causes.evicted, "in a busy slot": causes.elsewhere.busy, "in another slot, too small a share": causes.elsewhere.similarity, "in the host cache, not taken": causes.elsewhere.host_rule };
    for (const [label, tokens] of Object.entries(expected)) assert.equal(bill[label], tokens > 0 ? count(tokens) : undefined, label);
    // Neither new nor evaluated again: it has a colour of its own, as in the table of requests.
    const colours = await page.evaluate(() => {
        const of = (kind) => getComputedStyle(document.querySelector(`table.bill td.share i.${kind}`)).backgroundColor;
        return ["new", "again", "repeated"].map(of);
    });
    assert.equal(new Set(colours).size, 3, colours.join());
    say("the bill has the causes of /stats");

    await show(page, "time");
    await page.evaluate(() => [...document.querySelectorAll("#view-time .group button")].find((one) => one.textContent === "all").click());
    await until("all requests in the lanes", page, (all) => document.querySelector("#view-time .bar .note").textContent.includes(all), `${count(requests.length)} requests`);
    const label = await page.evaluate(() => document.querySelector("#view-time canvas").getAttribute("aria-label"));
    const evaluated = requests.reduce((sum, one) => sum + one.evaluation.evaluated, 0);
    assert.ok(label.includes(`${count(evaluated)} tokens evaluated`), label);
    say("the lanes have all requests");
    assert.deepEqual(page.complaints(), []);
    await page.close();
}

/** What happens while the page is open is shown. Prints `ready` when the page follows, and waits for the last id. */
async function follow(browser, url, last) {
    const page = await open(browser, url, {});
    await until("the page", page, () => document.querySelector("#dot.live") !== null);
    await show(page, "time");
    console.log("ready");
    await until("the eviction", page, (id) => document.querySelector("#view-time .happenings").textContent.includes(`${id} fell out`), last);
    say("an eviction is shown when it happens");
    // The page is closed: nothing is asked.
    await page.close();
}

async function token(browser, url, secret) {
    const page = await open(browser, url, { allow: ["401"] });
    await page.waitForSelector("#token", { timeout: 120_000 });
    assert.ok(!(await figures(page)).prompts, "no figures without the token");
    await page.type("#token", "wrong");
    await page.keyboard.press("Enter");
    await until("the page asks again", page, () => document.querySelector("form.token span")?.textContent.includes("not the endpoint's"));
    await page.type("#token", secret);
    await page.keyboard.press("Enter");
    await until("the figures", page, () => document.querySelectorAll("#figures dd").length > 3);
    say("with the token the page has figures, without it has none");
    await page.goto(`${url}#token=${encodeURIComponent(secret)}`);
    await page.reload();
    await until("the figures", page, () => document.querySelectorAll("#figures dd").length > 3);
    assert.ok(!(await page.url()).includes(secret), "the token does not stay in the address");
    say("the token in the address is used and removed");
    assert.deepEqual(page.complaints(), []);
    await page.close();
}

const HOSTILE = [
    '<img src=x onerror="window.broken=1">',
    "</script><script>window.broken=1</script>",
    '"><svg onload=window.broken=1>',
    "javascript:window.broken=1",
    "{{constructor.constructor('window.broken=1')()}}",
    "a\u202egnp.exe\u202c\u0000\u001b[31m\nx",
    "'; window.broken=1; '",
    "x".repeat(512),
    "../../reset?#&%00",
];

async function madeUp(browser) {
    await hostile(browser);
    await sizes(browser);
    await keyboard(browser);
    await filters(browser);
    await differences(browser);
    await quiet(browser);
    await underWay(browser);
    await states(browser);
    await advice(browser);
    await silence(browser);
    await frames(browser);
}

/** A prompt that is being evaluated, and a store whose model is not known yet. */
async function underWay(browser) {
    const world = new World();
    world.step();
    const prompt = { number: 17, id: null, reused: 1000, evaluated: 1024, in_batch: 512, tokens: 3000, seconds_left: 58.7, seconds: 61, tokens_per_second: 16.6 };
    world.atWork.set(1, { busy: true, prompt, last_title: { words: "What is in README.md?", agent: "curl/8" } });
    world.store = { ready: false, reading: { bytes_read: 2 ** 30, bytes: 40 * 2 ** 30 } };
    const served = await serve(world, built);
    const page = await open(browser, served.url);
    const name = "#17 “What is in README.md?”, from curl/8 is being evaluated:";
    await until("the prompt that is evaluated", page, (name) => [...document.querySelectorAll("#figures dt")].some((one) => one.textContent === name), name);
    const shown = await figures(page);
    assert.equal(shown[name], "1,000 reused, 1,024 evaluated so far in 1 min 1 s, 17 tokens/s; 976 of 3,000 tokens remain, about 59 s");
    assert.equal(shown["prefix store"], "not in use yet: 1.0 GiB of 40 GiB of the files of model and engine were read, to know which they are");
    prompt.evaluated = 2000;
    Object.assign(prompt, { seconds: 120, seconds_left: 0.4 });
    world.store = { ready: true, reading: null };
    await until("that it goes on", page, () => document.querySelector("#figures").textContent.includes("0 of 3,000 tokens remain, about a second"));
    assert.equal((await figures(page))["prefix store"], undefined);
    world.atWork.clear();
    await until("its end", page, () => !document.querySelector("#figures").textContent.includes("remain"));
    assert.deepEqual(page.complaints(), []);
    say("it says how far a prompt has come that is being evaluated, and how far the files have been read");
    await page.close();
    served.close();
}

/** Before the first prompt, while the server sleeps, and when it has ended. */
async function states(browser) {
    const world = new World();
    const served = await serve(world, built);
    const page = await open(browser, `${served.url}#token=made-up`, { allow: ["404", "503"] });
    await until("the figures", page, () => document.querySelectorAll("#figures dd").length > 3);
    const said = (what) => page.evaluate((what) => document.querySelector(what).textContent, what);
    assert.equal((await figures(page)).in, undefined, "nothing took time yet");
    await show(page, "bill");
    assert.equal(await said("#view-bill .sums"), "");
    assert.equal(await said("#view-bill tbody"), "Nothing was evaluated in this time.");
    // What was evicted before the page was opened is not known.
    await show(page, "time");
    assert.match(await said("#view-time .bar"), /0 evictions since \d\d:\d\d:\d\d$/);
    await show(page, "tree");
    await until("what it holds", page, () => document.querySelector("#view-tree .note").textContent.includes("0 distinct tokens held."));
    world.modelState = "asleep";
    await until("that it sleeps", page, () => document.querySelector("#subtitle").textContent.endsWith(" · asleep"));
    await until("what it holds", page, () => document.querySelector("#view-tree .note").textContent.includes("held: the server sleeps, and the next prompt wakes it"));
    world.modelState = "loaded";
    world.step();
    await until("that it is awake", page, () => !document.querySelector("#subtitle").textContent.includes("asleep") && [...document.querySelectorAll("#figures dt")].some((one) => one.textContent === "in"));
    // As `contextpilot-llama open` answers, when the server has ended.
    world.ended = true;
    await until("its end", page, () => document.querySelector("#message").textContent.includes("type contextpilot-llama open again"));
    assert.ok((await said("#subtitle")).endsWith(" · no answer"));
    assert.deepEqual(page.complaints(), []);
    say("before the first prompt, asleep and ended: each is said");
    await page.close();
    served.close();
}

/** What the simulator advises, as `contextpilot-llama open` passes it on: each change with all that it takes. */
async function advice(browser) {
    const point = (evaluated_tokens, more) => ({
        ...{ parallel: 4, kv_unified: false, cache_ram: 8, slot_prompt_similarity: 0.1, cache_reuse: 0, store_gb: 0, prompt_tokens: 10_000, reused_tokens: 10_000 - evaluated_tokens },
        ...{ reused_share: 1 - evaluated_tokens / 10_000, spared_share: 1 - evaluated_tokens / 10_000, evaluated_tokens, prompt_seconds: evaluated_tokens / 100, store_seconds: 0, waited_seconds: 0, refused: 0 },
        ...{ context_bytes: 2 ** 20, host_bytes: 8 * 2 ** 20, store_bytes: 0, ...more },
    });
    const store = { flags: [], store_gb: 1, point: point(1000, { store_gb: 1, reused_share: 0.4, store_seconds: 0.5, store_bytes: 2 ** 30 }) };
    const world = new World();
    world.advice = {
        recorded: point(6000),
        changes: [store],
        alone: [store, { flags: ["--cache-ram", "16"], store_gb: null, point: point(2000, { cache_ram: 16, host_bytes: 16 * 2 ** 20 }) }],
        tokens: { prefix: 6000, behind_a_difference: 0, not_wanted: 3000, never_sent: 1000, differs_at: null },
    };
    for (let n = 0; n < 60; n += 1) world.step();
    const served = await serve(world, built);
    // So wide that all views are seen: the bill need not be chosen.
    const page = await open(browser, `${served.url}#token=made-up`, { width: 3000, height: 1600 });
    await until("the advice", page, () => document.querySelectorAll(".card code").length === 2 && document.querySelector(".advice").textContent.includes("By the simulator"));
    const cards = await page.evaluate(() => [...document.querySelectorAll(".card")].map((card) => [card.querySelector("code").textContent, card.querySelector("p").textContent]));
    assert.deepEqual(cards, [
        ["CONTEXTPILOT_STORE=~/llama-store CONTEXTPILOT_STORE_GB=1", "Saves 5,000 tokens and 50 s: 90.0 % reused or loaded · 1.0 GiB more on disk, copies take 0.5 s"],
        ["--cache-ram 16", "Saves 4,000 tokens and 40 s: 80.0 % reused · 8.0 MiB more host memory"],
    ]);
    const shares = await page.evaluate(() => document.querySelector(".advice > p:last-child").textContent);
    assert.ok(shares.includes("decide over them. 30.0 % were sent before, of embeddings or rerankings: the server reuses nothing for these, whatever its flags. 0 % were"), shares);
    assert.deepEqual(page.complaints(), []);
    say("the simulator's advice has flags to copy, and what each takes");
    await page.close();
    served.close();
}

/** What differs is marked to the token, and a text is not shown as another one that is the same. */
async function differences(browser) {
    const scenes = [
        [{ before: "on ", old: "Monday, and", new: "Sunday, and", old_differs: 2, new_differs: 2 }, ["Mo"], ["Su"], "on Monday, and\non Sunday, and"],
        [{ before: "a ", old: "cup \u{1f600}!", new: "mug \u{1f601}!", old_differs: 5, new_differs: 5 }, ["cup \u{1f600}"], ["mug \u{1f601}"], "a cup \u{1f600}!\na mug \u{1f601}!"],
        [{ before: "on ", old: "Monday", new: "Sunday" }, ["Monday"], ["Sunday"], "on Monday\non Sunday"],
        [{ before: "on ", old: "Monday", new: "Monday, and" }, [], [], "on Monday, and"],
    ];
    for (const [text, old, now, whole] of scenes) {
        const world = new World({ text, title: { words: "Fix the login test", agent: "agent/1.2" } });
        for (let n = 0; n < 20; n += 1) world.step();
        const served = await serve(world, built);
        const page = await open(browser, served.url, {});
        await until("the tree", page, () => document.querySelectorAll("[role=treeitem]").length > 5);
        await show(page, "requests");
        await page.evaluate(() => document.querySelector('tr[data-place="0"] button').click());
        await page.waitForSelector("#account pre");
        const said = await page.evaluate(() => {
            const all = (what) => [...document.querySelectorAll(`#account pre ${what}`)].map((one) => one.textContent);
            return [all("del"), all("ins"), document.querySelector("#account pre").textContent, document.querySelector("#account .title").textContent];
        });
        assert.deepEqual(said, [old, now, whole, "“Fix the login test”, from agent/1.2"]);
        const account = await page.evaluate(() => document.querySelector("#account").innerText);
        assert.equal(account.includes("It is the same text in other tokens"), old.length === 0, account);
        assert.ok(!account.includes("generated"), account);
        assert.match(account, /It left \S+'s at token [\d,]+ of [\d,]+: 4 tokens differ, the 350 behind are the same/);
        assert.deepEqual(page.complaints(), []);
        await page.close();
        served.close();
    }
    say("what differs is marked to the token, and a request says what it is about");
}

/** Time opens where something happened, and says it where nothing did. */
async function quiet(browser) {
    const world = new World();
    let now = Date.now() - 600_000;
    world.now = () => now;
    for (let n = 0; n < 20; n += 1, now += 400) world.step();
    world.now = () => Date.now();
    const served = await serve(world, built);
    const page = await open(browser, served.url, {});
    await until("the tree", page, () => document.querySelectorAll("[role=treeitem]").length > 5);
    await show(page, "time");
    const note = () => document.querySelector("#view-time .bar .note").textContent;
    await until("an hour, as ten minutes are more than five", page, () => document.querySelector('#view-time .group button[aria-pressed="true"]')?.textContent === "1 h");
    assert.match(await page.evaluate(note), / 20 requests/);
    const press = (label) => page.evaluate((label) => [...document.querySelectorAll("#view-time .group button")].find((one) => one.textContent === label).click(), label);
    await press("1 min");
    await until("the hint", page, () => document.querySelector(".quiet-time:not([hidden])")?.textContent.startsWith("Nothing happened in this time. The last was at "));
    await page.evaluate(() => document.querySelector(".quiet-time button").click());
    await until("what happened", page, () => document.querySelector("#view-time .bar .note").textContent.includes(" 20 requests") && document.querySelector(".quiet-time").hidden);
    assert.deepEqual(page.complaints(), []);
    say("time opens where something happened, and says when there was something last");
    await page.close();
    served.close();
}

async function hostile(browser) {
    const markup = HOSTILE.slice(0, 3).join("");
    const world = new World({ name: (n) => `${HOSTILE[n % HOSTILE.length]}${n}`, text: { before: markup, old: markup, new: `${markup}\u202e` } });
    for (let n = 0; n < 60; n += 1) world.step();
    const served = await serve(world, built, { each: 50 });
    const page = await open(browser, served.url, {});
    await until("the tree", page, () => document.querySelectorAll("[role=treeitem]").length > 5);
    const elements = () => page.evaluate(() => [...new Set([...document.querySelectorAll("body *")].map((one) => one.tagName))].sort());
    for (const view of VIEWS) {
        await show(page, view);
        if (view === "requests") {
            for (const place of [0, 1, 2, 3, 5]) {
                await page.evaluate((nth) => document.querySelector(`tr[data-place="${nth}"] button`).click(), place);
                await page.waitForSelector("#account pre");
            }
        }
        const tags = await elements();
        assert.ok(!tags.includes("IMG") && !tags.includes("svg") && !tags.includes("SVG"), `${view}: ${tags}`);
        assert.equal(await page.evaluate(() => document.querySelectorAll("body script").length), 2, view);
    }
    assert.equal(await page.evaluate(() => window.broken), undefined);
    const seen = await page.evaluate(() => document.body.textContent);
    assert.ok(!/[\u202a-\u202e\u0000\u001b]/.test(seen), "what turns the direction is shown as what it is");
    assert.ok(served.asked.every((path) => path === "/" || /^\/(stats|tree|events|advice|favicon\.ico|requests\/.*)$/.test(path)), `nothing else is asked: ${[...new Set(served.asked)]}`);
    // The policy holds even if a script finds a way in.
    const inline = await page.evaluate(() => {
        const script = document.createElement("script");
        script.textContent = "window.broken = 2";
        document.body.append(script);
        const div = document.createElement("div");
        div.setAttribute("style", "color: red");
        return [window.broken ?? "nothing", div.style.color];
    });
    assert.equal(inline[0], "nothing", "no script but the page's own runs");
    assert.deepEqual(page.complaints().filter((one) => !one.includes("Content Security Policy") && !one.includes("Content-Security-Policy")), []);
    say("hostile ids and texts are text");
    await page.close();
    served.close();
}

async function sizes(browser) {
    const world = new World({ text: { before: "The weather on ", old: "Monday", new: "Sunday" } });
    let now = Date.now() - 60_000;
    world.now = () => now;
    for (let n = 0; n < 150; n += 1, now += 400) world.step();
    world.now = () => Date.now();
    const served = await serve(world, built);
    const axe = await readFile(join(here, "../node_modules/axe-core/axe.min.js"), "utf8");
    for (const [width, height] of [
        [360, 740],
        [1280, 800],
        [3000, 1600],
    ]) {
        for (const scheme of ["light", "dark"]) {
            const page = await open(browser, served.url, { width, height, scheme });
            await until("the tree", page, () => document.querySelectorAll("[role=treeitem]").length > 5);
            await page.evaluate(axe);
            for (const view of width >= 2200 ? ["tree"] : VIEWS) {
                if (width < 2200) await show(page, view);
                if (view === "requests") {
                    await page.evaluate(() => document.querySelector("tr[data-place='2'] button").click());
                    await page.waitForSelector("#account table");
                }
                await new Promise((done) => setTimeout(done, 250));
                const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
                const wrong = found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => `${node.target} ${node.failureSummary}`).join("; ")}`);
                assert.deepEqual(wrong, [], `${view} ${width} ${scheme}`);
                const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
                assert.ok(over <= 0, `${view} is ${over} pixels wider than ${width}`);
                if (view === "requests" && width < 1000) await page.evaluate(() => [...document.querySelectorAll("#account button")].find((one) => one.textContent === "Close").click());
            }
            assert.deepEqual(page.complaints(), []);
            await page.close();
        }
    }
    say("no view is wider than 360, 1,280 or 3,000 pixels; axe finds nothing, light or dark");
    served.close();
}

async function keyboard(browser) {
    const world = new World();
    for (let n = 0; n < 80; n += 1) world.step();
    const served = await serve(world, built);
    const page = await open(browser, served.url, {});
    await until("the tree", page, () => document.querySelectorAll("[role=treeitem]").length > 5);
    const active = () => page.evaluate(() => [document.activeElement.id, document.activeElement.textContent]);
    await page.focus("#tab-tree");
    await page.keyboard.press("ArrowRight");
    assert.deepEqual((await active())[0], "tab-time");
    await page.keyboard.press("ArrowLeft");
    await page.focus("[role=treeitem][tabindex='0']");
    const [, first] = await active();
    await page.keyboard.press("ArrowRight");
    const [, second] = await active();
    assert.notEqual(first, second);
    await page.keyboard.press("z");
    await page.waitForSelector("nav.path:not([hidden])");
    let answer;
    world.may = new Promise((done) => (answer = done));
    await page.focus("[role=treeitem][tabindex='0']");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#account:not([hidden])");
    await page.focus("#account button");
    // What became of the request is drawn while the button has the focus, and must leave it there.
    answer();
    await page.waitForSelector("#account .state");
    await page.keyboard.press("Escape");
    await page.waitForSelector("#account[hidden]");
    await show(page, "requests");
    await page.focus("tr[data-place='0'] button");
    for (let n = 0; n < 40; n += 1) await page.keyboard.press("ArrowDown");
    const focused = () => page.evaluate(() => document.activeElement.closest("tr")?.dataset.place ?? document.activeElement.className);
    assert.equal(await focused(), "40");
    // No further than it takes to see the rows behind: a browser that anchors its scrolling jumps on.
    const beyond = () => page.$eval(".scroll.rows", (table) => 43 * 32 - table.clientHeight - table.scrollTop);
    assert.ok(Math.abs(await beyond()) <= 1, `${await beyond()}`);
    // Where the row is not among those that exist, the table has the focus, and the keys go on from the row.
    for (const [end, key, next] of [
        [0, "ArrowDown", "41"],
        [1e6, "ArrowUp", "40"],
    ]) {
        await page.$eval(".scroll.rows", (table, end) => (table.scrollTop = end), end);
        await until("the focus of the table", page, () => document.activeElement.matches(".scroll.rows"));
        await page.keyboard.press(key);
        assert.equal(await focused(), next);
    }
    await show(page, "time");
    await page.focus("#view-time canvas");
    const before = await page.evaluate(() => document.querySelector("#view-time canvas").getAttribute("aria-label"));
    await page.keyboard.press("-");
    await page.keyboard.press("ArrowLeft");
    await until("another time", page, (label) => document.querySelector("#view-time canvas").getAttribute("aria-label") !== label, before);
    say("everything works by keyboard");
    await page.close();
    served.close();
}

/** Each choice above the table shows the requests that it names, and no others. */
async function filters(browser) {
    const world = new World();
    for (let n = 0; n < 80; n += 1) world.step();
    const served = await serve(world, built);
    const page = await open(browser, served.url, {});
    await show(page, "requests");
    const choose = async (what, value, expected) => {
        await until(what, page, (label) => !document.querySelector(`#view-requests select[aria-label="${label}"]`).hidden, what);
        await page.select(`#view-requests select[aria-label="${what}"]`, value);
        const wanted = world.requests.filter((one) => expected(one)).length;
        assert.ok(wanted > 0 && wanted < 80, `${value} tells requests apart`);
        await until(`${what} ${value}`, page, (all) => document.querySelector("#view-requests .note").textContent === all, `${wanted} of 80`);
        await page.select(`#view-requests select[aria-label="${what}"]`, "");
        // A row is of the list before until the page has drawn the new one.
        await until("all again", page, () => document.querySelector("#view-requests .note").textContent === "80");
    };
    await choose("LoRA adapter", "0", (one) => one.evaluation.adapters?.length === 1);
    await choose("LoRA adapter", "0, 1 × 0.25", (one) => one.evaluation.adapters?.length === 2);
    await choose("LoRA adapter", "none", (one) => one.evaluation.adapters?.length === 0);
    await choose("LoRA adapter", "not known", (one) => one.evaluation.adapters === undefined);
    await choose("Slot", "1", (one) => one.slot === 1);
    await choose("Cause", "evicted", (one) => one.evaluation.causes.evicted > 0);
    await choose("Cause", "store", (one) => one.evaluation.from.store > 0);
    // One with adapters, sections and tokens of an answer. The latest comes first.
    const place = world.requests.toReversed().findIndex((one) => one.sections && one.evaluation.kept && one.evaluation.adapters?.length === 2);
    await page.evaluate((nth) => document.querySelector(`tr[data-place="${nth}"] button`).click(), place);
    await until("its account", page, () => document.querySelectorAll("#account table").length === 2);
    const account = await page.evaluate(() => document.querySelector("#account").innerText);
    assert.match(account, /LoRA adapters\s+0, 1 × 0.25/);
    assert.ok(account.includes("41 tokens kept as they were generated."), account);
    assert.match(account, /system\s+1000 B\s+5.0 %\s+tools\s+14 KiB\s+70.0 %\s+messages\s+4.9 KiB\s+25.0 %/);
    assert.deepEqual(page.complaints(), []);
    say("requests can be chosen by adapter, slot and cause; an account has adapters, sections and tokens of an answer");
    await page.close();
    served.close();
}

/** Paused or hidden, the page asks nothing. */
async function silence(browser) {
    const world = new World();
    for (let n = 0; n < 20; n += 1) world.step();
    const served = await serve(world, built);
    const page = await open(browser, served.url, {});
    await until("the tree", page, () => document.querySelectorAll("[role=treeitem]").length > 5);
    await page.evaluate(() => [...document.querySelectorAll("#actions button")].find((one) => one.textContent === "Pause").click());
    await until("paused", page, () => document.querySelector("#dot.paused") !== null);
    await new Promise((done) => setTimeout(done, 300));
    const asked = served.asked.length;
    await new Promise((done) => setTimeout(done, 2500));
    assert.equal(served.asked.length, asked, "nothing is asked while paused");
    assert.equal(served.readers.size, 0, "and no stream is followed");
    say("paused, the page asks nothing");
    await page.close();
    served.close();
}

/** Frame times while 200 events a second arrive. */
async function frames(browser) {
    const world = new World();
    for (let n = 0; n < 300; n += 1) world.step();
    const served = await serve(world, built, { each: 10 });
    const page = await open(browser, served.url, {});
    await until("the tree", page, () => document.querySelectorAll("[role=treeitem]").length > 5);
    for (const view of VIEWS) {
        await show(page, view);
        const before = world.sequence;
        const times = await page.evaluate(
            (span) =>
                new Promise((done) => {
                    const all = [];
                    let last = performance.now();
                    const end = last + span;
                    const step = () => {
                        const now = performance.now();
                        all.push(now - last);
                        last = now;
                        if (now < end) requestAnimationFrame(step);
                        else done(all.sort((a, b) => a - b));
                    };
                    requestAnimationFrame(step);
                }),
            3000,
        );
        const rate = Math.round((world.sequence - before) / 3);
        const at = (share) => times[Math.floor((times.length - 1) * share)].toFixed(1);
        console.log(`figure ${view}: ${rate} events a second, ${times.length} frames in 3 s; median ${at(0.5)} ms, 99 % ${at(0.99)} ms, longest ${at(1)} ms`);
        // Timing is measured, not tested: here only that the page still draws.
        assert.ok(times.length > 10, `${view} draws`);
    }
    assert.deepEqual(page.complaints(), []);
    say("the page draws while events arrive");
    await page.close();
    served.close();
}

async function report(browser, file, requests) {
    const began = performance.now();
    const page = await open(browser, `file://${file}`);
    await until("the report", page, () => document.querySelectorAll("#figures dd").length > 0);
    console.log(`figure report: ${requests} requests are there after ${((performance.now() - began) / 1000).toFixed(1)} s`);
    await until("the tree", page, () => document.querySelectorAll("[role=treeitem]").length > 0);
    assert.ok((await bars(page)).length <= 351, "a bounded number of bars");
    await show(page, "requests");
    await until("the requests", page, (all) => document.querySelector("#view-requests .note").textContent === all, count(Number(requests)));
    assert.ok((await rows(page)).length < 80, "only rows that are seen exist");
    await page.evaluate(() => {
        const scroll = document.querySelector("#view-requests .scroll");
        scroll.scrollTop = scroll.scrollHeight;
    });
    await until("the first request", page, () => [...document.querySelectorAll("table.requests th button")].some((one) => one.textContent === "#1"));
    await page.type("#view-requests input[type=search]", `#${requests}`);
    await until("the last request", page, (id) => document.querySelector("table.requests tbody th button")?.textContent === id, `#${requests}`);
    await page.click("table.requests tbody th button");
    await page.waitForSelector("#account table");
    for (const view of ["time", "bill"]) {
        await show(page, view);
        const text = await page.evaluate((id) => document.querySelector(`#view-${id}`).innerText, view);
        assert.ok(text.length > 100, view);
    }
    const shown = await figures(page);
    console.log(`figures ${JSON.stringify(shown)}`);
    assert.deepEqual(page.complaints(), []);
    say("a report shows its requests");
    await page.close();
}

async function pictures(browser, url, folder) {
    for (const [width, height] of [
        [360, 740],
        [1280, 800],
        [3000, 1600],
    ]) {
        for (const scheme of ["light", "dark"]) {
            const page = await open(browser, url, { width, height, scheme });
            await until("the page", page, () => document.querySelectorAll("#figures dd").length > 0);
            for (const view of width >= 2200 ? ["tree"] : VIEWS) {
                if (width < 2200) await show(page, view);
                await new Promise((done) => setTimeout(done, 600));
                await page.screenshot({ path: join(folder, `${width >= 2200 ? "all" : view}-${width}-${scheme}.png`) });
            }
            await page.close();
        }
    }
    say("pictures");
}

async function readme(browser, file, folder) {
    for (const scheme of ["light", "dark"]) {
        const page = await open(browser, `file://${file}`, { width: 1060, height: 540, scheme });
        await until("the tree", page, () => document.querySelectorAll("[role=treeitem]").length > 0);
        for (const view of ["tree", "time", "bill"]) {
            await show(page, view);
            await new Promise((done) => setTimeout(done, 600));
            await page.screenshot({ path: join(folder, `${view}-${scheme}.png`) });
        }
        await page.close();
    }
    say("pictures");
}

const [what, ...rest] = process.argv.slice(2);
const run = { endpoint, follow, token, "made-up": madeUp, report, pictures, readme }[what];
if (!run) throw new Error(`not known: ${what}`);
const browser = await launch();
let code = 0;
try {
    await run(browser, ...rest);
} catch (error) {
    console.log(`not ok ${error.stack ?? error}`);
    code = 1;
}
await browser.close();
process.exit(code);
