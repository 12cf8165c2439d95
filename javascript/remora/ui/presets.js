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
import {broken, Button, Deleted, Dialog, isStill, NameForm, Picture, Trouble, useLoad} from "./parts.js";

/**
 * @typedef {(preset: Kept, name: string) => Promise<boolean | undefined>} Rename
 * Returns true where the server did it.
 */

/** @param {string} name */
const nameProblem = (name) => (name ? "" : "Give the preset a name.");

/** @param {{tab: Tab, state: State}} props */
export function Presets({tab, state}) {
    const [trouble, attempt] = useLoad(tab, () => tab.kept.loadPresets(), []);
    const [kept, setKept] = useState(0); // presets kept; the next name begins empty
    // being exported or imported
    const [text, setText] = useState(/** @type {{value: string, importing?: boolean} | null} */ (null));
    const [deleted, setDeleted] = useState(
        /** @type {{preset: Kept, picture: Blob | null, replaced?: boolean} | null} */ (null),
    );
    const close = () => tab.set({dialog: ""});
    /** @type {Rename} */
    const rename = (preset, name) =>
        attempt(async () => {
            const changed = {text: now(preset).text, former: preset.name};
            await tab.kept.writePresets("PUT", `preset?${query({name})}`, [name, preset.name], changed);
            return true;
        });
    const rows = tab.stack.rows().filter((row) => row.on && !row.problem);
    const save = (/** @type {string} */ name) =>
        attempt(async () => {
            if (!rows.length) throw new Error("The prompt has no LoRA to save. Insert one first.");
            const former = tab.state.presets?.find((one) => one.name === name);
            const lines = rows.map((row) => `${row.text} ${wordsIn(tab, row)}`.trim());
            await tab.kept.writePresets("PUT", `preset?${query({name})}`, [name], {text: lines.join("\n")});
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
            const picture = await pictureOf(preset);
            await tab.kept.writePresets("DELETE", `preset?${query({name})}`, [name]);
            setDeleted({preset, picture});
        });
    const take = (/** @type {Kept} */ shown) =>
        attempt(async () => {
            const preset = now(shown);
            const blob = await boxes.shownPicture();
            if (!blob) throw new Error("The page shows no picture yet; make one first.");
            const picture = await pictureOf(preset);
            const {name} = preset;
            await tab.kept.writePresets("PUT", `preset/thumbnail?${query({name})}`, [name], blob);
            setDeleted(picture && {preset, picture, replaced: true});
        });
    const undo = () =>
        attempt(async () => {
            if (!deleted) return;
            const {name, text} = deleted.preset;
            await tab.kept.writePresets("PUT", `preset?${query({name})}`, [name], {text});
            if (deleted.picture)
                await tab.kept.writePresets("PUT", `preset/thumbnail?${query({name})}`, [name], deleted.picture);
            setDeleted(null);
        });
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
            && html`<${Deleted} name=${`${deleted.replaced && deleted.picture ? "picture of" : "preset"} ${deleted.preset.name}`}
            replaced=${deleted.replaced} undo=${undo} />`
        }
        ${
            text
            && html`<div class="rt-field">
            <textarea rows="5" aria-label=${text.importing ? "Text to import" : "The preset as text"} readonly=${!text.importing}
                placeholder="# Remora preset 1: name" value=${text.value} onInput=${(event) => setText({...text, value: event.target.value})}></textarea>
            <div class="rt-line rt-end">
                <button type="button" onClick=${() => setText(null)}>Close</button>
                ${
                    text.importing
                        ? html`<button type="button" class="rt-primary" onClick=${importAll}>Import</button>`
                        : html`<button type="button" class="rt-primary" onClick=${() => boxes.copy(text.value)}>Copy</button>`
                }
            </div></div>`
        }
        <${NameForm} key=${kept} label="Name of the new preset" button="Save" hint="Keep this stack as …" focus=${kept > 0} problem=${nameProblem} save=${save}>
            <${Button} label="Import presets from text" class="rt-small" onClick=${() => setText({value: "", importing: true})}>Import<//>
        <//>`;
    return html`<${Dialog} title="Presets" close=${close} unsaved=${Boolean(text?.importing && text.value)} foot=${foot}>
        <ul class="rt-presets" aria-label="Presets">
            ${(state.presets ?? []).map(
                (preset) => html`<${Preset} key=${preset.name} preset=${preset} tab=${tab}
                rename=${rename} take=${take} close=${close} exportOne=${exportOne} remove=${remove} />`,
            )}
        </ul>
        ${
            state.presets
            && !state.presets.length
            && html`<p class="rt-hint">There is no preset yet. A preset
            saves the LoRA of the prompt under a name: write a name below and press Save.</p>`
        }
    <//>`;
}

/**
 * @param {object} props
 * @param {Kept} props.preset
 * @param {Tab} props.tab
 * @param {Rename} props.rename
 * @param {(preset: Kept) => void} props.take gives it the picture of the page
 * @param {() => void} props.close
 * @param {(preset: Kept) => void} props.exportOne
 * @param {(preset: Kept) => void} props.remove
 */
function Preset({preset, tab, rename, take, close, exportOne, remove}) {
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
                    ? html`<${NameForm} label="New name" button="Rename" former=${preset.name} focus problem=${nameProblem} save=${save} cancel=${stop} />`
                    : html`<strong>${broken(preset.name)}</strong>`
            }
            <span class="rt-hint">${tags.join(" ")}</span>
            <div class="rt-line">
                <${Button} label=${`Use ${preset.name} in place of the prompt’s LoRA`} class="rt-small" onClick=${() => apply(true)}>Use<//>
                <${Button} label=${`Add ${preset.name} to the prompt’s LoRA`} class="rt-small" onClick=${() => apply(false)}>Add<//>
                <button type="button" aria-label=${`Rename ${preset.name}`} title=${`Rename ${preset.name}`} class="rt-small" ref=${button}
                    onClick=${() => setRenaming(!renaming)}>Rename</button>
                <${Button} label=${`Export ${preset.name} as text`} class="rt-small" onClick=${() => exportOne(preset)}>Export<//>
                <${Button} label=${`Take the page’s picture for ${preset.name}`} class="rt-small" onClick=${() => take(preset)}>Picture<//>
                <${Button} label=${`Delete ${preset.name}`} class="rt-small"
                    onClick=${() => remove(preset)}>Delete<//>
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
    tab.set({said: `Preset ${preset.name} ${replacing ? "in use" : "added"}.`});
}
