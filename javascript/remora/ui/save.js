// The LoRA of the stack saved as one file.

/**
 * @import {Save as SaveState, SavedLora, SaveJob, SaveWanted} from "../../api.d.ts"
 * @import {State, Tab} from "../main.js"
 * @import {Form} from "../save.js"
 */

import {html, useEffect, useState} from "../vendor/preact.js";
import {bodyOf, COMBINED, DTYPES, errorOf, FIRST, FORMS, nameOf, needsDensity, UNITS, wrongOf} from "../save.js";
import {size} from "../catalog.js";
import {t, translated} from "../words.js";
import {Progress} from "./check.js";
import {broken, Dialog, Trouble, useLoad} from "./parts.js";

const POLL = 300; // milliseconds
const TYPED = 400; // milliseconds after which what is typed is previewed

/** @param {{tab: Tab, state: State}} props */
export function Save({tab, state}) {
    const [rows] = useState(() => tab.stack.written()); // the dialog is of these, whatever becomes of the prompt meanwhile
    const [form, setForm] = useState(
        /** @type {Form} */ ({...FIRST, name: nameOf(rows.map(({name}) => name)), steps: state.steps}),
    );
    const {told, preview, saved, trouble, attempt, begin} = useSaving(tab);
    const isVarying = rows.some((row) => row.varies);
    const parts = {rows, several: rows.length > 1, varies: isVarying};
    const wrong = wrongOf(form, parts);
    const body = Object.keys(wrong).length ? null : bodyOf(form, parts);
    const job = told?.job;
    const isSaving = Boolean(job?.running && !job.preview);
    const isOwn = isSaving && job?.id === state.saving.id;
    const isCurrent = usePreview(body, !told || isSaving, (wanted) => begin({...wanted, preview: true}));
    const isShown = job && (job.preview ? isCurrent : job.id === state.saving.id); // else it is about something else
    const start = (/** @type {Event} */ event) => {
        event.preventDefault();
        if (body) begin({...body, name: form.name, replace: form.replace, picture: form.picture}, rows);
    };
    const change = (/** @type {Partial<Form>} */ changes) => setForm({...form, ...changes});
    const foot = html`<${Trouble} trouble=${trouble} />
        <div class="rt-line rt-end">
            ${isOwn && html`<${Progress} told=${job} label=${t("save.progress")} />`}
            ${
                isOwn
                    ? html`<button type="button" onClick=${() => attempt(() => tab.api.ask("DELETE", "save"))}>${t("common.cancel")}</button>`
                    : html`<button type="submit" form="rt-save" class="rt-primary" disabled=${!body || !form.name.trim() || isSaving}>${t("common.save")}</button>`
            }
        </div>`;
    return html`<${Dialog} title=${t("save.title")} close=${() => tab.set({dialog: ""})} foot=${foot}>
        <p class="rt-hint">${t("save.hint")}</p>
        <ul class="rt-chips" aria-label=${t("save.tags")}>${rows.map(({text}) => html`<li key=${text}><code>${broken(text)}</code></li>`)}</ul>
        <form id="rt-save" class="rt-filters" noValidate onSubmit=${start}>
            <${Field} title=${t("common.name")} double=${true}><input type="text" maxlength="100" autocomplete="off" spellcheck=${false} value=${form.name}
                onInput=${(event) => change({name: event.target.value})} /><//>
            <${Field} title=${t("common.folder")} double=${true}><select value=${form.folder} onChange=${(event) => change({folder: event.target.value})}>
                ${(told?.folders ?? [""]).map((one) => html`<option key=${one} value=${one}>${one || t("save.top")}</option>`)}</select><//>
            <${Choice} title=${t("save.form")} choices=${FORMS} value=${form.form} choose=${(/** @type {Form["form"]} */ to) => change({form: to})} />
            ${form.form !== "exact" && html`<${Amount} title=${t(UNITS[form.form])} value=${form[form.form]} wrong=${wrong[form.form]} set=${(/** @type {string} */ text) => change({[form.form]: text})} />`}
            <${Choice} title=${t("save.dtype")} choices=${DTYPES} value=${form.dtype} choose=${(/** @type {Form["dtype"]} */ to) => change({dtype: to})} />
            ${parts.several && html`<${Choice} title=${t("save.how")} double=${true} choices=${COMBINED} value=${form.how} choose=${(/** @type {Form["how"]} */ to) => change({how: to})} />`}
            ${parts.several && needsDensity(form.how) && html`<${Amount} title=${t("save.density")} value=${form.density} wrong=${wrong.density} set=${(/** @type {string} */ text) => change({density: text})} />`}
            ${isVarying && html`<${Amount} title=${t("save.step")} value=${form.step} wrong=${wrong.step} set=${(/** @type {string} */ text) => change({step: text})} />`}
            <label class="rt-check rt-double"><input type="checkbox" checked=${form.picture} onChange=${() => change({picture: !form.picture})} /> <span>${t("save.picture")}</span></label>
            <label class="rt-check rt-double"><input type="checkbox" checked=${form.replace} onChange=${() => change({replace: !form.replace})} /> <span>${t("save.replace")}</span></label>
        </form>
        ${body && !isSaving && html`<${Previewed} job=${job} preview=${isCurrent && !job?.running ? preview : null} />`}
        ${isSaving && !isOwn && html`<p class="rt-notice" role="status">${t("save.otherRuns")}</p>`}
        ${isShown && job.problem && html`<p class="rt-error" role="alert">${translated(job.problem)}</p>`}
        ${isShown && job.cancelled && !job.running && !job.preview && !job.result && html`<p class="rt-notice" role="status">${t("save.cancelled")}</p>`}
        ${saved && html`<${Saved} tab=${tab} saved=${saved} />`}
    <//>`;
}

/**
 * Keep what the server tells of its job, and ask again while one runs.
 * @param {Tab} tab
 */
function useSaving(tab) {
    const [told, setTold] = useState(/** @type {SaveState | null} */ (null));
    const [preview, setPreview] = useState(/** @type {SavedLora | null} */ (null));
    const [saved, setSaved] = useState(/** @type {SavedLora | null} */ (null));
    const take = (/** @type {SaveState} */ now) => {
        setTold(now);
        if (!now.job?.result) return;
        if (now.job.preview) setPreview(now.job.result);
        else if (now.job.id === tab.state.saving.id) setSaved(now.job.result);
    };
    const [trouble, attempt] = useLoad(tab, async () => take(await tab.api.get("save")), []);
    const running = Boolean(told?.job?.running);
    useEffect(() => {
        if (!running) return undefined;
        const timer = setInterval(() => attempt(async () => take(await tab.api.get("save"))), POLL);
        return () => clearInterval(timer);
    }, [running]);
    useEffect(() => {
        if (saved) tab.server.attempt(() => tab.library.refresh());
    }, [saved]);
    const begin = (/** @type {SaveWanted} */ wanted, /** @type {State["saving"]["rows"] | null} */ rows = null) =>
        attempt(async () => {
            const begun = await tab.api.ask("POST", "save", wanted);
            if (rows) {
                setSaved(null);
                tab.set({saving: {id: begun.job?.id ?? "", rows}});
            }
            take(begun);
        });
    return {told, preview, saved, trouble, attempt, begin};
}

/**
 * Ask for a preview when what is wanted changes, and nothing is saved; tell whether the latest one is of that.
 * @param {SaveWanted | null} body
 * @param {boolean} waits
 * @param {(body: SaveWanted) => unknown} ask
 */
function usePreview(body, waits, ask) {
    const [asked, setAsked] = useState("");
    const key = body ? JSON.stringify(body) : "";
    useEffect(() => {
        if (!body || waits || key === asked) return undefined;
        const timer = setTimeout(() => {
            setAsked(key);
            ask(body);
        }, TYPED);
        return () => clearTimeout(timer);
    }, [key, waits, asked]);
    return key === asked;
}

/** @param {{title: string, double?: boolean, children?: import("../vendor/preact.js").Value}} props */
function Field({title, double = false, children}) {
    return html`<label class=${`rt-field${double ? " rt-double" : ""}`}><span>${title}</span>${children}</label>`;
}

/**
 * @param {{title: string, choices: {[name: string]: import("../words.js").Key}, value: string, choose: (to: string) => void, double?: boolean}} props
 */
function Choice({title, choices, value, choose, double = false}) {
    return html`<${Field} title=${title} double=${double}><select value=${value} onChange=${(event) => choose(event.target.value)}>
        ${Object.entries(choices).map(([name, word]) => html`<option key=${name} value=${name}>${t(word)}</option>`)}</select><//>`;
}

/** @param {{title: string, value: string, wrong: string | undefined, set: (text: string) => void}} props */
function Amount({title, value, wrong = "", set}) {
    return html`<${Field} title=${title}><input type="text" inputmode="decimal" autocomplete="off" value=${value} aria-invalid=${String(wrong !== "")}
        onInput=${(event) => set(event.target.value)} />
        <span class="rt-problem" role="alert">${wrong}</span><//>`;
}

/** @param {{job: SaveJob | null | undefined, preview: SavedLora | null}} props `preview` is null until it is made */
function Previewed({job, preview}) {
    if (preview) return html`<p role="status">${t("save.preview", {about: about(preview)})}</p>`;
    return job?.problem
        ? null
        : html`<${Progress} told=${job?.preview ? job : null} label=${t("save.previewProgress")} />`;
}

/**
 * Say how large a file is, its layers, and its error.
 * @param {SavedLora} one
 */
function about(one) {
    const {ranks, whole, left_out: left} = one;
    return [
        size(one.bytes),
        ...(ranks ? [ranksOf(ranks)] : []),
        ...(whole ? [t("save.whole", {count: whole})] : []),
        ...(left ? [t("save.leftOut", {count: left})] : []),
        errorOf(one.error),
    ].join(t("mark.list"));
}

/** @param {[low: number, high: number]} ranks */
const ranksOf = ([low, high]) => (low === high ? t("save.rank", {rank: low}) : t("save.ranks", {low, high}));

/** @param {{tab: Tab, saved: SavedLora}} props */
function Saved({tab, saved}) {
    const use = () => {
        tab.edits.useInstead(saved.name, tab.state.saving.rows);
        tab.set({dialog: "", said: t("save.used", {name: saved.name})});
    };
    return html`<div class="rt-notice" role="status">
        <p>${t("save.saved", {name: saved.name, about: about(saved), seconds: Number(saved.seconds.toFixed(1))})}</p>
        ${saved.notes.map((note) => html`<p key=${note} class="rt-hint">${translated(note)}</p>`)}
        <div class="rt-line"><button type="button" class="rt-small" onClick=${use}>${t("save.use")}</button></div></div>`;
}
