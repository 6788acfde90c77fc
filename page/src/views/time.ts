import { evicted, reason } from "../causes";
import { button, el, fill, text } from "../dom";
import { called, clock, count, name, plural, seconds, title, zone } from "../format";
import type { Model, Req } from "../model";
import { soFar } from "../sentence";
import type { Name, Slot } from "../types";
import type { View } from "./view";

const LANE = 34;
const TOP = 24;
/** The line of names at the left. */
const NAMES = 54;
/** So many lines are in the list below at most. */
const MOST_LINES = 120;
const SPANS: [string, number][] = [
    ["1 min", 60_000],
    ["5 min", 300_000],
    ["1 h", 3_600_000],
    ["all", 0],
];

interface Hit {
    x: number;
    y: number;
    w: number;
    h: number;
    name: Name | null;
    label: string;
}

interface Happening {
    at: number;
    lane: string;
    kind: "evicted" | "host" | "loaded";
    who: Name | null;
    label: string;
    by: Name | null;
}

/** A lane for each slot, one for the host cache and one for the store. */
export class TimeView implements View {
    readonly id = "time";
    readonly label = "Time";

    private readonly canvas = el("canvas", { tabindex: 0, role: "img" });
    private readonly holder = el("div", { class: "lanes" });
    private readonly tip = el("div", { class: "tip", hidden: true });
    private readonly range = el("div", { class: "range", hidden: true });
    private readonly spans: HTMLButtonElement[];
    private readonly note = el("span", { class: "note" });
    private readonly list = el("ol", { class: "happenings" });
    /** Said if nothing happened in the time that is shown. */
    private readonly quiet = el("p", { class: "note quiet-time", hidden: true });
    /** The first requests have been seen, and the time that is shown was chosen. */
    private opened = false;
    private span = 60_000;
    /** The end of what is shown; `null`: now. */
    private end: number | null = null;
    private hits: Hit[] = [];
    private dragged: { from: number; to: number } | null = null;
    private colours: Record<string, string> = {};
    private listed = "";

    constructor(
        host: HTMLElement,
        private readonly model: Model,
        private readonly redraw: () => void,
    ) {
        this.spans = SPANS.map(([label, span]) =>
            button(label, () => {
                this.span = span;
                this.end = null;
                this.redraw();
            }),
        );
        if (model.report) this.span = 0;
        const steps: [string, string, () => void][] = [
            ["‹", "Earlier", () => this.pan(-0.5)],
            ["›", "Later", () => this.pan(0.5)],
            ["+", "Zoom in", () => this.zoom(0.5)],
            ["−", "Zoom out", () => this.zoom(2)],
        ];
        this.holder.append(this.canvas, this.range, this.tip);
        host.append(
            el("div", { class: "bar" }, el("h2", {}, "Who did what"), el("div", { class: "group", role: "group", "aria-label": "Time shown" }, ...this.spans), el("div", { class: "group", role: "group", "aria-label": "Move" }, ...steps.map(([label, hint, run]) => button(label, run, { "aria-label": hint, title: hint }))), this.note),
            this.holder,
            this.quiet,
            el(
                "ul",
                { class: "legend", "aria-label": "Colours" },
                ...[
                    ["new", "evaluates"],
                    ["again", "evaluates again what was cached"],
                    ["repeated", "evaluates what was sent before, behind something else"],
                    ["slot", "reused, or loaded"],
                    ["generates", "generates"],
                    ["evicted", "pushed out"],
                ].map(([kind, label]) => el("li", {}, el("i", { class: `swatch ${kind}`, "aria-hidden": "true" }), label ?? "")),
            ),
            el("h3", {}, "What happened in this time"),
            el("div", { class: "scroll list", tabindex: 0, role: "group", "aria-label": "What happened in this time" }, this.list),
        );
        this.canvas.addEventListener("pointerdown", (event) => this.down(event));
        this.canvas.addEventListener("pointermove", (event) => this.move(event));
        this.canvas.addEventListener("pointerup", (event) => this.up(event));
        this.canvas.addEventListener("pointerleave", () => {
            this.tip.hidden = true;
        });
        this.canvas.addEventListener("keydown", (event) => this.key(event));
        this.canvas.addEventListener(
            "wheel",
            (event) => {
                if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
                event.preventDefault();
                if (event.ctrlKey) this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event.offsetX));
                else this.pan(event.deltaX / this.canvas.clientWidth);
            },
            { passive: false },
        );
        new ResizeObserver(() => this.redraw()).observe(this.holder);
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
            this.colours = {};
            this.redraw();
        });
    }

    /** The time that is shown. */
    window(): [number, number] {
        const { requests, changes, stats, report } = this.model;
        const first = Math.min(requests[0]?.launched ?? Number.POSITIVE_INFINITY, changes[0]?.ms ?? Number.POSITIVE_INFINITY);
        const last = requests.reduce((most, one) => Math.max(most, one.ended ?? one.at), 0);
        const now = report ? last + 1 : stats?.at ? Date.parse(stats.at) : Date.now();
        const end = this.end ?? now;
        if (this.span > 0) return [end - this.span, end];
        const from = Number.isFinite(first) ? first : end - 60_000;
        return [report?.relative ? Math.max(0, from - (end - from) * 0.01) : from - (end - from) * 0.01, end + (end - from) * 0.01];
    }

    /** Opens with the shortest time up to now in which something happened. */
    private open(): void {
        const last = this.last();
        if (this.opened || last === null) return;
        this.opened = true;
        if (this.model.report || this.end !== null || this.span !== SPANS[0]?.[1]) return;
        const [, now] = this.window();
        const [, span] = SPANS.find(([, span]) => now - last < span) ?? ["all", 0];
        this.span = span;
    }

    /** When something happened last. */
    private last(): number | null {
        const { requests, changes } = this.model;
        const last = requests.slice(-100).reduce((most, one) => Math.max(most, one.ended ?? one.at), changes.at(-1)?.ms ?? 0);
        return last > 0 ? last : null;
    }

    /** Where lanes are empty, says so, and when there was something. */
    private hint(isEmpty: boolean): void {
        const last = this.last();
        const isWorking = !this.model.report && this.end === null && (this.model.stats?.slots ?? []).some((slot) => slot.busy);
        this.quiet.hidden = !isEmpty || isWorking;
        if (this.quiet.hidden) return;
        const isLoading = this.model.stats?.model_state === "loading";
        const says = last === null ? `No prompt was evaluated yet${isLoading ? ": llama-server is still loading its model" : ""}.` : `Nothing happened in this time. The last was at ${clock(last)}.`;
        if (this.quiet.dataset["says"] === says) return;
        this.quiet.dataset["says"] = says;
        const show = () => {
            if (last === null) return;
            if (this.span === 0) this.span = 60_000;
            this.end = last + this.span / 4;
            this.redraw();
        };
        fill(this.quiet, says, ...(last === null ? [] : [" ", button("Show it", show, { class: "link" })]));
    }

    draw(): void {
        this.open();
        const [from, to] = this.window();
        const lanes = this.lanes();
        const width = this.holder.clientWidth;
        if (width === 0) return;
        const height = TOP + lanes.length * LANE + 4;
        const ratio = devicePixelRatio || 1;
        if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
            this.canvas.width = Math.round(width * ratio);
            this.canvas.height = Math.round(height * ratio);
            this.canvas.style.height = `${height}px`;
        }
        const pen = this.canvas.getContext("2d");
        if (!pen) return;
        if (Object.keys(this.colours).length === 0) this.readColours();
        pen.setTransform(ratio, 0, 0, ratio, 0, 0);
        pen.clearRect(0, 0, width, height);
        const happened = this.happenings(from, to);
        this.hits = [];
        this.paintAxis(pen, from, to, width, height);
        this.paintLanes(pen, lanes, width);
        const seen = this.paintRequests(pen, lanes, from, to, width);
        this.paintHappenings(pen, lanes, happened, from, to, width);
        this.tell(from, to, seen, happened);
    }

    /** The colours of the style sheet, as they are now: a canvas knows no variables. */
    private readColours(): void {
        const probe = el("i", { hidden: true });
        this.holder.append(probe);
        for (const key of ["ink", "quiet", "line", "slot", "store", "again", "repeated", "new", "generates", "evicted"]) {
            probe.style.color = `var(--${key})`;
            this.colours[key] = getComputedStyle(probe).color;
        }
        probe.remove();
        this.colours["font"] = getComputedStyle(this.holder).fontFamily;
    }

    private lanes(): string[] {
        const slots = new Set<number>(this.model.stats?.slots?.map((slot) => slot.slot));
        for (const one of this.model.requests) slots.add(one.slot);
        const lanes = [...slots].sort((a, b) => a - b).map((slot) => `slot ${slot}`);
        const { report } = this.model;
        if (!report || report.kind === "server") lanes.push("host");
        if (this.model.stats?.store || this.model.requests.some((one) => (one.evaluation.from.store ?? 0) > 0)) lanes.push("store");
        return lanes;
    }

    private x(at: number, from: number, to: number, width: number): number {
        return NAMES + ((at - from) / (to - from)) * (width - NAMES - 2);
    }

    private timeAt(x: number): number {
        const [from, to] = this.window();
        return from + ((x - NAMES) / Math.max(1, this.canvas.clientWidth - NAMES - 2)) * (to - from);
    }

    private paintAxis(pen: CanvasRenderingContext2D, from: number, to: number, width: number, height: number): void {
        pen.font = `11px ${this.colours["font"]}`;
        pen.textBaseline = "middle";
        pen.lineWidth = 1;
        const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400].map((step) => step * 1000);
        const fine = [1, 2, 5, 10, 20, 50, 100, 200, 500];
        const wanted = (to - from) / Math.max(1, (width - NAMES) / 90);
        const step = [...fine, ...steps].find((one) => one >= wanted) ?? 86_400_000;
        const shift = zone(from);
        for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) {
            const x = Math.round(this.x(at, from, to, width)) + 0.5;
            pen.strokeStyle = this.colours["line"] ?? "";
            pen.beginPath();
            pen.moveTo(x, TOP - 4);
            pen.lineTo(x, height);
            pen.stroke();
            pen.fillStyle = this.colours["quiet"] ?? "";
            const label = step < 1000 ? clock(at, true).slice(-6) : step >= 60_000 ? clock(at).slice(0, -3) : clock(at);
            pen.textAlign = x > width - 30 ? "right" : "center";
            pen.fillText(label, Math.min(x, width - 2), TOP / 2);
        }
    }

    private paintLanes(pen: CanvasRenderingContext2D, lanes: string[], width: number): void {
        pen.textAlign = "left";
        lanes.forEach((lane, nth) => {
            const y = TOP + nth * LANE;
            pen.fillStyle = this.colours["quiet"] ?? "";
            pen.fillText(lane, 0, y + LANE / 2);
            pen.fillStyle = this.colours["line"] ?? "";
            pen.fillRect(NAMES, y + LANE - 1, width - NAMES, 1);
        });
    }

    private paintRequests(pen: CanvasRenderingContext2D, lanes: string[], from: number, to: number, width: number): Req[] {
        const seen: Req[] = [];
        const place = new Map(lanes.map((lane, nth) => [lane, TOP + nth * LANE]));
        const now = this.model.report ? to : to;
        for (const one of this.model.requests) {
            const over = one.ended ?? one.at;
            if (over < from || one.launched > to) continue;
            seen.push(one);
            const y = place.get(`slot ${one.slot}`);
            if (y === undefined) continue;
            const [x0, x1, x2] = [one.launched, one.at, Math.min(over, now)].map((at) => Math.max(NAMES, Math.min(width, this.x(at, from, to, width)))) as [number, number, number];
            const { reused, evaluated, prompt_tokens } = one.evaluation;
            const wide = Math.max(1, x1 - x0);
            if (x2 > x1) {
                pen.fillStyle = this.colours["generates"] ?? "";
                pen.fillRect(x1, y + 14, x2 - x1, LANE - 21);
            }
            // The evaluation: how much of the prompt it was shows as height.
            const height = LANE - 11;
            const kept = prompt_tokens > 0 ? (reused / prompt_tokens) * height : 0;
            const twice = evaluated > 0 ? ((height - kept) * one.again) / evaluated : 0;
            const repeated = evaluated > 0 ? ((height - kept) * one.repeated) / evaluated : 0;
            let bottom = y + 4 + height;
            for (const [kind, part] of [["slot", kept], ["again", twice], ["repeated", repeated], ["new", height - kept - twice - repeated]] as const) {
                bottom -= part;
                pen.fillStyle = this.colours[kind] ?? "";
                pen.fillRect(x0, bottom, wide, part);
            }
            const chosen = this.model.chosen === one.name;
            if (chosen) {
                pen.strokeStyle = this.colours["ink"] ?? "";
                pen.lineWidth = 1.5;
                pen.strokeRect(x0 - 1, y + 3, Math.max(3, x2 - x0 + 2), height + 2);
            }
            this.hits.push({ x: x0, y, w: Math.max(4, x2 - x0), h: LANE, name: one.name, label: saysRequest(one) });
            const label = name(one.name);
            if (x2 - x0 > 60 && x2 - x1 > label.length * 6.2) {
                pen.fillStyle = this.colours["ink"] ?? "";
                pen.fillText(label, x1 + 3, y + 9);
            }
        }
        this.paintBusy(pen, place, from, to, width);
        return seen;
    }

    /** Slots that are at work now: their requests are not among the last ones yet. */
    private paintBusy(pen: CanvasRenderingContext2D, place: Map<string, number>, from: number, to: number, width: number): void {
        if (this.model.report) return;
        for (const slot of this.model.stats?.slots ?? []) {
            const y = place.get(`slot ${slot.slot}`);
            if (!slot.busy || !slot.last_launch || y === undefined) continue;
            const since = Date.parse(slot.last_launch);
            const known = this.model.requests.findLast((one) => one.slot === slot.slot);
            const begun = known && known.ended === null && Math.abs(known.launched - since) < 2000 ? known.at : since;
            const x0 = Math.max(NAMES, this.x(begun, from, to, width));
            if (x0 >= width) continue;
            pen.save();
            pen.globalAlpha = 0.5;
            pen.fillStyle = this.colours[begun === since ? "new" : "generates"] ?? "";
            pen.fillRect(x0, y + 14, width - x0, LANE - 21);
            pen.restore();
            this.hits.push({ x: x0, y, w: width - x0, h: LANE, name: slot.last_request, label: saysWork(slot) });
        }
    }

    private happenings(from: number, to: number): Happening[] {
        const all: Happening[] = [];
        for (const one of this.model.changes) {
            if (one.ms < from || one.ms > to) continue;
            const at = one.ms;
            if (one.change === "evicted") {
                const lane = one.from?.place === "slot" ? `slot ${one.from.slot}` : "host";
                const by = one.by ?? null;
                all.push({ at, lane, kind: "evicted", who: one.id ?? null, by, label: `${one.id} fell out: ${evicted(one.reason ?? "")}${by ? ` by ${by}` : ""}` });
            } else if (one.change === "replaced") {
                all.push({ at, lane: `slot ${one.slot}`, kind: "evicted", who: number(one.id), by: number(one.by), label: `${one.by} took the place of ${plural(one.tokens ?? 0, "token")} of ${one.id} in slot ${one.slot}` });
            } else if (one.change === "moved_to_host") {
                all.push({ at, lane: "host", kind: "host", who: one.ids?.at(-1) ?? null, by: null, label: `slot ${one.slot}: ${plural(one.tokens ?? 0, "token")} saved to the host cache` });
            } else if (one.change === "restored") {
                all.push({ at, lane: "host", kind: "loaded", who: one.ids?.at(-1) ?? null, by: null, label: `${plural(one.tokens ?? 0, "token")} loaded from the host cache into slot ${one.slot}` });
            }
        }
        for (const one of this.model.requests) {
            const loaded = one.evaluation.from.store ?? 0;
            if (loaded > 0 && one.at >= from && one.at <= to) {
                all.push({ at: one.at, lane: "store", kind: "loaded", who: one.name, by: null, label: `${name(one.name)}: ${plural(loaded, "token")} loaded from the store into slot ${one.slot}` });
            }
            const { lost } = one.evaluation;
            // Without ids there are no events. An account says what was lost to whom.
            if (lost && one.at >= from && one.at <= to && (typeof lost.by === "number" || this.model.changes.length === 0)) {
                all.push({ at: Date.parse(lost.when), lane: `slot ${one.slot}`, kind: "evicted", who: one.name, by: lost.by, label: `${plural(lost.tokens, "token")} of ${name(one.name)} had been lost: ${reason(lost.reason)}${lost.by === null ? "" : ` by ${name(lost.by)}`}` });
            }
        }
        return all.sort((a, b) => a.at - b.at);
    }

    private paintHappenings(pen: CanvasRenderingContext2D, lanes: string[], all: Happening[], from: number, to: number, width: number): void {
        const place = new Map(lanes.map((lane, nth) => [lane, TOP + nth * LANE]));
        const drawn = new Set<string>();
        for (const one of all) {
            const y = place.get(one.lane);
            if (y === undefined) continue;
            const x = Math.round(this.x(one.at, from, to, width));
            const key = `${one.lane} ${x} ${one.kind}`;
            this.hits.push({ x: x - 3, y, w: 7, h: LANE, name: one.who, label: `${clock(one.at, true)} ${one.label}` });
            if (drawn.has(key)) continue;
            drawn.add(key);
            pen.fillStyle = this.colours[one.kind === "evicted" ? "evicted" : "slot"] ?? "";
            pen.beginPath();
            if (one.kind === "evicted") {
                pen.moveTo(x - 4, y + LANE - 2);
                pen.lineTo(x + 4, y + LANE - 2);
                pen.lineTo(x, y + LANE - 9);
            } else if (one.kind === "host") {
                pen.moveTo(x - 4, y + 12);
                pen.lineTo(x + 4, y + 12);
                pen.lineTo(x, y + 20);
            } else {
                pen.moveTo(x - 4, y + 20);
                pen.lineTo(x + 4, y + 20);
                pen.lineTo(x, y + 12);
            }
            pen.fill();
        }
    }

    private tell(from: number, to: number, seen: Req[], happened: Happening[]): void {
        const live = this.end === null && !this.model.paused && !this.model.report;
        this.spans.forEach((one, nth) => one.setAttribute("aria-pressed", String(SPANS[nth]?.[1] === this.span && this.end === null)));
        this.hint(seen.length === 0 && happened.length === 0);
        const evaluated = seen.reduce((sum, one) => sum + one.evaluation.evaluated, 0);
        const evictions = happened.filter((one) => one.kind === "evicted");
        const evicted = evictions.length;
        // Events come from the moment on at which this page asked for them; requests, also those before.
        const { since, report } = this.model;
        const heard = report || from >= since || evictions.some((one) => one.at < since) ? "" : ` since ${clock(since)}`;
        const about = `${plural(seen.length, "request")}, ${plural(evaluated, "token")} evaluated, ${plural(evicted, this.model.report?.kind === "recording" ? "replacement" : "eviction")}${heard}`;
        text(this.note, `${live ? "live · " : ""}${clock(from)}–${clock(to)} · ${about}`);
        this.canvas.setAttribute("aria-label", `A lane for each slot, from ${clock(from)} to ${clock(to)}: ${about}. Arrow keys move, plus and minus zoom. The list below says the same.`);
        const lines = [
            ...happened.map((one) => ({ at: one.at, who: one.who, label: one.label, kind: one.kind as string })),
            ...seen.map((one) => ({ at: one.at, who: one.name as Name | null, label: saysRequest(one), kind: one.again > one.evaluation.evaluated / 2 ? "again" : one.repeated > one.evaluation.evaluated / 2 ? "repeated" : "new" })),
        ]
            .sort((a, b) => b.at - a.at)
            .slice(0, MOST_LINES);
        const listed = lines.map((line) => `${line.at}${line.label}`).join("\n");
        if (listed === this.listed || this.list.matches(":hover, :focus-within")) return;
        this.listed = listed;
        fill(
            this.list,
            ...lines.map((line) => {
                const what = line.who === null ? line.label : button(line.label, () => this.model.choose(line.who), { class: "link" });
                return el("li", {}, el("time", {}, clock(line.at, true)), el("i", { class: `swatch ${line.kind}`, "aria-hidden": "true" }), what);
            }),
        );
    }

    private pan(share: number): void {
        const [from, to] = this.window();
        const span = to - from;
        this.span = span;
        const end = to + span * share;
        const now = this.model.report ? Number.POSITIVE_INFINITY : Date.now();
        this.end = end >= now ? null : end;
        this.redraw();
    }

    private zoom(by: number, around?: number): void {
        const [from, to] = this.window();
        const span = Math.max(20, (to - from) * by);
        const live = this.end === null && around === undefined && !this.model.report;
        const middle = around ?? (from + to) / 2;
        this.end = live ? null : middle + ((to - middle) / (to - from)) * span;
        this.span = span;
        this.redraw();
    }

    private down(event: PointerEvent): void {
        if (event.button !== 0 || event.offsetX < NAMES) return;
        this.canvas.setPointerCapture(event.pointerId);
        this.dragged = { from: event.offsetX, to: event.offsetX };
    }

    private move(event: PointerEvent): void {
        if (this.dragged) {
            this.dragged.to = Math.max(NAMES, event.offsetX);
            const [a, b] = [this.dragged.from, this.dragged.to].sort((one, other) => one - other) as [number, number];
            this.range.hidden = b - a < 4;
            this.range.style.left = `${a}px`;
            this.range.style.width = `${b - a}px`;
            return;
        }
        const hit = this.hit(event);
        this.tip.hidden = !hit;
        this.canvas.classList.toggle("hits", hit !== undefined);
        if (!hit) return;
        text(this.tip, hit.label);
        const left = Math.min(event.offsetX + 12, this.holder.clientWidth - Math.min(320, this.tip.offsetWidth) - 4);
        this.tip.style.left = `${Math.max(0, left)}px`;
        this.tip.style.top = `${event.offsetY + 16}px`;
    }

    private up(event: PointerEvent): void {
        const dragged = this.dragged;
        this.dragged = null;
        this.range.hidden = true;
        if (!dragged) return;
        const [a, b] = [dragged.from, dragged.to].sort((one, other) => one - other) as [number, number];
        if (b - a >= 4) {
            const [from, to] = [this.timeAt(a), this.timeAt(b)];
            this.span = Math.max(20, to - from);
            this.end = to;
            this.redraw();
            return;
        }
        const hit = this.hit(event);
        if (hit && hit.name !== null) this.model.choose(hit.name);
    }

    private hit(event: PointerEvent): Hit | undefined {
        const { offsetX: x, offsetY: y } = event;
        return this.hits.findLast((one) => x >= one.x && x <= one.x + one.w && y >= one.y && y < one.y + one.h);
    }

    private key(event: KeyboardEvent): void {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const keys: Record<string, () => void> = {
            ArrowLeft: () => this.pan(-0.25),
            ArrowRight: () => this.pan(0.25),
            "+": () => this.zoom(0.5),
            "=": () => this.zoom(0.5),
            "-": () => this.zoom(2),
            End: () => {
                this.end = null;
                this.redraw();
            },
        };
        const run = keys[event.key];
        if (!run) return;
        event.preventDefault();
        run();
    }
}

function saysRequest(one: Req): string {
    const { reused, evaluated, seconds: took } = one.evaluation;
    const twice = one.again > 0 ? `, ${count(one.again)} of them again` : "";
    const behind = one.repeated > 0 ? `, ${count(one.repeated)} of them sent before behind something else` : "";
    const long = took === null ? "" : ` in ${seconds(took)}`;
    return `${called(one.name, one.evaluation.title)}: ${count(reused)} reused, ${count(evaluated)} evaluated${twice}${behind}${long}, slot ${one.slot}`;
}

/** Of a request that is named by its number. */
function saysWork(slot: Slot): string {
    const who = slot.last_request ?? (slot.prompt && slot.prompt.number > 0 ? `#${slot.prompt.number}` : "a request");
    const far = slot.prompt ? `: ${soFar(slot.prompt)}` : "";
    return `${who}${slot.last_title ? ` ${title(slot.last_title)}` : ""} is at work in slot ${slot.slot}${far}`;
}

function number(of: string | null | undefined): Name | null {
    return of ? Number(of.slice(1)) : null;
}
