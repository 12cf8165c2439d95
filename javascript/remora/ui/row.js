// One entry of the stack.

import {html, useState} from "../vendor/preact.js";
import {Icon} from "./icons.js";
import {Outcome} from "./outcome.js";
import {Button, Strength} from "./parts.js";

export function Row({controller, entry, outcome, handle}) {
    const {name, te, unet} = entry;
    const {lora, problem, candidates} = controller.meaning(name);
    const [apart, setApart] = useState(te !== unet);
    const split = apart || te !== unet;
    const tie = () => {
        if (split) entry.setStrength(unet, unet);
        setApart(!split);
    };
    const said = entry.problem || problem;
    const doubt = !said && lora ? controller.catalog.against(lora) : "";
    return html`
        <div class="rt-row-head">
            <button type="button" class="rt-handle" title="Drag to another place" ...${handle}><${Icon} name="grip" /></button>
            <input type="checkbox" checked=${entry.on} aria-label=${`${name} on`} onChange=${(event) => entry.setOn(event.target.checked)} />
            ${lora ? html`<button type="button" class="rt-name rt-link" title=${lora.file}
                onClick=${() => controller.set({details: lora.id})}>${name}</button>` : html`<span class="rt-name">${name || entry.text}</span>`}
            ${entry.extra.map((text) => html`<span class="rt-chip" key=${text}>${text}</span>`)}
            <${Button} label=${`Strengths of ${name} apart for UNet and text encoder`} class="rt-small rt-tie"
                aria-pressed=${String(split)} onClick=${tie}><${Icon} name="apart" /><//>
            ${entry.move && html`<${Button} label=${entry.moveLabel} class="rt-small" onClick=${entry.move}><${Icon} name=${entry.moveIcon} /><//>`}
            <${Button} label=${`Remove ${name}`} class="rt-small" onClick=${entry.remove}><${Icon} name="remove" /><//>
        </div>
        ${split ? html`
            <${Strength} title="UNet" what=${`UNet strength of ${name}`} value=${unet} set=${(value) => entry.setStrength(te, value)} />
            <${Strength} title="Text" what=${`Text strength of ${name}`} value=${te} set=${(value) => entry.setStrength(value, unet)} />`
            : html`<${Strength} title="" what=${`Strength of ${name}`} value=${unet} set=${(value) => entry.setStrength(value, value)} />`}
        ${said && html`<p class="rt-problem" role="alert">✕ ${said}</p>`}
        ${candidates.length > 0 && html`<p class="rt-hint">Write one of these: ${candidates.join(", ")}</p>`}
        ${doubt && html`<p class="rt-warning">⚠ ${doubt}</p>`}
        ${!said && entry.on && html`<${Outcome} lora=${outcome} />`}`;
}
