import { byId, button, eachFrame, el, fill, text } from "./dom";
import { bytes, called, count, percent, plural, seconds, showRelative } from "./format";
import { Live } from "./live";
import { Model } from "./model";
import { notInUse, soFar } from "./sentence";
import type { Name, Report } from "./types";
import { Account } from "./views/account";
import { BillView } from "./views/bill";
import { RequestsView } from "./views/requests";
import { TimeView } from "./views/time";
import { TreeView } from "./views/tree";
import type { View } from "./views/view";

/** From this width on all views are seen at once. */
const ALL_AT_ONCE = "(min-width: 2200px)";

/** The data of a report: JSON in a zlib stream in base64. `null`: this is the page of an endpoint. */
async function packed(): Promise<Report | null> {
    const text = byId("data").textContent?.trim() ?? "";
    if (text === "") return null;
    const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return (await new Response(stream).json()) as Report;
}

void packed().then(start);

function start(report: Report | null): void {
    const model = new Model();
    if (report?.about.relative) showRelative();
    if (report) model.takeReport(report);
    const live = model.report ? null : new Live(model);
    const wide = matchMedia(ALL_AT_ONCE);
    const draw = eachFrame(drawAll);

    const requests = new RequestsView(byId("view-requests"), model);
    const tree = new TreeView(byId("view-tree"), model);
    const views: View[] = [
        tree,
        new TimeView(byId("view-time"), model, draw),
        requests,
        new BillView(byId("view-bill"), model, (cause) => {
            show("requests");
            requests.only(cause);
        }),
    ];
    const account = new Account(byId("account"), model, live ? (id) => live.state(id) : null, reveal);
    let shown = views.find((view) => `#${view.id}` === location.hash)?.id ?? "tree";

    const tabs = views.map((view) => {
        const tab = el("button", { type: "button", role: "tab", id: `tab-${view.id}`, "aria-controls": `view-${view.id}` }, view.label);
        tab.addEventListener("click", () => show(view.id));
        return tab;
    });
    byId("tabs").append(...tabs);
    byId("tabs").addEventListener("keydown", (event) => {
        const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
        const now = views.findIndex((view) => view.id === shown);
        const next = views[(now + step + views.length) % views.length];
        if (step === 0 || !next) return;
        event.preventDefault();
        show(next.id);
        byId(`tab-${next.id}`).focus();
    });

    const pause = button("Pause", () => {
        model.paused = !model.paused;
        live?.start();
        model.changed();
    });
    if (live) byId("actions").append(pause);

    function reveal(name: Name): void {
        model.choose(name);
        views.find((view) => view.id === shown)?.reveal?.(name);
    }

    function show(id: string): void {
        shown = id;
        history.replaceState(null, "", `#${id}`);
        arrange();
        if (wide.matches) byId(`view-${id}`).scrollIntoView();
    }

    function arrange(): void {
        for (const view of views) {
            const isShown = view.id === shown;
            byId(`view-${view.id}`).hidden = !isShown && !wide.matches;
            const tab = byId(`tab-${view.id}`);
            tab.setAttribute("aria-selected", String(isShown));
            tab.tabIndex = isShown ? 0 : -1;
        }
        if (shown === "bill" || wide.matches) void live?.askAdvice();
        model.changed();
    }

    function drawAll(): void {
        head();
        for (const view of views) if (view.id === shown || wide.matches) view.draw();
        account.draw();
    }

    function head(): void {
        const { stats, report, trouble, paused } = model;
        const sleeps = stats?.model_state === "asleep";
        const state = report ? "report" : trouble ? "no answer" : paused ? "paused" : sleeps ? "asleep" : "live";
        byId("dot").className = trouble ? "trouble" : state;
        text(byId("title"), report ? report.title : (stats?.model?.name ?? "KV cache"));
        const engine = stats?.engine ? `${stats.engine.name ?? ""} ${stats.engine.version ?? ""}`.trim() : "";
        const parts = report ? [`report of ${new Date(report.made).toLocaleString()}`, engine] : [engine, stats?.uptime_seconds === undefined ? "" : `up ${seconds(stats.uptime_seconds)}`, state === "live" ? "" : state];
        text(byId("subtitle"), parts.filter((part) => part !== "").join(" · "));
        document.title = `${report ? report.title : (stats?.model?.name ?? "KV cache")} · KV cache`;
        text(byId("message"), trouble ?? report?.notes.join(" ") ?? "");
        byId("message").className = trouble ? "trouble" : "";
        text(pause, paused ? "Resume" : "Pause");
        pause.setAttribute("aria-pressed", String(paused));
        const reuse = stats?.reuse;
        const figures: [string, string][] = [];
        if (reuse) {
            figures.push(["reused", percent(reuse.total.hit_ratio)]);
            if (!report) figures.push(["last minute", percent(reuse.last_minute.hit_ratio)]);
            figures.push(["prompts", count(reuse.total.prompts)], ["evaluated", plural(reuse.total.evaluated, "token")]);
            if (reuse.total.prompts > 0) figures.push(["in", seconds(reuse.seconds)]);
        }
        if (stats?.tokens) figures.push(["held", plural(stats.tokens.resident, "token")]);
        const host = stats?.host;
        if (host && (host.entries > 0 || !report)) figures.push(["host cache", host.limit_bytes ? `${bytes(host.bytes)} of ${bytes(host.limit_bytes)}` : bytes(host.bytes)]);
        if (!report && stats?.store?.lost) figures.push(["prefix store", `none: ${stats.store.problem ?? "its folder cannot be used"}`]);
        else if (!report && stats?.store?.ready === false) figures.push(["prefix store", notInUse(stats.store.reading ?? null)]);
        if (stats?.store?.loaded_tokens !== undefined) figures.push(["store loaded", plural(stats.store.loaded_tokens, "token")]);
        // Sentences, each in a line of its own behind the figures.
        const few = figures.length;
        for (const { prompt, last_title } of report ? [] : (stats?.slots ?? [])) {
            if (!prompt) continue;
            const who = prompt.id ?? (prompt.number > 0 ? prompt.number : "a prompt");
            figures.push([`${called(who, last_title)} is being evaluated:`, soFar(prompt)]);
        }
        const list = byId("figures");
        const known = figures.map((figure) => figure.join()).join();
        if (list.dataset["known"] === known) return;
        list.dataset["known"] = known;
        fill(list, ...figures.map(([label, value], nth) => el("div", nth < few ? {} : { class: "line" }, el("dt", {}, label), el("dd", {}, value))));
    }

    if (live) {
        live.wantsTree = () => shown === "tree" || wide.matches;
        live.wantsAdvice = () => shown === "bill" || wide.matches;
        live.askToken = (why) => {
            if (document.querySelector("#token")) return;
            const field = el("input", { type: "password", id: "token", autocomplete: "off", "aria-label": "Token of CONTEXTPILOT_LISTEN_TOKEN", placeholder: "CONTEXTPILOT_LISTEN_TOKEN" });
            const form = el("form", { class: "token" }, field, el("button", { type: "submit" }, "Use it"), el("span", {}, why));
            form.addEventListener("submit", (event) => {
                event.preventDefault();
                form.remove();
                live.useToken(field.value);
            });
            byId("message").after(form);
            field.focus();
        };
        live.start();
    }
    model.onChange(draw);
    wide.addEventListener("change", arrange);
    arrange();
}
