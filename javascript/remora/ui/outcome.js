// What became of one tag in the latest picture.

/**
 * @import {Outcome as LoraOutcome} from "../../api.d.ts"
 * @import {Told} from "../outcomes.js"
 */

import {html} from "../vendor/preact.js";
import {size} from "../catalog.js";
import {number, t, translated} from "../words.js";

const STATES = /** @type {const} */ ({
    applied: "outcome.applied",
    partly: "outcome.partly",
    waiting: "outcome.waiting",
    none: "outcome.none",
    handed: "outcome.handed",
    failed: "outcome.failed",
    missing: "outcome.missing",
});
const KEYS_SHOWN = 20; // of each reason

/** @param {{told: Told | undefined}} props */
export function Outcome({told}) {
    if (!told) return null;
    const {lora, changed} = told;
    const hit = t("outcome.layersOf", {hit: lora.hit, count: lora.layers ?? 0});
    const reason = lora.state === "applied" ? hit : translated(lora.reason);
    const used = ["applied", "partly", "none"].includes(lora.state);
    const cost = used
        ? [lora.bytes ? size(lora.bytes) : "", lora.seconds ? t("outcome.readIn", {time: duration(lora.seconds)}) : ""]
        : [];
    const reasons = Object.entries(lora.unused);
    const advice = translated(lora.advice);
    const state = t(changed ? "outcome.former" : "outcome.said", {state: t(STATES[lora.state]), reason});
    return html`<div class=${`rt-state rt-${lora.state}${changed ? " rt-changed" : ""}`}>
        ${lora.warning && html`<p class="rt-warning" role=${changed ? undefined : "alert"}>⚠ ${translated(lora.warning)}</p>`}
        <span role=${lora.state === "partly" && !changed ? "alert" : undefined}>${[state, ...cost].filter(Boolean).join(" · ")}</span>
        ${advice && html`<p>${t("mark.sentence", {said: advice[0].toUpperCase() + advice.slice(1)})}</p>`}
        <p class="rt-hint">${aboutFile(lora)}</p>
        ${
            reasons.length > 0
            && html`<details><summary>${t("outcome.keys")}</summary><ul>
            ${reasons.map(([reason, keys]) => html`<li key=${reason}>${translated(reason)}: ${keysOf(lora, keys)}</li>`)}
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
    const said = shown.join(", ");
    return keys.length > KEYS_SHOWN ? t("outcome.moreKeys", {keys: said, count: keys.length - KEYS_SHOWN}) : said;
}

/**
 * Describe a file: kinds, ranks, format, the family it is for and the model it was made from.
 * @param {LoraOutcome} lora
 */
function aboutFile(lora) {
    const kinds = Object.entries(lora.kinds)
        .map(([kind, count]) => `${count} ${kind}`)
        .join(", ");
    const family = lora.family?.title ?? "";
    const made = family && t(lora.family?.sure ? "outcome.for" : "outcome.probablyFor", {family});
    const from = lora.base_model ? t("outcome.madeFrom", {model: lora.base_model}) : "";
    return [kinds, rankOf(lora), lora.format, made, from].filter(Boolean).join(" · ");
}

/** @param {LoraOutcome} lora */
function rankOf({ranks}) {
    const [low, high] = [...new Set(ranks ?? [])].map(String);
    if (!low) return "";
    return t("outcome.rank", {rank: high ? t("mark.range", {low, high}) : low});
}

/** @param {number} seconds */
function duration(seconds) {
    if (seconds < 1) return t("outcome.milliseconds", {number: Math.round(seconds * 1000)});
    return t("outcome.seconds", {number: number(seconds, 1)});
}
