// What one file does: pictures without and with it, of a few prompts.

/**
 * @import {LoraDetails} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 * @import {Wanted} from "./compare.js"
 */

import {html, useState} from "../vendor/preact.js";
import {settings} from "../boxes.js";
import {escapedName, makeTag} from "../tag.js";
import {t} from "../words.js";
import {Foot, Grid, Hindrance, numbersOf, Settings, STANDARD, useComparison} from "./compare.js";
import {isNumber, numberOf} from "./parts.js";

const MOST = {steps: 12, side: 512}; // that a sheet begins with
const STEP = 64; // pixels

/** @param {{tab: Tab, lora: LoraDetails}} props */
export function Sheet({tab, lora}) {
    const comparison = useComparison(tab, lora.id);
    const {told, own} = comparison;
    const words = tab.library.wordsOf(lora.name);
    const given = (told?.examples ?? []).map((example) => [words, example].filter(Boolean).join(", ")).join("\n");
    const [typed, setTyped] = useState(/** @type {string | null} */ (null));
    const [strength, setStrength] = useState(String(lora.strength ?? tab.stack.standard));
    const [wanted, setWanted] = useState(() => bounded({...STANDARD, ...settings(tab.state.target), seed: 1}));
    const start = (/** @type {Event} */ event) => {
        event.preventDefault();
        comparison.start(() => ({
            mode: "sheet",
            names: [lora.name],
            values: linesOf(typed ?? given),
            prompt: makeTag(escapedName(lora.name), strengthOf(strength), strengthOf(strength)),
            negative_prompt: tab.library.negativesOf(lora.name).join(", "),
            ...numbersOf(wanted),
        }));
    };
    const titles = [t("sheet.without"), t("sheet.with"), t("sheet.difference")];
    return html`<div class="rt-part">
        <p class="rt-hint">${t("sheet.hint")}</p>
        <form class="rt-compare" id="rt-sheet" onSubmit=${start}>
            <label class="rt-field"><span>${t("sheet.prompts")}</span>
                <textarea rows="4" value=${typed ?? given} onInput=${(event) => setTyped(event.target.value)}></textarea></label>
            <div class="rt-filters">
                <label class="rt-field"><span>${t("common.strength")}</span>
                    <input type="text" inputmode="decimal" value=${strength} onInput=${(event) => setStrength(event.target.value)} /></label>
                <${Settings} wanted=${wanted} set=${setWanted} samplers=${told?.samplers ?? []} />
            </div>
        </form>
        <${Hindrance} comparison=${comparison} />
        <${Foot} comparison=${comparison} form="rt-sheet" />
        ${own && html`<${Grid} tab=${tab} made=${own} titles=${titles} file=${`${lora.name} sheet`} />`}
    </div>`;
}

/**
 * Return settings with few steps and a small size: a sheet is many pictures.
 * @param {Wanted} wanted
 */
function bounded(wanted) {
    const [width, height] = [Number(wanted.width), Number(wanted.height)];
    const scale = Math.min(1, MOST.side / Math.max(width, height));
    const side = (/** @type {number} */ length) =>
        scale < 1 ? Math.max(STEP, Math.round((length * scale) / STEP) * STEP) : length;
    return {...wanted, steps: Math.min(MOST.steps, Number(wanted.steps)), width: side(width), height: side(height)};
}

/** @param {string} text */
function linesOf(text) {
    const lines = text
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
    if (!lines.length) throw new Error(t("sheet.noPrompt"));
    return lines;
}

/** @param {string} text */
function strengthOf(text) {
    if (!isNumber(text)) throw new Error(t("strength.notANumber", {text}));
    return numberOf(text);
}
