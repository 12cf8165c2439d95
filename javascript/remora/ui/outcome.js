// What became of one tag in the latest picture.

/**
 * @import {LoraOutcome} from "../api.js"
 * @import {Told} from "../outcomes.js"
 */

import {html} from "../vendor/preact.js";
import {size} from "../catalog.js";

const STATES = {
    applied: "✓ applied",
    partly: "◐ partly applied",
    waiting: "○ waits for its pass",
    none: "○ no effect",
    handed: "→ handed to the web UI",
    failed: "✕ failed",
    missing: "✕ missing",
};
const KEYS_SHOWN = 20; // of each reason

/** @param {{told: Told | undefined}} props */
export function Outcome({told}) {
    if (!told) return null;
    const {lora, changed} = told;
    const layers = lora.state === "applied" ? `${lora.hit} of ${lora.layers} layers` : lora.reason;
    const used = ["applied", "partly", "none"].includes(lora.state);
    const cost = used
        ? [lora.bytes ? size(lora.bytes) : "", lora.seconds ? `read in ${duration(lora.seconds)}` : ""]
        : [];
    const reasons = Object.entries(lora.unused);
    const state = `${changed ? "From the latest picture: " : ""}${STATES[lora.state] ?? lora.state}: ${layers}`;
    return html`<div class=${`rt-state rt-${lora.state}${changed ? " rt-changed" : ""}`}>
        ${lora.warning && html`<p class="rt-warning" role=${changed ? undefined : "alert"}>⚠ ${lora.warning}</p>`}
        <span role=${lora.state === "partly" && !changed ? "alert" : undefined}>${[state, ...cost].filter(Boolean).join(" · ")}</span>
        ${lora.advice && html`<p>${`${lora.advice[0].toUpperCase()}${lora.advice.slice(1)}.`}</p>`}
        <p class="rt-hint">${aboutFile(lora)}</p>
        ${
            reasons.length > 0
            && html`<details><summary>Which keys</summary><ul>
            ${reasons.map(([reason, keys]) => html`<li key=${reason}>${reason}: ${keysOf(lora, keys)}</li>`)}
        </ul></details>`
        }
    </div>`;
}

/**
 * @param {LoraOutcome} lora
 * @param {string[]} keys
 */
function keysOf(lora, keys) {
    // keys are the file's own: one may be called `constructor`
    const shown = keys
        .slice(0, KEYS_SHOWN)
        .map((key) => (Object.hasOwn(lora.details, key) ? `${key} (${lora.details[key]})` : key));
    return shown.join(", ") + (keys.length > KEYS_SHOWN ? ` … and ${keys.length - KEYS_SHOWN} more` : "");
}

/**
 * Describe a file: kinds, ranks, format, the family it is for and the model it was made from.
 * @param {LoraOutcome} lora
 */
function aboutFile(lora) {
    const kinds = Object.entries(lora.kinds)
        .map(([kind, count]) => `${count} ${kind}`)
        .join(", ");
    const rank = lora.ranks ? `rank ${[...new Set(lora.ranks)].join(" to ")}` : "";
    const family = lora.family ? `${lora.family.sure ? "for" : "probably for"} ${lora.family.title}` : "";
    const from = lora.base_model ? `made from ${lora.base_model}` : "";
    return [kinds, rank, lora.format, family, from].filter(Boolean).join(" · ");
}

/** @param {number} seconds */
function duration(seconds) {
    return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}
