import { button, el, fill, text } from "../dom";
import { count, name, plural, short } from "../format";
import { layout, type Layout, type Sums, sums, ticks } from "../layout";
import type { Model } from "../model";
import type { Branch, Name } from "../types";
import type { View } from "./view";

/** So many bars are drawn at most: what is held, then the largest. */
const MOST_BARS = 350;
const ROW = 24;
const AXIS = 26;

type Where = "slot" | "host" | "lost";

/** The cache as the tree that it is. */
export class TreeView implements View {
    readonly id = "tree";
    readonly label = "Tree";

    private readonly plot = el("div", { class: "plot", role: "tree", "aria-label": "Prefixes. Arrow keys move, Enter shows what ends there, Z zooms in, Escape zooms out" });
    private readonly axis = el("div", { class: "axis", "aria-hidden": "true" });
    private readonly path = el("nav", { class: "path", "aria-label": "Zoom" });
    private readonly note = el("p", { class: "note" });
    private readonly search = el("input", { type: "search", placeholder: "Find a request's id", "aria-label": "Find a request's id", autocomplete: "off", spellcheck: "false" });
    private readonly pool: HTMLElement[] = [];
    private branches: Branch[] = [];
    private of: Sums = sums([]);
    private at: Layout = { bars: [], rows: 0, from: 0, to: 1 };
    private root: number | null = null;
    /** What the branch is that was zoomed into: numbers change from answer to answer. */
    private rootIs: string | null = null;
    private drawn = { tree: null as unknown, width: 0, root: null as unknown, query: "", chosen: null as Name | null, sleeps: false };
    private focused = 0;

    constructor(
        host: HTMLElement,
        private readonly model: Model,
    ) {
        const isRecording = model.report?.kind === "recording";
        const colours: [Where, string][] = isRecording
            ? [
                  ["slot", "in a slot at the end"],
                  ["lost", "in no slot"],
              ]
            : [
                  ["slot", "in a slot"],
                  ["host", "in the host cache"],
                  ["lost", "just lost"],
              ];
        const legend = el(
            "ul",
            { class: "legend", "aria-label": "Colours" },
            ...colours.map(([where, label]) => el("li", {}, el("i", { class: `swatch ${where}`, "aria-hidden": "true" }), label)),
        );
        host.append(
            el("div", { class: "bar" }, el("h2", {}, "What is cached"), this.search, legend),
            this.path,
            this.note,
            el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Prefixes, left to right by token" }, this.axis, this.plot),
        );
        this.search.addEventListener("input", () => this.model.changed());
        this.search.addEventListener("keydown", (event) => {
            if (event.key === "Enter") this.reveal(this.search.value);
        });
        this.plot.addEventListener("click", (event) => this.click(event));
        this.plot.addEventListener("dblclick", (event) => this.zoom(this.placeOf(event.target)));
        this.plot.addEventListener("keydown", (event) => this.key(event));
        new ResizeObserver(() => this.model.changed()).observe(this.plot);
    }

    reveal(wanted: Name): void {
        const found = this.branches.findIndex((one) => one.requests.includes(wanted));
        if (found >= 0) {
            this.model.choose(wanted);
            this.zoom(this.branches[found]?.parent ?? null);
        } else if (wanted !== "") {
            this.model.choose(wanted);
        }
    }

    draw(): void {
        const { tree, chosen } = this.model;
        const width = this.plot.clientWidth;
        const query = this.search.value.trim();
        const sleeps = this.model.stats?.model_state === "asleep";
        const now = { tree, width, root: this.root, query, chosen, sleeps };
        if (Object.entries(now).every(([key, value]) => this.drawn[key as keyof typeof now] === value)) return;
        const isNew = tree !== this.drawn.tree;
        this.drawn = now;
        if (isNew) {
            this.branches = tree?.branches ?? [];
            this.of = sums(this.branches);
            if (this.rootIs !== null) {
                const found = this.branches.findIndex((one) => same(one) === this.rootIs);
                this.root = found >= 0 ? found : null;
                this.rootIs = found >= 0 ? this.rootIs : null;
                this.drawn.root = this.root;
            }
        }
        const hits = new Set<number>();
        const matching = query === "" ? null : (one: Branch) => one.requests.some((request) => name(request).toLowerCase().includes(query.toLowerCase()));
        if (matching || chosen !== null) {
            this.branches.forEach((one, place) => {
                const hit = matching?.(one) || (chosen !== null && one.requests.includes(chosen));
                for (let at: number | null = hit ? place : null; at !== null && !hits.has(at); at = this.branches[at]?.parent ?? null) hits.add(at);
            });
        }
        this.at = layout(this.branches, this.of, this.root, MOST_BARS, hits);
        this.paint(width, matching);
        this.tellPath();
        this.tellNote(tree !== null, sleeps);
    }

    private paint(width: number, matching: ((one: Branch) => boolean) | null): void {
        const { bars, rows, from, to } = this.at;
        const labels = width < 520 ? 0 : Math.min(220, width * 0.16);
        const scale = (Math.max(1, width - labels) - 2) / Math.max(1, to - from);
        const keep = document.activeElement && this.plot.contains(document.activeElement);
        this.plot.style.height = `${Math.max(rows, 1) * ROW}px`;
        bars.forEach((bar, nth) => {
            const branch = this.branches[bar.branch];
            if (!branch) return;
            const element = this.pool[nth] ?? this.make();
            if (!element.isConnected) this.plot.append(element);
            const where = place(branch);
            const own = Math.max(2, (branch.to - branch.from) * scale - 1);
            const left = (branch.from - from) * scale;
            const isLeaf = (bars[nth + 1]?.depth ?? 0) <= bar.depth;
            element.className = `bar-of ${where}`;
            element.classList.toggle("hit", matching?.(branch) ?? false);
            element.classList.toggle("faded", matching !== null && !matching(branch));
            element.classList.toggle("chosen", this.model.chosen !== null && branch.requests.includes(this.model.chosen));
            element.style.transform = `translate(${left}px, ${bar.row * ROW}px)`;
            element.style.width = `${own}px`;
            element.style.height = `${bar.rows * ROW - 2}px`;
            element.dataset["branch"] = String(bar.branch);
            element.dataset["nth"] = String(nth);
            const [inside, beside, whole] = element.children;
            const tokens = short(branch.to - branch.from);
            const names = said(branch, bar.hidden, bar.hiddenTokens);
            const fits = own >= (names.length + tokens.length) * 6.6 + 16;
            const outer = isLeaf && names !== "" && !fits;
            if (inside) text(inside, own < tokens.length * 7 + 8 ? "" : names === "" || !fits ? tokens : `${tokens}  ${names}`);
            if (beside) {
                text(beside, outer && labels > 0 ? names : "");
                (beside as HTMLElement).style.left = `${own + 4}px`;
            }
            element.setAttribute("aria-level", String(bar.depth));
            element.setAttribute("aria-posinset", String(bar.nth));
            element.setAttribute("aria-setsize", String(bar.siblings));
            const description = describe(branch, bar.hidden, bar.hiddenTokens, this.model.report?.kind === "recording" ? "in no slot" : "lost");
            if (whole) text(whole, description);
            element.title = description;
            element.tabIndex = nth === this.focused ? 0 : -1;
        });
        for (const element of this.pool.slice(bars.length)) element.remove();
        if (this.focused >= bars.length) {
            this.focused = 0;
            const first = this.pool[0];
            if (first) first.tabIndex = 0;
            if (keep) first?.focus();
        }
        this.axis.replaceChildren(
            ...ticks(from, to, Math.max(2, (width - labels) / 90)).map((at) => {
                const tick = el("span", {}, short(at));
                tick.style.left = `${(at - from) * scale}px`;
                return tick;
            }),
        );
        this.axis.style.height = `${AXIS}px`;
    }

    private make(): HTMLElement {
        const element = el("div", { role: "treeitem", tabindex: -1 }, el("span", { class: "in", "aria-hidden": "true" }), el("span", { class: "out", "aria-hidden": "true" }), el("span", { class: "unseen" }));
        this.pool.push(element);
        return element;
    }

    private placeOf(target: EventTarget | null): number | null {
        const bar = target instanceof Element ? target.closest<HTMLElement>("[data-branch]") : null;
        return bar ? Number(bar.dataset["branch"]) : null;
    }

    private click(event: MouseEvent): void {
        const place = this.placeOf(event.target);
        if (place === null) return;
        this.focus(this.at.bars.findIndex((bar) => bar.branch === place));
        this.show(place);
    }

    private show(place: number): void {
        const branch = this.branches[place];
        if (!branch) return;
        // The requests that end here; else those that end nearest behind.
        for (let waiting = [place]; waiting.length > 0; ) {
            const here = waiting.shift() as number;
            const ends = this.branches[here]?.requests.at(-1);
            if (ends !== undefined) return this.model.choose(ends);
            waiting.push(...(this.of.children[here] ?? []));
        }
    }

    private zoom(place: number | null): void {
        const branch = place === null ? undefined : this.branches[place];
        this.root = branch ? place : null;
        this.rootIs = branch ? same(branch) : null;
        this.focused = 0;
        this.model.changed();
    }

    private focus(nth: number): void {
        if (nth < 0 || nth >= this.at.bars.length) return;
        const before = this.pool[this.focused];
        if (before) before.tabIndex = -1;
        this.focused = nth;
        const element = this.pool[nth];
        if (!element) return;
        element.tabIndex = 0;
        element.focus({ preventScroll: false });
    }

    private key(event: KeyboardEvent): void {
        const { bars } = this.at;
        const here = bars[this.focused];
        if (!here || event.ctrlKey || event.metaKey || event.altKey) return;
        const depth = here.depth;
        let to = -1;
        if (event.key === "ArrowDown") to = this.focused + 1;
        else if (event.key === "ArrowUp") to = this.focused - 1;
        else if (event.key === "ArrowRight") to = (bars[this.focused + 1]?.depth ?? 0) > depth ? this.focused + 1 : -1;
        else if (event.key === "ArrowLeft") to = bars.findLastIndex((bar, nth) => nth < this.focused && bar.depth < depth);
        else if (event.key === "Home") to = 0;
        else if (event.key === "End") to = bars.length - 1;
        else if (event.key === "Enter" || event.key === " ") this.show(here.branch);
        else if (event.key === "z" || event.key === "Z") this.zoom(here.branch);
        else if (event.key === "Escape") this.zoom(this.root === null ? null : (this.branches[this.root]?.parent ?? null));
        else return;
        event.preventDefault();
        this.focus(to);
    }

    private tellPath(): void {
        const steps: number[] = [];
        for (let at = this.root; at !== null; at = this.branches[at]?.parent ?? null) steps.unshift(at);
        this.path.hidden = steps.length === 0;
        if (steps.length === 0) return;
        const step = (label: string, place: number | null) => button(label, () => this.zoom(place));
        fill(
            this.path,
            step("everything", null),
            ...steps.flatMap((place) => {
                const branch = this.branches[place];
                return branch ? ["›", step(`${short(branch.from)}–${short(branch.to)}`, place)] : [];
            }),
        );
    }

    private tellNote(known: boolean, sleeps: boolean): void {
        const { bars } = this.at;
        const hidden = bars.reduce((sum, bar) => sum + bar.hidden, 0);
        const merged = this.branches.reduce((sum, one) => sum + one.merged.branches, 0);
        const held = this.model.tree?.resident ?? 0;
        const asked = this.model.report ? "A recording has no host cache: what no slot held at its end may have been there. " : "";
        const parts = !known
            ? [this.model.report ? "This report has no tree: the log file does not say what prompts have in common." : "Asking for the tree…"]
            : this.branches.length === 0
              ? [sleeps ? "The server sleeps, and holds nothing: the next prompt wakes it." : "Nothing is cached yet. Send the server a prompt."]
              : [
                    `${plural(held, "distinct token")} ${this.model.report ? "in slots at the end" : sleeps ? "held: the server sleeps, and the next prompt wakes it" : "held"}. `,
                    this.model.report?.kind === "recording" ? asked : "",
                    hidden + merged > 0 ? `${plural(hidden + merged, "small branch", "small branches")} not drawn: double-click (or Z) zooms in. ` : "",
                ];
        text(this.note, parts.join(""));
    }
}

function place(branch: Branch): Where {
    if (branch.slots.length > 0) return "slot";
    return branch.host > 0 ? "host" : "lost";
}

function same(branch: Branch): string {
    return `${branch.from}-${branch.requests.join()}-${branch.parent}`;
}

function said(branch: Branch, hidden: number, hiddenTokens: number): string {
    const last = branch.requests.slice(-3).map(name);
    const more = branch.requests_total - last.length;
    // An id that a client sends again and again stands there once.
    const shown = [...new Set(last.reverse())];
    const parts = [shown.join(", ")];
    if (more > 0 && shown.length > 0) parts.push(`+${more}`);
    const left = hidden + branch.merged.branches;
    if (left > 0) parts.push(`· ${left} more (${short(hiddenTokens + branch.merged.tokens)})`);
    return parts.filter((part) => part !== "").join(" ");
}

function describe(branch: Branch, hidden: number, hiddenTokens: number, isLost: string): string {
    const where: string[] = [];
    if (branch.slots.length > 0) where.push(`in ${branch.slots.length === 1 ? "slot" : "slots"} ${branch.slots.join(", ")}`);
    if (branch.host > 0) where.push(`in ${plural(branch.host, "host entry", "host entries")}`);
    if (where.length === 0) where.push(isLost);
    const ends = branch.requests_total > 0 ? `; ${plural(branch.requests_total, "request")} ${branch.requests_total === 1 ? "ends" : "end"} here: ${branch.requests.slice(-5).map(name).join(", ")}` : "";
    const left = hidden + branch.merged.branches;
    const behind = left > 0 ? `; ${plural(left, "branch", "branches")} behind it with ${count(hiddenTokens + branch.merged.tokens)} tokens not drawn` : "";
    return `tokens ${count(branch.from)} to ${count(branch.to)}, ${where.join(" and ")}${ends}${behind}`;
}
