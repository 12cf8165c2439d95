// Signs on buttons, drawn: not every font has them.

import {html} from "../vendor/preact.js";

/** @typedef {keyof typeof PATHS} IconName */

const PATHS = {
    grip: "M6 4h.01M10 4h.01M6 8h.01M10 8h.01M6 12h.01M10 12h.01",
    add: "M8 3v10M3 8h10",
    remove: "M4 4l8 8M12 4l-8 8",
    undo: "M6.5 3.5L3 7l3.5 3.5M3 7h6.5a3.5 3.5 0 0 1 0 7H7",
    redo: "M9.5 3.5L13 7l-3.5 3.5M13 7H6.5a3.5 3.5 0 0 0 0 7H9",
    grid: "M2.5 2.5h4.5v4.5h-4.5zM9 2.5h4.5v4.5h-4.5zM2.5 9h4.5v4.5h-4.5zM9 9h4.5v4.5h-4.5z",
    list: "M2.5 4h11M2.5 8h11M2.5 12h11",
    refresh: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3",
    info: "M8 7.2v4.3M8 4.5h.01M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 0 0 0-12.4z",
    apart: "M9 11.2l-1.4 1.4a3 3 0 0 1-4.2-4.2L4.8 7M7 4.8l1.4-1.4a3 3 0 0 1 4.2 4.2L11.2 9M3 3l1.5 1.5M13 13l-1.5-1.5",
    always: "M6 2h4M6.5 2v4L4.5 9h7L9.5 6V2M8 9v5",
    prompt: "M2.5 4h11M2.5 8h5M2.5 12h3M13.5 12H9M11 9.5L8.5 12l2.5 2.5",
    check: "M3 8.5l3.2 3.2L13 4.8",
    more: "M2.5 5h6M12 5h1.5M10.2 3.2v3.6M2.5 11h1.5M7.5 11h6M5.8 9.2v3.6",
    copy: "M5.5 5.5h8v8h-8zM3.5 10.5h-1v-8h8v1",
    clear: "M2.5 4.5h11M6 4.5v-2h4v2M4 4.5l.7 9h6.6l.7-9",
    save: "M2.5 2.5h9l2 2v9h-11zM5 2.5v3.5h5V2.5M5 13.5V9.5h6v4",
    pulse: "M1.5 8.5h3l2-5 3 9 2-4h3",
    heart: "M8 13.2S2.5 9.8 2.5 6.2A2.9 2.9 0 0 1 8 5a2.9 2.9 0 0 1 5.5 1.2C13.5 9.8 8 13.2 8 13.2z",
};

/** @param {{name: IconName, filled?: boolean}} props */
export function Icon({name, filled = false}) {
    return html`<svg class="rt-icon" viewBox="0 0 16 16" aria-hidden="true" fill=${filled ? "currentColor" : "none"}
        stroke="currentColor" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round"><path d=${PATHS[name]} /></svg>`;
}
