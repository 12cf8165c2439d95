// The LoRA of the stack saved as one file or in a model, the difference of two models, one file in another form.

/**
 * @import {Save as SaveState, SaveChoices, SavedLayer, SavedLora, SaveJob, SaveWanted} from "../../api.d.ts"
 * @import {State, Tab} from "../main.js"
 * @import {Form, Parts, SavedTag} from "../save.js"
 * @import {Attempt} from "./parts.js"
 */

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {
    bodyOf,
    COMBINED,
    canPad,
    copiedTag,
    DTYPES,
    errorOf,
    FIRST,
    FORMS,
    HALVES,
    KINDS,
    LOKR_SPELLINGS,
    nameOf,
    needsSeed,
    PARTS,
    ROUNDINGS,
    SPELLINGS,
    UNITS,
    WHATS,
    wrongOf,
} from "../save.js";
import {size} from "../catalog.js";
import {percent} from "../check.js";
import {needsDensity} from "../tag.js";
import {t, translated} from "../words.js";
import {Progress} from "./check.js";
import {numbersOf, settingsOfPicture} from "./compare.js";
import {broken, Dialog, Trouble, useLater, useLoad} from "./parts.js";

const POLL = 300; // milliseconds
const TYPED = 400; // milliseconds after which what is typed is previewed
const HINTS = /** @type {const} */ ({
    file: "save.hint",
    model: "save.modelHint",
    difference: "save.differenceHint",
});
/** @type {Partial<Form>} */
const DIFFERENCE = {form: "rank", rank: "32"};

/** @param {{tab: Tab, state: State}} props */
export function Save({tab, state}) {
    const [stack] = useState(() => tab.stack.written()); // the dialog is of these, whatever becomes of the prompt meanwhile
    const {copied} = state;
    const [typed, setForm] = useState(() => firstForm(state, stack));
    const {told, choices, asked, previews, saved, trouble, attempt, begin, measure} = useSaving(tab);
    const models = choices?.models ?? [];
    const form = {...typed, model: typed.model || (models[0] ?? "")};
    const rows = copied ? [copiedTag(copied.name, form)] : stack;
    const isVarying = rows.some((row) => row.varies);
    const parts = {
        rows,
        several: rows.length > 1 && !rows.some((row) => row.combined),
        varies: isVarying,
        half: rows.some((row) => row.half),
        copied: Boolean(copied),
    };
    const wrong = wrongOf(form, parts);
    const body = Object.keys(wrong).length || (form.what !== "difference" && !rows.length) ? null : bodyOf(form, parts);
    const job = told?.job;
    const isSaving = Boolean(job?.running && !job.preview);
    const key = body ? JSON.stringify(body) : "";
    const isLatest = job?.id === state.saving.id;
    const isOwn = isSaving && isLatest;
    const isSaved = state.saving.key === key && (saved !== null || isLatest); // or was cancelled, or failed: that stays
    const isCurrent = asked.key === key && asked.id === job?.id;
    const waits = !told || isSaving || isSaved || isCurrent || key in previews;
    useLater(body && !waits && (() => begin(body, null)), TYPED, [key, waits]);
    const isShown = job && (job.preview ? isCurrent : isLatest && (isSaving || isSaved)); // else it is of something else
    useEffect(() => {
        if (!trouble.load) attempt(() => undefined); // an error is of what was asked for before
    }, [key]);
    const start = (/** @type {Event} */ event) => {
        event.preventDefault();
        const {name, folder, replace} = form;
        const place = form.what === "model" ? {name} : {name, folder, replace};
        const picture = form.what === "file" ? {picture: form.picture} : {};
        if (body) begin({...body, ...place, ...picture}, {key, rows: parts.copied ? [] : rows, what: form.what});
    };
    const change = (/** @type {Partial<Form>} */ changes) => setForm({...typed, ...changes});
    // what was saved has been seen, unless it is still being written
    const close = () => tab.set({dialog: "", copied: null, ...(isOwn ? {} : forgotten(state))});
    const foot = html`<${Trouble} trouble=${trouble} />
        <div class="rt-line rt-end">
            ${isOwn && html`<${Progress} told=${job} label=${t("save.progress")} />`}
            ${
                isOwn
                    ? html`<button type="button" onClick=${() => attempt(() => tab.api.ask("DELETE", "save"))}>${t("common.cancel")}</button>`
                    : html`<button type="submit" form="rt-save" class="rt-primary" disabled=${!body || !form.name.trim() || isSaving}>${t("common.save")}</button>`
            }
        </div>`;
    return html`<${Dialog} title=${copied ? t("save.copyTitle", {name: copied.name}) : t("save.title")} close=${close} foot=${foot}>
        <form id="rt-save" class="rt-filters" noValidate onSubmit=${start}>
            ${!copied && html`<${Kinds} form=${form} change=${change} hasStack=${stack.length > 0} models=${models} />`}
            <p class="rt-hint">${copied ? t("save.copyHint", {name: copied.name}) : t(HINTS[form.what])}</p>
            ${!copied && form.what !== "difference" && html`<ul class="rt-chips" aria-label=${t("save.tags")}>${rows.map(({text}) => html`<li key=${text}><code>${broken(text)}</code></li>`)}</ul>`}
            <${Field} title=${t("common.name")} double=${true}><input type="text" maxlength="100" autocomplete="off" spellcheck=${false} value=${form.name}
                onInput=${(event) => change({name: event.target.value})} /><//>
            ${form.what === "model" ? html`<${ModelFields} form=${form} change=${change} models=${models} wrong=${wrong} />` : html`<${FileFields} form=${form} change=${change} choices=${choices} parts=${parts} wrong=${wrong} />`}
            ${form.what === "file" && html`<label class="rt-check rt-double"><input type="checkbox" checked=${told?.inputs === "wanted"} onChange=${(event) => measure(event.target.checked)} /> <span>${t("save.measure")}</span></label>`}
            ${form.what === "file" && told?.inputs === "taken" && html`<p class="rt-hint rt-double">${t("save.measured")}</p>`}
            ${isVarying && form.what !== "difference" && html`<${Amount} title=${t("save.step")} value=${form.step} wrong=${wrong.step} set=${(/** @type {string} */ text) => change({step: text})} />`}
            ${parts.half && form.what !== "difference" && html`<${Choice} title=${t("save.half")} choices=${HALVES} value=${form.half} choose=${(/** @type {string} */ half) => change({half})} />`}
            ${form.what !== "model" && canPad(form) && html`<${Padding} form=${form} change=${change} wrong=${wrong} />`}
        </form>
        ${body && !isSaving && !isSaved && (previews[key] || !trouble.text) && html`<${Previewed} job=${isCurrent ? job : null} preview=${previews[key]} what=${form.what} />`}
        ${isSaving && !isOwn && html`<p class="rt-notice" role="status">${t("save.otherRuns")}</p>`}
        ${isShown && job.problem && html`<p class="rt-error" role="alert">${translated(job.problem)}</p>`}
        ${isShown && job.cancelled && !job.running && !job.preview && !job.result && html`<p class="rt-notice" role="status">${t("save.cancelled")}</p>`}
        ${saved && html`<${Saved} tab=${tab} saved=${saved} attempt=${attempt} />`}
    <//>`;
}

/**
 * Return the state without the file that was saved last: it is of no use to another dialog.
 * @param {State} state
 */
const forgotten = ({saving}) => ({saving: {...saving, id: ""}});

/**
 * @param {State} state
 * @param {SavedTag[]} stack
 * @returns {Form}
 */
function firstForm({copied, steps}, stack) {
    const first = {...FIRST, steps};
    if (copied) return {...first, name: `${nameOf([copied.name])} 2`, folder: copied.folder, picture: false};
    const what = stack.length ? FIRST.what : "difference";
    return {...first, ...(what === "difference" ? DIFFERENCE : {}), what, name: nameOf(stack.map(({name}) => name))};
}

/** @param {{form: Form, change: (changes: Partial<Form>) => void, hasStack: boolean, models: string[]}} props */
function Kinds({form, change, hasStack, models}) {
    const possible = Object.entries(WHATS).filter(
        ([what]) => (what === "difference" || hasStack) && (what === "file" || models.length > 0),
    );
    const choose = (/** @type {Form["what"]} */ what) => {
        const isFirst = what === "difference" && form.form === "exact"; // whole differences are as large as the model
        change({what, ...(isFirst ? DIFFERENCE : {})});
    };
    return (
        models.length > 0
        && html`<${Choice} title=${t("save.what")} double=${true} choices=${Object.fromEntries(possible)} value=${form.what} choose=${choose} />
        ${
            form.what === "difference"
            && html`<${Models} title=${t("save.base")} models=${models} value=${form.model} choose=${(/** @type {string} */ model) => change({model})} />
            <${Models} title=${t("save.tuned")} models=${models} value=${form.tuned} choose=${(/** @type {string} */ tuned) => change({tuned})} />`
        }`
    );
}

/** @param {{title: string, models: string[], value: string, choose: (to: string) => void}} props */
function Models({title, models, value, choose}) {
    return html`<${Field} title=${title} double=${true}><select value=${value} onChange=${(event) => choose(event.target.value)}>
        ${(value ? models : ["", ...models]).map((one) => html`<option key=${one} value=${one}>${one || t("save.chooseModel")}</option>`)}</select><//>`;
}

/**
 * @param {{form: Form, change: (changes: Partial<Form>) => void, models: string[], wrong: ReturnType<typeof wrongOf>}} props
 */
function ModelFields({form, change, models, wrong}) {
    return html`<${Models} title=${t("common.model")} models=${models} value=${form.model} choose=${(/** @type {string} */ model) => change({model})} />
        <${Choice} title=${t("save.rounding")} double=${true} choices=${ROUNDINGS} value=${form.rounding} choose=${(/** @type {string} */ rounding) => change({rounding})} />
        ${form.rounding === "stochastic" && html`<${Amount} title=${t("stack.seed")} value=${form.seed} wrong=${wrong.seed} set=${(/** @type {string} */ seed) => change({seed})} />`}`;
}

/**
 * @param {{form: Form, change: (changes: Partial<Form>) => void, choices: SaveChoices | null, parts: Parts,
 *     wrong: ReturnType<typeof wrongOf>}} props
 */
function FileFields({form, change, choices, parts, wrong}) {
    const isStack = form.what === "file";
    const isLokr = form.kind === "lokr";
    const set = (/** @type {keyof Form} */ field) => (/** @type {string} */ text) => change({[field]: text});
    const chooseKind = (/** @type {string} */ kind) =>
        change({kind, ...(kind === "lokr" && form.spelling === "diffusers" ? {spelling: FIRST.spelling} : {})});
    return html`<${Field} title=${t("common.folder")} double=${true}><select value=${form.folder} onChange=${(event) => change({folder: event.target.value})}>
            ${[...new Set([...(choices?.folders ?? [""]), form.folder])].map((one) => html`<option key=${one} value=${one}>${one || t("save.top")}</option>`)}</select><//>
        ${
            parts.copied
            && html`<${Amount} title=${t("common.strength")} value=${form.strength} wrong=${wrong.strength} set=${set("strength")} />
            <${Choice} title=${t("save.part")} choices=${PARTS} value=${form.part} choose=${set("part")} />`
        }
        <${Choice} title=${t("common.kind")} choices=${KINDS} value=${form.kind} choose=${chooseKind} />
        ${
            isLokr
            && html`<${Amount} title=${t("save.factor")} value=${form.factor} wrong=${wrong.factor} set=${set("factor")} />
            <p class="rt-hint rt-double">${t("save.lokrHint")}</p>`
        }
        <${Choice} title=${t("save.form")} choices=${FORMS} value=${form.form} choose=${set("form")} />
        ${form.form !== "exact" && html`<${Amount} title=${t(UNITS[form.form])} value=${form[form.form]} wrong=${wrong[form.form]} set=${set(form.form)} />`}
        <${Choice} title=${t("save.dtype")} choices=${DTYPES} value=${form.dtype} choose=${set("dtype")} />
        ${parts.copied && html`<${Choice} title=${t("save.spelling")} choices=${isLokr ? LOKR_SPELLINGS : SPELLINGS} value=${form.spelling} choose=${set("spelling")} />`}
        ${isStack && parts.several && html`<${Choice} title=${t("save.how")} double=${true} choices=${COMBINED} value=${form.how} choose=${set("how")} />`}
        ${isStack && parts.several && form.form === "exact" && form.how.endsWith("_svd") && html`<p class="rt-hint rt-double">${t("save.ruleHint")}</p>`}
        ${isStack && parts.several && needsDensity(form.how) && html`<${Amount} title=${t("save.density")} value=${form.density} wrong=${wrong.density} set=${set("density")} />`}
        ${needsSeed(form, parts) && html`<${Amount} title=${t("stack.seed")} value=${form.seed} wrong=${wrong.seed} set=${set("seed")} />`}
        ${isStack && html`<label class="rt-check rt-double"><input type="checkbox" checked=${form.picture} onChange=${() => change({picture: !form.picture})} /> <span>${t("save.picture")}</span></label>`}
        <label class="rt-check rt-double"><input type="checkbox" checked=${form.replace} onChange=${() => change({replace: !form.replace})} /> <span>${t("save.replace")}</span></label>`;
}

/** @param {{form: Form, change: (changes: Partial<Form>) => void, wrong: ReturnType<typeof wrongOf>}} props */
function Padding({form, change, wrong}) {
    return html`<details><summary>${t("save.equalRanks")}</summary>
        <div class="rt-filters"><${Amount} title=${t("save.pad")} value=${form.pad} wrong=${wrong.pad} set=${(/** @type {string} */ pad) => change({pad})} /></div></details>`;
}

/**
 * Keep what the server tells of its job, and ask again while one runs.
 * @param {Tab} tab
 */
function useSaving(tab) {
    const [told, setTold] = useState(/** @type {SaveState | null} */ (null));
    const [choices, setChoices] = useState(/** @type {SaveChoices | null} */ (null));
    const [previews, setPreviews] = useState(/** @type {{[body: string]: SavedLora | undefined}} */ ({}));
    const [saved, setSaved] = useState(/** @type {SavedLora | null} */ (null));
    const asked = useRef({id: "", key: ""}); // the preview that this page asked for
    const take = (/** @type {SaveState} */ now) => {
        setTold(now);
        const {id, result, preview} = now.job ?? {};
        if (!result) return;
        const {key} = asked.current;
        if (preview && id === asked.current.id) setPreviews((known) => ({...known, [key]: result}));
        else if (!preview && id === tab.state.saving.id) setSaved(result);
    };
    const poll = async () => take(await tab.api.get("save"));
    const load = async () => {
        if (!choices) setChoices(await tab.api.get("save/choices"));
        await poll();
    };
    const [round, setRound] = useState(0);
    const [trouble, attempt] = useLoad(tab, load, [round]);
    useLater(told?.job?.running && (() => setRound(round + 1)), POLL, [told]);
    useEffect(() => {
        if (saved) attempt(async () => setChoices(await tab.api.get("save/choices"))); // a model may be new
        if (saved?.id) tab.server.attempt(() => tab.library.refresh());
    }, [saved]);
    const begin = (/** @type {SaveWanted} */ wanted, /** @type {Omit<State["saving"], "id"> | null} */ of) =>
        attempt(async () => {
            const begun = await tab.api.ask("POST", "save", of ? wanted : {...wanted, preview: true});
            const id = begun.job?.id ?? "";
            if (of) {
                setSaved(null);
                tab.set({saving: {id, ...of}});
            } else {
                asked.current = {id, key: JSON.stringify(wanted)};
            }
            take(begun);
        });
    const measure = (/** @type {boolean} */ on) =>
        attempt(async () => take(await tab.api.ask("PUT", "save/inputs", {on})));
    return {told, choices, asked: asked.current, previews, saved, trouble, attempt, begin, measure};
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

/** @param {{job: SaveJob | null | undefined, preview: SavedLora | undefined, what: Form["what"]}} props */
function Previewed({job, preview, what}) {
    if (preview) {
        const seconds = Math.max(1, Math.round(preview.seconds));
        return html`<p role="status">${t(what === "model" ? "save.previewModel" : "save.preview", {about: about(preview, what), seconds})}</p>
            <${Errors} layers=${preview.each} />`;
    }
    return job?.problem
        ? null
        : html`<${Progress} told=${job?.preview ? job : null} label=${t("save.previewProgress")} />`;
}

/** @param {{layers: SavedLayer[]}} props */
function Errors({layers}) {
    return html`<details><summary>${t("save.errors")}</summary><ul>
        ${layers.map(({component, name, rank, error}) => html`<li key=${`${component}.${name}`}>${percent(error)}${rank ? ` · ${t("save.rank", {rank})}` : ""} · ${broken(`${component}.${name}`)}</li>`)}
    </ul></details>`;
}

/**
 * Say how large a file is, its layers, and its error.
 * @param {SavedLora} one
 * @param {Form["what"]} what
 */
function about(one, what) {
    const {ranks, whole, left_out: left} = one;
    const layers =
        what === "model"
            ? [t("common.layers", {count: one.layers})]
            : [
                  ...(ranks ? [ranksOf(ranks)] : []),
                  ...(whole ? [t("save.whole", {count: whole})] : []),
                  ...(left ? [t("save.leftOut", {count: left})] : []),
              ];
    const outputs = one.output_error === null ? [] : [t("save.outputs", {error: errorOf(one.output_error)})];
    return [size(one.bytes), ...layers, errorOf(one.error), ...outputs].join(t("mark.list"));
}

/** @param {[low: number, high: number]} ranks */
const ranksOf = ([low, high]) => (low === high ? t("save.rank", {rank: low}) : t("save.ranks", {low, high}));

/** @param {{tab: Tab, saved: SavedLora, attempt: Attempt}} props */
function Saved({tab, saved, attempt}) {
    const {rows, what} = tab.state.saving;
    const name = saved.name || (saved.path.split(/[\\/]/).pop() ?? "");
    const use = () => {
        tab.edits.useInstead(name, rows);
        tab.set({dialog: "", ...forgotten(tab.state), said: t("save.used", {name})});
    };
    const compare = () =>
        attempt(async () => {
            const begun = await tab.api.ask("POST", "compare", insteadOf(tab, rows, name));
            tab.set({dialog: "compare", comparison: begun.comparison?.id ?? "", sheet: ""});
        });
    return html`<div class="rt-notice" role="status">
        <p>${t("save.saved", {name, about: about(saved, what), seconds: Number(saved.seconds.toFixed(1))})}</p>
        <${Errors} layers=${saved.each} />
        ${what === "model" && html`<p class="rt-hint">${t("save.savedModel")}</p>`}
        ${saved.notes.map((note) => html`<p key=${note} class="rt-hint">${translated(note)}</p>`)}
        ${
            what === "file"
            && rows.length > 0
            && html`<div class="rt-line"><button type="button" class="rt-small" onClick=${use}>${t("save.use")}</button>
            <button type="button" class="rt-small" disabled=${!tab.state.target} onClick=${compare}>${t("save.compare")}</button></div>`
        }</div>`;
}

/**
 * Return what is to be compared: the picture of a stack, and the one with a file in its place.
 * @param {Tab} tab
 * @param {SavedTag[]} rows
 * @param {string} file
 */
function insteadOf(tab, rows, file) {
    const {prompt, negative} = tab.state;
    const missing = rows.map(({text}) => text).filter((text) => !prompt.includes(text)); // what is always on
    const names = [...new Set(rows.map(({name}) => name))];
    const of = {
        mode: "instead",
        names,
        values: [file],
        prompt: [prompt, ...missing].join(" "),
        negative_prompt: negative,
    };
    return {...of, ...numbersOf(settingsOfPicture(tab))};
}
