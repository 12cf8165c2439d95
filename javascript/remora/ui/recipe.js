// A picture or a preset taken apart: its LoRA, which of them are here, its prompt and settings.

/**
 * @import {Recipe as RecipeTold, RecipeLora} from "../../api.d.ts"
 * @import {State, Tab} from "../main.js"
 * @import {RecipeOf} from "../recipes.js"
 * @import {FieldEvent, Filled} from "../vendor/preact.js"
 *
 * @typedef {(work: () => unknown, done: string) => unknown} Does
 * Does something and says that it is done.
 */

import {html, useEffect, useMemo, useRef, useState} from "../vendor/preact.js";
import {query} from "../api.js";
import {copy} from "../boxes.js";
import {aboutLora, isPicture, keepRecipe, linkTo, readRecipe, useAll, useTags} from "../recipes.js";
import {t} from "../words.js";
import {broken, Button, Dialog, FileLink, Name, NameForm, Picture, Trouble, useLater, useLoad} from "./parts.js";

const POLL = 3000; // milliseconds, while a LoRA may still be found

/** @param {{tab: Tab, state: State, shown: RecipeOf}} props */
export function Recipe({tab, state, shown}) {
    const {preset, file} = shown;
    const [told, setTold] = useState(/** @type {RecipeTold | null} */ (null));
    const [round, setRound] = useState(0);
    const [said, setSaid] = useState("");
    const [trouble, attempt] = useLoad(tab, async () => setTold(await readRecipe(tab, shown)), [shown, round]);
    useLater(told?.searching && (() => setRound(round + 1)), POLL, [told]);
    /** @type {Does} */
    const does = (work, done) =>
        attempt(async () => {
            await work();
            setSaid(done);
        });
    const close = () => tab.set({recipe: null});
    const foot = html`<${Trouble} trouble=${trouble} />
        ${told && !file && html`<p class="rt-hint">${t("recipe.shareHint")}</p>`}
        ${told && file && html`<${Keep} tab=${tab} recipe=${told} name=${file.name} pictureOf=${() => file} does=${does} />`}
        <div class="rt-line rt-end"><span class="rt-hint" role="status">${said}</span>
            ${told && !file && html`<${Share} tab=${tab} name=${preset} setSaid=${setSaid} />`}
            ${told && html`<${Uses} tab=${tab} told=${told} does=${does} />`}
        </div>`;
    return html`<${Dialog} title=${file ? file.name : preset} close=${close} foot=${foot} class="rt-wide-dialog">
        ${!told && !trouble.text && html`<p class="rt-hint">${t("common.loading")}</p>`}
        ${
            told
            && html`<div class="rt-details">
            <div class="rt-details-side"><${Shown} tab=${tab} state=${state} shown=${shown} /></div>
            <div class="rt-details-main"><${Parts} tab=${tab} told=${told} /></div>
        </div>`
        }
    <//>`;
}

/** @param {{tab: Tab, state: State, shown: RecipeOf}} props */
function Shown({tab, state, shown: {preset, file}}) {
    const address = useMemo(() => (file && isPicture(file) ? URL.createObjectURL(file) : ""), [file]);
    useEffect(() => () => URL.revokeObjectURL(address), [address]);
    const {thumbnail = ""} = state.presets?.find(({name}) => name === preset) ?? {};
    const path = thumbnail && `preset/thumbnail?${query({name: preset, v: thumbnail})}`;
    if (file && !address) return null;
    return html`<div class="rt-thumb rt-large">${address ? html`<img src=${address} alt="" draggable=${false} />` : html`<${Picture} api=${tab.api} path=${path} name=${preset} />`}</div>`;
}

/**
 * Draw the buttons that put a recipe into the page.
 * @param {{tab: Tab, told: RecipeTold, does: Does, size?: string}} props
 */
export function Uses({tab, told, does, size = ""}) {
    const {target} = tab.state;
    return html`${
        told.tags
        && html`<button type="button" class=${size} disabled=${!target} onClick=${() => does(() => useTags(tab, told.tags), t("outputs.inUse"))}>${t("outputs.use")}</button>`
    }
    ${
        Object.keys(told.settings).length > 0
        && html`<${Button} label=${t("recipe.useAllHint")} class=${`${size} rt-primary`} disabled=${!target}
        onClick=${() => does(() => useAll(tab, told), "")}>${t("recipe.useAll")}<//>`
    }`;
}

/** @param {{tab: Tab, told: RecipeTold}} props */
export function Parts({tab, told}) {
    const {loras, file, model, prompt, negative} = told;
    const settings = Object.entries(told.settings)
        .filter(([name]) => !LEFT_OUT.has(name))
        .map(([name, value]) => `${name}: ${value}`);
    const facts = [
        [t("recipe.place"), file],
        [t("recipe.model"), model],
        [t("recipe.prompt"), prompt],
        [t("recipe.negative"), negative],
        [t("recipe.settings"), settings.join(", ")],
    ];
    return html`<h4>LoRA</h4>
        ${!loras.length && html`<p class="rt-hint">${t("common.noLora")}</p>`}
        <ul class="rt-copies" aria-label="LoRA">${loras.map((lora) => html`<li key=${lora.name}><${Lora} tab=${tab} lora=${lora} /></li>`)}</ul>
        ${told.searching && html`<p class="rt-hint" role="status">${t("recipe.searching")}</p>`}
        <dl class="rt-facts">${facts
            .filter(([, value]) => value)
            .map(
                ([name, value]) =>
                    html`<dt key=${name}>${name}</dt><dd class="rt-output-prompt" tabindex="0">${value}</dd>`,
            )}</dl>`;
}

/** What is shown in its own place, or is of use to programs alone. */
const LEFT_OUT = new Set(["Model", "Model hash", "Lora hashes", "LoRA hashes", "LoRA networks", "Remora stack"]);

/** @param {{tab: Tab, lora: RecipeLora}} props */
function Lora({tab, lora}) {
    const {id, by, name, strength} = lora;
    const file = tab.library.catalog.byId.get(id ?? "");
    const said = aboutLora(lora, file?.name ?? name);
    const shown = [name, strength].filter(Boolean).join(" ");
    const shownAs = by === "" || by === "other" ? "rt-lacking" : "rt-hint";
    return html`<span class="rt-line">
        ${
            file && file.id !== tab.state.details
                ? html`<button type="button" class="rt-link" title=${file.file} onClick=${() => tab.set({details: file.id})}><${Name} text=${shown} /></button>`
                : html`<strong>${broken(shown)}</strong>`
        }
        <span class=${shownAs}>${said}</span></span>`;
}

/**
 * Draw the form that keeps a recipe as a preset.
 * @param {{tab: Tab, recipe: RecipeTold, name: string, pictureOf: () => Blob | Promise<Blob>, does: Does}} props `name` is
 *     of the file, and `pictureOf` returns it, or a small form of it
 */
export function Keep({tab, recipe, name: file, pictureOf, does}) {
    if (!recipe.tags) return null;
    const save = (/** @type {string} */ name) =>
        does(async () => keepRecipe(tab, recipe, await pictureOf(), name), t("recipe.kept", {name}));
    const problem = (/** @type {string} */ name) => (name ? "" : t("presets.giveName"));
    const former = recipe.name || file.replace(/(\.remora)?\.\w+$/, "");
    return html`<${NameForm} label=${t("presets.newName")} button=${t("recipe.keep")} former=${former} problem=${problem} save=${save} />`;
}

/** @param {{tab: Tab, name: string, setSaid: (said: string) => void}} props */
function Share({tab, name, setSaid}) {
    const link = async () => setSaid(t((await copy(linkTo(name))) ? "recipe.linkCopied" : "recipe.linkNot"));
    return html`<${FileLink} api=${tab.api} path=${`preset/file?${query({name, sketches: "all"})}`} name=${`${name}.remora.json`}>${t("recipe.file")}<//>
        <${Button} label=${t("recipe.linkHint")} class="rt-small" onClick=${link}>${t("recipe.link")}<//>`;
}

/**
 * Draw a button that opens a picture, or a preset as a file.
 * @param {{tab: Tab}} props
 */
export function OpenFile({tab}) {
    const chosen = /** @type {Filled<HTMLInputElement>} */ (useRef());
    const open = (/** @type {FieldEvent} */ event) => {
        const file = event.target.files?.[0];
        if (file) tab.set({recipe: {preset: "", file}});
        event.target.value = ""; // the same file may be opened again
    };
    return html`<input type="file" accept="image/png,image/jpeg,image/webp,.json,.txt" hidden ref=${chosen} onChange=${open} />
        <${Button} label=${t("recipe.openHint")} class="rt-small" onClick=${() => chosen.current.click()}>${t("recipe.open")}<//>`;
}

/**
 * Open a file that is dropped on the tab; tell whether one is over it.
 * @param {Tab} tab
 * @param {HTMLElement} root
 */
export function useDrop(tab, root) {
    const [isOver, setOver] = useState(false);
    useEffect(() => {
        const listen = (/** @type {DragEvent} */ event) => {
            if (!event.dataTransfer?.types.includes("Files")) return;
            event.preventDefault(); // the browser would leave the page for the file
            event.stopPropagation(); // the page would read all of it
            setOver(event.type === "dragover");
            const [file] = event.dataTransfer.files;
            if (event.type === "drop" && file) tab.set({recipe: {preset: "", file}});
        };
        const kinds = /** @type {const} */ (["dragover", "dragleave", "drop"]);
        for (const kind of kinds) root.addEventListener(kind, listen);
        return () => {
            for (const kind of kinds) root.removeEventListener(kind, listen);
        };
    }, [tab, root]);
    return isOver;
}
