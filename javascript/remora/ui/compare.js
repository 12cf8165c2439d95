// A grid of pictures that differ in their LoRA alone.

/**
 * @import {Comparison, Compare as CompareState} from "../../api.d.ts"
 * @import {State, Tab} from "../main.js"
 */

import {html, useEffect, useState} from "../vendor/preact.js";
import {query} from "../api.js";
import {settings} from "../boxes.js";
import {broken, Button, Dialog, isNumber, numberOf, Picture, Trouble, useLoad} from "./parts.js";

const POLL = 500; // milliseconds
const MODES = {
    strengths: "Strengths, a row for each",
    against: "Strengths of two against each other",
    without: "All, without each, and without any",
    combinations: "Every combination",
    blocks: "Block weights, a row for each",
    regions: "Regions, a row for each",
    schedules: "Schedules, a row for each",
};
const LIST = "Numbers, such as 0, 0.5, 1, or a range with a step, such as 0-1 (0.25)";
/** @type {{[mode: string]: {title: string, first: string, hint: string} | undefined}} */
const VALUES = {
    strengths: {title: "Strengths", first: "0, 0.25, 0.5, 0.75, 1", hint: LIST},
    against: {title: "Strengths", first: "0, 0.5, 1", hint: LIST},
    blocks: {
        title: "Block weights",
        first: "None; INALL; MIDD; OUTALL",
        hint: "Names or lists, separated by semicolons",
    },
    regions: {title: "Regions", first: "None; left; right", hint: "Names or rectangles, separated by semicolons"},
    schedules: {
        title: "Schedules",
        first: "None; 0@0,1@0.5; stop=10",
        hint: "Points or steps, separated by semicolons; None for none",
    },
};
const STANDARD = {steps: 20, cfg_scale: 7, width: 512, height: 512, seed: -1, sampler: "", schedule: ""};
/** @type {[name: string, title: string][]} */
const NUMBERS = [
    ["steps", "Steps"],
    ["cfg_scale", "CFG scale"],
    ["width", "Width"],
    ["height", "Height"],
    ["seed", "Seed (-1: random)"],
];

/** @param {{tab: Tab, state: State}} props */
export function Compare({tab, state}) {
    const [told, setTold] = useState(/** @type {CompareState | null} */ (null));
    const load = async () => setTold(await tab.api.get("compare"));
    const [trouble, attempt] = useLoad(tab, load, []);
    const names = [
        ...new Set(
            tab.stack
                .rows()
                .filter((row) => row.on && !row.problem)
                .map((row) => row.name),
        ),
    ];
    const [chosen, setChosen] = useState(names.slice(0, 1));
    const [mode, setMode] = useState("strengths");
    const [values, setValues] = useState(VALUES.strengths?.first ?? "");
    const field = VALUES[mode];
    const change = (/** @type {string} */ to) => {
        if (VALUES[to]?.title !== field?.title) setValues(VALUES[to]?.first ?? "");
        setMode(to);
    };
    const [wanted, setWanted] = useState(
        /** @type {{[field: string]: string | number}} */ ({
            ...STANDARD,
            ...settings(state.target),
            ...(tab.pictures.seed === null ? {} : {seed: tab.pictures.seed}), // what is compared is the picture that is shown
        }),
    );
    const made = told?.comparison;
    const own = made && made.id === state.comparison ? made : null;
    const running = Boolean(made?.running);
    const ask = (/** @type {string} */ method) => attempt(async () => setTold(await tab.api.ask(method, "compare")));
    useEffect(() => {
        if (!running) return undefined;
        const timer = setInterval(() => ask("GET"), POLL);
        return () => clearInterval(timer);
    }, [running]);
    const start = (/** @type {Event} */ event) => {
        event.preventDefault();
        attempt(async () => {
            /** @type {{[field: string]: unknown}} */
            const body = {
                mode,
                names: chosen,
                prompt: state.prompt,
                negative_prompt: state.negative,
                ...numbersOf(wanted),
            };
            if (field) body.values = field.title === "Strengths" ? valuesOf(values) : textsOf(values);
            const begun = await tab.api.ask("POST", "compare", body);
            setTold(begun);
            tab.set({comparison: begun.comparison?.id ?? ""});
        });
    };
    const flip = (/** @type {string} */ name) =>
        setChosen(chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]);
    const foot = html`<${Trouble} trouble=${trouble} />
        <div class="rt-line rt-end">
            ${own && html`<${Progress} made=${own} />`}
            ${
                own?.running
                    ? html`<button type="button" onClick=${() => ask("DELETE")}>Cancel</button>`
                    : html`<button type="submit" form="rt-compare" class="rt-primary" disabled=${running || (told !== null && !told.possible)}>Make the pictures</button>`
            }
        </div>`;
    return html`<${Dialog} title="Compare" close=${() => tab.set({dialog: ""})} foot=${foot} class="rt-wide-dialog">
        <form class="rt-compare" id="rt-compare" onSubmit=${start}>
            <fieldset class="rt-tags"><legend>LoRA</legend>
                ${names.map(
                    (
                        name,
                    ) => html`<label class="rt-check" key=${name}><input type="checkbox" checked=${chosen.includes(name)}
                    onChange=${() => flip(name)} /> <span>${broken(name)}</span></label>`,
                )}
                ${!names.length && html`<span class="rt-hint">The prompt has no LoRA. Insert one first.</span>`}
            </fieldset>
            <div class="rt-filters">
                <label class="rt-field rt-double"><span>What is compared</span><select value=${mode} onChange=${(event) => change(event.target.value)}>
                    ${Object.entries(MODES).map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`)}</select></label>
                ${
                    field
                    && html`<label class="rt-field rt-double"><span>${field.title}</span>
                    <input type="text" value=${values} onInput=${(event) => setValues(event.target.value)} />
                    <span class="rt-hint">${field.hint}</span></label>`
                }
                ${NUMBERS.map(
                    ([name, title]) => html`<label class="rt-field" key=${name}><span>${title}</span>
                    <input type="text" inputmode="decimal" value=${wanted[name]}
                        onInput=${(event) => setWanted({...wanted, [name]: event.target.value})} /></label>`,
                )}
                <label class="rt-field"><span>Sampler</span><select value=${wanted.sampler}
                    onChange=${(event) => setWanted({...wanted, sampler: event.target.value})}>
                    ${[...new Set([wanted.sampler, ...(told?.samplers ?? [])])].filter(Boolean).map(
                        (name) => html`
                        <option key=${name} value=${name}>${name}</option>`,
                    )}</select></label>
            </div>
        </form>
        ${told && !told.possible && html`<p class="rt-notice">The tab cannot make pictures with this web UI.</p>`}
        ${running && !own && html`<p class="rt-notice" role="status">Another page or program is making a comparison. Wait until it ends.</p>`}
        ${own && html`<${Grid} tab=${tab} made=${own} />`}
    <//>`;
}

/** @param {{made: Comparison}} props */
function Progress({made}) {
    const done = made.done.filter(Boolean).length;
    const total = made.done.length;
    const say = made.running
        ? `Picture ${Math.min(done + 1, total)} of ${total}`
        : made.cancelled
          ? `Cancelled after ${done} of ${total} pictures`
          : `${done} of ${total} pictures`;
    return html`<progress max=${total} value=${done + made.fraction} aria-label="Pictures made"></progress>
        <span class="rt-hint" role="status">${say}, seed ${made.seed}</span>`;
}

/** @param {{tab: Tab, made: Comparison}} props */
function Grid({tab, made}) {
    const ready = !made.running && made.done.some(Boolean);
    const use = (/** @type {number} */ cell) => {
        tab.stack.readBoxes();
        tab.stack.change({prompt: made.prompts[cell]});
        tab.set({dialog: "", said: "The prompt now has the LoRA of that picture."});
    };
    return html`<div class="rt-result">
        ${ready && html`<div class="rt-line"><span class="rt-hint">Click a picture to use its LoRA.</span> <a href=${`${tab.api.base}compare/picture`} download="comparison.png">Save as one picture</a></div>`}
        ${made.problem && html`<p class="rt-error" role="alert">${made.problem}</p>`}
        <div class="rt-grid-scroll" tabindex="0" role="region" aria-label="Comparison"><table class="rt-grid" style=${`--across:${made.columns.length}`}><thead><tr><td></td>
            ${made.columns.map((title) => html`<th scope="col" key=${title} title=${title}>${broken(title)}</th>`)}</tr></thead>
            <tbody>${made.rows.map(
                (title, y) => html`<tr key=${title}><th scope="row" title=${title}>${broken(title)}</th>
                ${made.columns.map((column, x) => {
                    const cell = y * made.columns.length + x;
                    const label = `${title} ${column}`.trim();
                    return html`<td key=${cell}>${
                        made.done[cell]
                            ? html`<${Button} label=${`Use the prompt of ${label}`} class="rt-cell"
                        onClick=${() => use(cell)}><${Picture} api=${tab.api} name=${label}
                        path=${`compare/picture?${query({cell, v: made.id})}`} /><//>`
                            : html`<span class="rt-cell rt-awaited">${made.running && made.at === cell ? `${Math.round(made.fraction * 100)} %` : ""}</span>`
                    }</td>`;
                })}</tr>`,
            )}</tbody></table></div>
    </div>`;
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
                throw new Error(`“${part}” is not a range of up to 150 strengths; write, for example, 0-1 (0.25)`);
            for (let at = 0; at < count; at += 1) found.push(Number((low + at * step).toFixed(4)));
        } else if (isNumber(part)) {
            found.push(numberOf(part));
        } else {
            throw new Error(
                `“${part}” is not a strength; write numbers, such as 0, 0.5, 1, or a range, such as 0-1 (0.25)`,
            );
        }
    }
    if (!found.length) throw new Error("Write at least one strength.");
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
    if (!found.length) throw new Error("Write at least one text, or None.");
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
            throw new Error(`${title} must be a number, not “${wanted[name]}”.`);
        made[name] = numberOf(String(wanted[name]));
    }
    if (wanted.sampler) made.sampler = wanted.sampler;
    if (wanted.schedule) made.schedule = wanted.schedule;
    return made;
}
