// The tab's shadow root: its style sheet, the colours of the page around it, and keys that stay in it.

/**
 * @import {Colour, PageColours} from "./colours.js"
 *
 * @typedef {{colour: Colour, alpha: number}} Drawn
 * A colour as it is drawn over others.
 *
 * @typedef {Pick<ElementCSSInlineStyle, "style">} Styled
 */

import {declarations, mix, readColour} from "./colours.js";

const ACCENTS = ["--color-accent", "--primary-500", "--sd-main-accent-color", "--highlight-color"]; // of web UIs
const KEYS = ["keydown", "keypress", "keyup"];
const MOST_PARSED = 200; // colours, as a page that changes its colours slowly has many

/** Load the tab's style sheet. */
export async function loadSheet() {
    const answer = await fetch(new URL("tab.css", import.meta.url), {credentials: "same-origin", cache: "no-cache"});
    if (!answer.ok) throw new Error(`the web UI answered ${answer.status} to GET tab.css`);
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(await answer.text());
    return sheet;
}

/**
 * Return a new element for the tab in the shadow root of an element of the page: no style of the page applies in it.
 * @param {HTMLElement} host
 * @param {...CSSStyleSheet} sheets
 */
export function shadowed(host, ...sheets) {
    const shadow = host.shadowRoot ?? host.attachShadow({mode: "open"});
    shadow.adoptedStyleSheets = sheets;
    const root = document.createElement("div");
    root.className = "rt";
    // the web UI's hotkeys are for its own page: Escape would interrupt the generation
    for (const type of KEYS) root.addEventListener(type, (event) => event.stopPropagation());
    shadow.replaceChildren(root);
    return root;
}

/** Gives the tab the colours of the page around it. */
export class Theme {
    constructor() {
        /** @type {Map<string, Drawn>} */
        this.parsed = new Map();
        /** @type {Styled | null} */
        this.root = null;
        this.former = "";
        const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
        this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", {willReadFrequently: true}));
    }

    /**
     * Give the tab the page's colours if they have changed since the last call, and tell whether they have. It asks the
     * page each time: classes, attributes, style sheets and the system change themes, and some do so slowly.
     * @param {HTMLElement} host the element of the page
     * @param {Styled} root the tab's, or a rule for several
     */
    follow(host, root) {
        const page = this.pageColours(host);
        const now = JSON.stringify(page);
        if (now === this.former && root === this.root) return false;
        [this.former, this.root] = [now, root];
        for (const [name, value] of Object.entries(declarations(page))) root.style.setProperty(name, value);
        return true;
    }

    /**
     * Return the colours that are in force where an element of the page is.
     * @param {HTMLElement} host
     * @returns {PageColours}
     */
    pageColours(host) {
        /** @type {Drawn[]} */
        const layers = [];
        for (const element of lineOf(host)) {
            const layer = this.parse(getComputedStyle(element).backgroundColor);
            if (layer.alpha > 0) layers.push(layer);
            if (layer.alpha === 1) break;
        }
        /** @type {Colour} */
        let back = isDarkCanvas() ? [18, 18, 18] : [255, 255, 255];
        for (const {colour, alpha} of layers.reverse()) back = mix(back, colour, alpha);
        const style = getComputedStyle(host);
        const text = this.parse(style.color);
        const named = ACCENTS.map((name) => style.getPropertyValue(name).trim()).find(
            (value) => value && CSS.supports("color", value),
        );
        const accent = named ? this.parse(named) : null;
        return {
            back,
            text: mix(back, text.colour, text.alpha),
            accent: accent?.alpha ? mix(back, accent.colour, accent.alpha) : null,
        };
    }

    /**
     * Return a colour of CSS, in any of its notations, as the browser draws it.
     * @param {string} text
     */
    parse(text) {
        const known = this.parsed.get(text) ?? readColour(text);
        if (known) return known;
        // some browsers tell nothing true about what is on a canvas, so that it is the last resort
        this.context.clearRect(0, 0, 1, 1);
        this.context.fillStyle = "#0000";
        this.context.fillStyle = text;
        this.context.fillRect(0, 0, 1, 1);
        const [red, green, blue, alpha] = this.context.getImageData(0, 0, 1, 1).data;
        /** @type {Drawn} */
        const found = {colour: [red, green, blue], alpha: alpha / 255};
        if (this.parsed.size >= MOST_PARSED) this.parsed.clear();
        this.parsed.set(text, found);
        return found;
    }
}

/**
 * Yield an element and those around it, through shadow roots.
 * @param {Element} element
 */
function* lineOf(element) {
    for (let one = /** @type {Element | null} */ (element); one; ) {
        yield one;
        const root = one.getRootNode();
        one = one.parentElement ?? (root instanceof ShadowRoot ? root.host : null);
    }
}

/** Tell whether the browser draws a dark background where the page draws none. */
function isDarkCanvas() {
    const schemes = getComputedStyle(document.documentElement).colorScheme;
    return (
        schemes.includes("dark") && (!schemes.includes("light") || matchMedia("(prefers-color-scheme: dark)").matches)
    );
}
