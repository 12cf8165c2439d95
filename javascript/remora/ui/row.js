// One entry of the stack.

/**
 * @import {State, Tab} from "../main.js"
 * @import {Told} from "../outcomes.js"
 * @import {Curve} from "../curve.js"
 * @import {Filled, Value} from "../vendor/preact.js"
 * @import {Meant as PlaceMeant} from "../stack.js"
 * @import {Entry, Handle} from "./stack.js"
 */

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {t} from "../words.js";
import {Blocks} from "./blocks.js";
import {Sketch} from "./curve.js";
import {Icon} from "./icons.js";
import {Outcome} from "./outcome.js";
import {broken, Button, Meant, Name, Strength, WordButton} from "./parts.js";
import {Passes} from "./passes.js";
import {Regions} from "./regions.js";
import {Schedule} from "./schedule.js";
import {summary, whyUnreached} from "./summary.js";
import {Trigger} from "./trigger.js";

const LONG = 20; // characters of a name that gets the room of the words beside it

/**
 * @typedef {{name: State["section"], title: "row.words" | "row.schedule" | "row.region" | "row.passes" | "row.blocks", editor: (props: {tab: Tab, entry: Entry, unreached: string}) => Value, isSet: (entry: Entry) => boolean}} Section
 * Some settings of an entry: their editor, and whether the entry has any of them.
 */

/** @type {Section} */
export const SCHEDULE = {
    name: "schedule",
    title: "row.schedule",
    editor: Schedule,
    isSet: ({teCurve, unetCurve, values}) =>
        Boolean(teCurve || unetCurve || values.step || values.start || values.stop),
};
/** @type {Section[]} */
const SECTIONS = [
    SCHEDULE,
    {name: "region", title: "row.region", editor: Regions, isSet: ({values}) => Boolean(values.mask)},
    {name: "passes", title: "row.passes", editor: Passes, isSet: ({values}) => Boolean(values.pass)},
    {name: "blocks", title: "row.blocks", editor: Blocks, isSet: ({values}) => Boolean(values.lbw || values.lbwe)},
    {name: "words", title: "row.words", editor: Trigger, isSet: () => false},
];

/** @param {{tab: Tab, entry: Entry, outcome: Told | undefined, handle: Handle, sections?: Section[]}} props */
export function Row({tab, entry, outcome, handle, sections = SECTIONS}) {
    const {name, unet} = entry;
    const {lora, problem, note, candidates} = tab.library.meaning(name);
    const [apart, setApart] = useState(entry.teText !== entry.unetText);
    const more = tab.state.more === entry.key;
    const open = (section = sections.find(({isSet}) => isSet(entry))?.name ?? tab.state.section) =>
        tab.set({more: entry.key, section});
    const split = apart || entry.teText !== entry.unetText;
    const curved = Boolean(entry.teCurve || entry.unetCurve);
    const tie = () => {
        if (split) entry.setStrength(unet, unet);
        setApart(!split);
    };
    const fault = tab.stack.faultOf(entry);
    const said = fault.said || problem;
    const idle = entry.on && !said && !curved && !unet && !entry.te;
    const saysSo = said || (idle && outcome?.lora.state === "none" && !outcome.changed);
    const told = saysSo || !entry.on ? undefined : outcome;
    const {warning, state} = told?.lora ?? {};
    const unreached = said ? "" : whyUnreached(entry, tab.state.steps);
    const doubt = !said && lora && !warning && state !== "failed" ? tab.library.catalog.against(lora) : "";
    // chips stand last: where they came above the editors, those would move away under the pointer that draws in them
    return html`
        <div class=${`rt-row-head${name.length > LONG ? " rt-long" : ""}`}>
            <button type="button" class="rt-handle" title=${t("row.drag")} ...${handle}><${Icon} name="grip" /></button>
            <label class="rt-on"><input type="checkbox" checked=${entry.on} aria-label=${t("row.on", {name})}
                onChange=${(event) => entry.setOn(event.target.checked)} /></label>
            ${
                lora
                    ? html`<button type="button" class="rt-name rt-link" title=${lora.file}
                aria-label=${name} onClick=${() => tab.set({details: lora.id})}><${Name} text=${name} /></button>`
                    : html`<span class="rt-name" title=${name || entry.text}><${Name} text=${name || entry.text || ""} /></span>`
            }
            <span class="rt-row-tools">
                <${WordButton} icon="more" word=${t("row.more")} label=${t("row.moreHint", {name})}
                    aria-expanded=${String(more)} onClick=${() => (more ? tab.set({more: ""}) : open())} />
                <${WordButton} icon="apart" word=${t("row.apart")} label=${t("row.apartHint", {name})}
                    disabled=${curved} aria-pressed=${String(split)} onClick=${tie} />
                ${entry.move && html`<${WordButton} ...${entry.moveTo} onClick=${entry.move} />`}
            </span>
            <${Button} label=${t("row.remove", {name})} class="rt-small" onClick=${entry.remove}><${Icon} name="remove" /><//>
        </div>
        <${Strengths} entry=${entry} split=${split} open=${() => open("schedule")} />
        ${more && html`<${More} tab=${tab} entry=${entry} unreached=${unreached} all=${sections} />`}
        <${Chips} words=${summary({...entry, values: {...entry.values, [fault.key]: undefined}})} />
        ${entry.place && html`<${PlaceOfTag} tab=${tab} place=${entry.place} />`}
        ${said && html`<p class="rt-problem" role="alert">✕ ${said}</p>`}
        <${Meant} choices=${(
            fault.said ? fault.fixes : candidates.map((word) => ({word, instead: name, body: ""}))
        ).map(({word, instead, body}) => ({
            word,
            instead,
            pick: () => (body ? entry.edit((now) => (now === entry.body ? body : now)) : entry.rename(word)),
        }))} />
        ${
            entry.words
            && html`<p class="rt-hint rt-line">${t("row.wordsMissing", {words: entry.words})}
            <${Button} label=${t("row.insertWordsHint", {name})} class="rt-small" onClick=${entry.insertWords}>${t("row.insertWords")}<//></p>`
        }
        ${note && html`<p class="rt-warning">⚠ ${note}</p>`}
        ${
            entry.cut
            && tab.state.server?.comments
            && html`<p class="rt-warning">⚠ ${t(name.includes("#") ? "row.cutRename" : "row.cutMove")}</p>`
        }
        ${!(more && tab.state.section === "schedule") && unreached && html`<p class="rt-warning">⚠ ${unreached}</p>`}
        ${idle && html`<p class="rt-hint">${t("row.strengthZero")}</p>`}
        ${doubt && html`<p class="rt-warning">⚠ ${doubt}</p>`}
        <${Outcome} told=${told} />`;
}

/**
 * Draw the settings of an entry besides its strength, one section at a time: together they are higher than the page.
 * @param {{tab: Tab, entry: Entry, unreached: string, all: Section[]}} props `unreached` says why it never acts
 */
function More({tab, entry, unreached, all}) {
    const {section} = tab.state;
    const box = /** @type {Filled<HTMLElement>} */ (useRef());
    useEffect(() => {
        box.current.parentElement?.scrollIntoView({block: "nearest"}); // the editors open below the row's head
    }, [section]);
    const hasGroups = tab.library.groupsOf(entry.name).length > 1;
    const sections = all.filter(({name}) => name !== "words" || hasGroups);
    const shown = sections.find(({name}) => name === section) ?? sections[0];
    return html`<div class="rt-more" ref=${box}>
        <div class="rt-switch" role="group" aria-label=${t("row.settings", {name: entry.name})}>
            ${sections.map(
                ({
                    name,
                    title,
                    isSet,
                }) => html`<button type="button" key=${name} aria-pressed=${String(name === shown.name)}
                title=${isSet(entry) ? t("row.isSet", {section: t(title)}) : t(title)} onClick=${() => tab.set({section: name})}>${t(title)}${isSet(entry) && " •"}</button>`,
            )}
        </div>
        <${shown.editor} key=${shown.name} tab=${tab} entry=${entry} unreached=${unreached} />
    </div>`;
}

/**
 * Draw what the place of a tag in its prompt does, or does not do.
 * @param {{tab: Tab, place: PlaceMeant}} props
 */
export function PlaceOfTag({tab, place: {words, unread}}) {
    if (unread)
        return html`<p class="rt-warning">⚠ ${unread}
            <${Button} label=${t("row.obeyHint")} class="rt-small"
                onClick=${() => tab.edits.obeyBrackets()}>${t("row.obey")}<//></p>`;
    return html`<${Chips} words=${words} />`;
}

/** @param {{words: string[]}} props */
function Chips({words}) {
    return (
        words.length > 0
        && html`<div class="rt-chips">${words.map((text) => html`<span class="rt-chip" key=${text}>${broken(text)}</span>`)}</div>`
    );
}

/**
 * Draw the sliders, one where both halves are alike; a schedule is never overwritten by one.
 * @param {{entry: Entry, split: boolean, open: () => void}} props
 */
function Strengths({entry, split, open}) {
    const {name, te, unet, teText, unetText, teCurve, unetCurve, values} = entry;
    /**
     * @param {string} title
     * @param {string} what
     * @param {number} value
     * @param {Curve | null} curve
     * @param {(value: number) => void} set
     */
    const half = (title, what, value, curve, set) =>
        curve
            ? html`<${Sketch} title=${title} what=${what} points=${curve} shape=${values.curve} by=${values.by} open=${open} />`
            : html`<${Strength} title=${title} what=${what} value=${value} set=${set} />`;
    if (!split)
        return half("", t("common.strengthOf", {name}), unet, unetCurve, (value) => entry.setStrength(value, value));
    return html`
        ${half(t("row.unet"), t("row.unetHint", {name}), unet, unetCurve, (value) => entry.setStrength(teText, value))}
        ${half(t("row.text"), t("row.textHint", {name}), te, teCurve, (value) => entry.setStrength(value, unetText))}`;
}
