// A page with prompt boxes, a server and a tab, without a browser.

import {Tab} from "../../javascript/remora/main.js";

const BEFORE = Object.getOwnPropertyDescriptors(globalThis);

/**
 * @typedef {{method: string, path: string, body: any, tag: string | null}} Sent
 * A request: `tag` is what it demands of the data that it changes.
 *
 * @typedef {{status?: number, tag?: string, data?: unknown}} Answer
 *
 * @typedef {(sent: Sent) => Answer | Promise<Answer>} Route
 */

/** A prompt box, as far as the tab uses one. */
export class Box extends EventTarget {
    /**
     * @param {string} value
     * @param {boolean} shown
     */
    constructor(value, shown) {
        super();
        this.value = value;
        this.shown = shown;
    }

    getClientRects() {
        return this.shown ? [{}] : [];
    }

    /** @type {(text: string, start: number, end: number) => void} */
    setRangeText(text, start, end) {
        this.value = this.value.slice(0, start) + text + this.value.slice(end);
    }
}

/**
 * Make a file of the library.
 * @param {string} name
 * @param {object} [more]
 * @returns {any}
 */
export function lora(name, more = {}) {
    return {
        ...{id: `id-${name}`, name, alias: name, file: name, folder: "", read: true, readable: true, reason: ""},
        ...{named: null, base_model: null},
        ...{family: null, kind: "lora", rank: [4, 4], layers: 1, format: "kohya", size: 1, mtime: 0},
        ...{
            words: "",
            negative: "",
            tags: [],
            notes: "",
            rating: 0,
            favourite: false,
            hidden: false,
            strength: null,
            captions: "",
        },
        ...{added: 0, used: 0, uses: 0, picture: ""},
        ...more,
    };
}

/**
 * Make the server's answer about its state.
 * @param {object} [more]
 * @returns {any}
 */
export function serverState(more = {}) {
    return {
        ...{enabled: true, default_multiplier: 1, model: "sd1", loras: [], notes: [], conflicts: []},
        ...{catalog: {running: false, done: 0, total: 0, revision: 1}, stack: "s1"},
        ...more,
    };
}

/**
 * Make the server's answer about its files.
 * @param {any[]} loras
 * @param {object} [more]
 */
export function listOf(loras, more = {}) {
    const scan = {running: false, done: 0, total: 0};
    return {revision: 1, whole: true, loras, gone: [], families: {}, scan, problem: "", ...more};
}

/**
 * Make a tab in a page; `leavePage` takes the page away again.
 * @param {object} [given]
 * @param {{[target: string]: string | [prompt: string, negative: string]}} [given.prompts] of the page
 * @param {any[]} [given.loras] the files that the tab knows
 * @param {{[request: string]: Route}} [given.routes] by method and path; a path without `?` is that of any values
 */
export function openPage({prompts = {txt2img: ["", ""]}, loras = [], routes = {}} = {}) {
    /** @type {{[selector: string]: Box}} */
    const boxes = {};
    for (const [target, texts] of Object.entries(prompts)) {
        const [prompt, negative] = [texts].flat();
        boxes[`#${target}_prompt textarea`] = new Box(prompt, target === Object.keys(prompts)[0]);
        if (negative !== undefined) boxes[`#${target}_neg_prompt textarea`] = new Box(negative, false);
    }
    /** @type {Sent[]} */
    const sent = [];
    const fetch = async (/** @type {string} */ address, /** @type {RequestInit} */ init) => {
        const path = address.replace("/remora/v1/", "");
        const {method = "GET", body} = init;
        const tag = new Headers(init.headers).get("if-match");
        const one = {method, path, body: typeof body === "string" ? JSON.parse(body) : body, tag};
        sent.push(one);
        const route = routes[`${method} ${path}`] ?? routes[`${method} ${path.split("?")[0]}`];
        if (!route) throw new TypeError(`nothing answers ${method} ${path}`);
        const {status = 200, tag: left = "", data = {}} = await route(one);
        return Response.json(data, {status, headers: {ETag: `"${left}"`}});
    };
    /** @type {Map<string, string>} */
    const kept = new Map();
    const values = {
        fetch,
        document: {querySelector: (/** @type {string} */ selector) => boxes[selector] ?? null},
        localStorage: {
            getItem: (/** @type {string} */ key) => kept.get(key) ?? null,
            setItem: (/** @type {string} */ key, /** @type {string} */ value) => kept.set(key, value),
        },
    };
    for (const [name, value] of Object.entries(values)) {
        Object.defineProperty(globalThis, name, {value, configurable: true, writable: true});
    }
    const tab = new Tab("");
    tab.library.catalog.take(/** @type {any} */ (listOf(loras)));
    tab.stack.readBoxes();
    /** @type {(target?: string) => Box} */
    const box = (target = "txt2img") => boxes[`#${target}_prompt textarea`];
    /** @type {(target?: string) => Box} */
    const negative = (target = "txt2img") => boxes[`#${target}_neg_prompt textarea`];
    return {tab, sent, box, negative, kept};
}

/** Take away what `openPage` has put into the place of the browser's. */
export function leavePage() {
    for (const name of ["fetch", "document", "localStorage"]) {
        Reflect.deleteProperty(globalThis, name);
        if (BEFORE[name]) Object.defineProperty(globalThis, name, BEFORE[name]);
    }
}

/** Let everything happen that waits for nothing but answers. */
export const turn = () => new Promise((resolve) => setImmediate(resolve));
