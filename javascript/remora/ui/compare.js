// A grid of pictures that differ in their LoRA alone.

/**
 * @import {Comparison, Compare as CompareState} from "../../api.d.ts"
 * @import {State, Tab} from "../main.js"
 */

import {html, useState} from "../vendor/preact.js";
import {query} from "../api.js";
import {settings} from "../boxes.js";
import {withTags} from "../growing.js";
import {t, translated} from "../words.js";
import {broken, Button, Dialog, FileLink, isNumber, numberOf, Picture, Trouble, useLater, useLoad} from "./parts.js";

const POLL = 500; // milliseconds
const NOT_COMPARED = {dialog: "", compared: [], comparing: "strengths"};
const MODES = /** @type {const} */ ({
    strengths: "compare.strengths",
    alone: "compare.alone",
    against: "compare.against",
    without: "compare.without",
    combinations: "compare.combinations",
    blocks: "compare.blocks",
    regions: "compare.regions",
    schedules: "compare.schedules",
});
const STRENGTHS = /** @type {const} */ ({title: "compare.strengthValues", hint: "compare.strengthHint"});
const VALUES = /** @type {const} */ ({
    strengths: {...STRENGTHS, first: "0, 0.25, 0.5, 0.75, 1"},
    alone: {...STRENGTHS, first: "0.6, 0.8, 1"},
    against: {...STRENGTHS, first: "0, 0.5, 1"},
    blocks: {title: "compare.blockValues", first: "None; INALL; MIDD; OUTALL", hint: "compare.blockHint"},
    regions: {title: "compare.regionValues", first: "None; left; right", hint: "compare.regionHint"},
    schedules: {title: "compare.scheduleValues", first: "None; 0@0,1@0.5; stop=10", hint: "compare.scheduleHint"},
});

/**
 * Return what the values of a mode are called, and the first ones; undefined where a mode has none.
 * @param {string} mode
 */
const valuesFor = (mode) => (mode in VALUES ? VALUES[/** @type {keyof typeof VALUES} */ (mode)] : undefined);

/**
 * @typedef {{[field: string]: string | number}} Wanted
 *
 * @typedef {(id: string, asked: object) => Partial<State>} Begun
 * Returns what else changes when a comparison has begun.
 */

export const STANDARD = {steps: 20, cfg_scale: 7, width: 512, height: 512, seed: -1, sampler: "", schedule: ""};
const NUMBERS = /** @type {const} */ ([
    ["steps", "compare.steps"],
    ["cfg_scale", "compare.cfgScale"],
    ["width", "compare.width"],
    ["height", "compare.height"],
    ["seed", "compare.seed"],
]);

/**
 * Return the settings of the page, with the seed of the picture that is shown: it is what is compared.
 * @param {Tab} tab
 * @returns {{[field: string]: string | number}}
 */
export const settingsOfPicture = ({state, pictures}) => ({
    ...STANDARD,
    ...settings(state.target),
    ...(pictures.seed === null ? {} : {seed: pictures.seed}),
});

/**
 * Follow the comparison that the server makes, and begin one. A page shows only what it began.
 * @param {Tab} tab
 * @param {string} [sheet] id of the file whose sheet is shown; empty for a comparison of the stack
 */
export function useComparison(tab, sheet = "") {
    const [told, setTold] = useState(/** @type {CompareState | null} */ (null));
    const ask = async (/** @type {string} */ method) => setTold(await tab.api.ask(method, "compare"));
    const [round, setRound] = useState(0);
    const [trouble, attempt] = useLoad(tab, () => ask("GET"), [round, tab.state.followed]);
    const made = told?.comparison;
    const own = made && made.id === tab.state.comparison && sheet === tab.state.sheet ? made : null;
    const running = Boolean(made?.running);
    useLater(running && (() => setRound(round + 1)), POLL, [told]);
    const start = (/** @type {() => object} */ body, /** @type {Begun} */ also = () => ({})) =>
        attempt(async () => {
            const asked = body();
            const begun = await tab.api.ask("POST", "compare", asked);
            setTold(begun);
            const id = begun.comparison?.id ?? "";
            tab.set({comparison: id, sheet, followed: null, ...also(id, asked)});
        });
    return {told, own, running, trouble, start, cancel: () => attempt(() => ask("DELETE"))};
}

/** @param {{tab: Tab, state: State}} props */
export function Compare({tab, state}) {
    const comparison = useComparison(tab);
    const {told, own} = comparison;
    const rows = tab.stack.rows().filter((row) => row.on && !row.problem);
    const given = state.compared;
    const names = [...new Set([...rows.map((row) => row.name), ...given])];
    const [chosen, setChosen] = useState(given.length ? given : names.slice(0, 1));
    const [mode, setMode] = useState(state.comparing);
    const [values, setValues] = useState(
        /** @type {string} */ (valuesFor(state.comparing)?.first ?? VALUES.strengths.first),
    );
    const field = valuesFor(mode);
    const change = (/** @type {string} */ to) => {
        const next = valuesFor(to);
        if (next?.title !== field?.title) setValues(next?.first ?? "");
        setMode(to);
    };
    const [wanted, setWanted] = useState(() => /** @type {Wanted} */ (settingsOfPicture(tab)));
    const {prompt, negative, followed} = state;
    const bodyOf = () => {
        /** @type {{[field: string]: unknown}} */
        const body = {
            ...{mode, names: chosen, prompt: withTags(prompt, chosen), negative_prompt: negative},
            ...numbersOf(wanted),
        };
        if (field) body.values = field.title === STRENGTHS.title ? valuesOf(values) : textsOf(values);
        return body;
    };
    /** @type {Begun} */
    const follow = (id, body) => ({followed: {id, grows: true, names: chosen, prompt, body: {...body}}});
    const start = (/** @type {Event} */ event) => {
        event.preventDefault();
        comparison.start(bodyOf, mode === "alone" ? follow : undefined);
    };
    const flip = (/** @type {string} */ name) =>
        setChosen(chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]);
    const use = (/** @type {string} */ prompt) => {
        tab.stack.readBoxes();
        tab.stack.change({prompt});
        tab.set({...NOT_COMPARED, said: t("compare.used")});
    };
    return html`<${Dialog} title=${t("common.compare")} close=${() => tab.set({...NOT_COMPARED})}
        foot=${html`<${Foot} comparison=${comparison} form="rt-compare" />`} class="rt-wide-dialog">
        <form class="rt-compare" id="rt-compare" onSubmit=${start}>
            <fieldset class="rt-tags"><legend>LoRA</legend>
                ${names.map(
                    (
                        name,
                    ) => html`<label class="rt-check" key=${name}><input type="checkbox" checked=${chosen.includes(name)}
                    onChange=${() => flip(name)} /> <span>${broken(name)}</span></label>`,
                )}
                ${!names.length && html`<span class="rt-hint">${t("compare.noLora")}</span>`}
            </fieldset>
            <div class="rt-filters">
                <label class="rt-field rt-double"><span>${t("compare.what")}</span><select value=${mode} onChange=${(event) => change(event.target.value)}>
                    ${Object.entries(MODES).map(([name, title]) => html`<option key=${name} value=${name}>${t(title)}</option>`)}</select></label>
                ${
                    field
                    && html`<label class="rt-field rt-double"><span>${t(field.title)}</span>
                    <input type="text" value=${values} onInput=${(event) => setValues(event.target.value)} />
                    <span class="rt-hint">${t(field.hint)}</span></label>`
                }
                <${Settings} wanted=${wanted} set=${setWanted} samplers=${told?.samplers ?? []} />
            </div>
        </form>
        ${
            own
            && followed?.id === own.id
            && html`<label class="rt-check"><input type="checkbox" checked=${followed.grows}
            onChange=${() => tab.set({followed: {...followed, grows: !followed.grows}})} />
            <span>${t("compare.grows")} <span class="rt-hint">${t("compare.growsHint")}</span></span></label>`
        }
        <${Hindrance} comparison=${comparison} />
        ${own && html`<${Grid} tab=${tab} made=${own} use=${use} />`}
    <//>`;
}

/**
 * Draw the fields of the numbers and of the sampler.
 * @param {{wanted: Wanted, set: (wanted: Wanted) => void, samplers: string[]}} props
 */
export function Settings({wanted, set, samplers}) {
    return html`${NUMBERS.map(
        ([name, title]) => html`<label class="rt-field" key=${name}><span>${t(title)}</span>
            <input type="text" inputmode="decimal" value=${wanted[name]} onInput=${(event) => set({...wanted, [name]: event.target.value})} /></label>`,
    )}
        <label class="rt-field"><span>${t("compare.sampler")}</span><select value=${wanted.sampler}
            onChange=${(event) => set({...wanted, sampler: event.target.value})}>
            ${[...new Set([wanted.sampler, ...samplers])].filter(Boolean).map(
                (name) => html`
                <option key=${name} value=${name}>${name}</option>`,
            )}</select></label>`;
}

/**
 * Draw the progress, and the button that begins or cancels.
 * @param {{comparison: ReturnType<typeof useComparison>, form: string}} props
 */
export function Foot({comparison: {told, own, running, trouble, cancel}, form}) {
    return html`<${Trouble} trouble=${trouble} />
        <div class="rt-line rt-end">
            ${own && html`<${Progress} made=${own} />`}
            ${
                own?.running
                    ? html`<button type="button" onClick=${cancel}>${t("compare.cancel")}</button>`
                    : html`<button type="submit" form=${form} class="rt-primary" disabled=${running || (told !== null && !told.possible)}>${t("compare.make")}</button>`
            }
        </div>`;
}

/**
 * Say why no comparison can begin.
 * @param {{comparison: ReturnType<typeof useComparison>}} props
 */
export function Hindrance({comparison: {told, own, running}}) {
    return html`${told && !told.possible && html`<p class="rt-notice">${t("compare.impossible")}</p>`}
        ${running && !own && html`<p class="rt-notice" role="status">${t("compare.otherRuns")}</p>`}`;
}

/** @param {{made: Comparison}} props */
function Progress({made}) {
    const done = made.done.filter(Boolean).length;
    const total = made.done.length;
    const seed = String(made.seed);
    const said = made.running
        ? t("compare.progress", {number: Math.min(done + 1, total), total, seed})
        : t(made.cancelled ? "compare.cancelled" : "compare.done", {done, total, seed});
    return html`<progress max=${total} value=${done + made.fraction} aria-label=${t("compare.made")}></progress>
        <span class="rt-hint" role="status">${said}</span>`;
}

/**
 * Draw the pictures. Where a prompt can be used, a picture is a button for that, else a link to itself.
 * @param {{tab: Tab, made: Comparison, use?: (prompt: string) => void, titles?: string[], file?: string}} props
 */
export function Grid({tab, made, use, titles = made.columns, file = "comparison"}) {
    const ready = !made.running && made.done.some(Boolean);
    return html`<div class="rt-result">
        ${ready && html`<div class="rt-line">${use && html`<span class="rt-hint">${t("compare.useHint")}</span>`} <${FileLink} api=${tab.api} path="compare/picture" name=${`${file}.png`}>${t("compare.save")}<//></div>`}
        ${made.problem && html`<p class="rt-error" role="alert">${translated(made.problem)}</p>`}
        <div class="rt-grid-scroll" tabindex="0" role="region" aria-label=${t("compare.grid")}><table class="rt-grid" style=${`--across:${made.columns.length}`}><thead><tr><td></td>
            ${titles.map((title) => html`<th scope="col" key=${title} title=${title}>${broken(title)}</th>`)}</tr></thead>
            <tbody>${made.rows.map(
                (title, y) => html`<tr key=${y}>
                ${title ? html`<th scope="row" title=${title}>${broken(title)}</th>` : html`<td></td>`}
                ${titles.map((column, x) => {
                    const cell = y * titles.length + x;
                    return html`<td key=${cell}>${
                        made.done[cell]
                            ? html`<${Cell} tab=${tab} made=${made} cell=${cell} label=${`${title} ${column}`.trim()} use=${use} />`
                            : html`<span class="rt-cell rt-awaited">${made.running && made.at === cell ? `${Math.round(made.fraction * 100)} %` : ""}</span>`
                    }</td>`;
                })}</tr>`,
            )}</tbody></table></div>
    </div>`;
}

/** @param {{tab: Tab, made: Comparison, cell: number, label: string, use?: (prompt: string) => void}} props */
function Cell({tab, made, cell, label, use}) {
    const path = `compare/picture?${query({cell, v: made.id})}`;
    const prompt = made.prompts[cell];
    const picture = html`<${Picture} api=${tab.api} name=${label} path=${path} />`;
    if (!use || prompt === null)
        return html`<a class="rt-cell" href=${tab.api.base + path} target="_blank" rel="noopener" aria-label=${label} title=${label}>${picture}</a>`;
    return html`<${Button} label=${t("compare.usePrompt", {picture: label})} class="rt-cell" onClick=${() => use(prompt)}>${picture}<//>`;
}

/**
 * Read strengths from text: numbers, and ranges as X/Y/Z plots write them, `0-1 (0.25)` and `0-1 [5]`.
 * @param {string} text
 */
export function valuesOf(text) {
    const found = [];
    for (const part of text
        .split(text.includes(";") ? ";" : ",") // a decimal comma needs another one between numbers
        .map((one) => one.trim())
        .filter(Boolean)) {
        const range = part.match(/^([+-]?[\d.]+)\s*-\s*([+-]?[\d.]+)\s*(?:\(\s*([\d.]+)\s*\)|\[\s*(\d+)\s*\])$/);
        if (range) {
            const [low, high] = [Number(range[1]), Number(range[2])];
            const count = range[4] ? Number(range[4]) : Math.floor((high - low) / Number(range[3]) + 1e-9) + 1;
            const step = range[3] ? Number(range[3]) : (high - low) / Math.max(1, count - 1);
            if (!(count > 0 && count <= 150 && Number.isFinite(step)))
                throw new Error(t("compare.badRange", {text: part}));
            for (let at = 0; at < count; at += 1) found.push(Number((low + at * step).toFixed(4)));
        } else if (isNumber(part)) {
            found.push(numberOf(part));
        } else {
            throw new Error(t("compare.badStrength", {text: part}));
        }
    }
    if (!found.length) throw new Error(t("compare.noStrength"));
    return found;
}

/**
 * Read texts to compare, which may have commas of their own.
 * @param {string} text
 */
export function textsOf(text) {
    const found = text
        .split(";")
        .map((part) => part.trim())
        .filter(Boolean);
    if (!found.length) throw new Error(t("compare.noText"));
    return found;
}

/**
 * Return what the fields of numbers hold; seeds may have any number of digits that JavaScript keeps.
 * @param {{[field: string]: string | number}} wanted
 */
export function numbersOf(wanted) {
    /** @type {{[field: string]: string | number}} */
    const made = {};
    for (const [name, title] of NUMBERS) {
        if (!isNumber(String(wanted[name]), Number.MAX_SAFE_INTEGER))
            throw new Error(t("compare.notANumber", {field: t(title), text: String(wanted[name])}));
        made[name] = numberOf(String(wanted[name]));
    }
    if (wanted.sampler) made.sampler = wanted.sampler;
    if (wanted.schedule) made.schedule = wanted.schedule;
    return made;
}
