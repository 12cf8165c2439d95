// What is done with the selected files.

/**
 * @import {FilesChanged, Lora} from "../../api.d.ts"
 * @import {State, Tab} from "../main.js"
 * @import {Change, NewNames as Wanted} from "../many.js"
 * @import {FieldEvent, Filled} from "../vendor/preact.js"
 *
 * @typedef {FilesChanged["refused"]} Refused
 * @typedef {(work: () => Promise<Refused>, again?: (ids: string[]) => Promise<Refused>) => unknown} Act
 * Does something with files; `again` does it for those whose places are taken, under other names.
 */

import {html, useLayoutEffect, useRef, useState} from "../vendor/preact.js";
import {foldersOf} from "../catalog.js";
import {nameOf, newNames, takenNames} from "../many.js";
import {split} from "../prompt.js";
import {t, translated} from "../words.js";
import {Button, NameForm, Stars, Trouble, useTrouble} from "./parts.js";

const PREVIEWED = 100; // new names

/** @param {{tab: Tab, state: State, found: Lora[]}} props */
export function Selection({tab, state, found}) {
    const [form, setForm] = useState("");
    const [trouble, attempt] = useTrouble();
    const [left, setLeft] = useState(
        /** @type {{refused: Refused, again?: (ids: string[]) => Promise<Refused>} | null} */ (null),
    );
    /** @type {Act} */
    const act = (work, again) =>
        attempt(async () => {
            setForm("");
            const refused = await work();
            setLeft(refused.length ? {refused, again} : null);
        });
    const {selected, lastChange} = state;
    if (!selected && !lastChange && !left) return null;
    const chosen = tab.many.chosen;
    const taken = (left?.refused ?? []).filter((one) => one.taken).map(({id}) => id);
    const again = left?.again;
    return html`<div class="rt-picking" role="group" aria-label=${t("many.bar")}>
        ${selected && html`<${Tools} tab=${tab} chosen=${chosen} found=${found} form=${form} setForm=${setForm} act=${act} />`}
        <${Trouble} trouble=${trouble} />
        ${
            left
            && html`<div class="rt-notice" role="alert"><p>${t("many.refused", {count: left.refused.length})}</p>
            <ul>${left.refused.slice(0, 20).map(({id, reason}) => html`<li key=${id} class="rt-hint">${translated(reason)}</li>`)}</ul>
            <div class="rt-line">
                ${again && taken.length > 0 && html`<button type="button" class="rt-small" onClick=${() => act(() => again(taken))}>${t("many.keepBoth")}</button>`}
                <button type="button" class="rt-small" onClick=${() => setLeft(null)}>${t("common.close")}</button></div></div>`
        }
        ${lastChange && html`<${LastChange} tab=${tab} change=${lastChange} selecting=${selected !== null} act=${act} />`}
    </div>`;
}

/**
 * @param {{tab: Tab, chosen: string[], found: Lora[], form: string, setForm: (form: string) => void, act: Act}} props
 */
function Tools({tab, chosen, found, form, setForm, act}) {
    const {byId} = tab.library.catalog;
    const count = chosen.length;
    const ratings = new Set(chosen.map((id) => byId.get(id)?.rating));
    const noted = (/** @type {number} */ number) => t("many.noted", {count: number});
    const note = (/** @type {object} */ changes) => act(() => tab.many.send("PATCH", "files", changes, chosen, noted));
    const remove = () =>
        act(() => tab.many.send("POST", "files/delete", {}, chosen, (number) => t("many.deleted", {count: number})));
    const opener = (/** @type {string} */ name, /** @type {string} */ word, isUsable = count > 0) =>
        html`<button type="button" class="rt-small" aria-expanded=${String(form === name)} disabled=${!isUsable}
            onClick=${() => setForm(form === name ? "" : name)}>${word}</button>`;
    return html`<div class="rt-line">
        <strong role="status">${t("many.count", {count})}</strong>
        <button type="button" class="rt-small" onClick=${() => tab.many.select(found.map(({id}) => id))}>${t("common.all")}</button>
        ${count > 0 && html`<${Stars} rating=${ratings.size === 1 ? [...ratings][0] : 0} name=${t("many.count", {count})} set=${(/** @type {number} */ rating) => note({rating})} />`}
        ${opener("tags", t("many.tags"))}
        ${opener("move", t("many.move"))}
        ${opener("rename", t("many.rename"))}
        <button type="button" class="rt-small" disabled=${!count} onClick=${remove}>${t("common.delete")}</button>
        <button type="button" class="rt-small rt-primary" onClick=${() => tab.many.select(null)}>${t("many.end")}</button>
    </div>
    ${!count && html`<p class="rt-hint">${t("many.none")}</p>`}
    ${form === "tags" && html`<${Tags} note=${note} />`}
    ${form === "move" && html`<${Folder} tab=${tab} chosen=${chosen} act=${act} />`}
    ${form === "rename" && count === 1 && html`<${NewName} key=${chosen[0]} tab=${tab} id=${chosen[0]} act=${act} close=${() => setForm("")} />`}
    ${form === "rename" && count > 1 && html`<${NewNames} tab=${tab} chosen=${chosen} act=${act} />`}`;
}

/** @param {{note: (changes: object) => unknown}} props */
function Tags({note}) {
    const [text, setText] = useState("");
    const tags = split(text);
    return html`<form class="rt-line" onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        if (tags.length) note({add: tags});
    }}>
        <input type="text" aria-label=${t("many.tagsField")} placeholder=${t("many.tagsField")} autocomplete="off" value=${text}
            ref=${useFocus()} onInput=${(/** @type {FieldEvent} */ event) => setText(event.target.value)} />
        <button type="submit" class="rt-small rt-primary" disabled=${!tags.length}>${t("many.add")}</button>
        <button type="button" class="rt-small" disabled=${!tags.length} onClick=${() => note({remove: tags})}>${t("many.remove")}</button>
    </form>`;
}

/** @param {{tab: Tab, chosen: string[], act: Act}} props */
function Folder({tab, chosen, act}) {
    const [folder, setFolder] = useState("");
    const [inside, setInside] = useState("");
    const to = [folder, inside.trim()].filter(Boolean).join("/");
    const said = (/** @type {number} */ count) => t("many.moved", {count, folder: to || t("save.top")});
    const move = (/** @type {string[]} */ ids, number = false) =>
        tab.many.send("POST", "files/move", {folder: to, number}, ids, said);
    return html`<form class="rt-filters" onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        act(
            () => move(chosen),
            (ids) => move(ids, true),
        );
    }}>
        <label class="rt-field"><span>${t("common.folder")}</span><select value=${folder} ref=${useFocus()}
            onChange=${(/** @type {FieldEvent} */ event) => setFolder(event.target.value)}>
            <option value="">${t("save.top")}</option>
            ${foldersOf(tab.library.catalog).map(([path]) => html`<option key=${path} value=${path}>${path}</option>`)}</select></label>
        <label class="rt-field"><span>${t("many.newFolder")}</span><input type="text" autocomplete="off" value=${inside}
            onInput=${(/** @type {FieldEvent} */ event) => setInside(event.target.value)} /></label>
        <button type="submit" class="rt-primary">${t("many.moveNow")}</button>
    </form>`;
}

/** @param {{tab: Tab, id: string, act: Act, close: () => void}} props */
function NewName({tab, id, act, close}) {
    const former = nameOf(tab.library.catalog.byId.get(id)?.file ?? "");
    const save = (/** @type {string} */ name) =>
        act(() => tab.many.send("POST", "files/move", {name}, [id], () => t("many.renamed", {name: former, to: name})));
    return html`<${NameForm} label=${t("common.newName")} button=${t("many.renameNow")} former=${former} focus save=${save} cancel=${close}
        problem=${(/** @type {string} */ name) => (name ? "" : t("many.noName"))} />`;
}

/** @type {[keyof Wanted, import("../words.js").Key][]} */
const FIELDS = [
    ["find", "many.find"],
    ["replace", "many.replace"],
    ["front", "many.front"],
    ["behind", "many.behind"],
];

/**
 * Draw the form that renames several files, with their new names.
 * @param {{tab: Tab, chosen: string[], act: Act}} props
 */
function NewNames({tab, chosen, act}) {
    const [wanted, setWanted] = useState({find: "", replace: "", front: "", behind: ""});
    const first = useFocus();
    const {byId} = tab.library.catalog;
    const names = newNames(
        chosen.flatMap((id) => byId.get(id) ?? []),
        wanted,
    );
    const said = (/** @type {number} */ count) => t("many.renamedAll", {count});
    return html`<form class="rt-filters" onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        if (names.size) act(() => tab.many.rename(names, said));
    }}>
        ${FIELDS.map(
            ([
                name,
                label,
            ]) => html`<label key=${name} class="rt-field"><span>${t(label)}</span><input type="text" autocomplete="off" spellcheck=${false}
            maxlength="100" value=${wanted[name]} ref=${name === "find" ? first : null}
            onInput=${(/** @type {FieldEvent} */ event) => setWanted({...wanted, [name]: event.target.value})} /></label>`,
        )}
        <button type="submit" class="rt-primary" disabled=${!names.size}>${t("many.renameNow")}</button>
    </form>
    <${Preview} tab=${tab} names=${names} />`;
}

/** @param {{tab: Tab, names: Map<string, string>}} props */
function Preview({tab, names}) {
    const {byId} = tab.library.catalog;
    const taken = takenNames(byId.values(), names);
    return html`<p class="rt-hint" role="status">${t("many.newNames", {count: names.size})}</p>
        ${
            names.size > 0
            && html`<ul class="rt-new-names" tabindex="0" aria-label=${t("many.preview")}>${[...names]
                .slice(0, PREVIEWED)
                .map(
                    ([id, name]) => html`<li key=${id}>${nameOf(byId.get(id)?.file ?? "")} → <strong>${name}</strong>
                ${taken.has(id) && html` <span class="rt-lacking">⚠ ${t("said.files.taken", {file: name})}</span>`}</li>`,
                )}</ul>`
        }`;
}

/**
 * Say what was done last, with a button that takes it back. The button has the focus where the one before it is gone.
 * @param {{tab: Tab, change: Change, selecting: boolean, act: Act}} props
 */
function LastChange({tab, change, selecting, act}) {
    const button = /** @type {{current: HTMLButtonElement | null}} */ (useRef());
    // the focus moves before the next key
    useLayoutEffect(() => {
        if (document.activeElement === document.body) button.current?.focus();
    }, [change, selecting]);
    return html`<div class="rt-notice rt-line"><span role="status">${change.said}</span>
        ${change.undo.length > 0 && html`<button type="button" class="rt-small" ref=${button} onClick=${() => act(() => tab.many.undo(t("many.undone")))}>${t("common.undo")}</button>`}
        <${Button} label=${t("many.closeNotice")} class="rt-small" onClick=${() => tab.set({lastChange: null})}>${t("common.close")}<//></div>`;
}

/** Return the reference of an element that has the focus when it comes. */
function useFocus() {
    const element = /** @type {Filled<HTMLElement>} */ (useRef());
    useLayoutEffect(() => element.current.focus(), []); // before the next key
    return element;
}
