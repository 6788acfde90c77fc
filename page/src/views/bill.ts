import { CAUSES, type Cause, colour } from "../causes";
import { add, button, el, fill, text } from "../dom";
import { bytes, count, percent, plural, seconds } from "../format";
import type { Model } from "../model";
import type { AdvisedChange, Causes, Point } from "../types";
import type { View } from "./view";

const WINDOWS: [string, number][] = [
    ["since the start", 0],
    ["last minute", 60_000],
    ["last 5 minutes", 300_000],
    ["last hour", 3_600_000],
];

interface Bill {
    causes: Partial<Causes>;
    reused: number;
    evaluated: number;
    seconds: number;
    prompts: number;
}

/** Tokens and seconds by cause, and what would save them. */
export class BillView implements View {
    readonly id = "bill";
    readonly label = "Bill";

    private readonly window = el("select", { "aria-label": "Which time" });
    private readonly sums = el("p", { class: "sums" });
    private readonly body = el("tbody");
    private readonly advice = el("div", { class: "advice" });
    private readonly grid = el("div");
    private drawn = "";

    constructor(
        host: HTMLElement,
        private readonly model: Model,
        private readonly only: (cause: string) => void,
    ) {
        const all = model.report ? WINDOWS.slice(0, 1) : WINDOWS;
        this.window.append(...all.map(([label, span]) => el("option", { value: span }, model.report ? "all of it" : label)));
        this.window.addEventListener("input", () => this.model.changed());
        const head = ["Why", "Tokens", "Share", "Time"].map((column) => el("th", { scope: "col" }, column));
        host.append(
            el("div", { class: "bar" }, el("h2", {}, "What evaluation costs"), this.window),
            this.sums,
            el("div", { class: "scroll flat", tabindex: 0, role: "group", "aria-label": "Tokens and time by cause" }, el("table", { class: "bill" }, el("caption", { class: "unseen" }, "Evaluated prompt tokens by cause"), el("thead", {}, el("tr", {}, ...head)), this.body)),
            el("h2", {}, "What would save it"),
            this.advice,
            this.grid,
        );
    }

    draw(): void {
        const span = Number(this.window.value);
        const bill = span === 0 ? this.whole() : this.since(span);
        const now = JSON.stringify([bill, this.model.advice !== null, this.model.grid.length, this.model.stats?.flags, this.model.stats?.store !== null, this.model.stats?.recording?.file]);
        if (now === this.drawn) return;
        this.drawn = now;
        const prompt = bill.reused + bill.evaluated;
        text(this.sums, bill.prompts === 0 ? "" : `${plural(bill.prompts, "prompt")}, ${plural(prompt, "token")}: ${percent(prompt > 0 ? bill.reused / prompt : null)} reused; evaluating the others took ${seconds(bill.seconds)}, the time of each prompt added up: of prompts that share batches, each has the whole time.`);
        const most = Math.max(1, ...CAUSES.map((cause) => cause.of(bill.causes)));
        const rows = CAUSES.filter((cause) => cause.of(bill.causes) > 0).sort((a, b) => b.of(bill.causes) - a.of(bill.causes));
        fill(this.body, ...rows.map((cause) => this.row(cause, bill, most)));
        if (rows.length === 0) this.body.append(el("tr", {}, el("td", { colspan: 4, class: "note" }, "Nothing was evaluated in this time.")));
        this.advise();
        this.drawGrid();
    }

    private row(cause: Cause, bill: Bill, most: number): HTMLElement {
        const tokens = cause.of(bill.causes);
        const bar = el("i", { class: colour(cause), "aria-hidden": "true" });
        bar.style.width = `${(100 * tokens) / most}%`;
        return el(
            "tr",
            {},
            el("th", { scope: "row" }, button(cause.label, () => this.only(cause.key), { class: "link", title: "Show these requests" }), el("small", {}, cause.meaning)),
            el("td", {}, count(tokens)),
            el("td", { class: "share" }, el("span", {}, bar), percent(bill.evaluated > 0 ? tokens / bill.evaluated : null)),
            el("td", {}, seconds(bill.evaluated > 0 ? (bill.seconds * tokens) / bill.evaluated : 0)),
        );
    }

    private whole(): Bill {
        const reuse = this.model.stats?.reuse;
        if (!reuse) return this.since(0);
        return { causes: reuse.causes, reused: reuse.total.reused, evaluated: reuse.total.evaluated, seconds: reuse.seconds, prompts: reuse.total.prompts };
    }

    /** Of the last so many milliseconds, as far as the requests are known; 0: of all of them. */
    private since(span: number): Bill {
        const now = this.model.stats?.at ? Date.parse(this.model.stats.at) : Date.now();
        const bill: Bill = { causes: {}, reused: 0, evaluated: 0, seconds: 0, prompts: 0 };
        const sums = { last_token: 0, new: 0, repeated: 0, evicted: 0, no_way_back: 0, uncached: 0, moved: 0, adapter: 0, not_known: 0 };
        const elsewhere = { pinned: 0, busy: 0, similarity: 0, least_recently_used: 0, host_rule: 0 };
        for (let nth = this.model.requests.length - 1; nth >= 0; nth -= 1) {
            const one = this.model.requests[nth];
            if (!one || (span > 0 && one.at < now - span)) break;
            bill.prompts += 1;
            bill.reused += one.evaluation.reused;
            bill.evaluated += one.evaluation.evaluated;
            bill.seconds += one.evaluation.seconds ?? 0;
            const { causes } = one.evaluation;
            for (const key of Object.keys(sums) as (keyof typeof sums)[]) sums[key] += causes[key] ?? 0;
            for (const key of Object.keys(elsewhere) as (keyof typeof elsewhere)[]) elsewhere[key] += causes.elsewhere?.[key] ?? 0;
        }
        bill.causes = { ...sums, elsewhere };
        return bill;
    }

    private advise(): void {
        const { advice, report, stats } = this.model;
        if (advice) {
            const { recorded, changes, tokens } = advice;
            const of = recorded.prompt_tokens;
            const alone = advice.alone.filter((one) => !changes.some((other) => line(other) === line(one)));
            const cards = (all: AdvisedChange[]) => all.map((one) => this.card(line(one), saves(recorded, one.point), costs(recorded, one.point)));
            fill(
                this.advice,
                el("p", {}, `By the simulator, from the recorded traffic: as it was, ${percent(recorded.spared_share)} of ${count(of)} prompt tokens are ${spared(recorded)}, and evaluating the others takes the server ${seconds(recorded.prompt_seconds)}.`),
                ...cards(changes),
                changes.length === 0 ? el("p", {}, "No flag would have helped.") : null,
                alone.length > 0 ? el("h3", {}, "Each by itself, in place of that") : null,
                ...cards(alone),
                el("p", {}, `${percent(tokens.prefix / of)} of the tokens repeat the beginning of an earlier request: flags and the prefix store decide over them. ${tokens.not_wanted > 0 ? `${percent(tokens.not_wanted / of)} were sent before, of embeddings or rerankings: the server reuses nothing for these, whatever its flags. ` : ""}${percent(tokens.behind_a_difference / of)} were sent before, but behind something else${tokens.differs_at === null ? "" : `, mostly from token ${count(tokens.differs_at)} on`}: only the client can save these. ${percent(tokens.never_sent / of)} were never sent before.`),
            );
            return;
        }
        fill(this.advice);
        if (report) {
            const why = report.kind === "log" ? "The simulator needs a recording: contextpilot-llama report traffic.file" : "This report was made without the simulator (--no-simulation), or of a server that keeps no recent requests.";
            add(this.advice, el("p", { class: "note" }, why));
            return;
        }
        const of = stats?.recording?.file ? "the recording of this server" : "the last requests of this server";
        add(this.advice, el("p", { class: "note" }, `What other flags would have brought, the simulator says from ${of}:`), this.code("contextpilot-llama advise"));
    }

    private card(flags: string, gain: string, cost: string): HTMLElement {
        return el("div", { class: "card" }, this.code(flags), el("p", {}, el("b", {}, "Saves "), gain, cost ? ` · ${cost}` : ""));
    }

    private code(line: string): HTMLElement {
        const copied = button("Copy", () => {
            const select = () => getSelection()?.selectAllChildren(code);
            if (!navigator.clipboard) return select();
            navigator.clipboard.writeText(line).then(() => text(copied, "Copied"), select);
        });
        const code = el("code", {}, line);
        return el("div", { class: "code" }, code, copied);
    }

    private drawGrid(): void {
        const { grid, advice } = this.model;
        if (grid.length === 0) return fill(this.grid);
        const head = ["--parallel", "--cache-ram", "Reused", "Evaluated", "Prompts", "Waited", "Host memory"];
        const most = Math.max(...grid.map((point) => point.spared_share));
        fill(
            this.grid,
            el("h2", {}, "The simulator's grid"),
            el(
                "div",
                { class: "scroll flat", tabindex: 0, role: "group", "aria-label": "The simulator's grid" },
                el(
                    "table",
                    { class: "grid" },
                    el("caption", { class: "unseen" }, "What other flags would have reused of the recorded traffic"),
                    el("thead", {}, el("tr", {}, ...head.map((one) => el("th", { scope: "col" }, one)))),
                    el(
                        "tbody",
                        {},
                        ...grid.map((point) => {
                            const bar = el("i", { class: "slot", "aria-hidden": "true" });
                            bar.style.width = `${point.spared_share * 100}%`;
                            const is = advice && same(point, advice.recorded) ? "recorded" : point.spared_share === most ? "best" : "";
                            return el("tr", { class: is }, el("th", { scope: "row" }, `${point.parallel}${point.kv_unified ? " shared" : ""}${is === "recorded" ? " (recorded)" : ""}`), el("td", {}, point.cache_ram < 0 ? "no limit" : `${count(point.cache_ram)} MiB`), el("td", { class: "share" }, el("span", {}, bar), percent(point.spared_share)), el("td", {}, count(point.evaluated_tokens)), el("td", {}, seconds(point.prompt_seconds)), el("td", {}, seconds(point.waited_seconds)), el("td", {}, bytes(point.host_bytes)));
                        }),
                    ),
                ),
            ),
        );
    }
}

function same(one: Point, other: Point): boolean {
    return one.parallel === other.parallel && one.kv_unified === other.kv_unified && one.cache_ram === other.cache_ram;
}

/** What to start the server with. A store is set by variables, which stand in front of the command. */
function line(change: AdvisedChange): string {
    const store = change.store_gb === null ? [] : ["CONTEXTPILOT_STORE=~/llama-store", `CONTEXTPILOT_STORE_GB=${change.store_gb}`];
    return [...store, ...change.flags].join(" ");
}

function spared(point: Point): string {
    return point.store_gb > 0 ? "reused or loaded" : "reused";
}

function saves(before: Point, after: Point): string {
    return `${count(Math.max(0, before.evaluated_tokens - after.evaluated_tokens))} tokens and ${seconds(before.prompt_seconds - after.prompt_seconds)}: ${percent(after.spared_share)} ${spared(after)}`;
}

/** What it takes, but for differences that nobody would notice. */
function costs(before: Point, after: Point): string {
    const more = (now: number, then: number, what: string) => (Math.abs(now - then) <= 0.001 * Math.max(now, then) ? "" : `${bytes(Math.abs(now - then))} ${now > then ? "more" : "less"} ${what}`);
    return [
        more(after.host_bytes, before.host_bytes, "host memory"),
        more(after.context_bytes, before.context_bytes, "for the context"),
        more(after.store_bytes, before.store_bytes, "on disk"),
        after.store_seconds > before.store_seconds ? `copies take ${seconds(after.store_seconds)}` : "",
    ]
        .filter((part) => part !== "")
        .join(", ");
}
