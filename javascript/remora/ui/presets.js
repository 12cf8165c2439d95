// Stacks kept under a name.

import {html, useEffect, useState} from "../vendor/preact.js";
import {query} from "../api.js";
import * as boxes from "../boxes.js";
import {readTags, withEntry} from "../prompt.js";
import {Button, Dialog, Picture, Trouble, useTrouble} from "./parts.js";

export function Presets({controller, state}) {
    const [trouble, attempt] = useTrouble();
    const [name, setName] = useState("");
    const [text, setText] = useState(null); // being exported or imported
    const close = () => controller.set({dialog: ""});
    const take = (answer) => controller.set({presets: answer.presets, presetProblem: answer.problem});
    const ask = (method, path, body) => attempt(async () => take(await controller.api.ask(method, path, body)));
    useEffect(() => {
        ask("GET", "presets");
    }, []);
    const rows = controller.rows().filter((row) => row.on && !row.problem);
    const save = (event) => {
        event.preventDefault();
        attempt(async () => {
            if (!rows.length) throw new Error("The prompt has no LoRA to keep; insert some first.");
            const lines = rows.map((row) => `${row.text} ${wordsIn(controller, row)}`.trim());
            take(await controller.api.ask("PUT", `preset?${query({name})}`, {text: lines.join("\n")}));
            setName("");
        });
    };
    const exportOne = (preset) => attempt(async () => setText({value: await controller.api.text(`preset?${query({name: preset.name})}`)}));
    const importAll = () => attempt(async () => {
        take(await controller.api.ask("POST", "presets", {text: text.value}));
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
        ${text && html`<div class="rt-field">
            <textarea rows="5" aria-label=${text.importing ? "Text to import" : "The preset as text"} readonly=${!text.importing}
                placeholder="# Remora preset 1: name" value=${text.value} onInput=${(event) => setText({...text, value: event.target.value})}></textarea>
            <div class="rt-line rt-end">
                <button type="button" onClick=${() => setText(null)}>Close</button>
                ${text.importing ? html`<button type="button" class="rt-primary" onClick=${importAll}>Import</button>`
                    : html`<button type="button" class="rt-primary" onClick=${() => boxes.copy(text.value)}>Copy</button>`}
            </div></div>`}
        <ul class="rt-presets" aria-label="Presets">
            ${(state.presets ?? []).map((preset) => html`<${Preset} key=${preset.name} preset=${preset} controller=${controller}
                ask=${ask} attempt=${attempt} close=${close} exportOne=${exportOne} />`)}
        </ul>
        ${state.presets && !state.presets.length && html`<p class="rt-hint">No preset is kept yet.</p>`}
    <//>`;
}

function Preset({preset, controller, ask, attempt, close, exportOne}) {
    const [name, setName] = useState(null);
    const path = preset.thumbnail && `preset/thumbnail?${query({name: preset.name, v: preset.thumbnail})}`;
    const rename = (event) => {
        event.preventDefault();
        ask("PUT", `preset?${query({name})}`, {text: preset.text, former: preset.name});
        setName(null);
    };
    const apply = (replacing) => {
        applyPreset(controller, preset, replacing);
        close();
    };
    const picture = () => attempt(async () => {
        const blob = await boxes.shownPicture();
        if (!blob) throw new Error("The page shows no picture yet; make one first.");
        await ask("PUT", `preset/thumbnail?${query({name: preset.name})}`, blob);
    });
    const tags = preset.text.split("\n").map((line) => readTags(line)[0]?.text ?? line);
    return html`<li class="rt-preset">
        <span class="rt-thumb"><${Picture} api=${controller.api} path=${path} name=${preset.name} /></span>
        <div class="rt-preset-text">
            ${name === null ? html`<strong>${preset.name}</strong>` : html`<form class="rt-line" onSubmit=${rename}>
                <input type="text" aria-label="New name" value=${name} required maxlength="100" onInput=${(event) => setName(event.target.value)} />
                <button type="submit">Rename</button></form>`}
            <span class="rt-hint">${tags.join(" ")}</span>
            <div class="rt-line">
                <${Button} label=${`Use ${preset.name} in place of the prompt’s LoRAs`} class="rt-small" onClick=${() => apply(true)}>Use<//>
                <${Button} label=${`Add ${preset.name} to the prompt’s LoRAs`} class="rt-small" onClick=${() => apply(false)}>Add<//>
                <${Button} label=${`Rename ${preset.name}`} class="rt-small" onClick=${() => setName(preset.name)}>Rename<//>
                <${Button} label=${`Export ${preset.name} as text`} class="rt-small" onClick=${() => exportOne(preset)}>Export<//>
                <${Button} label=${`Take the page’s picture for ${preset.name}`} class="rt-small" onClick=${picture}>Picture<//>
                <${Button} label=${`Delete ${preset.name}`} class="rt-small"
                    onClick=${() => ask("DELETE", `preset?${query({name: preset.name})}`)}>Delete<//>
            </div>
        </div>
    </li>`;
}

// The words of an entry, where the prompt has them.
function wordsIn(controller, row) {
    const words = controller.wordsOf(row.name);
    return words && controller.state.prompt.includes(words) ? words : "";
}

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
