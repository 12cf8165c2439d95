// The files that are copies of others, in groups.

/**
 * @import {CopiedFile, Copies as CopiesTold, Lora, MergedFile} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 * @import {Attempt} from "./parts.js"
 */

import {html, useState} from "../vendor/preact.js";
import {query} from "../api.js";
import {canBeInserted} from "../catalog.js";
import {percent, short} from "../check.js";
import {factsOf, likeness} from "../copies.js";
import {t, translated} from "../words.js";
import {rank} from "./card.js";
import {Dialog, Name, Picture, Trouble, useLater, useLoad, useTrouble} from "./parts.js";

const POLL = 2000; // milliseconds

/**
 * Ask for copies, again and again while the server looks for more.
 * @param {Tab} tab
 * @param {number} page
 */
export function useCopies(tab, page) {
    const [told, setTold] = useState(/** @type {CopiesTold | null} */ (null));
    const [round, setRound] = useState(0);
    const [trouble] = useLoad(tab, async () => setTold(await tab.library.loadCopies(page)), [page, round]);
    useLater(told?.running && (() => setRound(round + 1)), POLL, [told]);
    return {told, trouble};
}

/** @param {{told: CopiesTold | null}} props */
export function Reading({told}) {
    if (!told?.running || !told.total) return null;
    const {done, total} = told;
    return html`<div class="rt-scan" role="status"><progress max=${total} value=${done} aria-label=${t("copies.progress")}></progress>
        <span class="rt-hint">${t("copies.at", {done, total})}</span></div>`;
}

/** @param {{tab: Tab}} props */
export function Copies({tab}) {
    const [page, setPage] = useState(0);
    const {told, trouble} = useCopies(tab, page);
    const [own, attempt] = useTrouble();
    const pages = told ? Math.max(1, Math.ceil(told.found / told.per_page)) : 1;
    const paged =
        pages > 1
        && html`<div class="rt-line">
            <button type="button" class="rt-small" disabled=${page === 0} onClick=${() => setPage(page - 1)}>${t("copies.back")}</button>
            <span role="status">${t("copies.page", {page: page + 1, pages})}</span>
            <button type="button" class="rt-small" disabled=${page + 1 >= pages} onClick=${() => setPage(page + 1)}>${t("copies.next")}</button></div>`;
    const foot = (own.text || paged) && html`<${Trouble} trouble=${own} />${paged}`;
    return html`<${Dialog} title=${t("copies.title")} close=${() => tab.set({dialog: ""})} foot=${foot} class="rt-wide-dialog">
        <p class="rt-hint">${t("copies.about")}</p>
        <${Trouble} trouble=${trouble} />
        ${!told && !trouble.text && html`<p class="rt-hint">${t("common.loading")}</p>`}
        <${Reading} told=${told} />
        ${told && html`<p role="status">${told.found ? t("copies.found", {count: told.found}) : t(told.running ? "copies.noneYet" : "copies.none")}</p>`}
        ${told?.groups.map((group) => html`<${Group} key=${group[0].id} tab=${tab} group=${group} attempt=${attempt} />`)}
        ${told && page === 0 && told.merges.length > 0 && html`<${Merges} tab=${tab} merges=${told.merges} />`}
        ${told && told.left_out.length > 0 && html`<${LeftOut} tab=${tab} files=${told.left_out} />`}
    <//>`;
}

/** @param {{tab: Tab, group: CopiedFile[], attempt: Attempt}} props */
function Group({tab, group, attempt}) {
    const {byId} = tab.library.catalog;
    const first = byId.get(group[0].id);
    if (!first) return null; // the list of files is older than this one
    const usual = factsOf(first, group[0], rank(first));
    const shown = group.slice(1).filter(({id}) => byId.get(id)?.hidden === false);
    const hide = () =>
        attempt(async () => {
            for (const {id} of shown) await setHidden(tab, id, true);
        });
    return html`<section class="rt-part" aria-label=${t("copies.group", {name: first.name, count: group.length - 1})}>
        <div class="rt-line"><h4>${t("copies.group", {name: first.name, count: group.length - 1})}</h4>
            ${shown.length > 1 && html`<button type="button" class="rt-small" onClick=${hide}>${t("copies.hideAll")}</button>`}</div>
        <ul class="rt-copies">${group.map((file) => {
            const lora = byId.get(file.id);
            return (
                lora
                && html`<${File} key=${file.id} tab=${tab} lora=${lora} file=${file} usual=${usual}
                other=${file.other === null ? undefined : byId.get(file.other)} attempt=${attempt} />`
            );
        })}</ul></section>`;
}

/**
 * Hide a file in the library, or show it again; throws errors of the server.
 * @param {Tab} tab
 * @param {string} id
 * @param {boolean} hidden
 */
async function setHidden(tab, id, hidden) {
    const lora = tab.library.catalog.byId.get(id);
    if (lora) await tab.library.setNotes(lora, {hidden});
}

/** @param {{tab: Tab, lora: Lora, file: CopiedFile, usual: string[], other: Lora | undefined, attempt: Attempt}} props */
function File({tab, lora, file, usual, other, attempt}) {
    const {name} = lora;
    const said = file.alike ? likeness(file, other?.name ?? "?") : t("copies.first");
    const comparable = other && tab.state.target && canBeInserted(lora) && canBeInserted(other);
    return html`<li class=${`rt-copy${lora.hidden ? " rt-hidden" : ""}`}>
        <span class="rt-thumb"><${Picture} api=${tab.api} name=${name} path=${lora.picture && `thumbnail?${query({id: lora.id, v: lora.picture})}`} /></span>
        <div class="rt-preset-text">
            <button type="button" class="rt-link rt-copy-name" aria-label=${t("card.about", {name})} title=${lora.file} onClick=${() => tab.set({details: lora.id})}><${Name} text=${name} /></button>
            <span>${said}</span>
            <span class="rt-hint">${factsOf(lora, file, rank(lora)).map((fact, at) => [
                at > 0 && fact && " · ",
                fact === usual[at] ? fact : html`<strong>${fact}</strong>`,
            ])}</span>
        </div>
        <div class="rt-line">
            ${
                comparable
                && html`<button type="button" class="rt-small" aria-label=${t("copies.compareHint", {name, other: other.name})}
                onClick=${() => compare(tab, [other, lora])}>${t("common.compare")}</button>`
            }
            <button type="button" class="rt-small" aria-pressed=${String(lora.hidden)} aria-label=${t("copies.hideHint", {name})}
                onClick=${() => attempt(() => setHidden(tab, lora.id, !lora.hidden))}>${t("copies.hide")}</button>
        </div></li>`;
}

/**
 * Insert files into the prompt, and open the comparison of their pictures.
 * @param {Tab} tab
 * @param {Lora[]} files
 */
function compare(tab, files) {
    for (const lora of files) if (!tab.stack.used().has(lora.id)) tab.edits.insert(lora);
    const rows = tab.stack.rows().filter((row) => row.on && !row.problem);
    const ids = files.map(({id}) => id);
    const own = rows.filter(({name}) => ids.includes(tab.library.meaning(name).lora?.id ?? ""));
    tab.set({dialog: "compare", compared: [...new Set(own.map(({name}) => name))], comparing: "combinations"});
}

/** @param {{tab: Tab, merges: MergedFile[]}} props */
function Merges({tab, merges}) {
    const nameOf = (/** @type {string} */ id) => tab.library.catalog.byId.get(id)?.name ?? "?";
    return html`<section class="rt-part" aria-label=${t("copies.merges")}><h4>${t("copies.merges")}</h4>
        <ul>${merges.map(({id, parents, strengths, left}) => {
            const parts = parents.map((parent, at) =>
                t("copies.part", {name: nameOf(parent), strength: short(strengths[at])}),
            );
            return html`<li key=${id}>${t("copies.merge", {name: nameOf(id), first: parts[0], second: parts[1], left: percent(left)})}</li>`;
        })}</ul></section>`;
}

/** @param {{tab: Tab, files: CopiesTold["left_out"]}} props */
function LeftOut({tab, files}) {
    return html`<details><summary>${t("copies.leftOut", {count: files.length})}</summary>
        <ul>${files.map(({id, reason}) => html`<li class="rt-hint" key=${id}>${tab.library.catalog.byId.get(id)?.name}: ${translated(reason)}</li>`)}</ul></details>`;
}
