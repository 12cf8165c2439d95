// Stacks kept under a name.

/**
 * @import {Preset as Kept} from "../api.js"
 * @import {Controller, Row, State} from "../controller.js"
 * @import {Attempt} from "./parts.js"
 */

import {html, useEffect, useState} from "../vendor/preact.js";
import {query} from "../api.js";
import * as boxes from "../boxes.js";
import {readTags, withEntry} from "../prompt.js";
import {Button, Dialog, Picture, Trouble, useTrouble} from "./parts.js";

/**
 * @typedef {`preset?${string}` | `preset/thumbnail?${string}`} Path
 * @typedef {(method: string, path: Path, names: string[], body?: object) => Promise<void>} Ask
 */

/** @param {{controller: Controller, state: State}} props */
export function Presets({controller, state}) {
    const [trouble, attempt] = useTrouble();
    const [name, setName] = useState("");
    // being exported or imported
    const [text, setText] = useState(/** @type {{value: string, importing?: boolean} | null} */ (null));
    const close = () => controller.set({dialog: ""});
    /** @type {Ask} */
    const ask = (method, path, names, body) => attempt(() => controller.keepPresets(method, path, names, body));
    useEffect(() => {
        attempt(() => controller.askPresets());
    }, []);
    const rows = controller.rows().filter((row) => row.on && !row.problem);
    const save = (/** @type {Event} */ event) => {
        event.preventDefault();
        attempt(async () => {
            if (!rows.length) throw new Error("The prompt has no LoRA to keep; insert some first.");
            const lines = rows.map((row) => `${row.text} ${wordsIn(controller, row)}`.trim());
            await controller.keepPresets("PUT", `preset?${query({name})}`, [name], {text: lines.join("\n")});
            setName("");
        });
    };
    const exportOne = (/** @type {Kept} */ preset) =>
        attempt(async () => setText({value: await controller.api.text(`preset?${query({name: preset.name})}`)}));
    const importAll = () =>
        attempt(async () => {
            await controller.keepPresets("POST", "presets", [], {text: text?.value});
            setText(null);
        });
    return html`<${Dialog} title="Presets" close=${close}>
        <form class="rt-line" onSubmit=${save}>
            <input type="text" aria-label="Name of the new preset" placeholder="Keep this stack as …" required maxlength="100"
                value=${name} onInput=${(event) => setName(event.target.value)} />
            <button type="submit">Save</button>
            <${Button} label="Import presets from text" onClick=${() => setText({value: "", importing: true})}>Import<//>
        </form>
        <${Trouble} text=${trouble} />
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
        <ul class="rt-presets" aria-label="Presets">
            ${(state.presets ?? []).map(
                (preset) => html`<${Preset} key=${preset.name} preset=${preset} controller=${controller}
                ask=${ask} attempt=${attempt} close=${close} exportOne=${exportOne} />`,
            )}
        </ul>
        ${state.presets && !state.presets.length && html`<p class="rt-hint">No preset is kept yet.</p>`}
    <//>`;
}

/**
 * @param {object} props
 * @param {Kept} props.preset
 * @param {Controller} props.controller
 * @param {Ask} props.ask
 * @param {Attempt} props.attempt
 * @param {() => void} props.close
 * @param {(preset: Kept) => void} props.exportOne
 */
function Preset({preset, controller, ask, attempt, close, exportOne}) {
    const [name, setName] = useState(/** @type {string | null} */ (null));
    const path = preset.thumbnail && `preset/thumbnail?${query({name: preset.name, v: preset.thumbnail})}`;
    const rename = (/** @type {Event} */ event) => {
        event.preventDefault();
        const names = [String(name), preset.name];
        ask("PUT", `preset?${query({name: String(name)})}`, names, {text: preset.text, former: preset.name});
        setName(null);
    };
    const apply = (/** @type {boolean} */ replacing) => {
        applyPreset(controller, preset, replacing);
        close();
    };
    const picture = () =>
        attempt(async () => {
            const blob = await boxes.shownPicture();
            if (!blob) throw new Error("The page shows no picture yet; make one first.");
            await ask("PUT", `preset/thumbnail?${query({name: preset.name})}`, [preset.name], blob);
        });
    const tags = preset.text.split("\n").map((line) => readTags(line)[0]?.text ?? line);
    return html`<li class="rt-preset">
        <span class="rt-thumb"><${Picture} api=${controller.api} path=${path} name=${preset.name} /></span>
        <div class="rt-preset-text">
            ${
                name === null
                    ? html`<strong>${preset.name}</strong>`
                    : html`<form class="rt-line" onSubmit=${rename}>
                <input type="text" aria-label="New name" value=${name} required maxlength="100" onInput=${(event) => setName(event.target.value)} />
                <button type="submit">Rename</button></form>`
            }
            <span class="rt-hint">${tags.join(" ")}</span>
            <div class="rt-line">
                <${Button} label=${`Use ${preset.name} in place of the prompt’s LoRAs`} class="rt-small" onClick=${() => apply(true)}>Use<//>
                <${Button} label=${`Add ${preset.name} to the prompt’s LoRAs`} class="rt-small" onClick=${() => apply(false)}>Add<//>
                <${Button} label=${`Rename ${preset.name}`} class="rt-small" onClick=${() => setName(preset.name)}>Rename<//>
                <${Button} label=${`Export ${preset.name} as text`} class="rt-small" onClick=${() => exportOne(preset)}>Export<//>
                <${Button} label=${`Take the page’s picture for ${preset.name}`} class="rt-small" onClick=${picture}>Picture<//>
                <${Button} label=${`Delete ${preset.name}`} class="rt-small"
                    onClick=${() => ask("DELETE", `preset?${query({name: preset.name})}`, [preset.name])}>Delete<//>
            </div>
        </div>
    </li>`;
}

/**
 * Return the words of an entry, where the prompt has them.
 * @param {Controller} controller
 * @param {Row} row
 */
function wordsIn(controller, row) {
    const words = controller.wordsOf(row.name);
    return words && controller.state.prompt.includes(words) ? words : "";
}

/**
 * @param {Controller} controller
 * @param {Kept} preset
 * @param {boolean} replacing
 */
function applyPreset(controller, preset, replacing) {
    if (replacing) controller.clear();
    controller.readBoxes();
    let {prompt} = controller.state;
    for (const line of preset.text.split("\n")) {
        const tag = readTags(line)[0];
        if (tag) prompt = withEntry(prompt, tag.text, line.slice(tag.end).trim());
    }
    controller.change({prompt});
    controller.set({said: `Preset ${preset.name} ${replacing ? "in use" : "added"}.`});
}
