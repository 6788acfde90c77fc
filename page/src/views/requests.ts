import { CAUSES } from "../causes";
import { KINDS, kindOf } from "../differs";
import { el, text } from "../dom";
import { adapters, called, clock, count, name, seconds } from "../format";
import type { Model, Req } from "../model";
import type { Name } from "../types";
import type { View } from "./view";

const ROW = 32;
const ALL_ADAPTERS = "every adapter";
/** Rows above and below those that are seen. */
const SPARE = 6;

const COLUMNS = ["Request", "When", "Slot", "Prompt", "Tokens", "Cause", "First token", "Left"] as const;

interface Row {
    element: HTMLTableRowElement;
    cells: HTMLElement[];
    parts: HTMLElement[];
    link: HTMLButtonElement;
}

/** One line for each request. Only the rows that are seen exist. */
export class RequestsView implements View {
    readonly id = "requests";
    readonly label = "Requests";

    private readonly search = el("input", { type: "search", placeholder: "Find", "aria-label": "Find a request by its id", autocomplete: "off", spellcheck: "false" });
    private readonly cause = el("select", { "aria-label": "Cause" });
    private readonly slot = el("select", { "aria-label": "Slot" });
    /** Hidden while no request was evaluated under an adapter. */
    private readonly adapter = el("select", { "aria-label": "LoRA adapter", hidden: true });
    private readonly order = el("select", { "aria-label": "Order" });
    private readonly found = el("span", { class: "note", role: "status" });
    private readonly body = el("tbody");
    private readonly table = el("table", { class: "requests" });
    private readonly scroll = el("div", { class: "scroll rows", tabindex: 0, role: "group", "aria-label": "Requests" });
    // One cell: more would be columns of their own where some of the others are not shown.
    private readonly above = el("tr", { class: "spacer", "aria-hidden": "true" }, el("td"));
    private readonly below = el("tr", { class: "spacer", "aria-hidden": "true" }, el("td"));
    private readonly pool: Row[] = [];
    private rows: Req[] = [];
    private most = 1;
    private drawn = "";
    private slots = "";
    private adapters = "";
    /** The row that has the focus, or had it last. */
    private current = 0;
    /** That row is not among those that exist, and the table has its focus meanwhile. */
    private isAway = false;

    constructor(
        host: HTMLElement,
        private readonly model: Model,
    ) {
        const option = (value: string, label: string) => el("option", { value }, label);
        this.cause.append(option("", "every cause"), option("again", "evaluated again"), option("store", "loaded from the store"), ...CAUSES.map((cause) => option(cause.key, cause.label)));
        this.order.append(option("time", "latest first"), option("evaluated", "most evaluated"), option("again", "most evaluated again"), option("ttft", "slowest first token"), option("prompt", "longest prompt"));
        this.slot.append(option("", "every slot"));
        this.adapter.append(option("", ALL_ADAPTERS));
        this.table.append(el("caption", { class: "unseen" }, "Requests, the latest first unless ordered otherwise"), el("thead", {}, el("tr", {}, ...COLUMNS.map((column) => el("th", { scope: "col" }, column)))), this.body);
        this.scroll.append(this.table);
        const legend = el(
            "ul",
            { class: "legend", "aria-label": "Colours" },
            ...[
                ["slot", "reused"],
                ["store", "loaded from the store"],
                ["again", "evaluated again"],
                ["repeated", "evaluated, sent before behind something else"],
                ["new", "evaluated, new"],
            ].map(([kind, label]) => el("li", {}, el("i", { class: `swatch ${kind}`, "aria-hidden": "true" }), label ?? "")),
        );
        host.append(el("div", { class: "bar" }, el("h2", {}, "Requests"), this.found, this.search, this.cause, this.slot, this.adapter, this.order), this.scroll, legend);
        for (const one of [this.search, this.cause, this.slot, this.adapter, this.order]) {
            one.addEventListener("input", () => {
                this.scroll.scrollTop = 0;
                this.model.changed();
            });
        }
        this.scroll.addEventListener("scroll", () => this.paint(), { passive: true });
        this.scroll.addEventListener("keydown", (event) => this.key(event));
        this.body.addEventListener("focusin", (event) => {
            const row = event.target instanceof Element ? event.target.closest<HTMLElement>("tr[data-place]") : null;
            if (row) this.current = Number(row.dataset["place"]);
        });
        this.scroll.addEventListener("focusout", () => {
            this.isAway = false;
        });
        this.body.addEventListener("click", (event) => {
            const row = event.target instanceof Element ? event.target.closest<HTMLElement>("tr[data-place]") : null;
            const req = row ? this.rows[Number(row.dataset["place"])] : undefined;
            if (req) this.model.choose(req.name);
        });
        new ResizeObserver(() => this.paint()).observe(this.scroll);
    }

    /** Shows only requests with this cause. */
    only(cause: string): void {
        this.cause.value = cause;
        this.model.changed();
    }

    reveal(wanted: Name): void {
        this.model.choose(wanted);
        const place = this.rows.findIndex((one) => one.name === wanted);
        if (place >= 0) this.scroll.scrollTop = Math.max(0, place * ROW - this.scroll.clientHeight / 2);
    }

    draw(): void {
        const { requests, version } = this.model;
        this.offerSlots();
        this.offerAdapters();
        const [query, cause, slot, adapter, order] = [this.search.value.trim().toLowerCase(), this.cause.value, this.slot.value, this.adapter.value, this.order.value];
        const drawn = [version, query, cause, slot, adapter, order].join("\u0000");
        if (drawn === this.drawn) return;
        this.drawn = drawn;
        const fits = (one: Req) =>
            (query === "" || called(one.name, one.evaluation.title).toLowerCase().includes(query)) &&
            (slot === "" || one.slot === Number(slot)) &&
            (adapter === "" || adapters(one.evaluation.adapters) === adapter) &&
            (cause === "" || has(one, cause));
        const rows = requests.filter(fits).reverse();
        const by: Record<string, (one: Req) => number> = {
            evaluated: (one) => one.evaluation.evaluated,
            again: (one) => one.again,
            ttft: (one) => one.ttft ?? one.evaluation.seconds ?? 0,
            prompt: (one) => one.evaluation.prompt_tokens,
        };
        const key = by[order];
        if (key) rows.sort((a, b) => key(b) - key(a));
        this.rows = rows;
        this.most = requests.reduce((most, one) => Math.max(most, one.evaluation.prompt_tokens), 1);
        text(this.found, requests.length === 0 ? "none yet" : rows.length === requests.length ? count(rows.length) : `${count(rows.length)} of ${count(requests.length)}`);
        this.table.setAttribute("aria-rowcount", String(rows.length + 1));
        this.paint();
    }

    private offerSlots(): void {
        const slots = [...new Set(this.model.requests.map((one) => one.slot))].sort((a, b) => a - b);
        const known = slots.join();
        if (known === this.slots) return;
        this.slots = known;
        const chosen = this.slot.value;
        this.slot.replaceChildren(el("option", { value: "" }, "every slot"), ...slots.map((slot) => el("option", { value: slot }, `slot ${slot}`)));
        this.slot.value = chosen;
    }

    private offerAdapters(): void {
        const used = this.model.requests.filter((one) => one.evaluation.adapters?.length);
        const all = used.length === 0 ? [] : [...new Set(this.model.requests.map((one) => adapters(one.evaluation.adapters)))].sort();
        const known = all.join("\u0000");
        if (known === this.adapters) return;
        this.adapters = known;
        const chosen = this.adapter.value;
        const label = (one: string) => (/\d|\?/.test(one) ? `adapter ${one}` : `adapters: ${one}`);
        this.adapter.replaceChildren(el("option", { value: "" }, ALL_ADAPTERS), ...all.map((one) => el("option", { value: one }, label(one))));
        this.adapter.hidden = all.length === 0;
        this.adapter.value = all.includes(chosen) ? chosen : "";
    }

    private paint(): void {
        const height = this.scroll.clientHeight;
        if (height === 0) return;
        const hadFocus = this.isAway || this.body.contains(document.activeElement);
        const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - SPARE);
        const last = Math.min(this.rows.length, Math.ceil((this.scroll.scrollTop + height) / ROW) + SPARE);
        this.above.style.height = `${first * ROW}px`;
        this.below.style.height = `${(this.rows.length - last) * ROW}px`;
        if (!this.above.isConnected) this.body.append(this.above, this.below);
        for (let place = first; place < last; place += 1) {
            const row = this.pool[place - first] ?? this.make();
            this.write(row, this.rows[place] as Req, place);
            if (!row.element.isConnected) this.below.before(row.element);
        }
        // Those that stay are not touched, so the focus stays, too.
        for (const row of this.pool.slice(Math.max(0, last - first))) row.element.remove();
        if (hadFocus) this.keepFocus();
    }

    private make(): Row {
        const parts = ["slot", "store", "again", "repeated", "new"].map((kind) => el("i", { class: kind }));
        const link = el("button", { type: "button", class: "id" });
        const cells: HTMLElement[] = [el("th", { scope: "row" }, link), ...COLUMNS.slice(1).map(() => el("td"))];
        cells[4]?.append(el("span", { class: "parts", "aria-hidden": "true" }, ...parts), el("span", { class: "unseen" }));
        const row = { element: el("tr", {}, ...cells), cells, parts, link };
        this.pool.push(row);
        return row;
    }

    private write(row: Row, req: Req, place: number): void {
        const { evaluation } = req;
        const { evaluated, prompt_tokens } = evaluation;
        row.element.dataset["place"] = String(place);
        row.element.setAttribute("aria-rowindex", String(place + 2));
        row.element.classList.toggle("chosen", this.model.chosen === req.name);
        const who = called(req.name, evaluation.title);
        text(row.link, who);
        row.link.title = who;
        const store = evaluation.from.store ?? 0;
        const kept = evaluation.reused - store;
        const left = evaluation.diverged;
        const kind = left ? KINDS[kindOf(left)] : null;
        const cells: [number, string][] = [
            [1, clock(req.at)],
            [2, String(req.slot)],
            [3, count(prompt_tokens)],
            [5, evaluated <= 1 ? "–" : (CAUSES.find((cause) => cause.key === req.cause)?.label ?? req.cause)],
            [6, seconds(req.ttft ?? evaluation.seconds)],
            [7, left && kind ? `${name(left.request)} at ${count(left.at)}: ${kind.word}` : ""],
        ];
        for (const [nth, value] of cells) {
            const cell = row.cells[nth];
            if (cell) text(cell, value);
        }
        const differs = row.cells[7];
        if (differs) differs.className = kind ? `ansi-${kind.ansi}` : "";
        row.cells[5]?.classList.toggle("again", req.again > evaluated / 2);
        const unseen = row.cells[4]?.lastElementChild;
        if (unseen) text(unseen, `${count(kept)} reused, ${count(store)} loaded, ${count(evaluated)} evaluated`);
        const shares = [kept, store, req.again, req.repeated, evaluated - req.again - req.repeated];
        row.parts.forEach((part, nth) => {
            part.style.width = `${(100 * (shares[nth] ?? 0)) / this.most}%`;
        });
    }

    private key(event: KeyboardEvent): void {
        if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
        if (!(event.target instanceof Element) || !(this.isAway || event.target.closest("tr[data-place]"))) return;
        event.preventDefault();
        const wanted = this.current + (event.key === "ArrowDown" ? 1 : -1);
        if (wanted < 0 || wanted >= this.rows.length) return;
        this.current = wanted;
        const top = wanted * ROW;
        if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
        else if (top + 3 * ROW > this.scroll.scrollTop + this.scroll.clientHeight) this.scroll.scrollTop = top + 3 * ROW - this.scroll.clientHeight;
        this.paint();
    }

    /** A row's element shows other requests when the table is scrolled, or is taken out. The focus stays with the request. */
    private keepFocus(): void {
        const focused = document.activeElement?.closest<HTMLElement>("tr[data-place]");
        if (focused && Number(focused.dataset["place"]) === this.current) return;
        const link = this.body.querySelector<HTMLElement>(`tr[data-place="${this.current}"] button`);
        (link ?? this.scroll).focus({ preventScroll: true });
        this.isAway = !link;
    }
}

function has(one: Req, key: string): boolean {
    if (key === "again") return one.again > 0;
    if (key === "store") return (one.evaluation.from.store ?? 0) > 0;
    const cause = CAUSES.find((known) => known.key === key);
    const tokens = cause ? cause.of(one.evaluation.causes) : 0;
    return key === "last_token" ? one.cause === key : tokens > 0;
}
