// One file in the library.

/**
 * @import {Lora} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 */

import {html} from "../vendor/preact.js";
import {query} from "../api.js";
import {canBeInserted, size} from "../catalog.js";
import {t} from "../words.js";
import {Icon} from "./icons.js";
import {Button, Name, Picture} from "./parts.js";

/**
 * @param {object} props
 * @param {Lora} props.lora
 * @param {Tab} props.tab
 * @param {string} props.view
 * @param {boolean} props.used
 * @param {boolean} props.pinned
 * @param {string} props.against
 * @param {boolean | null} [props.selected] null unless files are being selected
 * @param {(adds: boolean) => void} props.pick
 */
export function Card({lora, tab, view, used, pinned, against, selected = null, pick}) {
    const usable = canBeInserted(lora);
    const selecting = selected !== null;
    const action = selecting ? t("many.selectOne", {name: lora.name}) : actionOf(lora, tab, used);
    const click = (/** @type {MouseEvent} */ event) => {
        if (selecting || event.shiftKey || event.ctrlKey || event.metaKey) pick(event.shiftKey);
        else if (used || usable) tab.edits.toggle(lora);
        else open();
    };
    const open = () => tab.set({details: lora.id});
    const path = lora.picture && `thumbnail?${query({id: lora.id, v: lora.picture})}`;
    const names = ["rt-card", `rt-card-${view}`, used && "rt-used", selected && "rt-picked", against && "rt-against"];
    // what most files have in common is not said
    const hint = against || (lora.read ? factsOf(lora, view) : t("card.notRead"));
    return html`<div class=${names.filter(Boolean).join(" ")}>
        <button type="button" class="rt-pick" aria-pressed=${String(selected ?? used)} title=${titleOf(lora, pinned, against)}
            aria-label=${pinned ? t("card.andAlways", {action}) : action}
            onClick=${click}>
            <span class="rt-thumb"><${Picture} api=${tab.api} path=${path} name=${lora.name} /></span>
            <span class="rt-card-text">
                <span class="rt-card-name"><${Name} text=${lora.name} /></span>
                ${hint && html`<span class=${`rt-hint${against ? " rt-reason" : ""}`}>${hint}</span>`}
            </span>
        </button>
        <span class="rt-badges" aria-hidden="true">
            ${selecting && html`<span class="rt-badge rt-mark">${selected && html`<${Icon} name="check" />`}</span>`}
            ${lora.favourite && html`<span class="rt-badge"><${Icon} name="heart" filled /></span>`}
            ${lora.rating > 0 && html`<span class="rt-badge">${lora.rating}★</span>`}
            ${pinned && html`<span class="rt-badge rt-badge-on"><${Icon} name="always" /></span>`}
            ${used && html`<span class="rt-badge rt-badge-on"><${Icon} name="check" /></span>`}
        </span>
        <${Button} label=${t("card.about", {name: lora.name})} class="rt-about" onClick=${open}><${Icon} name="info" /><//>
    </div>`;
}

/**
 * Say what a click on a card does.
 * @param {Lora} lora
 * @param {Tab} tab
 * @param {boolean} used
 */
function actionOf(lora, tab, used) {
    const {name} = lora;
    if (used) return t("card.remove", {name});
    if (!canBeInserted(lora)) return t("card.why", {name});
    return t(tab.state.target ? "card.insert" : "card.add", {name});
}

/**
 * Return what a card says below the name: the trigger words; a list has room for more.
 * @param {Lora} lora
 * @param {string} view
 */
function factsOf(lora, view) {
    const {words, folder, family} = lora;
    if (view !== "list") return words;
    return [...new Set([words, trainedAs(lora), folder, family, rank(lora)])].filter(Boolean).join(" · ");
}

/**
 * @param {Lora} lora
 * @param {boolean} pinned
 * @param {string} against
 */
function titleOf(lora, pinned, against) {
    const about = [rank(lora), size(lora.size)].filter(Boolean).join(" · ");
    const words = lora.words && t("card.words", {words: lora.words});
    const always = pinned && t("card.always");
    return [lora.file, trainedAs(lora), about, words, always, against].filter(Boolean).join("\n");
}

/**
 * Return the name of a file in its training; nothing where its file is called so.
 * @param {Lora} lora
 */
const trainedAs = ({alias, name, file}) => (alias === name || alias === file.split("/").pop() ? "" : alias);

/**
 * Say which kind a file is, and of which ranks.
 * @param {Lora} lora
 */
export function rank(lora) {
    if (!lora.rank) return lora.kind;
    const [low, high] = lora.rank;
    const [least, most] = [String(low), String(high)];
    return t("card.rank", {kind: lora.kind, rank: low === high ? most : t("mark.range", {low: least, high: most})});
}
