// A text that is written as Markdown.

/** @import {Block, Span} from "../markdown.js" */

import {html} from "../vendor/preact.js";
import {blocksOf} from "../markdown.js";

/** @param {{text: string}} props */
export function Markdown({text}) {
    return html`<div class="rt-markdown">${blocksOf(text).map(block)}</div>`;
}

/** @param {Block} one */
function block(one) {
    const {kind, lines} = one;
    if (kind === "list") {
        const items = lines.map((spans) => html`<li>${spans.map(span)}</li>`);
        return one.ordered ? html`<ol>${items}</ol>` : html`<ul>${items}</ul>`;
    }
    if (kind === "heading") return html`<h4>${lines[0].map(span)}</h4>`;
    if (kind === "code") return html`<pre>${lines.map(([{text}]) => `${text}\n`)}</pre>`;
    return html`<p>${lines.map((spans, at) => [at > 0 && html`<br />`, ...spans.map(span)])}</p>`;
}

/** @param {Span} one */
function span(one) {
    const {kind, text} = one;
    if (kind === "link")
        return html`<a href=${one.address} target="_blank" rel="noopener noreferrer nofollow">${text}</a>`;
    if (kind === "code") return html`<code>${text}</code>`;
    if (kind === "strong") return html`<strong>${text}</strong>`;
    return kind === "em" ? html`<em>${text}</em>` : text;
}
