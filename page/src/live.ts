// Asks the endpoint that served this page: figures each second, changes as they happen, and requests and the tree
// only when something has changed. Nothing is asked while the page is hidden.

import type { Model } from "./model";
import type { Advice, ChangeEvent, Evaluated, RequestState, Stats, Tree } from "./types";

const EACH = 1000;
/** The tree is asked for at most this often. */
const TREE_EACH = 2000;
const MOST_BRANCHES = 1000;
/** As many as the endpoint gives. */
const MOST_LAST = 1000;
/** Requests that were under way at the last query: what is known of them changes. */
const UNDER_WAY = 24;
const TOKEN = "contextpilot-token";
/** The page is served by `contextpilot-llama open`, which can also ask the simulator. */
const BRIDGED = "contextpilot-bridged";

class Refused extends Error {
    constructor(
        readonly status: number,
        message: string,
    ) {
        super(message);
    }
}

export class Live {
    /** Whether the tree is looked at. */
    wantsTree: () => boolean = () => true;
    /** Whether the bill is looked at. */
    wantsAdvice: () => boolean = () => false;
    askToken: (why: string) => void = () => {};

    private token = sessionStorage.getItem(TOKEN) ?? "";
    private timer = 0;
    private stream: AbortController | null = null;
    private lastEvent = "";
    private seen = -1;
    private finished = -1;
    private treeAt = 0;
    private treeOf = "";
    private asking = false;
    private askedAdvice = false;

    constructor(private readonly model: Model) {
        // `contextpilot-llama open` passes the token behind the #, which no browser sends to a server.
        const given = /^#token=(.+)$/.exec(location.hash);
        if (given?.[1]) {
            this.useToken(decodeURIComponent(given[1]));
            sessionStorage.setItem(BRIDGED, "1");
            history.replaceState(null, "", location.pathname);
        }
        document.addEventListener("visibilitychange", () => this.start());
    }

    useToken(token: string): void {
        this.token = token;
        sessionStorage.setItem(TOKEN, token);
        this.start();
    }

    start(): void {
        window.clearTimeout(this.timer);
        this.stream?.abort();
        this.stream = null;
        if (document.hidden || this.model.paused) return;
        void this.follow();
        void this.round();
    }

    async state(id: string): Promise<RequestState | null> {
        try {
            return await this.json<RequestState>(`/requests/${encodeURIComponent(id)}`, [404]);
        } catch {
            return null;
        }
    }

    private async round(): Promise<void> {
        if (this.asking) return;
        this.asking = true;
        try {
            const stats = await this.json<Stats>("/stats");
            const isNew = this.model.stats?.epoch !== stats.epoch;
            this.model.takeStats(stats);
            this.model.trouble = null;
            await this.askRequests(stats, isNew);
            await this.askTree(stats);
            // The bill may have been looked at before it was known that there is a recording.
            if (!this.askedAdvice && this.wantsAdvice()) void this.askAdvice();
            this.model.changed();
        } catch (error) {
            this.fail(error);
        }
        this.asking = false;
        window.clearTimeout(this.timer);
        if (!document.hidden && !this.model.paused) this.timer = window.setTimeout(() => void this.round(), EACH);
    }

    private async askRequests(stats: Stats, isNew: boolean): Promise<void> {
        const { prompts } = stats.reuse.total;
        const { finished } = stats.requests;
        if (!isNew && prompts === this.seen && finished === this.finished) return;
        const more = isNew || this.seen < 0 ? MOST_LAST : prompts - this.seen + finished - this.finished + UNDER_WAY;
        this.seen = prompts;
        this.finished = finished;
        const most = Math.min(MOST_LAST, more);
        const last = await this.json<{ requests: Evaluated[] }>(`/requests/last?n=${most}`);
        this.model.takeRequests(last.requests.reverse());
    }

    private async askTree(stats: Stats): Promise<void> {
        const of = `${stats.epoch} ${stats.reuse.total.prompts} ${stats.tokens.resident} ${stats.host.entries}`;
        const due = this.model.tree === null || (of !== this.treeOf && Date.now() - this.treeAt >= TREE_EACH);
        if (!due || !this.wantsTree()) return;
        this.treeOf = of;
        this.treeAt = Date.now();
        this.model.tree = await this.json<Tree>(`/tree?most=${MOST_BRANCHES}`);
    }

    /** What the flags would have brought, where somebody can say so: the endpoint itself does not. */
    async askAdvice(): Promise<void> {
        if (this.model.advice || !this.model.stats || !sessionStorage.getItem(BRIDGED)) return;
        this.askedAdvice = true;
        try {
            this.model.advice = await this.json<Advice>("/advice");
            this.model.changed();
        } catch {
            // It is not offered here.
        }
    }

    private async ask(path: string, headers: Record<string, string> = {}, signal?: AbortSignal): Promise<Response> {
        const authorization = this.token ? { Authorization: `Bearer ${this.token}` } : {};
        const response = await fetch(path, {
            cache: "no-store",
            credentials: "omit",
            headers: { ...authorization, ...headers },
            redirect: "error",
            ...(signal ? { signal } : {}),
        });
        return response;
    }

    private async json<T>(path: string, alsoGood: number[] = []): Promise<T> {
        const response = await this.ask(path);
        if (!response.ok && !alsoGood.includes(response.status)) {
            const why = await response.json().then(
                (body: { error?: string }) => body.error ?? "",
                () => "",
            );
            throw new Refused(response.status, why);
        }
        return (await response.json()) as T;
    }

    private fail(error: unknown): void {
        if (error instanceof Refused && error.status === 401) {
            this.model.trouble = "The endpoint asks for its token.";
            this.askToken(this.token ? "This token is not the endpoint's." : "");
        } else if (error instanceof Refused && error.status === 503 && sessionStorage.getItem(BRIDGED)) {
            // Another process of the server has another socket, which this page does not know.
            this.model.trouble = "The server does not answer: it has ended, or is busy. If it was started again, type contextpilot-llama open again, too.";
        } else if (error instanceof Refused) {
            this.model.trouble = `The endpoint answered ${error.status}: ${error.message}`;
        } else {
            this.model.trouble = "The server does not answer. This page goes on asking.";
        }
        this.model.changed();
    }

    /** Follows `/events` until the page is hidden or paused. */
    private async follow(): Promise<void> {
        const own = new AbortController();
        this.stream = own;
        while (!own.signal.aborted) {
            try {
                const last: Record<string, string> = this.lastEvent ? { "Last-Event-ID": this.lastEvent } : {};
                const response = await this.ask("/events", last, own.signal);
                if (response.ok && response.body) await this.read(response.body);
            } catch {
                // The queries tell what is wrong.
            }
            if (own.signal.aborted) return;
            await new Promise((done) => window.setTimeout(done, 2000));
        }
    }

    private async read(body: ReadableStream<Uint8Array>): Promise<void> {
        const reader = body.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
        let rest = "";
        for (;;) {
            const { done, value } = await reader.read();
            if (done) return;
            const blocks = (rest + value).split("\n\n");
            rest = blocks.pop() ?? "";
            for (const block of blocks) this.message(block);
            this.model.changed();
        }
    }

    private message(block: string): void {
        let event = "";
        let data = "";
        for (const line of block.split("\n")) {
            if (line.startsWith("event: ")) event = line.slice(7);
            else if (line.startsWith("data: ")) data += line.slice(6);
            else if (line.startsWith("id: ")) this.lastEvent = line.slice(4);
        }
        if (event === "residency") this.model.takeChange(JSON.parse(data) as ChangeEvent);
        // What happened before is not known: the tree says what is true now.
        if (event === "missed") this.treeOf = "";
    }
}
