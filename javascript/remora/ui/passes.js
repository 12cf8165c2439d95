// In which passes a LoRA acts.

/** @import {Entry} from "./stack.js" */

import {html, useState} from "../vendor/preact.js";
import {PASSES, setField} from "../tag.js";
import {t} from "../words.js";
import {passesOf, passName} from "./summary.js";

/** @type {{[pass: string]: "passes.baseHint" | "passes.hiresHint" | "passes.refinerHint" | "passes.detailerHint"}} */
const HINTS = {
    base: "passes.baseHint",
    hires: "passes.hiresHint",
    refiner: "passes.refinerHint",
    detailer: "passes.detailerHint",
};

/** @param {{entry: Entry}} props */
export function Passes({entry}) {
    const [kept, setKept] = useState(false); // the last one was to be switched off
    const on = passesOf(entry.values.pass);
    const flip = (/** @type {string} */ one) => {
        const wanted = PASSES.filter((other) => on.includes(other) !== (other === one));
        setKept(!wanted.length);
        if (!wanted.length) return;
        entry.edit((body) => setField(body, "pass", wanted.length === PASSES.length ? "" : wanted.join(",")));
    };
    return html`<div class="rt-part" role="group" aria-label=${t("passes.label", {name: entry.name})}>
        <div class="rt-line">
            ${PASSES.map(
                (
                    one,
                ) => html`<button type="button" key=${one} class="rt-chip rt-pass" aria-pressed=${String(on.includes(one))}
                title=${t(HINTS[one])} onClick=${() => flip(one)}>${passName(one)}</button>`,
            )}
        </div>
        <p class="rt-problem" role="alert">${kept && on.length === 1 ? t("passes.lastStays", {name: entry.name}) : ""}</p>
    </div>`;
}
