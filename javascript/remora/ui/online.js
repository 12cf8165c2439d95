// What Civitai and Hugging Face say of files, and downloads from there. All of it is text of others: nothing is HTML.

/**
 * @import {Lora, LoraDetails, Online as OnlineState, OnlineJob, OnlineLora} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 */

import {html, useRef, useState} from "../vendor/preact.js";
import {aboutOf, progressOf, resultOf, withNewer} from "../online.js";
import {t, translated} from "../words.js";
import {Dialog, Section, Trouble, useLater, useLoad} from "./parts.js";

const POLL = 500; // milliseconds

/**
 * @typedef {object} Asking
 * What sites may be asked, and how.
 * @property {OnlineState | null} told
 * @property {import("./parts.js").TroubleShown} trouble
 * @property {(method: "PUT" | "POST" | "DELETE", path: "online" | "online/lookup" | "online/download" | "online/newer", body?: object) => unknown} ask
 */

/**
 * Keep what the server tells of its job, and ask again while one runs.
 * @param {Tab} tab
 * @param {(job: OnlineJob) => unknown} ended is called when the job that ran has ended
 * @returns {Asking}
 */
function useOnline(tab, ended) {
    const [told, setTold] = useState(/** @type {OnlineState | null} */ (null));
    const running = useRef("");
    const take = async (/** @type {OnlineState} */ now) => {
        setTold(now);
        const {job} = now;
        if (job?.running) running.current = job.id;
        else if (job && running.current) {
            running.current = "";
            await tab.library.refresh();
            await ended(job);
        }
    };
    const load = async () => take(await tab.api.get("online"));
    const [trouble, attempt] = useLoad(tab, load, []);
    useLater(told?.job?.running && (() => attempt(load, false)), POLL, [told]);
    /** @type {Asking["ask"]} */
    const ask = (method, path, body) =>
        attempt(async () => {
            const now = await tab.api.ask(method, path, body);
            if (now.job?.running) running.current = now.job.id; // it may end before it is asked for again
            await take(now);
        });
    return {told, trouble, ask};
}

/** @param {{tab: Tab, lora: LoraDetails, renew: () => unknown}} props */
export function OnlineSection({tab, lora, renew}) {
    return html`${lora.online?.newer && html`<p class="rt-notice">${newerOf(lora.online, hereOf(tab, lora))}</p>`}
        <${Section} title=${t("online.title")}><${OfFile} tab=${tab} lora=${lora} renew=${renew} /><//>`;
}

/** @param {{tab: Tab, lora: LoraDetails, renew: () => unknown}} props */
function OfFile({tab, lora, renew}) {
    const [page, setPage] = useState("");
    const [job, setJob] = useState(/** @type {OnlineJob | null} */ (null));
    const asking = useOnline(tab, async (ended) => {
        setJob(ended);
        await renew();
    });
    const {told, trouble, ask} = asking;
    const lookUp = (/** @type {object} */ more) => {
        setJob(null);
        ask("POST", "online/lookup", {ids: [lora.id], ...more});
    };
    const isBusy = Boolean(told?.job?.running);
    const failed = job?.files.find((file) => file.id === lora.id && file.reason);
    return html`<div class="rt-part">
        <${Trouble} trouble=${trouble} />
        <${Switch} asking=${asking} />
        ${lora.online && html`<${About} one=${lora.online} />`}
        ${
            told?.on
            && html`<div class="rt-line"><button type="button" class="rt-small" disabled=${isBusy} onClick=${() => lookUp({})}>
                ${t(lora.online ? "online.lookAgain" : "online.lookUp")}</button></div>
            ${
                !lora.online
                && html`<${Page} label=${t("online.pageThere")} button=${t("online.lookThere")} page=${page} setPage=${setPage}
                busy=${isBusy} send=${() => lookUp({page})} />`
            }
            ${lora.online?.newer && !hereOf(tab, lora) && html`<${Download} told=${told} ask=${ask} page=${lora.online.newer.page} />`}
            <${Working} told=${told} ask=${ask} />`
        }
        <div role="status">
            ${job?.kind === "lookup" && job.unknown > 0 && html`<p>${t("online.unknown")}</p>`}
            ${job && html`<${Ended} job=${job} />`}
            ${failed && html`<p class="rt-notice">${translated(failed.reason)}</p>`}
        </div>
    </div>`;
}

/**
 * Draw the setting, with what is sent.
 * @param {{asking: Asking}} props
 */
function Switch({asking: {told, ask}}) {
    if (!told) return html`<p class="rt-hint">${t("common.loading")}</p>`;
    return html`<p class="rt-hint">${t("online.sent")}</p>
        <div class="rt-line"><button type="button" class="rt-small" onClick=${() => ask("PUT", "online", {on: !told.on})}>
            ${t(told.on ? "online.turnOff" : "online.turnOn")}</button></div>`;
}

/** @param {{one: OnlineLora}} props */
function About({one}) {
    return html`<dl class="rt-facts">${aboutOf(one).map(
        ([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`,
    )}</dl>
        <p><a href=${one.page} target="_blank" rel="noopener noreferrer">${t("online.open", {page: one.page})}</a></p>`;
}

/**
 * Return the newer version of a file, where it is here.
 * @param {Tab} tab
 * @param {LoraDetails} lora
 */
const hereOf = (tab, lora) => tab.library.catalog.versions.get(lora.online?.newer?.page ?? "");

/**
 * Say which newer version there is.
 * @param {OnlineLora} one
 * @param {Lora | undefined} here
 */
function newerOf({newer}, here) {
    if (here) return t("online.newerHere", {name: here.name});
    return newer?.version ? t("online.newer", {version: newer.version}) : t("online.newerFile");
}

/**
 * Draw a form that asks for an address.
 * @param {{label: string, button: string, page: string, setPage: (page: string) => void, busy: boolean, send: () => unknown}} props
 */
function Page({label, button, page, setPage, busy, send}) {
    const submit = (/** @type {Event} */ event) => {
        event.preventDefault();
        send();
    };
    return html`<form class="rt-line rt-low" noValidate onSubmit=${submit}>
        <${Address} label=${label} page=${page} setPage=${setPage} />
        <button type="submit" class="rt-small" disabled=${busy || !page.trim()}>${button}</button></form>`;
}

/** @param {{label: string, page: string, setPage: (page: string) => void}} props */
function Address({label, page, setPage}) {
    return html`<label class="rt-field rt-double"><span>${label}</span><input type="url" autocomplete="off" spellcheck=${false} placeholder="https://" value=${page}
        onInput=${(event) => setPage(event.target.value)} /></label>`;
}

/**
 * Draw the choice of a folder, and the button that downloads.
 * @param {{told: OnlineState, ask: Asking["ask"], page: string}} props
 */
function Download({told, ask, page}) {
    const [folder, setFolder] = useState("");
    return html`<div class="rt-line rt-low">
        <label class="rt-field"><span>${t("common.folder")}</span><select value=${folder} onChange=${(event) => setFolder(event.target.value)}>
            ${told.folders.map((one) => html`<option key=${one} value=${one}>${one || t("save.top")}</option>`)}</select></label>
        <button type="button" class="rt-small" disabled=${!page.trim() || Boolean(told.job?.running)}
            onClick=${() => ask("POST", "online/download", {page, folder})}>${t("online.download")}</button></div>`;
}

/** @param {{told: OnlineState, ask: Asking["ask"]}} props */
function Working({told, ask}) {
    const {job} = told;
    if (!job?.running) return null;
    return html`<div class="rt-line"><progress max=${job.total || 1} value=${Math.min(job.done, job.total)} aria-label=${t("online.progress")}></progress>
        <span class="rt-hint">${progressOf(job)}</span>
        <button type="button" class="rt-small" disabled=${job.cancelled} onClick=${() => ask("DELETE", "online")}>${t("common.cancel")}</button></div>`;
}

/** @param {{job: OnlineJob}} props */
function Ended({job}) {
    return html`${job.problem && html`<p class="rt-error">${translated(job.problem)}</p>`}
        ${job.cancelled && html`<p class="rt-notice">${t("online.cancelled")}</p>`}
        ${job.name && html`<p class="rt-notice">${t("online.downloaded", {name: job.name})}</p>`}
        ${job.note && html`<p class="rt-hint">${translated(job.note)}</p>`}`;
}

/** @param {{tab: Tab}} props */
export function Online({tab}) {
    const [page, setPage] = useState("");
    const [job, setJob] = useState(/** @type {OnlineJob | null} */ (null));
    const asking = useOnline(tab, setJob);
    const {told, trouble, ask} = asking;
    const isBusy = Boolean(told?.job?.running);
    const shown = job ?? (isBusy ? null : told?.job);
    return html`<${Dialog} title=${t("online.title")} close=${() => tab.set({dialog: ""})} class="rt-wide-dialog">
        <${Trouble} trouble=${trouble} />
        <${Switch} asking=${asking} />
        ${
            told?.on
            && html`<p class="rt-hint">${told.sites.map((site) => t(site.token ? "online.withKey" : "online.withoutKey", {site: site.name, host: site.host, variable: site.token_variable})).join(" ")}</p>
            <h4>${t("online.all")}</h4>
            <p class="rt-hint">${t("online.allHint")}</p>
            <div class="rt-line"><button type="button" class="rt-small" disabled=${isBusy} onClick=${() => {
                setJob(null);
                ask("POST", "online/lookup", {ids: []});
            }}>${t("online.all")}</button></div>
            <${Newer} tab=${tab} busy=${isBusy} send=${(/** @type {string[]} */ ids) => {
                setJob(null);
                ask("POST", "online/newer", {ids});
            }} />
            <h4>${t("online.download")}</h4>
            <${Address} label=${t("online.page")} page=${page} setPage=${setPage} />
            <${Download} told=${told} ask=${ask} page=${page} />
            <${Working} told=${told} ask=${ask} />`
        }
        <div role="status">
            ${shown && shown.kind !== "download" && html`<p>${resultOf(shown)}</p>`}
            ${shown && html`<${Ended} job=${shown} />`}
        </div>
        ${shown && shown.files.length > 0 && html`<${Files} tab=${tab} job=${shown} />`}
    <//>`;
}

/**
 * Draw the button that downloads the newer versions of files.
 * @param {{tab: Tab, busy: boolean, send: (ids: string[]) => unknown}} props
 */
function Newer({tab, busy, send}) {
    const ids = withNewer(tab);
    return html`<p class="rt-hint">${t("online.newerHint")}</p>
        <div class="rt-line"><button type="button" class="rt-small" disabled=${busy || !ids.length} onClick=${() => send(ids)}>
            ${t("online.downloadNewer", {count: ids.length})}</button></div>`;
}

/** @param {{tab: Tab, job: OnlineJob}} props */
function Files({tab, job}) {
    return html`<ul class="rt-copies" aria-label=${t("online.listed")}>${job.files.map((file) => {
        const lora = tab.library.catalog.byId.get(file.id);
        return (
            lora
            && html`<li key=${file.id}><button type="button" class="rt-link" onClick=${() => tab.set({details: file.id})}>${lora.name}</button>
                <span class="rt-hint">${file.state === "newer" ? t("online.hasNewer") : translated(file.reason)}</span></li>`
        );
    })}</ul>`;
}
