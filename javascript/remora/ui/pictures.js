// The pictures of this session: all of them, or those that used one LoRA.

/**
 * @import {MadePicture} from "../../api.d.ts"
 * @import {State, Tab} from "../main.js"
 */

import {html, useState} from "../vendor/preact.js";
import {query} from "../api.js";
import {lorasOf} from "../pictures.js";
import {locale, t} from "../words.js";
import {Dialog, Picture, Trouble, useLoad} from "./parts.js";

/** @param {{tab: Tab, state: State}} props */
export function Pictures({tab, state}) {
    const [lora, setLora] = useState("");
    const [used, setUsed] = useState(/** @type {[id: string, name: string][]} */ ([]));
    const note = (/** @type {MadePicture[]} */ pictures) => {
        if (lora) return;
        const found = pictures.flatMap((picture) => picture.loras.map(({id, name}) => [id ?? "", name]));
        setUsed([...new Map(/** @type {[string, string][]} */ (found.filter(([id]) => id)))]);
    };
    return html`<${Dialog} title=${t("pictures.title")} close=${() => tab.set({dialog: ""})} class="rt-wide-dialog">
        ${
            used.length > 0
            && html`<label class="rt-field rt-used-by"><span>${t("pictures.withLora")}</span><select value=${lora} onChange=${(event) => setLora(event.target.value)}>
                <option value="">${t("pictures.anyOrNone")}</option>
                ${used.map(([id, name]) => html`<option key=${id} value=${id}>${name}</option>`)}</select></label>`
        }
        <${PictureList} tab=${tab} count=${state.server?.pictures ?? 0} lora=${lora} told=${note} />
    <//>`;
}

/**
 * Draw the pictures that used a LoRA, or all.
 * @param {object} props
 * @param {Tab} props.tab
 * @param {number} props.count of all pictures; the list is read again with each change
 * @param {string} props.lora id of its file; empty for all
 * @param {(pictures: MadePicture[]) => void} [props.told]
 */
export function PictureList({tab, count, lora, told}) {
    const [pictures, setPictures] = useState(/** @type {MadePicture[] | null} */ (null));
    const load = async () => {
        const found = (await tab.api.get(/** @type {const} */ (`pictures?${query(lora ? {lora} : {})}`))).pictures;
        setPictures(found);
        told?.(found);
    };
    const [trouble] = useLoad(tab, load, [count, lora]);
    return html`<${Trouble} trouble=${trouble} />
        ${pictures?.length === 0 && html`<p class="rt-hint">${t("pictures.none")}</p>`}
        ${
            pictures
            && html`<ul class="rt-pictures" aria-label=${t("common.pictures")}>${pictures.map(
                (picture) => html`<li key=${picture.id}>
                <div class="rt-thumb"><${Picture} api=${tab.api} name=${String(picture.seed)}
                    path=${picture.thumbnail && `pictures/thumbnail?${query({id: picture.id, t: picture.time})}`} /></div>
                <div><strong>${t("common.seed", {seed: String(picture.seed)})}</strong> <span class="rt-hint">${new Date(picture.time * 1000).toLocaleTimeString(locale())}</span>
                    <p>${lorasOf(picture).join(", ") || t("common.noLora")}</p></div></li>`,
            )}</ul>`
        }`;
}
