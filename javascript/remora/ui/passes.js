// In which passes a LoRA acts.

/** @import {Entry} from "./stack.js" */

import {html, useState} from "../vendor/preact.js";
import {PASSES, setField} from "../tag.js";
import {passesOf} from "./summary.js";

/** @type {{[pass: string]: string}} */
const TITLES = {
    base: "the first pass",
    hires: "the second pass, at a higher resolution",
    refiner: "the passes of a refiner model",
    detailer: "passes over details, such as faces",
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
    return html`<div class="rt-part" role="group" aria-label=${`Passes of ${entry.name}`}>
        <div class="rt-line">
            ${PASSES.map(
                (
                    one,
                ) => html`<button type="button" key=${one} class="rt-chip rt-pass" aria-pressed=${String(on.includes(one))}
                title=${`Acts in ${TITLES[one]}`} onClick=${() => flip(one)}>${one}</button>`,
            )}
        </div>
        <p class="rt-problem" role="alert">${kept && on.length === 1 ? `One pass must stay on. To switch ${entry.name} off in all passes, use its check box above.` : ""}</p>
    </div>`;
}
