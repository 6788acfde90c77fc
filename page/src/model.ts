// Everything that the views show, and how answers of the endpoint change it. It draws nothing and sends nothing.

import { again, mainCause } from "./causes";
import type { Advice, ChangeEvent, Evaluated, Evaluation, Name, Point, Report, Sections, Stats, Tree } from "./types";

/** So many requests are kept while the page is open; a report may have more. */
const MOST_REQUESTS = 20_000;
const MOST_CHANGES = 5_000;
const MOST_SAMPLES = 3_700;

export interface Req {
    key: string;
    name: Name;
    /** The number that the server gave it. */
    number: number;
    /** When its prompt was evaluated, milliseconds since 1970. */
    at: number;
    /** When its task was launched in the slot, as far as that is known. */
    launched: number;
    /** When it was answered. */
    ended: number | null;
    slot: number;
    ttft: number | null;
    evaluation: Evaluation;
    /** The key of the cause of most of its evaluated tokens. */
    cause: string;
    /** Evaluated tokens that were cached, now or once. */
    again: number;
    /** Evaluated tokens that were sent before, behind something else. */
    repeated: number;
    generated: number | null;
    sections: Sections | null;
}

/** The figures at one moment, for the last minutes. */
export interface Sample {
    at: number;
    reused: number;
    evaluated: number;
    hit: number | null;
}

export class Model {
    stats: Partial<Stats> | null = null;
    tree: Tree | null = null;
    /** In the order in which their prompts were evaluated. */
    requests: Req[] = [];
    changes: (ChangeEvent & { ms: number })[] = [];
    samples: Sample[] = [];
    /** From when on events are known, by the server's clock. */
    since = 0;
    advice: Advice | null = null;
    grid: Point[] = [];
    report: Report["about"] | null = null;
    /** What is wrong with the connection. */
    trouble: string | null = null;
    paused = false;
    /** The request whose account is shown. */
    chosen: Name | null = null;
    /** Rises with each change, so that views know what they have drawn. */
    version = 0;

    private byKey = new Map<string, Req>();
    private byName = new Map<Name, Req>();
    private listeners: (() => void)[] = [];

    onChange(listener: () => void): void {
        this.listeners.push(listener);
    }

    changed(): void {
        this.version += 1;
        for (const listener of this.listeners) listener();
    }

    find(name: Name): Req | undefined {
        return this.byName.get(name);
    }

    choose(name: Name | null): void {
        this.chosen = name;
        this.changed();
    }

    /** Another process has begun: nothing that was known is true of it. */
    reset(): void {
        this.requests = [];
        this.changes = [];
        this.samples = [];
        this.tree = null;
        this.byKey.clear();
        this.byName.clear();
    }

    takeStats(stats: Stats): void {
        if (this.stats?.epoch && this.stats.epoch !== stats.epoch) this.reset();
        this.since ||= Date.parse(stats.at);
        this.stats = stats;
        this.samples.push({
            at: Date.parse(stats.at),
            reused: stats.reuse.total.reused,
            evaluated: stats.reuse.total.evaluated,
            hit: stats.reuse.last_minute.hit_ratio,
        });
        if (this.samples.length > MOST_SAMPLES) this.samples.splice(0, this.samples.length - MOST_SAMPLES);
    }

    takeRequests(all: Evaluated[], most = MOST_REQUESTS): void {
        let sorted = true;
        for (const one of all) {
            const req = read(one);
            const known = this.byKey.get(req.key);
            if (known) {
                Object.assign(known, req);
            } else {
                const last = this.requests.at(-1);
                if (last && last.at > req.at) sorted = false;
                this.requests.push(req);
                this.byKey.set(req.key, req);
            }
            this.byName.set(req.name, known ?? req);
            if (typeof req.name === "string" && req.number > 0) this.byName.set(req.number, known ?? req);
        }
        if (!sorted) this.requests.sort((a, b) => a.at - b.at || a.number - b.number);
        if (this.requests.length > most) {
            for (const old of this.requests.splice(0, this.requests.length - most)) {
                this.byKey.delete(old.key);
                if (this.byName.get(old.name) === old) this.byName.delete(old.name);
                if (this.byName.get(old.number) === old) this.byName.delete(old.number);
            }
        }
    }

    takeChange(change: ChangeEvent): void {
        this.changes.push({ ...change, ms: Date.parse(change.at) });
        if (this.changes.length > MOST_CHANGES) this.changes.splice(0, this.changes.length - MOST_CHANGES);
    }

    takeReport(report: Report): void {
        this.report = report.about;
        this.stats = report.stats ?? null;
        this.tree = report.tree ?? null;
        this.advice = report.advice ?? null;
        this.grid = report.grid ?? [];
        this.takeRequests(report.requests ?? [], Number.POSITIVE_INFINITY);
        for (const change of report.changes ?? []) this.changes.push({ ...change, ms: Date.parse(change.at) });
    }
}

function read(one: Evaluated): Req {
    const at = Date.parse(one.at);
    const { evaluation } = one;
    const name = one.id ?? one.number;
    return {
        key: one.number > 0 ? `${one.number}` : `${one.id}/${one.at}`,
        name,
        number: one.number,
        at,
        launched: at - (evaluation.seconds ?? 0) * 1000,
        ended: one.ended ? Date.parse(one.ended) : null,
        slot: one.slot,
        ttft: one.time_to_first_token_seconds ?? null,
        evaluation,
        cause: mainCause(evaluation)?.key ?? "new",
        again: again(evaluation.causes),
        repeated: evaluation.causes.repeated ?? 0,
        generated: one.generated ?? null,
        sections: one.sections ?? null,
    };
}
