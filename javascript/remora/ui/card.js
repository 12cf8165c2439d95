// One file in the library.

/**
 * @import {Lora} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 */

import {html} from "../vendor/preact.js";
import {query} from "../api.js";
import {canBeInserted, size} from "../catalog.js";
import {Icon} from "./icons.js";
import {Button, Picture} from "./parts.js";

/** @param {{lora: Lora, tab: Tab, view: string, used: boolean, against: string, fits?: boolean}} props */
export function Card({lora, tab, view, used, against, fits}) {
    const {state} = tab;
    const usable = canBeInserted(lora);
    const insert = state.target ? `Insert ${lora.name} into the prompt` : `Add ${lora.name} to “Always on”`;
    const label = used
        ? `Remove ${lora.name} from the prompt`
        : usable
          ? insert
          : `Why ${lora.name} cannot be inserted`;
    const dim = against ? " rt-against" : "";
    const open = () => tab.set({details: lora.id});
    const about = [rank(lora), size(lora.size)].filter(Boolean).join(" · ");
    const path = lora.picture && `thumbnail?${query({id: lora.id, v: lora.picture})}`;
    const alias = lora.alias === lora.name || lora.alias === lora.file.split("/").pop() ? "" : lora.alias;
    const listed = view === "list";
    const facts = listed
        ? [alias, lora.folder, lora.family, about, lora.words].filter(Boolean).join(" · ")
        : lora.words;
    // of a file whose family is unknown, or without a model, nothing is said
    const fit = !listed && fits ? "✓ fits" : "";
    return html`<div class=${`rt-card rt-card-${view}${used ? " rt-used" : ""}${dim}`}>
        <button type="button" class="rt-pick" aria-pressed=${String(used)} aria-label=${label}
            title=${[lora.file, alias, about, lora.words && `words: ${lora.words}`, against].filter(Boolean).join("\n")}
            onClick=${() => (used || usable ? tab.edits.toggle(lora) : open())}>
            <span class="rt-thumb"><${Picture} api=${tab.api} path=${path} name=${lora.name} /></span>
            <span class="rt-card-text">
                <span class="rt-card-name">${lora.name}</span>
                ${
                    against
                        ? html`<span class="rt-hint rt-reason">${against}</span>`
                        : html`<span class="rt-hint">${facts || (lora.read ? "no trigger words" : "not read yet")}</span>
                        ${fit && html`<span class="rt-hint">${fit}</span>`}`
                }
            </span>
        </button>
        <span class="rt-badges" aria-hidden="true">
            ${lora.favourite && html`<span class="rt-badge"><${Icon} name="heart" filled /></span>`}
            ${lora.rating > 0 && html`<span class="rt-badge">${lora.rating}★</span>`}
            ${used && html`<span class="rt-badge rt-badge-on"><${Icon} name="check" /></span>`}
        </span>
        <${Button} label=${`About ${lora.name}`} class="rt-about" onClick=${open}><${Icon} name="info" /><//>
    </div>`;
}

/**
 * Say which kind a file is, and of which ranks.
 * @param {Lora} lora
 */
export function rank(lora) {
    if (!lora.rank) return lora.kind;
    const [low, high] = lora.rank;
    return `${lora.kind} ${low === high ? high : `${low}–${high}`}`;
}
