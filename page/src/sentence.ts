// What `contextpilot-llama why` says, in the same words: page/test/words.json has examples, which
// launcher/companion/why/sentence.rs writes and page/test/words.mjs compares.
import { reason } from "./causes";
import { KINDS, type Kind, kindOf } from "./differs";
import { bytes, clock, count, name, plural, seconds } from "./format";
import type { Diverged, FilesRead, Lost, Unfinished } from "./types";

/** Kinds whose word stands in the sentence; of others it says the same. */
const NAMED: Kind[] = ["dated", "retokenized", "spelled", "left_out", "left_out_later", "block"];

const tokens = (number: number) => plural(number, "token");

/** Where a prompt left an earlier one, from ` at token` on. */
export function left(of: Diverged, all: number, evaluated: number): string {
    const where = of.answer ? ", in the answer that was generated there" : of.earlier_answer ? ", in an answer that had come back before" : "";
    const kind = kindOf(of);
    const named = NAMED.includes(kind) ? ` (${KINDS[kind].word})` : "";
    const at = ` at token ${count(of.at)} of ${count(all)}${where}${named}`;
    if (kind === "media") return `${at}: the image (or other media) there is not the same file: its bytes differ, also if it looks the same`;
    if (kind === "block") return `${at}: a block of ${tokens(of.block ?? 0)} that stood there stands further back, behind what came behind it`;
    if (kind === "prompt") return `${at}: it is another prompt`;
    if (kind === "order") return `${at}: ${tokens(of.repeated)} from there on are the same in another order`;
    if (kind === "both") return `${at}: ${tokens(of.unmatched ?? 0)} differ, and ${tokens(of.repeated)} behind are the same in another order`;
    const same = of.same_after === 0 ? "nothing behind is the same" : of.same_after === 1 ? "the one behind is the same" : `the ${count(of.same_after)} behind are the same`;
    const rest = of.inserted + of.same_after;
    const isAll = of.at + rest >= all && evaluated >= rest && of.same_after > 0;
    return `${at}: ${edit(of)}, ${same}${isAll ? `; all ${count(evaluated)} had to be evaluated` : ""}`;
}

function edit({ inserted, deleted }: Diverged): string {
    if (deleted === 0) return `${tokens(inserted)} inserted`;
    if (inserted === 0) return `${tokens(deleted)} left out`;
    if (inserted === deleted) return `${tokens(inserted)} ${inserted === 1 ? "differs" : "differ"}`;
    return `${tokens(inserted)} in place of ${count(deleted)}`;
}

/** How evicted tokens were lost, up to the request that took their place. */
export function lost(of: Lost, evicted: number): string {
    const some = of.tokens > 0 && of.tokens < evicted ? `${count(of.tokens)} of these ${count(evicted)}` : tokens(evicted);
    return `${some} evicted at ${clock(Date.parse(of.when))}: ${through(of) ?? `${reason(of.reason)}${of.by === null ? "" : " by "}`}`;
}

/** A prompt has so many tokens of answers, where the tokenizer has others. */
export function asGenerated(kept: number): string {
    return `${tokens(kept)} kept as ${kept === 1 ? "it was" : "they were"} generated`;
}

/** What took them, if no prompt did. */
export function through(of: Lost): string | null {
    if (of.through === "erase") return "a client erased the slot";
    if (of.through === "restore") return "a client restored something else into the slot";
    if (of.through === "no_room") return "the context of all slots was full, and the server emptied this one";
    return null;
}

/** Whose prompt it left. */
export function whose(of: Diverged): string {
    return of.request === null ? "an earlier one" : `${name(of.request)}'s`;
}

/** How far a prompt has come that is being evaluated, and how long it still takes. */
export function soFar(prompt: Unfinished): string {
    const took = seconds(prompt.seconds);
    if (prompt.client_left) return `its client has left, and llama-server stops behind this batch, of ${tokens(prompt.in_batch ?? 0)}; ${count(prompt.reused)} reused, ${count(prompt.evaluated)} evaluated before it, in ${took}`;
    const rate = prompt.tokens_per_second;
    const none = prompt.in_batch ? `its first batch, of ${tokens(prompt.in_batch)}, has not ended yet, after ${took}` : `no batch of it has ended yet, after ${took}`;
    const far = rate === null ? none : `${count(prompt.reused)} reused, ${count(prompt.evaluated)} evaluated so far in ${took}, ${rate < 9.95 ? rate.toFixed(1) : count(rate)} tokens/s`;
    const all = prompt.tokens ?? null;
    const left = all === null ? "" : `; ${count(Math.max(0, all - prompt.reused - prompt.evaluated))} of ${tokens(all)} remain`;
    return `${far}${left}${about(prompt.seconds_left ?? null)}`;
}

function about(left: number | null): string {
    if (left === null) return "";
    if (left < 0.95) return ", about a second";
    const whole = Math.round(left);
    return `, about ${whole < 10 ? `${whole} s` : seconds(whole)}`;
}

/** Why the prefix store is not in use, while it is not. */
export function notInUse(reading: FilesRead | null): string {
    return `not in use yet: ${reading ? `${bytes(reading.bytes_read)} of ${bytes(reading.bytes)} of the files of model and engine were read, to know which they are` : "its folder is still being read"}`;
}
