import type { AppliedAdapter, Name, Title } from "./types";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value: number): string {
    return whole.format(value);
}

/** For axes and small labels: 950, 1.2k, 110k, 1.3M. */
export function short(value: number): string {
    if (value < 1000) return String(Math.round(value));
    const [by, unit] = value < 999_500 ? [1000, "k"] : value < 999_500_000 ? [1e6, "M"] : [1e9, "G"];
    const scaled = value / by;
    return `${scaled < 10 && scaled % 1 > 0.049 ? scaled.toFixed(1) : scaled.toFixed(0)}${unit}`;
}

export function percent(share: number | null | undefined): string {
    if (share === null || share === undefined || Number.isNaN(share)) return "–";
    const of100 = share * 100;
    if (of100 > 0 && of100 < 0.1) return "<0.1 %";
    return `${of100 >= 99.95 || of100 < 0.05 ? of100.toFixed(0) : of100.toFixed(1)} %`;
}

export function seconds(value: number | null | undefined): string {
    if (value === null || value === undefined) return "–";
    if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
    if (value < 9.95) return `${value.toFixed(1)} s`;
    if (value < 59.5) return `${value.toFixed(0)} s`;
    const minutes = Math.floor(Math.round(value) / 60);
    if (minutes < 60) return `${minutes} min ${Math.round(value) % 60} s`;
    if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
    return `${Math.round(minutes / 1440)} days`;
}

export function bytes(value: number): string {
    if (value < 1024) return `${value} B`;
    const units = ["KiB", "MiB", "GiB", "TiB"];
    let scaled = value / 1024;
    let unit = 0;
    while (scaled >= 1023.5 && unit < 3) {
        scaled /= 1024;
        unit += 1;
    }
    return `${scaled < 9.95 ? scaled.toFixed(1) : scaled.toFixed(0)} ${units[unit]}`;
}

let relative = false;

/** From now on times are shown as they are, and not in the reader's zone: they are since some beginning. */
export function showRelative(): void {
    relative = true;
}

/** Milliseconds to add to a time of the reader's clock. */
export function zone(ms: number): number {
    return relative ? 0 : new Date(ms).getTimezoneOffset() * 60_000;
}

/** Time of day, in the reader's zone. */
export function clock(ms: number, precise = false): string {
    const at = new Date(ms - zone(ms));
    const two = (value: number) => String(value).padStart(2, "0");
    const tail = precise ? `.${String(at.getUTCMilliseconds()).padStart(3, "0")}` : "";
    const days = relative && ms >= 86_400_000 ? `${Math.floor(ms / 86_400_000)}d ` : "";
    return `${days}${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}${tail}`;
}

export function name(of: Name | null | undefined): string {
    if (of === null || of === undefined) return "a request that is not known";
    return typeof of === "number" ? `#${of}` : of;
}

/** What a request is about, and which program sent it. */
export function title(of: Title): string {
    const words = of.words === "" ? [] : [`“${of.words}”`];
    const agent = of.agent === "" ? [] : [`from ${of.agent}`];
    return [...words, ...agent].join(", ");
}

/** A request by its name and, if that is known, what it is about. */
export function called(of: Name | null | undefined, about: Title | undefined): string {
    return about ? `${name(of)} ${title(about)}` : name(of);
}

export function plural(value: number, one: string, many = `${one}s`): string {
    return `${count(value)} ${value === 1 ? one : many}`;
}

/** LoRA adapters by their ids, and how strongly each is applied unless wholly: `0, 1 × 0.25`. */
export function adapters(all: AppliedAdapter[] | undefined): string {
    if (!all) return "not known";
    if (all.length === 0) return "none";
    return all.map((one) => `${one.id ?? "?"}${one.scale === 1 ? "" : ` × ${Number(one.scale.toPrecision(4))}`}`).join(", ");
}
