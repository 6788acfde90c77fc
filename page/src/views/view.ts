import type { Name } from "../types";

/** One of the views. */
export interface View {
    id: string;
    label: string;
    /** Draws what has changed. Called at most once in a frame, and only while the view is seen. */
    draw(): void;
    /** Shows a request. */
    reveal?(name: Name): void;
}
