// What kind of thing differs between a prompt and an earlier one, as in launcher/companion/differs.rs, which compares words
// and colours; page/test/words.mjs compares the rest.
import type { Diverged, DivergedText } from "./types";

/** A word for each, and its colour as terminals count them (.ansi-31 in style.css). */
export const KINDS = {
    left_out: { word: "left out", ansi: 31 },
    left_out_later: { word: "left out later", ansi: 91 },
    retokenized: { word: "tokenized otherwise", ansi: 95 },
    spelled: { word: "spelled otherwise", ansi: 96 },
    answer: { word: "another answer", ansi: 35 },
    block: { word: "moved", ansi: 36 },
    dated: { word: "dated by the template", ansi: 93 },
    text: { word: "other text", ansi: 33 },
    order: { word: "in another order", ansi: 34 },
    both: { word: "other text and order", ansi: 94 },
    media: { word: "other media", ansi: 32 },
    prompt: { word: "another prompt", ansi: 90 },
};

export type Kind = keyof typeof KINDS;

// As in launcher/companion/differs.rs, which says why.
const SHARED = 32;
const REORDERED = 16;
const UNMATCHED = 4;

export function kindOf(of: Diverged): Kind {
    const unmatched = of.unmatched ?? 0;
    const isLeftOut = of.inserted < UNMATCHED && of.deleted > 4 * of.inserted;
    if (of.media) return "media";
    if (of.answer && of.text && isHeader(of.text)) return "spelled";
    if (of.answer && isLeftOut) return "left_out";
    if (!of.answer && of.earlier_answer && isLeftOut) return "left_out_later";
    if (of.answer && of.text && sameText(of.text)) return "retokenized";
    if (of.answer && of.text && sameJson(of.text)) return "spelled";
    if (of.answer) return "answer";
    if (of.block) return "block";
    if (of.at < SHARED && of.differing > SHARED && unmatched > SHARED) return "prompt";
    if ((of.reordered ?? 0) < REORDERED) return of.sent === false ? "dated" : "text";
    return unmatched < UNMATCHED ? "order" : "both";
}

/** Whether the text at a difference is the same, as far as it is known. */
export function sameText({ old, new: now }: DivergedText): boolean {
    return old !== "" && now !== "" && (old.startsWith(now) || now.startsWith(old));
}

/** Whether it is the same but for white space, and is JSON by its look. */
function sameJson(text: DivergedText): boolean {
    const [old, now] = [text.old, text.new].map((one) => one.replace(/\s/gu, "")) as [string, string];
    return [old, now].every((one) => /[":,{]/.test(one)) && sameText({ ...text, old, new: now });
}

/** Whether a call's header begins in both, in the forms that gpt-oss and its chat template have. */
function isHeader({ before, old, new: now }: DivergedText): boolean {
    const begins = (text: string) => text.startsWith(" to=") || text.startsWith("<|channel|>commentary to");
    const isConstrained = (text: string) => text.trimStart().startsWith("<|constrain|>");
    const behind = before.trimEnd().endsWith("<|channel|>commentary");
    return (begins(old) && begins(now)) || (behind && isConstrained(old) && !isConstrained(now));
}
