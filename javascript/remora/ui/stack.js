// The right pane: the LoRAs of the prompt, and those that every picture gets.

/**
 * @import {StackEntry} from "../../api.d.ts"
 * @import {State, Tab} from "../main.js"
 * @import {BodyChange} from "../edits.js"
 * @import {Meant, Row as PromptRow} from "../stack.js"
 * @import {Reading} from "../tag.js"
 * @import {FieldEvent, Filled, Key, Pointer, Value} from "../vendor/preact.js"
 * @import {IconName} from "./icons.js"
 */

import {html, useLayoutEffect, useRef, useState} from "../vendor/preact.js";
import * as boxes from "../boxes.js";
import {setMultipliers} from "../prompt.js";
import {HIGHEST_SEED, numberIn, RULES, ruleName, wrongNumber} from "../save.js";
import {isDrawn, needsDensity} from "../tag.js";
import {pieces, t} from "../words.js";
import {Icon} from "./icons.js";
import {Outcome} from "./outcome.js";
import {Button, Name, WordButton} from "./parts.js";
import {PlaceOfTag, Row} from "./row.js";
import {summary} from "./summary.js";

const DENSITY = 0.5; // the share of the numbers that a rule keeps where its tag does not say it

/**
 * @typedef {object} Actions
 * @property {(on: boolean) => void} setOn
 * @property {(change: BodyChange, what?: string) => void} edit
 * @property {(te: number | string, unet: number | string) => void} setStrength
 * @property {() => void} remove
 * @property {(() => void) | null} move to the other list; null where there is no prompt
 * @property {{icon: IconName, word: string, label: string}} moveTo how that is said
 * @property {(name: string) => void} rename
 * @property {string} [words] trigger words that the prompt lacks
 * @property {() => void} [insertWords]
 *
 * @typedef {Reading & Actions & {on: boolean, key: string, body: string, text?: string, place?: Meant, cut?: boolean}} Entry
 * The contents and the actions of a row.
 *
 * @typedef {ReturnType<Tab["stack"]["always"]>[number]} AlwaysRow
 * @typedef {{[attribute: string]: unknown}} Handle
 * The attributes of the handle that a row is dragged by.
 * @typedef {{from: number, to: number}} Drag
 */

/** @param {{tab: Tab, state: State, outcomes: ReturnType<Tab["stack"]["outcomes"]>}} props */
export function Stack({tab, state, outcomes: {of, others}}) {
    const rows = tab.stack.rows();
    const section = useFocus();
    return html`<section class="rt-stack" aria-label=${t("stack.label")} ref=${section}>
        <${Targets} tab=${tab} state=${state} />
        <${Tools} tab=${tab} state=${state} rows=${rows} />
        <${Combined} tab=${tab} combining=${state.server?.combining} />
        ${
            tab.stack.tooLong
            && html`<p class="rt-error" role="alert">${t("stack.tooLong", {count: state.prompt.length})}</p>`
        }
        ${
            state.target
            && html`<${Rows} rows=${rows} label=${t("common.stack")} move=${(
                /** @type {number} */ from,
                /** @type {number} */ to,
            ) => tab.edits.move(from, to)} draw=${(/** @type {PromptRow} */ row, /** @type {Handle} */ handle) => html`
            <${Row} handle=${handle} tab=${tab} outcome=${of("prompt", row.key)} entry=${inPrompt(tab, row)} />`} />`
        }
        ${
            state.target
            && !rows.length
            && html`<p class="rt-empty"><${Icon} name="prompt" /><span>${pieces("stack.empty", {tag: html`<code>${"<lora:name:0.8>"}</code>`})}</span></p>`
        }
        ${
            state.target
            && tab.stack.negatives().map(
                (
                    place,
                    at,
                ) => html`<div class="rt-row" key=${`negative ${at}`}><span class="rt-name"><${Name} text=${place.name} /></span>
            <${PlaceOfTag} tab=${tab} place=${place} />
            ${!place.unread && html`<${Outcome} told=${of("negative", String(at))} />`}</div>`,
            )
        }
        ${
            rows.length > 0
            && !rows.some((row) => summary(row).length)
            && html`<p class="rt-hint">${t("stack.moreHint")}</p>`
        }
        <p class="rt-hint rt-said" role="status">${state.said}</p>
        ${
            state.refused
            && html`<div class="rt-notice" role="alert">${t("stack.refused")}
            <div class="rt-line">
                <${Button} label=${t("stack.useMineHint")} class="rt-small"
                    onClick=${() => tab.kept.decide(true)}>${t("stack.useMine")}<//>
                <${Button} label=${t("stack.forgetMineHint")} class="rt-small" onClick=${() => tab.kept.decide(false)}>${t("stack.forgetMine")}<//>
            </div></div>`
        }
        <${Always} tab=${tab} state=${state} of=${of} />
        ${
            others.length > 0
            && html`<div class="rt-part"><h4>${t("stack.others")}</h4>
            <ul class="rt-others" aria-label=${t("stack.othersLabel")}>${others.map(
                (lora) => html`
                <li class="rt-row" key=${`${lora.where} ${lora.number} ${lora.written}`}><span class="rt-name"><${Name} text=${lora.name} /></span><${Outcome} told=${{lora, changed: false}} /></li>`,
            )}
            </ul></div>`
        }
    </section>`;
}

/**
 * Keep the focus in the stack where the element that has it goes, or is disabled: the row in the same place gets it,
 * else the first button above the rows that can be pressed.
 */
export function useFocus() {
    const section = /** @type {{current: HTMLElement | null}} */ (useRef(null));
    const around = /** @type {ShadowRoot | undefined} */ (section.current?.getRootNode());
    const former = /** @type {HTMLButtonElement | null} */ (around?.activeElement ?? null); // before this is drawn
    const row = former?.closest(".rt-rows > li");
    const list = row?.parentElement;
    const place = [...(list?.children ?? [])].indexOf(/** @type {Element} */ (row));
    // the focus moves before the next key
    useLayoutEffect(() => {
        if (!former || !section.current || (former.isConnected && !former.disabled)) return;
        if (around?.activeElement && around.activeElement !== former) return; // it went on by itself
        const same = list?.isConnected && (list.children[place] ?? list.lastElementChild);
        /** @type {HTMLElement | null} */
        const next = row?.isConnected
            ? row.querySelector(".rt-row-tools button")
            : same
              ? same.querySelector(".rt-row-head > button:last-child")
              : section.current.querySelector(".rt-toolbar button:not(:disabled), form button");
        next?.focus();
    });
    return section;
}

/** @param {{tab: Tab, state: State}} props */
function Targets({tab, state}) {
    if (state.targets.length < 2) return null;
    return html`<div class="rt-switch" role="group" aria-label=${t("stack.prompts")}>
        ${state.targets.map(
            (name) => html`<button type="button" key=${name} aria-pressed=${String(name === state.target)}
            onClick=${() => tab.stack.choose(name)}>${name}</button>`,
        )}
    </div>`;
}

/** @param {{tab: Tab, state: State, rows: PromptRow[]}} props */
function Tools({tab, state, rows}) {
    const [byHand, setByHand] = useState("");
    const tags = tab.stack.written();
    const text = tags.map((tag) => tag.text).join(" ");
    const copy = async () => {
        const done = text !== "" && (await boxes.copy(text));
        setByHand(done ? "" : text);
        tab.set({
            said: !text ? t("stack.nothingToCopy") : done ? t("stack.copied", {text}) : t("stack.copyByHand"),
        });
    };
    return html`<div class="rt-toolbar"><div class="rt-line">
        <${WordButton} icon="undo" word=${t("common.undo")} label=${t("common.undo")} disabled=${!state.canUndo} onClick=${() => tab.stack.undo()} />
        <${WordButton} icon="redo" word=${t("common.redo")} label=${t("common.redo")} disabled=${!state.canRedo} onClick=${() => tab.stack.redo()} />
        <${Button} label=${t("common.presets")} class="rt-small" onClick=${() => tab.set({dialog: "presets"})}>${t("common.presets")}<//>
        <${Button} label=${t("common.compare")} class="rt-small" disabled=${!state.target}
            onClick=${() => tab.set({dialog: "compare"})}>${t("common.compare")}<//>
        <${WordButton} icon="pulse" word=${t("check.title")} label=${t("check.stackHint")} disabled=${tab.stack.acting().length < 2}
            onClick=${() => tab.set({dialog: "check"})} />
        <${WordButton} icon="save" word=${t("common.save")} label=${t("save.toolHint")}
            onClick=${() => tab.set({dialog: "save"})} />
        <${WordButton} icon="copy" word=${t("stack.copy")} label=${t("stack.copyHint")} onClick=${copy} />
        <${WordButton} icon="clear" word=${t("stack.clear")} label=${t("stack.clearHint")} disabled=${!rows.length} onClick=${() => tab.edits.clear()} />
    </div></div>
    ${byHand && byHand === text && html`<textarea class="rt-by-hand" readonly rows="2" aria-label=${t("stack.asPrompt")} value=${byHand}></textarea>`}`;
}

/**
 * Show how the LoRA of the stack are combined, and how far they are.
 * @param {{tab: Tab, combining?: {done: number, layers: number} | null}} props
 */
function Combined({tab, combining}) {
    const rule = tab.stack.rule();
    if (tab.stack.written().length < 2 && rule?.[0] === "") return null;
    const [how, density, seed] = rule ?? ["several", "", ""];
    const kept = Number((Number(density || DENSITY) * 100).toFixed(4));
    const names = ["", ...RULES, ...(["", "several", ...RULES].includes(how) ? [] : [how])];
    const set = (/** @type {string} */ to, share = density, drawn = seed) =>
        tab.edits.combineBy([to, needsDensity(to) ? share || String(DENSITY) : "", isDrawn(to) ? drawn : ""]);
    return html`<div class="rt-line rt-combined">
        <label class="rt-field"><span>${t("stack.combined")}</span><select value=${how} onChange=${(event) => set(event.target.value)}>
            ${!rule && html`<option value="several" disabled>${t("stack.severalRules")}</option>`}
            ${names.map((name) => html`<option key=${name} value=${name}>${name ? ruleName(name) : t("save.sum")}</option>`)}</select></label>
        ${
            needsDensity(how)
            && html`<${NumberField} title=${t("save.density")} low=${1} high=${100} value=${kept}
                set=${(/** @type {number} */ percent) => set(how, String(Number((percent / 100).toFixed(6))))} />`
        }
        ${
            isDrawn(how)
            && html`<${NumberField} title=${t("stack.seed")} low=${0} high=${HIGHEST_SEED} isWhole=${true} value=${Number(seed)}
                set=${(/** @type {number} */ to) => set(how, density, String(to))} />`
        }
    </div>
    ${how && html`<p class="rt-hint">${combining ? t("stack.combining", combining) : t("stack.combinedHint")}</p>`}`;
}

/**
 * Draw a field for a number. What is typed stays as it is, however often the page is drawn.
 * @param {{title: string, low: number, high: number, isWhole?: boolean, value: number, set: (value: number) => void}} props
 */
function NumberField({title, low, high, isWhole = false, value, set}) {
    const [typed, setTyped] = useState(/** @type {string | null} */ (null));
    const wrong = typed === null ? "" : wrongNumber(typed, low, high, isWhole);
    const type = (/** @type {FieldEvent} */ event) => {
        setTyped(event.target.value);
        if (!wrongNumber(event.target.value, low, high, isWhole)) set(numberIn(event.target.value));
    };
    return html`<label class="rt-field"><span>${title}</span>
        <input type="text" inputmode="decimal" autocomplete="off" value=${typed ?? String(value)} aria-invalid=${String(wrong !== "")}
            onInput=${type} onBlur=${() => setTyped(null)} />
        <span class="rt-problem" role="alert">${wrong}</span></label>`;
}

/**
 * Draw rows that are dragged, by pointer or by arrow keys, to another place.
 * @template {{key: string, name: string, on: boolean}} R
 * @param {object} props
 * @param {R[]} props.rows
 * @param {string} props.label
 * @param {(from: number, to: number) => void} props.move
 * @param {(row: R, handle: Handle) => Value} props.draw
 */
export function Rows({rows, label, move, draw}) {
    const list = /** @type {Filled<HTMLElement>} */ (useRef());
    const [drag, setDrag] = useState(/** @type {Drag | null} */ (null));
    const placeAt = (/** @type {number} */ y, /** @type {number} */ from) => {
        const middles = [...list.current.children]
            .map((one) => one.getBoundingClientRect())
            .map((box) => box.top + box.height / 2);
        return middles.filter((middle, at) => at !== from && middle < y).length;
    };
    const handle = (/** @type {number} */ at, /** @type {string} */ name) => ({
        "aria-label": t("stack.move", {name}),
        onPointerDown: (/** @type {Pointer} */ event) => {
            if (event.button !== 0) return;
            event.preventDefault();
            event.currentTarget.setPointerCapture(event.pointerId);
            event.currentTarget.focus();
            setDrag({from: at, to: at});
        },
        onPointerMove: (/** @type {Pointer} */ event) =>
            drag && setDrag({...drag, to: placeAt(event.clientY, drag.from)}),
        onPointerUp: () => {
            if (drag && drag.from !== drag.to) move(drag.from, drag.to);
            setDrag(null);
        },
        onPointerCancel: () => setDrag(null),
        onKeyDown: (/** @type {Key} */ event) => {
            /** @type {{[key: string]: number | undefined}} */
            const moves = {ArrowUp: -1, ArrowDown: 1};
            const by = moves[event.key];
            if (!by) return;
            event.preventDefault();
            move(at, at + by);
        },
    });
    return html`<ol class="rt-rows" aria-label=${label} ref=${list}>
        ${rows.map((row, at) => html`<li key=${row.key} class=${classOf(row, at, drag)}>${draw(row, handle(at, row.name))}</li>`)}
    </ol>`;
}

/**
 * @param {{on: boolean}} row
 * @param {number} at
 * @param {Drag | null} drag
 */
function classOf(row, at, drag) {
    const names = ["rt-row"];
    if (!row.on) names.push("rt-off");
    if (drag && drag.from === at) names.push("rt-dragged");
    if (drag && drag.from !== drag.to && drag.to === at)
        names.push(drag.to > drag.from ? "rt-drop-below" : "rt-drop-above");
    return names.join(" ");
}

/**
 * Return the contents and the actions of a row of the prompt.
 * @param {Tab} tab
 * @param {PromptRow} row
 * @returns {Entry}
 */
function inPrompt(tab, row) {
    return {
        ...row,
        place: row.off ? undefined : tab.stack.places()[row.index],
        cut: !row.off && tab.stack.isCut(row),
        rename: (name) => tab.edits.rename(row, name),
        setOn: (on) => tab.edits.setOn(row, on),
        edit: (change, what) => tab.edits.edit(row, change, what),
        setStrength: (te, unet) => tab.edits.setStrength(row, te, unet),
        remove: () => tab.edits.remove(row),
        move: () => tab.edits.pin(row),
        moveTo: {icon: "always", word: t("stack.toAlways"), label: t("stack.toAlwaysHint", {name: row.name})},
    };
}

/** @param {{tab: Tab, state: State, of: ReturnType<Tab["stack"]["outcomes"]>["of"]}} props */
function Always({tab, state, of}) {
    const {always} = state;
    if (!always.entries.length && state.target) return null;
    const change = (/** @type {StackEntry} */ entry, /** @type {Partial<StackEntry>} */ changes) =>
        tab.edits.changeAlways(
            {...always, entries: always.entries.map((one) => (one === entry ? {...entry, ...changes} : one))},
            `always ${entry.name}`,
        );
    const rows = tab.stack.always();
    const move = (/** @type {number} */ from, /** @type {number} */ to) => {
        if (to < 0 || to >= always.entries.length) return;
        const entries = [...always.entries];
        entries.splice(to, 0, ...entries.splice(from, 1));
        tab.edits.changeAlways({...always, entries});
    };
    /** @type {(row: AlwaysRow) => Entry} */
    const described = (row) => ({
        ...row,
        rename: (name) => change(row.entry, {name}),
        setOn: (on) => change(row.entry, {on}),
        edit: (what, kind) => tab.edits.editAlways(row.entry, what, kind),
        setStrength: (te, unet) =>
            tab.edits.editAlways(row.entry, (body) => setMultipliers(body, te, unet), "strength"),
        remove: () => tab.edits.changeAlways({...always, entries: always.entries.filter((one) => one !== row.entry)}),
        words: state.target && row.on && always.on ? tab.edits.wordsMissing(row.name) : "",
        insertWords: () => tab.edits.insertWords(row.name),
        move: state.target ? () => tab.edits.unpin(row.entry) : null,
        moveTo: {icon: "prompt", word: t("stack.toPrompt"), label: t("stack.toPromptHint", {name: row.name})},
    });
    return html`<div class="rt-always">
        <label class="rt-check"><input type="checkbox" checked=${always.on}
            onChange=${(event) => tab.edits.changeAlways({...always, on: event.target.checked})} />
            <h4>${t("common.alwaysOn")}</h4></label>
        ${state.server?.enabled !== false && html`<p class="rt-hint">${t("stack.alwaysHint")}</p>`}
        <${Rows} rows=${rows} label=${t("common.alwaysOn")} move=${move} draw=${(
            /** @type {AlwaysRow} */ row,
            /** @type {Handle} */ handle,
        ) => html`
            <${Row} handle=${handle} tab=${tab} outcome=${of("always", row.key)}
                entry=${described(row)} />`} />
    </div>`;
}
