// The web UI's own prompt boxes, and what else of its page is asked.

import {difference} from "./prompt.js";

/**
 * @typedef {{name: string, box: HTMLTextAreaElement, negative: HTMLTextAreaElement | null}} PromptBox
 * The boxes of one prompt of the page.
 */

/**
 * Where web UIs have their prompts; the ids of the settings begin with `start`.
 * @type {[name: string, prompt: string, negative: string, start: string][]}
 */
const BOXES = [
    ["txt2img", "#txt2img_prompt textarea", "#txt2img_neg_prompt textarea", "txt2img_"],
    ["img2img", "#img2img_prompt textarea", "#img2img_neg_prompt textarea", "img2img_"],
    ["control", "#control_prompt textarea", "#control_neg_prompt textarea", "control_"],
    ["prompt", "#prompt textarea", "#negative textarea", ""],
];
const SETTINGS = {
    steps: ["steps"],
    cfg_scale: ["cfg_scale", "cfg"],
    width: ["width"],
    height: ["height"],
    seed: ["seed"],
    sampler: ["sampling", "sampler"],
    schedule: ["scheduler"],
};
const GALLERIES = ["#txt2img_gallery img", "#img2img_gallery img", "#control_gallery img", "#gallery img"];

/**
 * Find the prompt boxes of the page.
 * @returns {PromptBox[]}
 */
export function boxes() {
    const all = BOXES.map(([name, prompt, negative]) => ({
        name,
        box: document.querySelector(prompt),
        negative: document.querySelector(negative),
    }));
    return /** @type {PromptBox[]} */ (all.filter(({box}) => box));
}

/**
 * Find the boxes of one prompt.
 * @param {string} name
 */
export function find(name) {
    return boxes().find((one) => one.name === name);
}

/**
 * Put a text into a box. Only the difference is written: the cursor stays where it is. The page hears of it as of
 * typing.
 * @param {HTMLTextAreaElement | null} box
 * @param {string} text
 */
export function write(box, text) {
    if (!box || box.value === text) return;
    const {start, removed, inserted} = difference(box.value, text);
    box.setRangeText(inserted, start, start + removed.length, "preserve");
    box.dispatchEvent(new Event("input", {bubbles: true}));
}

/**
 * Return the values of the page's controls, as far as they are found.
 * @param {string} name of the prompt
 */
export function settings(name) {
    const [, , , start] = BOXES.find(([other]) => other === name) ?? ["", "", "", ""];
    /** @type {{[field: string]: string | number}} */
    const found = {};
    for (const [field, ids] of Object.entries(SETTINGS)) {
        for (const id of ids) {
            const root = document.getElementById(`${start}${id}`);
            /** @type {HTMLInputElement | null | undefined} */
            const input = root?.querySelector("input[type=number]") ?? root?.querySelector("input");
            if (input && input.value !== "") found[field] = input.type === "number" ? Number(input.value) : input.value;
        }
    }
    return found;
}

/**
 * Return the number of steps that the page is set to; null where it has no control for them.
 * @param {string} name of the prompt
 */
export function stepsOf(name) {
    const [, , , start] = BOXES.find(([other]) => other === name) ?? ["", "", "", ""];
    /** @type {HTMLInputElement | null} */
    const input = document.querySelector(`#${start}steps input[type=number]`);
    const steps = Number(input?.value);
    return steps > 0 ? steps : null;
}

/**
 * Write numbers into the page's controls, which hear of it as of typing.
 * @param {string} name of the prompt
 * @param {{[field: string]: number}} values by the fields of `settings`
 * @returns {string[]} the fields that the page has no control for
 */
export function writeSettings(name, values) {
    const [, , , start] = BOXES.find(([other]) => other === name) ?? ["", "", "", ""];
    return Object.entries(values).flatMap(([field, value]) => {
        const ids = SETTINGS[/** @type {keyof typeof SETTINGS} */ (field)];
        const inputs = ids.map((id) => document.getElementById(`${start}${id}`)?.querySelector("input[type=number]"));
        const input = /** @type {HTMLInputElement | undefined} */ (inputs.find(Boolean));
        if (!input) return [field];
        input.value = String(value);
        for (const event of ["input", "change"]) input.dispatchEvent(new Event(event, {bubbles: true}));
        return [];
    });
}

/**
 * Return the picture that the page shows; null where it shows none.
 * @returns {Promise<Blob | null>}
 */
export async function shownPicture() {
    /** @type {HTMLImageElement[]} */
    const images = GALLERIES.flatMap((selector) => [
        .../** @type {NodeListOf<HTMLImageElement>} */ (document.querySelectorAll(selector)),
    ]);
    const image = images.filter((one) => one.naturalWidth > 32).pop();
    if (!image) return null;
    const canvas = Object.assign(document.createElement("canvas"), {
        width: image.naturalWidth,
        height: image.naturalHeight,
    });
    /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).drawImage(image, 0, 0);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/**
 * Put a text on the clipboard; false where the browser does not allow it.
 * @param {string} text
 */
export async function copy(text) {
    if (navigator.clipboard && window.isSecureContext) {
        try {
            await navigator.clipboard.writeText(text);
            return true;
        } catch {
            // not allowed; the old way may be
        }
    }
    const former = focused();
    const box = Object.assign(document.createElement("textarea"), {value: text});
    box.setAttribute("style", "position: fixed; left: -100vw; top: 0");
    box.setAttribute("aria-hidden", "true");
    (former?.closest("dialog") ?? document.body).append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    if (former) former.focus();
    return done;
}

/** Return the element with the focus, also where it is in a shadow root. */
function focused() {
    let element = document.activeElement;
    while (element?.shadowRoot?.activeElement) element = element.shadowRoot.activeElement;
    return /** @type {HTMLElement | null} */ (element);
}
