// An endpoint with made-up traffic, for what a real server cannot be made to say at will: hostile ids and texts,
// and as many events a second as are wanted. Its answers have the form of the control endpoint's.
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";

/** Numbers that look random, the same in each run. */
function numbers(seed) {
    let state = seed >>> 0;
    return (below) => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        return Math.floor((state / 2 ** 32) * below);
    };
}

const ELSEWHERE = { pinned: 0, busy: 0, similarity: 0, least_recently_used: 0, host_rule: 0 };
const NOTHING = { last_token: 0, new: 0, repeated: 0, evicted: 0, elsewhere: ELSEWHERE, no_way_back: 0, uncached: 0, moved: 0, adapter: 0, not_known: 0 };

const ADAPTERS = [[], [{ id: 0, scale: 1 }], [{ id: 0, scale: 1 }, { id: 1, scale: 0.25 }]];

/** A world of sessions that take turns on a few slots. */
export class World {
    constructor({ slots = 4, name = (n) => `session-${n % 9}/turn-${Math.floor(n / 9)}`, text = null, title = null, now = () => Date.now() } = {}) {
        this.below = numbers(1);
        this.slots = slots;
        this.name = name;
        this.text = text;
        this.title = title;
        this.now = now;
        this.requests = [];
        this.events = [];
        this.sequence = 0;
        this.branches = [{ parent: null, from: 0, to: 2400, slots: [], host: 0, requests: [], requests_total: 0, merged: { branches: 0, tokens: 0, requests: 0 } }];
        this.session = new Map();
        this.held = new Map();
        this.total = { prompts: 0, reused: 0, evaluated: 0 };
        this.causes = structuredClone(NOTHING);
        this.seconds = 0;
        /** What `/stats` says of a slot, in place of what it says of one that rests, and of the store. */
        this.atWork = new Map();
        this.store = {};
        this.modelState = "loaded";
        /** Nothing is answered but the page. */
        this.ended = false;
        /** What becomes of a single request is answered once this is fulfilled. */
        this.may = Promise.resolve();
    }

    iso(ms) {
        return new Date(ms).toISOString();
    }

    event(change) {
        this.sequence += 1;
        const event = { epoch: "made-up", sequence: this.sequence, at: this.iso(this.now()), ...change };
        this.events.push(event);
        if (this.events.length > 4096) this.events.shift();
        return event;
    }

    /** One more request. Returns its events. */
    step() {
        const { below } = this;
        const n = this.total.prompts;
        const id = this.name(n);
        const session = n % 9;
        const slot = below(this.slots);
        const before = this.session.get(session);
        const length = 120 + below(900);
        const parent = before ?? 0;
        const start = this.branches[parent].to;
        const place = this.branches.length;
        const branch = { parent, from: start, to: start + length, slots: [], host: 0, requests: [id], requests_total: 1, merged: { branches: 0, tokens: 0, requests: 0 } };
        this.branches.push(branch);
        this.session.set(session, start > 14_000 ? 0 : place);
        const lost = this.held.get(slot);
        this.held.set(slot, place);
        const prompt = branch.to;
        const kept = this.branches[parent].slots.length > 0 || n % 3 === 0 ? start : Math.min(start, 2400);
        const again = start - kept;
        const loaded = again > 0 && n % 5 === 0 ? Math.floor(again / 2) : 0;
        const causes = { ...structuredClone(NOTHING), last_token: 1, new: length - 1, evicted: Math.floor((again - loaded) * 0.7) };
        causes.elsewhere.busy = again - loaded - causes.evicted;
        const evaluated = prompt - kept - loaded;
        const took = evaluated * 0.0006 + 0.02;
        const at = this.now();
        const other = this.requests.at(-3);
        const evaluation = {
            prompt_tokens: prompt,
            reused: kept + loaded,
            evaluated,
            seconds: took,
            causes,
            from: { slot: kept, host: 0, checkpoint: 0, moved: 0, store: loaded },
            ...(n % 4 === 3 ? {} : { adapters: ADAPTERS[n % 4] }),
            ...(n % 2 === 0 ? { kept: 41 } : {}),
            diverged: other ? { at: kept, request: other.id, differing: 4, same_after: 350, repeated: 350, reordered: 0, unmatched: 4, inserted: 4, deleted: 4, ...(this.text ? { text: this.text } : {}) } : null,
            ...(this.title ? { title: this.title } : {}),
            lost: again > 0 && other ? { when: this.iso(at - 1000), reason: "overwritten", by: other.id, tokens: causes.evicted, chosen_by: "least_recently_used", similarity: 0.02, kept: 0.6 } : null,
        };
        this.requests.push({ number: n + 1, id, at: this.iso(at), slot, time_to_first_token_seconds: took + 0.004, ended: this.iso(at + 400 + below(1500)), ...(n % 2 === 0 ? { sections: { system: 1000, tools: 14_000, messages: 5000 } } : {}), evaluation });
        if (this.requests.length > 10_000) this.requests.shift();
        this.total.prompts += 1;
        this.total.reused += kept + loaded;
        this.total.evaluated += evaluated;
        this.seconds += took;
        for (const key of ["last_token", "new", "evicted"]) this.causes[key] += causes[key];
        this.causes.elsewhere.busy += causes.elsewhere.busy;
        for (const one of this.branches) one.slots = [];
        for (const [number, leaf] of this.held) for (let up = leaf; up !== null; up = this.branches[up].parent) this.branches[up].slots.push(number);
        const events = [this.event({ change: "cached", id, slot, tokens: prompt })];
        if (lost !== undefined && n % 2 === 0) {
            for (let up = lost, left = 2; left > 0 && up !== null; up = this.branches[up].parent, left -= 1) this.branches[up].host = 1;
            events.push(this.event({ change: "moved_to_host", ids: [this.branches[lost].requests[0] ?? "x"], slot, tokens: this.branches[lost].to, bytes: 1 << 20 }));
        } else if (other) {
            events.push(this.event({ change: "evicted", id: other.id, reason: "overwritten", from: { place: "slot", slot }, by: id }));
        }
        if (this.branches.length > 900) this.prune();
        return events;
    }

    /** Forgets the oldest half of the tree. */
    prune() {
        this.branches = [this.branches[0]];
        this.session.clear();
        this.held.clear();
    }

    stats() {
        const prompt = this.total.reused + this.total.evaluated;
        const hit_ratio = prompt > 0 ? this.total.reused / prompt : null;
        const last = (slot) => this.branches[this.held.get(slot)] ?? null;
        return {
            at: this.iso(this.now()),
            epoch: "made-up",
            uptime_seconds: 12_345,
            hook_version: "0.1.0",
            mode: "observing",
            engine: { name: "llama.cpp", version: "0.7.0", build: "b11669", functions: [] },
            model: { name: "made-up", from: "command line" },
            model_state: this.modelState,
            flags: { parallel: this.slots },
            slots: [...Array(this.slots).keys()].map((slot) => ({ slot, tokens: last(slot)?.to ?? 0, capacity: 16_384, bytes: null, busy: false, requests: [], requests_total: 0, last_request: null, last_launch: null, ...this.atWork.get(slot) })),
            host: { entries: 3, tokens: 9000, bytes: 3 << 20, limit_bytes: 8 << 30 },
            tokens: { resident: this.branches.reduce((sum, one) => sum + (one.slots.length > 0 ? one.to - one.from : 0), 0), shared: 0, live_requests: 7 },
            requests: { seen: this.total.prompts, finished: this.total.prompts },
            reuse: { total: { ...this.total, hit_ratio }, last_minute: { ...this.total, hit_ratio }, causes: this.causes, seconds: this.seconds },
            evictions: {},
            undecided: false,
            store: { loaded_tokens: 0, ...this.store },
            recording: this.advice ? { file: "traffic" } : null,
            control: { refused: 0, work_us: 0 },
        };
    }

    state(id) {
        const known = this.requests.findLast((one) => one.id === id);
        if (!known) return { state: "unknown", id, hint: "never seen by this process" };
        return { state: "cached", id, places: [{ place: "slot", slot: known.slot }], tokens: known.evaluation.prompt_tokens, since: known.at, evaluation: known.evaluation };
    }
}

/** Serves a world, with the page. `each`: milliseconds between requests, or 0. */
export async function serve(world, page, { each = 0, port = 0 } = {}) {
    const html = await readFile(`${page}/page.html`);
    const policy = (await readFile(`${page}/policy.txt`, "utf8")).trim();
    const readers = new Set();
    const asked = [];
    const server = createServer((request, response) => {
        const url = new URL(request.url, "http://localhost");
        asked.push(url.pathname);
        const json = (body, status = 200) => {
            response.writeHead(status, { "Content-Type": "application/json" });
            response.end(JSON.stringify(body));
        };
        if (url.pathname === "/") {
            response.writeHead(200, { "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": `${policy}; frame-ancestors 'none'` });
            response.end(html);
        } else if (world.ended) json({ error: "the server's endpoint: unix:/x.sock does not answer (there is no such socket)" }, 503);
        else if (url.pathname === "/stats") json(world.stats());
        else if (url.pathname === "/tree") json({ at: world.iso(world.now()), epoch: "made-up", resident: world.stats().tokens.resident, branches: world.branches });
        else if (url.pathname === "/requests/last") json({ requests: world.requests.slice(-Number(url.searchParams.get("n") ?? 10)).reverse() });
        else if (url.pathname.startsWith("/requests/")) void world.may.then(() => json(world.state(decodeURIComponent(url.pathname.slice(10)))));
        else if (url.pathname === "/advice" && world.advice) json(world.advice);
        else if (url.pathname === "/events") {
            response.writeHead(200, { "Content-Type": "text/event-stream" });
            response.write(": epoch made-up\nretry: 2000\n\n");
            readers.add(response);
            response.on("close", () => readers.delete(response));
        } else json({ error: "nothing here" }, 404);
    });
    const tell = (events) => {
        const text = events.map((event) => `event: residency\nid: made-up-${event.sequence}\ndata: ${JSON.stringify(event)}\n\n`).join("");
        for (const reader of readers) reader.write(text);
    };
    const timer = each > 0 ? setInterval(() => tell(world.step()), each) : null;
    await new Promise((done) => server.listen(port, "127.0.0.1", done));
    return {
        url: `http://127.0.0.1:${server.address().port}/`,
        tell,
        asked,
        readers,
        close() {
            clearInterval(timer);
            server.closeAllConnections();
            server.close();
        },
    };
}
