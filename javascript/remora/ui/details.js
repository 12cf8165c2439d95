// All about one file, and what the user notes about it.

/**
 * @import {Distilled, LoraDetails} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 * @import {Filled} from "../vendor/preact.js"
 * @import {Attempt} from "./parts.js"
 */

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {ApiError, CHANGED, query} from "../api.js";
import {shownPicture, writeSettings} from "../boxes.js";
import {canBeInserted, size} from "../catalog.js";
import {split} from "../prompt.js";
import {rank} from "./card.js";
import {Icon} from "./icons.js";
import {PictureList} from "./pictures.js";
import {Button, Deleted, Dialog, isNumber, numberOf, Picture, Stars, tooStrong, Trouble, useLoad} from "./parts.js";

const HASHED = 1500; // milliseconds after which a hash that was not known is asked for again

/**
 * @typedef {Record<"words" | "negative" | "notes" | "description" | "tags" | "strength" | "alpha", string>} Draft
 * The texts of the fields.
 */

/** @param {{tab: Tab, id: string}} props */
export function Details({tab, id}) {
    const [lora, setLora] = useState(/** @type {LoraDetails | null} */ (null));
    const [draft, setDraft] = useState(/** @type {Draft | null} */ (null));
    const [replaced, setReplaced] = useState(false); // its picture, by another one
    const close = () => tab.set({details: null});
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
    useEffect(() => {
        if (!lora || lora.hash || !lora.readable) return undefined;
        // the server makes it now
        const timer = setTimeout(() => attempt(async () => renew(await ask()), false), HASHED);
        return () => clearTimeout(timer);
    }, [lora]);
    if (!lora || !draft) {
        return html`<${Dialog} title="About this LoRA" close=${close}><${Trouble} trouble=${trouble} />
            ${!trouble.text && html`<p class="rt-hint">Loading …</p>`}<//>`;
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
            <button type="button" onClick=${close}>Cancel</button>
            <button type="button" class="rt-primary" onClick=${save}>Save</button>
        </div>`;
    return html`<${Dialog} title=${lora.name} close=${close} unsaved=${isChanged(lora, draft)} foot=${foot} class="rt-wide-dialog">
        <div class="rt-details">
            <div class="rt-details-side">
                <div class="rt-thumb rt-large"><${Picture} api=${tab.api} name=${lora.name}
                    path=${lora.picture && `thumbnail?${query({id: lora.id, v: lora.picture})}`} /></div>
                <div class="rt-line">
                    <${Stars} rating=${lora.rating} name=${lora.name} set=${(/** @type {number} */ rating) => note({rating})} />
                    <${Button} label="Favourite" class="rt-small rt-heart" aria-pressed=${String(lora.favourite)}
                        onClick=${() => note({favourite: !lora.favourite})}><${Icon} name="heart" filled=${lora.favourite} /><//>
                </div>
                <${NewPicture} take=${picture} attempt=${attempt} />
                ${replaced && html`<${Deleted} name="picture" replaced undo=${() => picture(null)} />`}
                <button type="button" disabled=${!used && !canBeInserted(lora)} onClick=${() => tab.edits.toggle(tab.library.catalog.byId.get(lora.id) ?? lora)}>
                    ${used ? "Remove from the prompt" : "Insert into the prompt"}</button>
            </div>
            <div class="rt-details-main">
                ${against && html`<p class=${lora.readable ? "rt-notice" : "rt-error"}>${against}</p>`}
                ${lora.problems.map((text) => html`<p class="rt-notice" key=${text}>${text}</p>`)}
                <${Facts} lora=${lora} tab=${tab} />
                ${lora.distilled && html`<${MadeFor} tab=${tab} made=${lora.distilled} attempt=${attempt} />`}
                <${Fields} draft=${draft} edit=${edit} lora=${lora} />
                <${Used} tab=${tab} lora=${lora.id} />
                ${
                    Object.keys(lora.training).length > 0
                    && html`<details><summary>Training</summary><dl class="rt-facts">
                    ${Object.entries(lora.training).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}
                </dl></details>`
                }
            </div>
        </div>
    <//>`;
}

/** @param {{lora: LoraDetails, tab: Tab}} props */
function Facts({lora, tab}) {
    const family = tab.library.catalog.familyOf(lora);
    const facts = [
        ["File", lora.path],
        ["Made for", family?.title],
        ["Made from", lora.base_model],
        ["Kind", [rank(lora), lora.layers && `${lora.layers} layers`, lora.format].filter(Boolean).join(", ")],
        ["Size", size(lora.size)],
        ["Name in training", lora.alias === lora.name ? "" : lora.alias],
        ["Hash", lora.hash],
        [
            "Used",
            lora.uses
                ? `${lora.uses === 1 ? "once" : `${lora.uses} times`}, last ${new Date(lora.used * 1000).toLocaleString()}`
                : "never",
        ],
    ];
    return html`<dl class="rt-facts">${facts
        .filter(([, value]) => value)
        .map(
            ([name, value]) => html`
        <dt key=${name}>${name}</dt><dd>${value}</dd>`,
        )}</dl>`;
}

/** @param {{tab: Tab, lora: string}} props */
function Used({tab, lora}) {
    const [open, setOpen] = useState(false);
    return html`<details onToggle=${(/** @type {Event} */ event) => setOpen(/** @type {HTMLDetailsElement} */ (event.currentTarget).open)}>
        <summary>Pictures of this session</summary>
        ${open && html`<${PictureList} tab=${tab} count=${tab.state.server?.pictures ?? 0} lora=${lora} />`}</details>`;
}

/** @param {{tab: Tab, made: Distilled, attempt: Attempt}} props */
function MadeFor({tab, made, attempt}) {
    const span = (/** @type {[number, number]} */ [low, high]) => (low === high ? `${low}` : `${low} to ${high}`);
    const others = [made.sampler, made.scheduler, made.shift && `shift ${made.shift}`].filter(Boolean).join(", ");
    const [done, setDone] = useState(false);
    const use = () =>
        attempt(async () => {
            // the most steps are the best picture; the least CFG scale is the one without a second pass
            const missed = writeSettings(tab.state.target, {steps: made.steps[1], cfg_scale: made.cfg[0]});
            if (missed.length) throw new Error(`This page has no control for ${missed.join(" and ")}; set it by hand.`);
            setDone(true);
        });
    return html`<p class="rt-line"><span>${made.method}: made for ${span(made.steps)} steps, CFG scale ${span(made.cfg)}${
        others && `, ${others}`
    }</span>
        <button type="button" class="rt-small" onClick=${use}>Set steps and CFG scale</button>
        <span class="rt-hint" role="status">${done && `The page has ${made.steps[1]} steps and a CFG scale of ${made.cfg[0]} now${others && `; set ${others} by hand`}.`}</span></p>`;
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
        ${field("words", "Trigger words", 0, "Inserted into the prompt with the LoRA, and removed with it")}
        ${
            lora.training_tags.length > 0
            && html`<div class="rt-tags" role="group" aria-label="Words of the training captions">
            ${lora.training_tags.slice(0, 24).map(
                ([tag, count]) => html`<button type="button" key=${tag} class="rt-chip"
                aria-pressed=${String(words.includes(tag))} title=${`in ${count} captions`} onClick=${() => flip(tag)}>${tag} ${count}</button>`,
            )}
        </div>`
        }
        ${field("negative", "Words for the negative prompt")}
        ${field("strength", "Preferred strength", 0, aboutStrength(draft.strength) || "Empty or 0: the web UI’s default")}
        ${
            (lora.scale_is_guess || lora.alpha !== null)
            && field(
                "alpha",
                "Alpha",
                0,
                lora.scale_is_guess
                    ? "Nothing in the file tells its alpha, so its scale is taken as 1. If it is too strong or too weak, give the alpha of its training; a tag may have alpha=8 instead"
                    : "In place of the file’s own. Empty: the file’s own",
            )
        }
        ${field("tags", "Tags", 0, "Separate tags with commas: portrait, ink")}
        ${field("notes", "Notes", 3)}
        ${field("description", "Description", 3)}`;
}

/**
 * Say what an unusual strength does; nothing of others.
 * @param {string} text
 */
function aboutStrength(text) {
    if (!isNumber(text)) return "";
    const opposite = "A negative strength has the opposite effect of the LoRA.";
    return tooStrong(numberOf(text)) || (numberOf(text) < 0 ? opposite : "");
}

/** @param {{take: (picture: Blob | undefined) => unknown, attempt: Attempt}} props */
function NewPicture({take, attempt}) {
    const chosen = /** @type {Filled<HTMLInputElement>} */ (useRef());
    const shown = () =>
        attempt(async () => {
            const blob = await shownPicture();
            if (!blob) throw new Error("The page shows no picture yet; make one first.");
            await take(blob);
        });
    return html`<div class="rt-line">
        <input type="file" accept="image/*" hidden ref=${chosen} onChange=${(event) => take(event.target.files?.[0])} />
        <${Button} label="Picture from a file: choose one for this LoRA" class="rt-small" onClick=${() => chosen.current.click()}>Picture from a file<//>
        <${Button} label="Picture from the page: take the one that it shows" class="rt-small" onClick=${shown}>Picture from the page<//>
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
        .map((name) => `${name} is now “${now[name].slice(0, 200)}”`);
    const said = `Another page or program has changed this file: ${theirs.join(", ")}. Your text is still here, and Save replaces the other one.`;
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
                throw new Error(`The preferred strength must be a number, such as 0.8, not “${draft.strength}”.`);
            }
            changes.strength = numberOf(draft.strength) || null;
        } else if (name === "alpha") {
            if (draft.alpha.trim() && !isNumber(draft.alpha)) {
                throw new Error(`Alpha must be a number, such as 8, not “${draft.alpha}”.`);
            }
            changes.alpha = draft.alpha.trim() ? numberOf(draft.alpha) : null;
        } else {
            changes[name] = draft[name];
        }
    }
    return changes;
}
