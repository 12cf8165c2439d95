// The strip of block weights: a thin slider for each block of the model, and presets.

/**
 * @import {BlockPreset, Blocks as Told} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 * @import {FieldEvent, Key, Pointer} from "../vendor/preact.js"
 * @import {Attempt} from "./parts.js"
 * @import {Entry} from "./stack.js"
 */

import {html, useRef, useState} from "../vendor/preact.js";
import {written} from "../curve.js";
import {setField} from "../tag.js";
import {t, translated} from "../words.js";
import {isLetter, nameProblem, painted, readWeights, shownBlocks, snapped, writeWeights} from "../weights.js";
import {BlockEnergy} from "./check.js";
import {Button, Deleted, isNumber, isStill, NameForm, numberOf, Section, Trouble, useLoad} from "./parts.js";

const LOWEST = -1,
    HIGHEST = 2; // by keys; any number can be typed
/**
 * @typedef {{low: number, high: number}} View
 * The lowest and the highest value that is drawn.
 */

/** @type {{[key: string]: number}} */
const STEPS = {ArrowUp: 0.05, ArrowDown: -0.05, PageUp: 0.25, PageDown: -0.25};
const OWN = "*"; // stands for weights of no preset; no preset has this name
/** @type {Told} */
const UNKNOWN = {blocks: [], layouts: [], presets: [], rules: [], about_rules: {}, problem: ""};

/** @param {{tab: Tab, entry: Entry}} props */
export function Blocks({tab, entry}) {
    const {blocks, server} = tab.state;
    const [trouble, attempt] = useLoad(tab, () => tab.kept.loadBlocks(), [server?.model]);
    const told = blocks ?? UNKNOWN;
    const text = entry.values.lbw ?? "";
    const {lora} = tab.library.meaning(entry.name);
    const {cells, preset} = readWeights(text, told);
    const write = (/** @type {string} */ value, what = "") => entry.edit((body) => setField(body, "lbw", value), what);
    const said = blocks && !told.layouts.length ? t("blocks.unknown") : "";
    return html`<div class="rt-part" role="group" aria-label=${t("blocks.label", {name: entry.name})}>
        ${!blocks && !trouble.text && html`<p class="rt-hint">${t("common.loading")}</p>`}
        <${Trouble} trouble=${trouble} />
        ${said && html`<p class="rt-notice" role="status">${said}</p>`}
        ${
            cells
            && cells.length > 0
            && html`<${Strip} name=${entry.name} shown=${shownBlocks(told)} cells=${cells}
            write=${(/** @type {string[]} */ changed) => write(writeWeights(changed), "blocks")} />`
        }
        ${
            blocks
            && html`<${Presets} tab=${tab} entry=${entry} text=${text} told=${told} cells=${cells} preset=${preset}
            write=${write} attempt=${attempt} />`
        }
        <${Rules} entry=${entry} told=${told} />
        ${blocks && lora?.readable && html`<${Section} title=${t("blocks.energy")}><${BlockEnergy} tab=${tab} lora=${lora.id} entry=${entry} told=${told} /><//>`}
    </div>`;
}

/**
 * Draw the presets of rules for some layers, which come after the weights of blocks.
 * @param {{entry: Entry, told: Pick<Told, "rules" | "about_rules">}} props
 */
function Rules({entry, told: {rules, about_rules: about}}) {
    const own = entry.values.lbwe ?? "";
    if (!own && !rules.length) return null;
    const names = own && !rules.includes(own) ? [own, ...rules] : rules;
    const rule = Object.hasOwn(about, own) ? about[own].split(/ (?=All layers|Layers with)/) : [];
    const said = own ? rule.map(translated).join(" ") : t("blocks.rulesHint");
    return html`<label class="rt-field"><span>${t("blocks.rules")}</span>
        <select aria-label=${t("blocks.rulesOf", {name: entry.name})} value=${own}
            onChange=${(event) => entry.edit((body) => setField(body, "lbwe", event.target.value))}>
            <option value="">${t("blocks.noRules")}</option>
            ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
        <span class="rt-hint" role="status">${said}</span></label>`;
}

/**
 * @param {object} props
 * @param {string} props.name
 * @param {{id: string, title: string}[]} props.shown
 * @param {string[]} props.cells
 * @param {(cells: string[]) => void} props.write
 */
function Strip({name, shown, cells, write}) {
    const [last, setAt] = useState(0);
    const at = Math.min(last, cells.length - 1); // another model may have fewer
    // while a pointer is down: the view stays as it is
    const brush = useRef(/** @type {{at: number, value: number, view: View} | null} */ (null));
    const view = brush.current?.view ?? viewOf(cells);
    /** @type {(event: Pointer, from?: {at: number, value: number}) => void} */
    const paint = (event, from) => {
        const to = placeOf(event, view);
        brush.current = {...to, view};
        setAt(to.at);
        write(painted(cells, from ?? to, to));
    };
    const down = (/** @type {Pointer} */ event) => {
        if (event.button !== 0) return;
        event.preventDefault();
        event.currentTarget.setPointerCapture(event.pointerId);
        event.currentTarget.children[placeOf(event, view).at].focus();
        paint(event);
    };
    const up = () => {
        brush.current = null;
    };
    const put = (/** @type {number} */ value) =>
        write(cells.map((cell, place) => (place === at ? written(value) : cell)));
    const pressed = (/** @type {Key} */ event) => {
        /** @type {{[key: string]: number | undefined}} */
        const moves = {ArrowLeft: -1, ArrowRight: 1};
        const by = moves[event.key];
        const value = keyed(event.key, cells[at]);
        if (by) event.currentTarget.children[at + by]?.focus();
        else if (value !== null) put(value);
        else return;
        event.preventDefault();
    };
    const names = ["rt-strip", shown.length > 40 && "rt-many", view.high - view.low > 1 && "rt-scaled"];
    const lines = {
        "--rt-zero": -view.low / (view.high - view.low),
        "--rt-one": (1 - view.low) / (view.high - view.low),
    };
    return html`
        <div class=${names.filter(Boolean).join(" ")} style=${lines} role="group" aria-label=${t("blocks.weights", {name})} onKeyDown=${pressed}
            onPointerDown=${down} onPointerMove=${(/** @type {Pointer} */ event) => brush.current && paint(event, brush.current)} onPointerUp=${up} onPointerCancel=${up}>
            ${shown.map(
                (
                    {id, title},
                    place,
                ) => html`<${Block} key=${id} id=${id} title=${title} name=${name} cell=${cells[place]}
                view=${view} first=${place > 0 && letters(id) !== letters(shown[place - 1].id)}
                chosen=${place === at} choose=${() => setAt(place)} />`,
            )}
        </div>
        <div class="rt-groups" aria-hidden="true">${groupsOf(shown).map(
            ([title, count]) => html`<span key=${title} style=${`flex-grow:${count}`}>${title}</span>`,
        )}</div>
        <${Readout} key=${at} block=${shown[at]} name=${name} cell=${cells[at]} put=${put} />`;
}

/**
 * @param {string[]} cells
 * @returns {View}
 */
function viewOf(cells) {
    const numbers = cells.filter((cell) => !isLetter(cell)).map(Number);
    return {
        low: Math.min(0, Math.floor(Math.min(0, ...numbers))),
        high: Math.max(1, Math.ceil(Math.max(1, ...numbers))),
    };
}

/**
 * Return which block a pointer is at, and the value of its height.
 * @param {Pointer} event
 * @param {View} view
 */
function placeOf(event, {low, high}) {
    const boxes = [...event.currentTarget.children].map((one) => one.getBoundingClientRect());
    const found = boxes.findIndex((box) => event.clientX < box.right);
    const {top, bottom} = boxes[0];
    const share = Math.min(1, Math.max(0, (bottom - event.clientY) / (bottom - top)));
    return {at: found < 0 ? boxes.length - 1 : found, value: snapped(low + share * (high - low))};
}

/** @param {string} id */
const letters = (id) => id.replace(/\d+$/, "");

/**
 * Return the groups of blocks in a row, with the number of each one's blocks: IN 12, MID 1, OUT 12.
 * @param {{id: string}[]} shown
 */
export function groupsOf(shown) {
    /** @type {[title: string, count: number][]} */
    const groups = [];
    for (const {id} of shown) {
        const title = letters(id) === "M" ? "MID" : letters(id);
        const last = groups.at(-1);
        if (last?.[0] === title) last[1] += 1;
        else groups.push([title, 1]);
    }
    return groups;
}

/**
 * Return the value that a key leads to; null where it is no key of a slider.
 * @param {string} key
 * @param {string} cell
 */
function keyed(key, cell) {
    if (key === "Home" || key === "End") return key === "Home" ? 0 : 1;
    if (!(key in STEPS)) return null;
    const value = isLetter(cell) ? 0.5 : Number(cell);
    return snapped(Math.min(Math.max(HIGHEST, value), Math.max(Math.min(LOWEST, value), value + STEPS[key])));
}

/**
 * @param {object} props
 * @param {string} props.id
 * @param {string} props.title
 * @param {string} props.name
 * @param {string} props.cell
 * @param {View} props.view
 * @param {boolean} props.first
 * @param {boolean} props.chosen
 * @param {() => void} props.choose
 */
function Block({id, title, name, cell, view: {low, high}, first, chosen, choose}) {
    const letter = isLetter(cell);
    const value = letter ? 0 : Number(cell);
    const percent = (/** @type {number} */ number) =>
        `${(Math.min(1, Math.max(0, number / (high - low))) * 100).toFixed(2)}%`;
    const bar = {bottom: percent(Math.min(value, 0) - low), height: percent(Math.abs(value))};
    return html`<div class=${`rt-block${first ? " rt-first" : ""}${chosen ? " rt-chosen" : ""}`} role="slider" tabindex=${chosen ? 0 : -1}
        aria-orientation="vertical" aria-label=${t("blocks.blockOf", {block: id, name})} aria-valuemin=${Math.min(LOWEST, value)}
        aria-valuemax=${Math.max(HIGHEST, value)} aria-valuenow=${value} aria-valuetext=${letter ? meaning(cell) : undefined}
        title=${[id, translated(title), cell].filter(Boolean).join(" · ")} onFocus=${choose}>
        ${letter ? html`<span class="rt-letter">${cell[0]}</span>` : html`<span class="rt-bar" style=${bar}></span>`}
    </div>`;
}

/** @param {string} letter */
function meaning(letter) {
    if (letter.startsWith("X")) return t("blocks.letterX", {letter});
    return t(letter === "R" ? "blocks.letterR" : "blocks.letterU");
}

/**
 * Draw the chosen block, and its value to be typed.
 * @param {{block: {id: string, title: string}, name: string, cell: string, put: (value: number) => void}} props
 */
function Readout({block, name, cell, put}) {
    const [typed, setTyped] = useState(/** @type {string | null} */ (null));
    const good = typed === null || isNumber(typed);
    const type = (/** @type {FieldEvent} */ event) => {
        setTyped(event.target.value);
        if (isNumber(event.target.value)) put(numberOf(event.target.value));
    };
    return html`<div class="rt-line rt-readout">
        <label><span>${[block.id, translated(block.title)].filter(Boolean).join(" · ")}</span>
            <input type="text" inputmode="decimal" autocomplete="off" spellcheck=${false} aria-label=${t("blocks.weightOf", {block: block.id, name})}
                aria-invalid=${String(!good)} value=${typed ?? cell} onInput=${type} onBlur=${() => setTyped(null)} /></label>
        <span class="rt-hint">${t("blocks.hint")}</span>
        <span class="rt-problem" role="alert">${good ? "" : t("strength.notANumber", {text: String(typed)})}</span>
    </div>`;
}

/**
 * @param {object} props
 * @param {Tab} props.tab
 * @param {Entry} props.entry
 * @param {string} props.text
 * @param {Told} props.told
 * @param {string[] | null} props.cells
 * @param {BlockPreset | null} props.preset
 * @param {(value: string) => void} props.write
 * @param {Attempt} props.attempt
 */
function Presets({tab, entry, text, told, cells, preset, write, attempt}) {
    const [saving, setSaving] = useState(false);
    const [deleted, setDeleted] = useState(/** @type {(BlockPreset & {replaced?: boolean}) | null} */ (null));
    const {length} = shownBlocks(told);
    const chosen = preset ? preset.name : text ? OWN : "";
    const save = (/** @type {string} */ name) =>
        attempt(async () => {
            const former = told.presets.find((one) => one.own && one.name === name);
            await tab.kept.saveBlocks(name, /** @type {string[]} */ (cells).join(","));
            setSaving(false);
            setDeleted(former ? {...former, replaced: true} : null);
        });
    // the tag says what the preset said: without it, its name would mean nothing
    const remove = () =>
        attempt(async () => {
            const {name, values} = /** @type {BlockPreset} */ (preset);
            await tab.kept.deleteBlocks(name);
            write(values);
            setDeleted(preset);
        });
    const undo = () =>
        attempt(async () => {
            const {name, values} = /** @type {BlockPreset} */ (deleted);
            await tab.kept.saveBlocks(name, values);
            write(name);
            setDeleted(null);
        });
    return html`
        <div class="rt-line">
            <select aria-label=${t("blocks.presetOf", {name: entry.name})} value=${chosen}
                onChange=${(event) => event.target.value !== OWN && write(event.target.value)}>
                <option value="">${t("blocks.inFull")}</option>
                ${chosen === OWN && html`<option value=${OWN}>${t("blocks.own")}</option>`}
                ${told.presets.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
            </select>
            <${Button} label=${t("blocks.all1Hint", {name: entry.name})} class="rt-small" onClick=${() => write("")}>${t("blocks.all1")}<//>
            <${Button} label=${t("blocks.all0Hint", {name: entry.name})} class="rt-small" disabled=${!length}
                onClick=${() => write(Array(length).fill("0").join(","))}>${t("blocks.all0")}<//>
            ${!saving && html`<button type="button" class="rt-small" disabled=${!cells?.length} onClick=${() => setSaving(true)}>${t("blocks.saveAs")}</button>`}
            ${preset?.own && html`<button type="button" class="rt-small" onClick=${remove}>${t("blocks.delete", {name: preset.name})}</button>`}
        </div>
        ${
            deleted
            && isStill(
                deleted.name,
                deleted.replaced,
                told.presets.filter((one) => one.own),
            )
            && html`<${Deleted} name=${t("presets.named", {name: deleted.name})} replaced=${deleted.replaced} undo=${undo} />`
        }
        ${
            saving
            && html`<${NameForm} label=${t("blocks.newName")} button=${t("common.save")} hint=${t("common.name")} focus problem=${nameProblem} save=${save} cancel=${() => setSaving(false)}>
            <button type="button" class="rt-small" onClick=${() => setSaving(false)}>${t("common.cancel")}</button>
        <//>`
        }`;
}
