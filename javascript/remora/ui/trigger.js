// Which trigger words of a LoRA the prompt has, with a switch for each.

/**
 * @import {Tab} from "../main.js"
 * @import {Entry} from "./stack.js"
 */

import {html} from "../vendor/preact.js";
import {hasWords} from "../prompt.js";
import {t} from "../words.js";
import {broken} from "./parts.js";

/** @param {{tab: Tab, entry: Entry}} props */
export function Trigger({tab, entry}) {
    const {prompt} = tab.state;
    return html`<div class="rt-part" role="group" aria-label=${t("trigger.label", {name: entry.name})}>
        <div class="rt-chips">${tab.library.groupsOf(entry.name).map(
            (
                words,
            ) => html`<button type="button" key=${words} class="rt-chip" aria-pressed=${String(hasWords(prompt, words))}
            onClick=${() => tab.edits.flipWords(words)}>${broken(words)}</button>`,
        )}</div>
    </div>`;
}
