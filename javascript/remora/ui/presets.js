// Stacks kept under a name.

/**
 * @import {Preset as Kept} from "../../api.d.ts"
 * @import {State, Tab} from "../main.js"
 * @import {Row} from "../stack.js"
 * @import {Filled} from "../vendor/preact.js"
 */

import {html, useRef, useState} from "../vendor/preact.js";
import {query} from "../api.js";
import * as boxes from "../boxes.js";
import {hasWords, readTags, withEntry} from "../prompt.js";
import {t} from "../words.js";
import {broken, Button, Deleted, Dialog, isStill, NameForm, Picture, Trouble, useLoad} from "./parts.js";
import {OpenFile} from "./recipe.js";

/**
 * @typedef {(preset: Kept, name: string) => Promise<boolean | undefined>} Rename
 * Returns true where the server did it.
 */

/** @param {string} name */
const nameProblem = (name) => (name ? "" : t("presets.giveName"));

/** @param {{tab: Tab, state: State}} props */
export function Presets({tab, state}) {
    const [trouble, attempt] = useLoad(tab, () => tab.kept.loadPresets(), []);
    const [kept, setKept] = useState(0); // presets kept; the next name begins empty
    // being exported or imported
    const [text, setText] = useState(/** @type {{value: string, importing?: boolean} | null} */ (null));
    const [deleted, setDeleted] = useState(
        /** @type {{preset: Kept, picture: Blob | null, file?: string, replaced?: boolean} | null} */ (null),
    );
    const close = () => tab.set({dialog: ""});
    /** @type {Rename} */
    const rename = (preset, name) =>
        attempt(async () => {
            const changed = {text: now(preset).text, former: preset.name};
            await tab.kept.writePresets("PUT", `preset?${query({name})}`, [name, preset.name], changed);
            return true;
        });
    const [whole, setWhole] = useState(false); // the next one has the prompt, the settings and the picture of the page
    const shown = boxes.shownText(state.target);
    const rows = tab.stack.rows().filter((row) => row.on && !row.problem);
    const save = (/** @type {string} */ name) =>
        attempt(async () => {
            if (!rows.length) throw new Error(t("presets.noLora"));
            const former = tab.state.presets?.find((one) => one.name === name);
            const lines = rows.map((row) => `${row.text} ${wordsIn(tab, row)}`.trim());
            const text = lines.join("\n");
            const body = whole ? {text, parameters: shown} : {text};
            await tab.kept.writePresets("PUT", `preset?${query({name})}`, [name], body);
            const blob = whole && !former?.thumbnail && (await boxes.shownPicture());
            if (blob) await tab.kept.writePresets("PUT", `preset/thumbnail?${query({name})}`, [name], blob);
            setKept(kept + 1);
            setDeleted(former ? {preset: former, picture: null, replaced: true} : null);
        });
    const pictureOf = async (/** @type {Kept} */ {name, thumbnail}) => {
        const answer = thumbnail ? await tab.api.send("GET", `preset/thumbnail?${query({name})}`) : null;
        return answer?.ok ? await answer.blob() : null;
    };
    // what is tried again takes the preset as it is then
    const now = (/** @type {Kept} */ preset) => tab.state.presets?.find((one) => one.name === preset.name) ?? preset;
    const remove = (/** @type {Kept} */ shown) =>
        attempt(async () => {
            const preset = now(shown);
            const {name} = preset;
            const file = await tab.api.text(`preset/file?${query({name})}`);
            await tab.kept.writePresets("DELETE", `preset?${query({name})}`, [name]);
            setDeleted({preset, picture: null, file});
        });
    const take = (/** @type {Kept} */ shown) =>
        attempt(async () => {
            const preset = now(shown);
            const blob = await boxes.shownPicture();
            if (!blob) throw new Error(t("common.noPictureYet"));
            const picture = await pictureOf(preset);
            const {name} = preset;
            await tab.kept.writePresets("PUT", `preset/thumbnail?${query({name})}`, [name], blob);
            setDeleted(picture && {preset, picture, replaced: true});
        });
    const undo = () =>
        attempt(async () => {
            if (!deleted) return;
            const {name, text, parameters} = deleted.preset;
            if (deleted.file) await tab.kept.writePresets("POST", "presets", [name], {text: deleted.file});
            else await tab.kept.writePresets("PUT", `preset?${query({name})}`, [name], {text, parameters});
            if (deleted.picture)
                await tab.kept.writePresets("PUT", `preset/thumbnail?${query({name})}`, [name], deleted.picture);
            setDeleted(null);
        });
    const open = (/** @type {Kept} */ {name}) => tab.set({recipe: {preset: name, file: null}});
    const exportOne = (/** @type {Kept} */ preset) =>
        attempt(async () => setText({value: await tab.api.text(`preset?${query({name: preset.name})}`)}));
    const importAll = () =>
        attempt(async () => {
            await tab.kept.writePresets("POST", "presets", [], {text: text?.value});
            setText(null);
        });
    const foot = html`<${Trouble} trouble=${trouble} />
        ${
            deleted
            && isStill(deleted.preset.name, deleted.replaced, state.presets)
            && html`<${Deleted} name=${t(deleted.replaced && deleted.picture ? "presets.pictureOf" : "presets.named", {name: deleted.preset.name})}
            replaced=${deleted.replaced} undo=${undo} />`
        }
        ${
            text
            && html`<div class="rt-field">
            <textarea rows="5" aria-label=${t(text.importing ? "presets.textToImport" : "presets.asText")} readonly=${!text.importing}
                placeholder=${t("presets.textExample")} value=${text.value} onInput=${(event) => setText({...text, value: event.target.value})}></textarea>
            <div class="rt-line rt-end">
                <button type="button" onClick=${() => setText(null)}>${t("common.close")}</button>
                ${
                    text.importing
                        ? html`<button type="button" class="rt-primary" onClick=${importAll}>${t("presets.import")}</button>`
                        : html`<button type="button" class="rt-primary" onClick=${() => boxes.copy(text.value)}>${t("presets.copy")}</button>`
                }
            </div></div>`
        }
        <${NameForm} key=${kept} label=${t("presets.newName")} button=${t("common.save")} hint=${t("presets.keepAs")} focus=${kept > 0} problem=${nameProblem} save=${save}>
            <${Button} label=${t("presets.importHint")} class="rt-small" onClick=${() => setText({value: "", importing: true})}>${t("presets.import")}<//>
            <${OpenFile} tab=${tab} />
        <//>
        ${
            shown
            && html`<label class="rt-check"><input type="checkbox" checked=${whole} onChange=${() => setWhole(!whole)} /> ${t("presets.whole")}</label>`
        }`;
    return html`<${Dialog} title=${t("common.presets")} close=${close} unsaved=${Boolean(text?.importing && text.value)} foot=${foot}>
        <ul class="rt-presets" aria-label=${t("common.presets")}>
            ${(state.presets ?? []).map(
                (preset) => html`<${Preset} key=${preset.name} preset=${preset} tab=${tab}
                rename=${rename} take=${take} close=${close} open=${open} exportOne=${exportOne} remove=${remove} />`,
            )}
        </ul>
        ${state.presets && !state.presets.length && html`<p class="rt-hint">${t("presets.none")}</p>`}
    <//>`;
}

/**
 * @param {object} props
 * @param {Kept} props.preset
 * @param {Tab} props.tab
 * @param {Rename} props.rename
 * @param {(preset: Kept) => void} props.take gives it the picture of the page
 * @param {() => void} props.close
 * @param {(preset: Kept) => void} props.open shows its parts
 * @param {(preset: Kept) => void} props.exportOne
 * @param {(preset: Kept) => void} props.remove
 */
function Preset({preset, tab, rename, take, close, open, exportOne, remove}) {
    const {name} = preset;
    const [renaming, setRenaming] = useState(false);
    const button = /** @type {Filled<HTMLButtonElement>} */ (useRef());
    const path = preset.thumbnail && `preset/thumbnail?${query({name: preset.name, v: preset.thumbnail})}`;
    const save = async (/** @type {string} */ name) => {
        if (await rename(preset, name)) setRenaming(false);
    };
    const stop = () => {
        setRenaming(false);
        button.current.focus();
    };
    const apply = (/** @type {boolean} */ replacing) => {
        applyPreset(tab, preset, replacing);
        close();
    };
    const tags = preset.text.split("\n").map((line) => readTags(line)[0]?.text ?? line);
    return html`<li class="rt-preset">
        <span class="rt-thumb"><${Picture} api=${tab.api} path=${path} name=${preset.name} /></span>
        <div class="rt-preset-text">
            ${
                renaming
                    ? html`<${NameForm} label=${t("common.newName")} button=${t("presets.rename")} former=${preset.name} focus problem=${nameProblem} save=${save} cancel=${stop} />`
                    : html`<strong>${broken(preset.name)}</strong>`
            }
            <span class="rt-hint">${tags.join(" ")}</span>
            <div class="rt-line">
                <${Button} label=${t("presets.useHint", {name})} class="rt-small" onClick=${() => apply(true)}>${t("presets.use")}<//>
                <${Button} label=${t("presets.addHint", {name})} class="rt-small" onClick=${() => apply(false)}>${t("presets.add")}<//>
                <${Button} label=${t("presets.openHint", {name})} class="rt-small" onClick=${() => open(preset)}>${t("presets.open")}<//>
                <button type="button" aria-label=${t("presets.renameHint", {name})} title=${t("presets.renameHint", {name})} class="rt-small" ref=${button}
                    onClick=${() => setRenaming(!renaming)}>${t("presets.rename")}</button>
                <${Button} label=${t("presets.exportHint", {name})} class="rt-small" onClick=${() => exportOne(preset)}>${t("presets.export")}<//>
                <${Button} label=${t("presets.pictureHint", {name})} class="rt-small" onClick=${() => take(preset)}>${t("presets.picture")}<//>
                <${Button} label=${t("presets.deleteHint", {name})} class="rt-small"
                    onClick=${() => remove(preset)}>${t("common.delete")}<//>
            </div>
        </div>
    </li>`;
}

/**
 * Return the words of an entry, where the prompt has them.
 * @param {Tab} tab
 * @param {Row} row
 */
function wordsIn(tab, row) {
    const words = tab.library.wordsOf(row.name);
    return words && hasWords(tab.state.prompt, words) ? words : "";
}

/**
 * @param {Tab} tab
 * @param {Kept} preset
 * @param {boolean} replacing
 */
function applyPreset(tab, preset, replacing) {
    if (replacing) tab.edits.clear();
    tab.stack.readBoxes();
    let {prompt} = tab.state;
    for (const line of preset.text.split("\n")) {
        const tag = readTags(line)[0];
        if (tag) prompt = withEntry(prompt, tag.text, line.slice(tag.end).trim());
    }
    tab.stack.change({prompt});
    tab.set({said: t(replacing ? "presets.inUse" : "presets.added", {name: preset.name})});
}
