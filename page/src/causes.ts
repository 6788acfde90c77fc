// The words are those of the commands, which docs/tools.md lists. launcher/companion/words.rs compares them.
import type { Causes, Evaluation, Sources } from "./types";

/** Why tokens were evaluated, in the order in which they are shown. */
export interface Cause {
    key: string;
    label: string;
    meaning: string;
    /** The tokens were cached, now or once: evaluating them again was not necessary in principle. */
    again: boolean;
    of: (causes: Partial<Causes>) => number;
}

export const CAUSES: Cause[] = [
    {
        key: "new",
        label: "new",
        meaning: "never seen before",
        again: false,
        of: (c) => c.new ?? 0,
    },
    {
        key: "repeated",
        label: "sent before behind something else",
        meaning: "stood in an earlier prompt or answer, behind something else",
        again: false,
        of: (c) => c.repeated ?? 0,
    },
    {
        key: "last_token",
        label: "last token",
        meaning: "the engine always evaluates the last token of a prompt",
        again: false,
        of: (c) => c.last_token ?? 0,
    },
    {
        key: "evicted",
        label: "evicted",
        meaning: "were cached once, and another prompt took their place",
        again: true,
        of: (c) => c.evicted ?? 0,
    },
    {
        key: "elsewhere_busy",
        label: "in a busy slot",
        meaning: "cached in a slot that was at work for another request",
        again: true,
        of: (c) => c.elsewhere?.busy ?? 0,
    },
    {
        key: "elsewhere_similarity",
        label: "in another slot, too small a share",
        meaning: "cached in a slot that has too small a share of the prompt (--slot-prompt-similarity)",
        again: true,
        of: (c) => c.elsewhere?.similarity ?? 0,
    },
    {
        key: "elsewhere_host_rule",
        label: "in the host cache, not taken",
        meaning: "in the host cache, but the server's rule for loading an entry was not met",
        again: true,
        of: (c) => c.elsewhere?.host_rule ?? 0,
    },
    {
        key: "elsewhere_pinned",
        label: "in another slot than the one named",
        meaning: "cached in another slot than the request names (id_slot)",
        again: true,
        of: (c) => c.elsewhere?.pinned ?? 0,
    },
    {
        key: "elsewhere_least_recently_used",
        label: "in another slot, not looked for",
        meaning: "cached in another slot; the server chooses slots by age alone",
        again: true,
        of: (c) => c.elsewhere?.least_recently_used ?? 0,
    },
    {
        key: "no_way_back",
        label: "in the slot, without a way back",
        meaning: "in the slot, but a sliding window or recurrent state cannot go back to them",
        again: true,
        of: (c) => c.no_way_back ?? 0,
    },
    {
        key: "moved",
        label: "in the slot further on",
        meaning: "further on in the slot: --cache-reuse would have moved them",
        again: true,
        of: (c) => c.moved ?? 0,
    },
    {
        key: "uncached",
        label: "not wanted from the cache",
        meaning: 'the request says "cache_prompt": false, or is an embedding or a reranking',
        again: true,
        of: (c) => c.uncached ?? 0,
    },
    {
        key: "adapter",
        label: "for other adapters",
        meaning: "cached for other LoRA adapters",
        again: true,
        of: (c) => c.adapter ?? 0,
    },
    {
        key: "not_known",
        label: "not known",
        meaning: "the cause is no longer known, or events were lost",
        again: false,
        of: (c) => c.not_known ?? 0,
    },
];

/** The class that has the cause's colour. */
export function colour(cause: Cause): string {
    return cause.key === "repeated" ? "repeated" : cause.again ? "again" : "new";
}

/** The cause of most of a prompt's evaluated tokens. */
export function mainCause(evaluation: Evaluation): Cause | null {
    let most: Cause | null = null;
    let tokens = 0;
    for (const cause of CAUSES) {
        const of = cause.of(evaluation.causes);
        if (of > tokens) [most, tokens] = [cause, of];
    }
    return most;
}

/** Evaluated tokens that were cached, now or once. */
export function again(causes: Partial<Causes>): number {
    return CAUSES.reduce((sum, cause) => sum + (cause.again ? cause.of(causes) : 0), 0);
}

export const SOURCES: { key: keyof Sources; label: string }[] = [
    { key: "slot", label: "in the slot" },
    { key: "host", label: "from the host cache" },
    { key: "checkpoint", label: "back to a checkpoint" },
    { key: "moved", label: "moved up (--cache-reuse)" },
    { key: "store", label: "loaded from the store" },
];

const NEVER_CACHED = "never cached: it was refused, or its client left before the prompt was evaluated";

/** Why something was lost, in one or two words. */
export function reason(key: string): string {
    return key.replaceAll("_", " ");
}

/** Why a request is not cached any more, as far as no other request has to be named. */
export function evicted(key: string): string {
    return key === "never_cached" ? NEVER_CACHED : reason(key);
}
