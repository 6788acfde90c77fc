// Makes elements. Text from outside becomes text nodes and nothing else: there is no innerHTML on this page, and
// the policy forbids styles and scripts in markup.

type Child = Node | string | number | null | undefined | false;

export function el<K extends keyof HTMLElementTagNameMap>(
    tag: K,
    attributes: Record<string, string | number | boolean | null | undefined> = {},
    ...children: Child[]
): HTMLElementTagNameMap[K] {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (value === true) element.setAttribute(name, "");
        else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
    }
    add(element, ...children);
    return element;
}

export function add(element: Element, ...children: Child[]): void {
    for (const child of children) {
        if (child === null || child === undefined || child === false) continue;
        element.append(child instanceof Node ? child : visible(String(child)));
    }
}

export function fill(element: Element, ...children: Child[]): void {
    element.replaceChildren();
    add(element, ...children);
}

export function byId(id: string): HTMLElement {
    const element = document.getElementById(id);
    if (!element) throw new Error(`no ${id}`);
    return element;
}

/** Sets text only where it differs, so that a screen reader is not told the same again. */
export function text(element: Element, value: string): void {
    const shown = visible(value);
    if (element.textContent !== shown) element.textContent = shown;
}

// Controls, and characters that turn the direction of what follows: an id could pretend to be another one.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** The text with what cannot be seen made visible. */
export function visible(value: string): string {
    return value.replace(HIDDEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function button(label: string, run: () => void, attributes: Record<string, string | number | boolean> = {}): HTMLButtonElement {
    const element = el("button", { type: "button", ...attributes }, label);
    element.addEventListener("click", run);
    return element;
}

/** Calls `draw` once in the next frame, however often it is asked. */
export function eachFrame(draw: () => void): () => void {
    let asked = false;
    return () => {
        if (asked) return;
        asked = true;
        requestAnimationFrame(() => {
            asked = false;
            draw();
        });
    };
}
