// At the top of the tab: the picture that the page shows, its seed and LoRAs, and a button that makes the next one.

/** @import {State, Tab} from "../main.js" */

import {html} from "../vendor/preact.js";
import {query} from "../api.js";
import {usesOf} from "../outputs.js";
import {lorasOf} from "../pictures.js";
import {t} from "../words.js";
import {Button, Picture} from "./parts.js";

/** @param {{tab: Tab, state: State}} props */
export function Strip({tab, state}) {
    const {page, latest, former} = state;
    const {needsButton, seed} = tab.pictures;
    if (!needsButton && !latest && !former) return null;
    const thumbnail = latest?.thumbnail ? `pictures/thumbnail?${query({id: latest.id, t: latest.time})}` : "";
    const open = () => tab.set({dialog: "pictures"});
    const record = latest && (seed === null || latest.seed === seed) ? latest : null;
    const loras = (record && lorasOf(record)) ?? (former && usesOf(former));
    return html`<div class="rt-made" role="group" aria-label=${t("pictures.picture")}>
        ${needsButton && html`<${Make} tab=${tab} state=${state} />`}
        ${
            needsButton
            && (page.picture || thumbnail)
            && html`<${Button} label=${t("pictures.latest")} class="rt-thumb rt-made-picture"
                onClick=${open}>${page.picture ? html`<img src=${page.picture} alt="" draggable=${false} />` : html`<${Picture} api=${tab.api} name="" path=${thumbnail} />`}<//>`
        }
        <p class="rt-made-text">
            ${record || seed !== null ? html`<strong>${t("common.seed", {seed: String(seed ?? record?.seed)})}</strong>` : html`<span class="rt-hint">${t("pictures.noneYet")}</span>`}
            ${loras && html` <span>${loras.join(", ") || t("common.noLora")}</span>`}
        </p>
        ${latest && html`<button type="button" class="rt-small" onClick=${open}>${t("common.pictures")}</button>`}
    </div>`;
}

/** @param {{tab: Tab, state: State}} props */
function Make({tab, state}) {
    const {page, target, lost} = state;
    if (page.busy)
        return html`<button type="button" class="rt-make" onClick=${() => tab.pictures.stop()}>${t("pictures.stop")}</button>`;
    return html`<${Button} label=${t("pictures.generateHint", {prompt: target})} class="rt-primary rt-make" disabled=${lost}
        onClick=${() => tab.pictures.generate()}>${page.label || t("pictures.generate")}<//>`;
}
