// All about one file, and what the user notes about it.

/**
 * @import {CountedLora, Distilled, LoraDetails} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 * @import {Filled} from "../vendor/preact.js"
 * @import {Attempt} from "./parts.js"
 */

import {html, useMemo, useRef, useState} from "../vendor/preact.js";
import {ApiError, CHANGED, query} from "../api.js";
import {shownPicture, writeSettings} from "../boxes.js";
import {canBeInserted, size} from "../catalog.js";
import {short} from "../check.js";
import {epochsOf} from "../epochs.js";
import {split} from "../prompt.js";
import {listed, t, translated} from "../words.js";
import {rank, usesOf} from "./card.js";
import {Check} from "./check.js";
import {Icon} from "./icons.js";
import {Markdown} from "./markdown.js";
import {OnlineSection} from "./online.js";
import {Outputs} from "./outputs.js";
import {PictureList} from "./pictures.js";
import {
    Button,
    Deleted,
    Dialog,
    isNumber,
    numberOf,
    Picture,
    Section,
    Stars,
    tooStrong,
    Trouble,
    useLater,
    useLoad,
} from "./parts.js";
import {Sheet} from "./sheet.js";

const LAST = 4; // epochs that are compared
const HASHED = 1500; // milliseconds after which a hash that was not known is asked for again

const TITLES = /** @type {const} */ ({
    words: "details.words",
    negative: "details.negative",
    notes: "details.notes",
    description: "details.description",
    tags: "details.tags",
    strength: "details.strength",
    alpha: "details.alpha",
});

/**
 * @typedef {Record<"words" | "negative" | "notes" | "description" | "tags" | "strength" | "alpha", string>} Draft
 * The texts of the fields.
 */

/** @param {{tab: Tab, id: string}} props */
export function Details({tab, id}) {
    const [lora, setLora] = useState(/** @type {LoraDetails | null} */ (null));
    const [draft, setDraft] = useState(/** @type {Draft | null} */ (null));
    const [replaced, setReplaced] = useState(false); // its picture, by another one
    const close = () => tab.set({details: null, outputs: false});
    const ask = () => tab.api.get(/** @type {const} */ (`lora?${query({id})}`));
    const take = (/** @type {LoraDetails} */ told) => {
        setLora(told);
        setDraft(draftOf(told));
    };
    const shown = useRef();
    shown.current = {lora, draft};
    const renew = (/** @type {LoraDetails} */ told) => {
        const renewed = renewedDraft(shown.current.lora, shown.current.draft, told);
        setLora(told);
        setDraft(renewed.draft);
        if (renewed.theirs) throw new Error(renewed.theirs);
    };
    const load = async () => {
        const told = await ask();
        if (shown.current.lora) renew(told);
        else take(told);
    };
    const [trouble, attempt] = useLoad(tab, load, [id]);
    const isHashed = lora && !lora.hash && lora.readable; // by the server, now
    useLater(isHashed && (() => attempt(async () => renew(await ask()), false)), HASHED, [lora]);
    if (!lora || !draft) {
        return html`<${Dialog} title=${t("details.title")} close=${close}><${Trouble} trouble=${trouble} />
            ${!trouble.text && html`<p class="rt-hint">${t("common.loading")}</p>`}<//>`;
    }
    const edit = (/** @type {Partial<Draft>} */ changes) => setDraft((now) => now && {...now, ...changes});
    const send = async (/** @type {object} */ changes, /** @type {(told: LoraDetails) => void} */ show) => {
        try {
            show(await tab.library.setNotes(lora, changes));
        } catch (error) {
            if (error instanceof ApiError && error.status === CHANGED) renew(await ask());
            throw error;
        }
    };
    const note = (/** @type {object} */ changes) => attempt(() => send(changes, renew));
    const save = () =>
        attempt(async () => {
            const changes = changesOf(lora, draft);
            if (Object.keys(changes).length) await send(changes, take);
            close();
        });
    const picture = (/** @type {Blob | null | undefined} */ blob) =>
        blob !== undefined
        && attempt(async () => {
            renew(await tab.library.setPicture(lora, blob));
            setReplaced(Boolean(blob));
        });
    const used = tab.stack.used().has(lora.id);
    const against = tab.library.catalog.against(lora);
    const foot = html`<${Trouble} trouble=${trouble} />
        <div class="rt-line rt-end">
            <button type="button" onClick=${close}>${t("common.cancel")}</button>
            <button type="button" class="rt-primary" onClick=${save}>${t("common.save")}</button>
        </div>`;
    return html`<${Dialog} title=${lora.name} close=${close} unsaved=${isChanged(lora, draft)} foot=${foot} class="rt-wide-dialog">
        <div class="rt-details">
            <div class="rt-details-side">
                <div class="rt-thumb rt-large"><${Picture} api=${tab.api} name=${lora.name}
                    path=${lora.picture && `thumbnail?${query({id: lora.id, v: lora.picture})}`} /></div>
                <div class="rt-line">
                    <${Stars} rating=${lora.rating} name=${lora.name} set=${(/** @type {number} */ rating) => note({rating})} />
                    <${Button} label=${t("details.favourite")} class="rt-small rt-heart" aria-pressed=${String(lora.favourite)}
                        onClick=${() => note({favourite: !lora.favourite})}><${Icon} name="heart" filled=${lora.favourite} /><//>
                </div>
                <${NewPicture} take=${picture} attempt=${attempt} />
                ${replaced && html`<${Deleted} name=${t("details.picture")} replaced undo=${() => picture(null)} />`}
                <button type="button" disabled=${!used && !canBeInserted(lora)} onClick=${() => tab.edits.toggle(tab.library.catalog.byId.get(lora.id) ?? lora)}>
                    ${t(used ? "details.remove" : "details.insert")}</button>
                <button type="button" class="rt-small" disabled=${!lora.readable} title=${t("details.copyHint")}
                    onClick=${() => tab.set({dialog: "save", copied: lora})}>${t("details.copy")}</button>
                <${Epochs} tab=${tab} lora=${lora} />
                <button type="button" class="rt-small" aria-pressed=${String(lora.hidden)} title=${t("details.hideHint")}
                    onClick=${() => note({hidden: !lora.hidden})}>${t("details.hide")}</button>
            </div>
            <div class="rt-details-main">
                ${against && html`<p class=${lora.readable ? "rt-notice" : "rt-error"}>${against}</p>`}
                ${lora.problems.map((text) => html`<p class="rt-notice" key=${text}>${translated(text)}</p>`)}
                <${Facts} lora=${lora} tab=${tab} />
                ${lora.distilled && html`<${MadeFor} tab=${tab} made=${lora.distilled} attempt=${attempt} />`}
                ${lora.notes && html`<${Markdown} text=${lora.notes} />`}
                <${Fields} draft=${draft} edit=${edit} lora=${lora} />
                <${OnlineSection} tab=${tab} lora=${lora} renew=${async () => renew(await ask())} />
                <${Section} title=${t("outputs.title")} begins=${tab.state.outputs}><${Outputs} tab=${tab} lora=${lora.id} /><//>
                <${Section} title=${t("pictures.title")}><${PictureList} tab=${tab} count=${tab.state.server?.pictures ?? 0} lora=${lora.id} /><//>
                ${lora.readable && html`<${Section} title=${t("check.title")}><${Check} tab=${tab} lora=${lora.id} /><//>`}
                ${canBeInserted(lora) && html`<${Section} title=${t("sheet.title")}><${Sheet} tab=${tab} lora=${lora} /><//>`}
                ${
                    Object.keys(lora.training).length > 0
                    && html`<details><summary>${t("details.training")}</summary><dl class="rt-facts">
                    ${Object.entries(lora.training).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}
                </dl></details>`
                }
            </div>
        </div>
    <//>`;
}

/**
 * Say at which strengths pictures used a file, and at which the latest one did.
 * @param {CountedLora | undefined} made
 */
function strengthsOf(made) {
    const [low, high] = made?.strengths?.map((one) => short(one)) ?? ["", ""];
    const span = low === high ? low : t("mark.range", {low, high});
    const last = made?.strength && made.strength !== span ? t("details.lastStrength", {strength: made.strength}) : "";
    return [span, last].filter(Boolean).join(t("mark.list"));
}

/**
 * Draw a button that compares the latest epochs of the training of a file.
 * @param {{tab: Tab, lora: LoraDetails}} props
 */
function Epochs({tab, lora}) {
    const {version, target} = tab.state;
    const epochs = useMemo(() => epochsOf(tab.library.catalog.all, lora), [version, lora]);
    if (epochs.length < 2 || !target) return null;
    const names = epochs.slice(-LAST).map(({name}) => name);
    const open = () => tab.set({details: null, dialog: "compare", compared: names, comparing: "alone"});
    return html`<${Button} label=${t("details.epochsHint", {names: listed(names, "conjunction")})} class="rt-small"
        onClick=${open}>${t("details.epochs", {count: names.length})}<//>`;
}

/** @param {{lora: LoraDetails, tab: Tab}} props */
function Facts({lora, tab}) {
    const family = tab.library.catalog.familyOf(lora);
    const layers = lora.layers && t("common.layers", {count: lora.layers});
    const {named} = lora;
    const facts = [
        [t("details.file"), lora.path],
        [t("common.madeFor"), family && named ? t("details.named", {family: family.title, named}) : family?.title],
        [t("details.madeFrom"), lora.base_model],
        [t("common.kind"), [rank(lora), layers, lora.format].filter(Boolean).join(t("mark.list"))],
        [t("details.size"), size(lora.size)],
        [t("details.nameInTraining"), lora.alias === lora.name ? "" : lora.alias],
        [t("details.hash"), lora.hash],
        [t("details.used"), usesOf(tab.library.catalog.withPictures(lora))],
        [t("details.strengths"), strengthsOf(tab.library.catalog.pictured.get(lora.id))],
    ];
    return html`<dl class="rt-facts">${facts
        .filter(([, value]) => value)
        .map(
            ([name, value]) => html`
        <dt key=${name}>${name}</dt><dd>${value}</dd>`,
        )}</dl>`;
}

/** @param {{tab: Tab, made: Distilled, attempt: Attempt}} props */
function MadeFor({tab, made, attempt}) {
    const span = (/** @type {[number, number]} */ [low, high]) =>
        low === high ? String(low) : t("mark.range", {low: String(low), high: String(high)});
    const shift = made.shift && t("details.shift", {shift: String(made.shift)});
    const others = [made.sampler, made.scheduler, shift].filter(Boolean).join(t("mark.list"));
    const set = {steps: String(made.steps[1]), cfg: String(made.cfg[0])};
    const said = others ? t("details.stepsSetNot", {...set, others}) : t("details.stepsSet", set);
    const {method} = made;
    const about = t("details.madeForSettings", {method, steps: span(made.steps), cfg: span(made.cfg)});
    const [done, setDone] = useState(false);
    const use = () =>
        attempt(async () => {
            // the most steps are the best picture; the least CFG scale is the one without a second pass
            const missed = writeSettings(tab.state.target, {steps: made.steps[1], cfg_scale: made.cfg[0]});
            if (missed.length) throw new Error(t("details.noControl", {fields: listed(missed, "conjunction")}));
            setDone(true);
        });
    return html`<p class="rt-line"><span>${[about, others].filter(Boolean).join(t("mark.list"))}</span>
        <button type="button" class="rt-small" onClick=${use}>${t("details.setSteps")}</button>
        <span class="rt-hint" role="status">${done && said}</span></p>`;
}

/** @param {{draft: Draft, edit: (changes: Partial<Draft>) => void, lora: LoraDetails}} props */
function Fields({draft, edit, lora}) {
    const field = (
        /** @type {keyof Draft} */ name,
        /** @type {string} */ title,
        rows = 0,
        hint = "",
    ) => html`<label class="rt-field"><span>${title}</span>
        ${
            rows
                ? html`<textarea rows=${rows} value=${draft[name]} onInput=${(event) => edit({[name]: event.target.value})}></textarea>`
                : html`<input type="text" value=${draft[name]} onInput=${(event) => edit({[name]: event.target.value})} />`
        }
        ${hint && html`<span class="rt-hint">${hint}</span>`}</label>`;
    const words = split(draft.words);
    const flip = (/** @type {string} */ tag) =>
        edit({words: (words.includes(tag) ? words.filter((one) => one !== tag) : [...words, tag]).join(", ")});
    return html`
        ${field("words", t("details.words"), 0, t("details.wordsHint"))}
        ${
            lora.training_tags.length > 0
            && html`<div class="rt-tags" role="group" aria-label=${t("details.captions")}>
            ${lora.training_tags.slice(0, 24).map(
                ([tag, count]) => html`<button type="button" key=${tag} class="rt-chip"
                aria-pressed=${String(words.includes(tag))} title=${t("details.inCaptions", {count})} onClick=${() => flip(tag)}>${tag} ${count}</button>`,
            )}
        </div>`
        }
        ${field("negative", t("details.negative"))}
        ${field("strength", t("details.strength"), 0, aboutStrength(draft.strength) || t("details.strengthHint"))}
        ${
            (lora.scale_is_guess || lora.alpha !== null)
            && field(
                "alpha",
                t("details.alpha"),
                0,
                t(lora.scale_is_guess ? "details.alphaGuess" : "details.alphaHint"),
            )
        }
        ${field("tags", t("details.tags"), 0, t("details.tagsHint"))}
        ${field("notes", t("details.notes"), 3)}
        ${field("description", t("details.description"), 3)}`;
}

/**
 * Say what an unusual strength does; nothing of others.
 * @param {string} text
 */
function aboutStrength(text) {
    if (!isNumber(text)) return "";
    return tooStrong(numberOf(text)) || (numberOf(text) < 0 ? t("details.strengthNegative") : "");
}

/** @param {{take: (picture: Blob | undefined) => unknown, attempt: Attempt}} props */
function NewPicture({take, attempt}) {
    const chosen = /** @type {Filled<HTMLInputElement>} */ (useRef());
    const shown = () =>
        attempt(async () => {
            const blob = await shownPicture();
            if (!blob) throw new Error(t("common.noPictureYet"));
            await take(blob);
        });
    return html`<div class="rt-line">
        <input type="file" accept="image/*" hidden ref=${chosen} onChange=${(event) => take(event.target.files?.[0])} />
        <${Button} label=${t("details.pictureOfFileHint")} class="rt-small" onClick=${() => chosen.current.click()}>${t("details.pictureOfFile")}<//>
        <${Button} label=${t("details.pictureOfPageHint")} class="rt-small" onClick=${shown}>${t("details.pictureOfPage")}<//>
    </div>`;
}

/**
 * Return the texts of the fields for a file as it is now: the fields that the user has changed keep their texts.
 * @param {LoraDetails} known as the page had it
 * @param {Draft} draft
 * @param {LoraDetails} told
 * @returns {{draft: Draft, theirs: string}} the texts; a sentence where the user and another page changed the same field
 */
function renewedDraft(known, draft, told) {
    const [before, now] = [draftOf(known), draftOf(told)];
    const names = /** @type {(keyof Draft)[]} */ (Object.keys(draft));
    const typed = names.filter((name) => draft[name] !== before[name] && draft[name] !== now[name]);
    const theirs = typed
        .filter((name) => now[name] !== before[name])
        .map((name) => t("details.theirField", {name: t(TITLES[name]), text: now[name].slice(0, 200)}));
    const said = t("details.theirs", {fields: theirs.join(t("mark.list"))});
    return {
        draft: {...now, ...Object.fromEntries(typed.map((name) => [name, draft[name]]))},
        theirs: theirs.length ? said : "",
    };
}

/**
 * @param {LoraDetails} lora
 * @returns {Draft}
 */
function draftOf(lora) {
    const {words, negative, notes, description} = lora;
    return {
        words,
        negative,
        notes,
        description,
        tags: lora.tags.join(", "),
        strength: lora.strength === null ? "" : String(lora.strength),
        alpha: lora.alpha === null ? "" : String(lora.alpha),
    };
}

/**
 * @param {LoraDetails} lora
 * @param {Draft} draft
 */
function isChanged(lora, draft) {
    return Object.entries(draftOf(lora)).some(([name, text]) => draft[/** @type {keyof Draft} */ (name)] !== text);
}

/**
 * Return the fields that the user changed: the others may have been changed elsewhere meanwhile.
 * @param {LoraDetails} lora
 * @param {Draft} draft
 */
function changesOf(lora, draft) {
    const former = draftOf(lora);
    /** @type {{[field: string]: string | string[] | number | null}} */
    const changes = {};
    const names = /** @type {(keyof Draft)[]} */ (Object.keys(draft));
    for (const name of names.filter((one) => draft[one] !== former[one])) {
        if (name === "tags") {
            changes.tags = split(draft.tags);
        } else if (name === "strength") {
            if (draft.strength.trim() && !isNumber(draft.strength)) {
                throw new Error(t("details.strengthWrong", {text: draft.strength}));
            }
            changes.strength = numberOf(draft.strength) || null;
        } else if (name === "alpha") {
            if (draft.alpha.trim() && !isNumber(draft.alpha)) {
                throw new Error(t("details.alphaWrong", {text: draft.alpha}));
            }
            changes.alpha = draft.alpha.trim() ? numberOf(draft.alpha) : null;
        } else {
            changes[name] = draft[name];
        }
    }
    return changes;
}
