import { CAUSES, SOURCES, colour, evicted } from "../causes";
import { add, button, el, fill } from "../dom";
import { adapters, bytes, clock, count, name, percent, plural, seconds, title } from "../format";
import type { Model } from "../model";
import { KINDS, kindOf, sameText } from "../differs";
import { asGenerated, left, lost, through, whose } from "../sentence";
import type { Diverged, DivergedText, Evaluation, Lost, Name, RequestState, Sections } from "../types";

/** What became of one request, and why its prompt was evaluated. */
export class Account {
    private shown = "";
    private state: RequestState | null = null;

    constructor(
        private readonly host: HTMLElement,
        private readonly model: Model,
        private readonly ask: ((id: string) => Promise<RequestState | null>) | null,
        private readonly reveal: (name: Name) => void,
    ) {
        host.addEventListener("keydown", (event) => {
            if (event.key === "Escape") model.choose(null);
        });
    }

    draw(): void {
        const { chosen } = this.model;
        this.host.hidden = chosen === null;
        document.body.classList.toggle("has-account", chosen !== null);
        if (chosen === null) {
            this.shown = "";
            return;
        }
        const req = this.model.find(chosen);
        const now = JSON.stringify([chosen, req?.at, req?.ended, req?.evaluation.seconds]);
        if (now === this.shown) return;
        const isOther = JSON.stringify(chosen) !== JSON.stringify(JSON.parse(this.shown || "[null]")[0]);
        this.shown = now;
        if (isOther) this.state = null;
        this.paint(chosen);
        if (this.ask && typeof chosen === "string") {
            void this.ask(chosen).then((state) => {
                if (this.model.chosen !== chosen || !state) return;
                this.state = state;
                this.paint(chosen);
            });
        }
    }

    /** Draws everything anew. Whoever is within by keyboard stays there, on the same control if it is still there. */
    private paint(chosen: Name): void {
        const focused = this.host.contains(document.activeElement) ? document.activeElement : null;
        const controls = () => [...this.host.querySelectorAll<HTMLElement>("button, [tabindex]")];
        const alike = () => controls().filter((one) => one.textContent === focused?.textContent);
        const nth = alike().findIndex((one) => one === focused);
        this.fill(chosen);
        if (focused) (alike()[nth] ?? controls()[0])?.focus({ preventScroll: true });
    }

    private fill(chosen: Name): void {
        const req = this.model.find(chosen);
        const evaluation = req?.evaluation ?? this.state?.evaluation ?? null;
        fill(this.host, el("div", { class: "bar" }, el("h2", { class: "id" }, name(chosen)), button("Close", () => this.model.choose(null), { class: "quiet" })));
        if (evaluation?.title) add(this.host, el("p", { class: "title" }, title(evaluation.title)));
        if (this.state) add(this.host, this.whereabouts(this.state));
        if (req) {
            const facts: [string, string][] = [
                ["evaluated", clock(req.at, true)],
                ["slot", String(req.slot)],
                ["in the slot until the first token", seconds(evaluation?.seconds ?? null)],
                ["first token after", seconds(req.ttft)],
            ];
            if (evaluation?.adapters?.length) facts.push([evaluation.adapters.length === 1 ? "LoRA adapter" : "LoRA adapters", adapters(evaluation.adapters)]);
            if (req.ended !== null) facts.push(["answered after", seconds((req.ended - req.launched) / 1000)]);
            add(this.host, el("dl", { class: "facts" }, ...facts.flatMap(([label, value]) => [el("dt", {}, label), el("dd", {}, value)])));
        }
        if (!evaluation) {
            const why = this.state ? "Its evaluation is no longer remembered." : "Nothing more is known of it here.";
            add(this.host, el("p", { class: "note" }, why));
            return;
        }
        add(this.host, this.tokens(evaluation));
        if (evaluation.kept) add(this.host, el("p", {}, `${asGenerated(evaluation.kept)}.`));
        if (req?.sections) add(this.host, this.sections(req.sections));
        if (evaluation.diverged) add(this.host, this.diverged(evaluation.diverged, evaluation));
        if (evaluation.lost) add(this.host, this.lost(evaluation.lost, evaluation.causes.evicted ?? 0));
    }

    private whereabouts(state: RequestState): HTMLElement {
        const places = (state.places ?? []).map((place) => (place.place === "slot" ? `slot ${place.slot}` : "the host cache"));
        const line = el("p", { class: `state ${state.state}` });
        if (state.state === "cached") add(line, `Cached in ${places.join(" and ")}.`);
        else if (state.state === "evicted") {
            add(line, `Evicted at ${state.at ? clock(Date.parse(state.at)) : "?"}: ${evicted(state.reason ?? "")}`);
            if (state.by) add(line, " by ", this.link(state.by));
            add(line, ".");
            if (state.cached_tokens) add(line, ` Of its beginning ${plural(state.cached_tokens, "token")} could still be reused.`);
        } else if (state.state === "awaited") add(line, "Under way: its prompt is not evaluated yet.");
        else add(line, state.hint ? `Not known: ${state.hint}.` : "Not known.");
        return line;
    }

    private tokens(evaluation: Evaluation): HTMLElement {
        const { prompt_tokens } = evaluation;
        const line = (label: string, tokens: number, kind: string, hint: string) =>
            el(
                "tr",
                {},
                el("th", { scope: "row", title: hint }, el("i", { class: `swatch ${kind}`, "aria-hidden": "true" }), label),
                el("td", {}, count(tokens)),
                el("td", {}, percent(prompt_tokens > 0 ? tokens / prompt_tokens : null)),
            );
        const rows: HTMLElement[] = [];
        for (const source of SOURCES) {
            const tokens = evaluation.from[source.key] ?? 0;
            if (tokens > 0) rows.push(line(source.label, tokens, source.key === "store" ? "store" : "slot", "reused"));
        }
        for (const cause of CAUSES) {
            const tokens = cause.of(evaluation.causes);
            if (tokens > 0) rows.push(line(cause.label, tokens, colour(cause), cause.meaning));
        }
        return el("table", { class: "tokens" }, el("caption", {}, `${count(prompt_tokens)} tokens: ${count(evaluation.reused)} reused, ${count(evaluation.evaluated)} evaluated`), el("tbody", {}, ...rows));
    }

    private sections(of: Sections): HTMLElement {
        const all = of.system + of.tools + of.messages;
        const line = (label: string, size: number) => el("tr", {}, el("th", { scope: "row" }, label), el("td", {}, bytes(size)), el("td", {}, percent(size / all)));
        const rows = ([["system", of.system], ["tools", of.tools], ["messages", of.messages]] as const).filter(([, size]) => size > 0);
        const hint = "Which of the tokens these became is not known: the chat template decides that";
        return el("table", { class: "tokens", title: hint }, el("caption", {}, "The request's sections, in bytes of JSON"), el("tbody", {}, ...rows.map(([label, size]) => line(label, size))));
    }

    private diverged(of: Diverged, { prompt_tokens, evaluated }: Evaluation): HTMLElement {
        const from = of.request === null ? [whose(of)] : [this.link(of.request), "'s"];
        const block = el("div", { class: "left" }, el("h3", {}, "Where it left the nearest earlier prompt"), el("p", { class: `ansi-${KINDS[kindOf(of)].ansi}` }, "It left ", ...from, `${left(of, prompt_tokens, evaluated)}.`));
        if (of.text) add(block, this.difference(of.text));
        return block;
    }

    /** The text around a difference: what differs is marked to the token. */
    private difference(of: DivergedText): HTMLElement {
        const label = { tabindex: 0, "aria-label": "The text around the difference" };
        const same = (part: string) => el("span", { class: "same" }, part);
        if (sameText(of)) {
            const longer = of.old.length > of.new.length ? of.old : of.new;
            return el("div", {}, el("p", {}, "It is the same text in other tokens:"), el("pre", label, same(of.before), longer));
        }
        const parts = (text: string, differs = Number.POSITIVE_INFINITY) => {
            const characters = [...text];
            return [characters.slice(0, differs).join(""), characters.slice(differs).join("")] as const;
        };
        const [[old, oldRest], [now, newRest]] = [parts(of.old, of.old_differs), parts(of.new, of.new_differs)];
        return el("pre", label, same(of.before), el("del", {}, old), same(oldRest), "\n", same(of.before), el("ins", {}, now), same(newRest));
    }

    private lost(of: Lost, tokens: number): HTMLElement {
        const by = of.by === null || through(of) !== null ? "" : this.link(of.by);
        const block = el("div", { class: "left" }, el("h3", {}, "How the evicted tokens were lost"), el("p", {}, lost(of, tokens), by, "."));
        if (of.chosen_by) {
            const how: Record<string, string> = { id: "the request named the slot", similarity: "the slot was the most similar", least_recently_used: "the slot was the least recently used" };
            const kept = of.kept === null ? "" : ` ${percent(of.kept)} of the slot's content stayed${of.kept >= 0.5 ? ", so the server did not save it to the host cache" : ""}.`;
            add(block, el("p", {}, `That slot was taken because ${how[of.chosen_by] ?? of.chosen_by}.${kept}`));
        }
        return block;
    }

    private link(to: Name): HTMLElement {
        return button(name(to), () => this.reveal(to), { class: "link id" });
    }
}
