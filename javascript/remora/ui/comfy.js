// The rows of Remora Stack in ComfyUI: a text with a tag in each line, shown as the tab shows its stack.

/**
 * @import {Tab} from "../main.js"
 * @import {Reading} from "../tag.js"
 * @import {FieldEvent} from "../vendor/preact.js"
 * @import {Section} from "./row.js"
 * @import {Entry, Handle} from "./stack.js"
 *
 * @typedef {Reading & {on: boolean, key: string, body: string, text: string}} Line
 */

import {html, render, useState} from "../vendor/preact.js";
import {canBeNamed} from "../catalog.js";
import {makeTag, readTags, setField, setMultipliers, withName} from "../prompt.js";
import {Language} from "../language.js";
import {asked, similar} from "../similar.js";
import {escapedName, readBody} from "../tag.js";
import {loadSheet, shadowed, Theme} from "../theme.js";
import {t} from "../words.js";
import {Icon} from "./icons.js";
import {Button} from "./parts.js";
import {Row, SCHEDULE} from "./row.js";
import {Rows, useFocus} from "./stack.js";

const OFF = /^\s*#\s*/; // before a line that is off
const MOST = 50; // names that are offered
const LIKE = 3; // files of one name that are told
export const LANGUAGES = ["en", "de", "ja", "zh-CN"];

/**
 * Read the lines of a text. One that has more than tags is a row with a problem.
 * @param {string} text
 * @returns {Line[]}
 */
export function readLines(text) {
    /** @type {Map<string, number>} */
    const seen = new Map();
    const key = (/** @type {string} */ name) => {
        seen.set(name, (seen.get(name) ?? 0) + 1);
        return `${name}#${seen.get(name)}`;
    };
    return text.split("\n").flatMap((line) => {
        const written = line.replace(OFF, "").trim();
        if (!written) return [];
        const tags = readTags(written);
        const isRead = !tags
            .reduceRight((rest, {start, end}) => rest.slice(0, start) + rest.slice(end), written)
            .trim();
        return (isRead ? tags : [faulty(written)]).map((one) => ({...one, on: !OFF.test(line), key: key(one.name)}));
    });
}

/**
 * Return a line that has more than tags.
 * @param {string} text
 */
function faulty(text) {
    const body = text.replace(/[<>]/g, "");
    const isName = body === text;
    const fixes = isName ? [{word: `<lora:${body}>`, instead: text, body}] : [];
    return {...readBody(isName ? body : ""), name: text, body, text, problem: t("comfy.noTag"), fixes};
}

/**
 * Write lines as a text.
 * @param {{on: boolean, text: string}[]} lines
 */
export const writeLines = (lines) => lines.map(({on, text}) => (on ? text : `# ${text}`)).join("\n");

/**
 * Return the name that a tag has for a file: without its ending.
 * @param {string} file
 */
const nameOf = (file) => file.replace(/(.)\.[^./]*$/, "$1");

/**
 * Tell which file a name in a tag means, as the node does.
 * @param {string} name
 * @param {string[]} files
 */
export function meaning(name, files) {
    const wanted = name.replaceAll("\\", "/");
    const whole = files.filter((file) => file === wanted || nameOf(file) === wanted);
    const meant = whole.length ? whole : files.filter((file) => nameOf(file).split("/").pop() === wanted);
    if (meant.length === 1) return {problem: "", note: "", candidates: []};
    const candidates = meant.length ? meant.slice(0, LIKE) : similar(wanted, files.map(nameOf).filter(canBeNamed));
    return {problem: asked(t(meant.length ? "comfy.severalFiles" : "comfy.noFile"), candidates), note: "", candidates};
}

/**
 * Return an editor of one field of a tag.
 * @param {string} key
 * @param {"completion.mask" | "completion.lbw"} title
 */
const fieldOf = (key, title) =>
    function Field(/** @type {{entry: Entry}} */ {entry}) {
        const write = (/** @type {FieldEvent} */ event) =>
            entry.edit((body) => setField(body, key, event.target.value.replace(/[<>\s]/g, "")));
        return html`<label class="rt-field"><span>${t(title)}</span>
            <input type="text" autocomplete="off" spellcheck=${false} value=${entry.values[key] ?? ""} onInput=${write} /></label>`;
    };

/** @type {Section[]} */
const SECTIONS = [
    SCHEDULE,
    {
        name: "region",
        title: "row.region",
        editor: fieldOf("mask", "completion.mask"),
        isSet: ({values}) => Boolean(values.mask),
    },
    {
        name: "blocks",
        title: "row.blocks",
        editor: fieldOf("lbw", "completion.lbw"),
        isSet: ({values}) => Boolean(values.lbw),
    },
];

/** @param {{tab: Tab, files: string[], text: string, change: (text: string) => void}} props */
function Lines({tab, files, text, change}) {
    const lines = readLines(text);
    const write = (/** @type {{on: boolean, text: string}[]} */ changed) => change(writeLines(changed));
    const move = (/** @type {number} */ from, /** @type {number} */ to) => {
        if (to < 0 || to >= lines.length) return;
        const moved = [...lines];
        moved.splice(to, 0, ...moved.splice(from, 1));
        write(moved);
    };
    /** @type {(line: Line) => Entry} */
    const described = (line) => {
        const put = (/** @type {Partial<Line>} */ changes) =>
            write(lines.map((one) => (one === line ? {...one, ...changes} : one)));
        const edit = (/** @type {(body: string) => string} */ of) => put({text: `<lora:${of(line.body)}>`});
        return {
            ...line,
            rename: (name) => edit((body) => withName(body, name)),
            setOn: (on) => put({on}),
            edit,
            setStrength: (te, unet) => edit((body) => setMultipliers(body, te, unet)),
            remove: () => write(lines.filter((one) => one !== line)),
            move: null,
            moveTo: {icon: "prompt", word: "", label: ""},
        };
    };
    return html`<section class="rt-stack" aria-label=${t("stack.label")} ref=${useFocus()}>
        <${Rows} rows=${lines} label=${t("common.stack")} move=${move} draw=${(
            /** @type {Line} */ line,
            /** @type {Handle} */ handle,
        ) => html`
        <${Row} handle=${handle} tab=${tab} entry=${described(line)} sections=${SECTIONS} />`} />
        <${Add} names=${files.map(nameOf).filter(canBeNamed)} add=${(/** @type {string} */ name) =>
            write([...lines, {on: true, text: makeTag(escapedName(name), 1, 1)}])} />
    </section>`;
}

/** @param {{names: string[], add: (name: string) => void}} props */
function Add({names, add}) {
    const [typed, setTyped] = useState("");
    const submit = (/** @type {Event} */ event) => {
        event.preventDefault();
        if (typed.trim()) add(typed.trim());
        setTyped("");
    };
    const found = names.filter((name) => name.toLowerCase().includes(typed.trim().toLowerCase())).slice(0, MOST);
    return html`<form class="rt-line" onSubmit=${submit}>
        <input type="text" list="rt-names" autocomplete="off" aria-label=${t("comfy.add")} placeholder=${t("comfy.add")}
            value=${typed} onInput=${(/** @type {FieldEvent} */ event) => setTyped(event.target.value)} />
        <datalist id="rt-names">${found.map((name) => html`<option key=${name} value=${name} />`)}</datalist>
        <${Button} label=${t("comfy.add")} class="rt-small" type="submit"><${Icon} name="add" /><//>
    </form>`;
}

/**
 * Show rows in an element of the page.
 * @param {HTMLElement} host
 * @param {string} locale of the page
 * @param {(text: string) => void} changed called with the text that the user makes
 * @returns {Promise<(text: string, files?: string[]) => void>} what shows another text, or other LoRA files
 */
export async function openRows(host, locale, changed) {
    host.style.cssText = "overflow: auto; background: var(--comfy-input-bg); color: var(--input-text)";
    host.addEventListener("wheel", (event) => event.stopPropagation()); // the page would zoom
    const language = new Language();
    language.all = Object.fromEntries(LANGUAGES.map((tag) => [tag, tag]));
    const [sheet] = await Promise.all([loadSheet(), language.follow(locale)]);
    const root = shadowed(host, sheet);
    const theme = new Theme();
    let shown = "";
    /** @type {string[]} */
    let known = [];
    /** @type {{state: Partial<Tab["state"]>, [part: string]: unknown}} */
    const tab = {
        state: {more: "", section: "schedule", steps: null, server: null},
        set: (/** @type {Partial<Tab["state"]>} */ changes) => {
            tab.state = {...tab.state, ...changes};
            draw();
        },
        library: {meaning: (/** @type {string} */ name) => meaning(name, known), groupsOf: () => []},
        stack: {faultOf: (/** @type {Line} */ {problem, fixes}) => ({key: "", said: problem, fixes})},
    };
    const change = (/** @type {string} */ text) => {
        changed(text);
        show(text);
    };
    const draw = () => {
        theme.follow(host, root);
        render(html`<${Lines} tab=${tab} files=${known} text=${shown} change=${change} />`, root);
    };
    new ResizeObserver(() => draw()).observe(host); // it has colours as soon as it is in the page
    const show = (/** @type {string} */ text, files = known) => {
        [shown, known] = [text, files];
        draw();
    };
    return show;
}
