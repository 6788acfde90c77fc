// Where the branches of the tree stand: x is the position of tokens, y are rows. A branch is as high as all that
// follows it.

import type { Branch } from "./types";

export interface Bar {
    /** Index into the branches. */
    branch: number;
    depth: number;
    row: number;
    rows: number;
    /** Branches behind this one that are not drawn. */
    hidden: number;
    hiddenTokens: number;
    /** Among the bars that follow the same one: its place, and how many these are. */
    nth: number;
    siblings: number;
}

export interface Layout {
    bars: Bar[];
    rows: number;
    /** The first and the last position that is drawn. */
    from: number;
    to: number;
}

export interface Sums {
    /** Tokens of a branch and all that follow it. */
    tokens: number[];
    /** Those of them that a slot or the host cache holds. */
    held: number[];
    /** The largest position in these. */
    to: number[];
    children: number[][];
    roots: number[];
}

/** Sums over each branch and all that follow it. A branch comes after the one that it follows. */
export function sums(branches: Branch[]): Sums {
    const tokens = branches.map((one) => one.to - one.from);
    const held = branches.map((one) => (one.slots.length > 0 || one.host > 0 ? one.to - one.from : 0));
    const to = branches.map((one) => one.to);
    const children: number[][] = branches.map(() => []);
    const roots: number[] = [];
    for (let place = branches.length - 1; place >= 0; place -= 1) {
        const parent = branches[place]?.parent ?? null;
        if (parent === null) {
            roots.push(place);
            continue;
        }
        tokens[parent] = (tokens[parent] ?? 0) + (tokens[place] ?? 0);
        held[parent] = (held[parent] ?? 0) + (held[place] ?? 0);
        to[parent] = Math.max(to[parent] ?? 0, to[place] ?? 0);
        children[parent]?.push(place);
    }
    return { tokens, held, to, children, roots };
}

/**
 * Lays out the branch `root` and what follows it, or everything; at most `most` bars. What is held comes before what is
 * lost, and then the largest.
 */
export function layout(branches: Branch[], of: Sums, root: number | null, most: number, favourite?: Set<number>): Layout {
    const start = root === null ? of.roots : [root];
    const all: number[] = [];
    const waiting = [...start];
    for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
        all.push(next);
        waiting.push(...(of.children[next] ?? []));
    }
    // A branch has at least as many tokens as each that follows it, and as many that are held, so none is drawn without
    // the one before it.
    const compare = (a: number, b: number) => (of.held[b] ?? 0) - (of.held[a] ?? 0) || (of.tokens[b] ?? 0) - (of.tokens[a] ?? 0) || a - b;
    const rank = (place: number) => (favourite?.has(place) ? 1 : 0);
    const shown = new Set(all.length <= most ? all : all.sort((a, b) => rank(b) - rank(a) || compare(a, b)).slice(0, most));
    const bars: Bar[] = [];
    let rows = 0;
    let to = 0;
    // Without recursion: a conversation may be thousands of branches deep.
    const visit = (place: number, depth: number, nth: number, siblings: number) => {
        const bar: Bar = { branch: place, depth, row: rows, rows: 1, hidden: 0, hiddenTokens: 0, nth, siblings };
        bars.push(bar);
        to = Math.max(to, branches[place]?.to ?? 0);
        return bar;
    };
    const order = (places: number[]) => places.filter((one) => shown.has(one)).sort(compare);
    const stack: { bar: Bar | null; places: number[]; next: number; depth: number }[] = [{ bar: null, places: order(start), next: 0, depth: 1 }];
    for (let top = stack.at(-1); top; top = stack.at(-1)) {
        const place = top.places[top.next];
        if (place === undefined) {
            stack.pop();
            if (top.bar) {
                if (top.places.length === 0) rows += 1;
                top.bar.rows = rows - top.bar.row;
            }
            continue;
        }
        top.next += 1;
        const bar = visit(place, top.depth, top.next, top.places.length);
        const children = of.children[place] ?? [];
        for (const child of children) {
            if (shown.has(child)) continue;
            bar.hidden += 1;
            bar.hiddenTokens += of.tokens[child] ?? 0;
        }
        stack.push({ bar, places: order(children), next: 0, depth: top.depth + 1 });
    }
    const from = root === null ? 0 : (branches[root]?.from ?? 0);
    return { bars, rows, from, to };
}

/** Round positions for an axis, at most `most` of them. */
export function ticks(from: number, to: number, most: number): number[] {
    const span = Math.max(1, to - from);
    const rough = span / Math.max(1, most);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? power * 10);
    const all: number[] = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) all.push(at);
    return all;
}
