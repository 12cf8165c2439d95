// The web UI's own prompt boxes, and what else of its page is asked.

import {settingsOfPage} from "./language.js";
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
    width: ["width", "before_resize_width"], // the latter in SD.Next's "control"
    height: ["height", "before_resize_height"],
    seed: ["seed"],
    sampler: ["sampling", "sampler"],
    schedule: ["scheduler"],
};
/** Where a web UI shows the parameters text of the picture that it shows; `X` is the name of the prompt. */
const TEXTS = ["#html_info_X", "#X-result", "#infotext textarea"];
const PASTED = 50; // milliseconds in which gradio reads a box
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
 * Put a text in the place of another one, as if the user typed it: the browser's own undo takes it back.
 * @param {HTMLTextAreaElement} box that has the focus
 * @param {number} start
 * @param {number} end
 * @param {string} text
 */
export function insert(box, start, end, text) {
    box.setSelectionRange(start, end);
    if (document.execCommand("insertText", false, text)) return;
    box.setRangeText(text, start, end, "end");
    box.dispatchEvent(new Event("input", {bubbles: true}));
}

/**
 * Tell whether an element is a prompt box.
 * @param {Element} element
 */
export const isPrompt = (element) => BOXES.some(([, prompt, negative]) => element.matches(`${prompt}, ${negative}`));

/**
 * Tell whether the page completes what is typed by other means: the lists of the extension tagcomplete and of SD.Next
 * have this class, also while they are hidden. SD.Next has its list also while its setting is off.
 */
export function completesItself() {
    const lists = document.getElementsByClassName("autocompleteResults").length;
    const isOff = settingsOfPage()?.autocomplete_active === false;
    return lists > (isOff ? 1 : 0);
}

/** What a text needs to break into the same lines as in a box. */
const LINES = /** @type {const} */ ([
    ...["fontFamily", "fontSize", "fontStyle", "fontWeight", "fontStretch", "fontVariant", "fontFeatureSettings"],
    ...["letterSpacing", "wordSpacing", "lineHeight", "textTransform", "textIndent", "tabSize", "direction"],
    ...["paddingTop", "paddingRight", "paddingBottom", "paddingLeft"],
]);

/**
 * Return where a letter of a box is in the window, and the height of its line.
 * @param {HTMLTextAreaElement} box
 * @param {number} at
 */
export function letterPlace(box, at) {
    const copy = document.createElement("div");
    const style = getComputedStyle(box);
    for (const name of LINES) copy.style[name] = style[name];
    copy.style.cssText += `; position: fixed; left: 0; top: 0; visibility: hidden; box-sizing: border-box; width:
        ${box.clientWidth}px; white-space: pre-wrap; overflow-wrap: break-word;`;
    const letter = document.createElement("span");
    letter.textContent = `${box.value.slice(at, at + 60)}.`; // a word moves to the next line as a whole
    copy.append(box.value.slice(0, at), letter);
    document.body.append(copy);
    const {left, top, height} = letter.getClientRects()[0];
    copy.remove();
    const outer = box.getBoundingClientRect();
    const down = Math.min(Math.max(0, top - box.scrollTop), Math.max(0, box.clientHeight - height));
    return {
        left: outer.left + box.clientLeft + left - box.scrollLeft,
        top: outer.top + box.clientTop + down,
        height,
    };
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
 * Have the page read a parameters text as its own button does for a text in its prompt: all settings, too.
 * @param {string} name of the prompt
 * @param {string} text
 * @returns {boolean} false where the page has no such button
 */
export function paste(name, text) {
    const own = name === "prompt" ? "#understand" : `#${name}_paste, #${name}_tools #paste`;
    const button = /** @type {HTMLElement | null} */ (document.querySelector(own));
    const found = find(name);
    if (!button || !found) return false;
    write(found.box, text);
    setTimeout(() => button.click(), PASTED);
    return true;
}

/**
 * @typedef {object} PagePart
 * What the page shows of one prompt, beside its boxes.
 * @property {boolean} possible the page has a button that makes a picture
 * @property {boolean} visible that button can be seen
 * @property {string} label its text, which tells the progress in some web UIs
 * @property {boolean} busy a picture is being made
 * @property {string} picture the address of the picture that is shown; empty where none is
 * @property {number | null} seed of that picture, as far as the page tells it
 */

/** @type {PagePart} */
export const NO_PART = {possible: false, visible: false, label: "", busy: false, picture: "", seed: null};

/**
 * Find a part of the page that belongs to a prompt.
 * @param {string} name of the prompt
 * @param {string[]} parts the ends of ids, of which the first that exists is taken
 */
function partOf(name, ...parts) {
    const [, , , start] = BOXES.find(([other]) => other === name) ?? ["", "", "", ""];
    return parts.map((part) => document.getElementById(`${start}${part}`)).find(Boolean) ?? null;
}

/**
 * Return what the page shows of one prompt.
 * @param {string} name of the prompt
 * @returns {PagePart}
 */
export function pagePart(name) {
    const button = /** @type {HTMLButtonElement | null} */ (partOf(name, "generate"));
    const picture = pictureOf(name);
    return {
        possible: button !== null,
        visible: Boolean(button?.getClientRects().length),
        label: labelOf(button),
        busy: Boolean(button?.disabled) || partOf(name, "interrupt")?.style.display === "block",
        picture: picture?.src ?? "",
        seed: picture ? seedOf(shownText(name)) : null,
    };
}

/**
 * Return the text of a button; once, where the page repeats it in an element beside it, as SD.Next's Modern UI does.
 * @param {HTMLElement | null} button
 */
function labelOf(button) {
    const nodes = [...(button?.childNodes ?? [])].filter((node) => node.nodeName !== "#comment");
    return nodes.map((node) => node.textContent?.trim()).find(Boolean) ?? "";
}

/**
 * Press the page's own button: the one that makes a picture, or the one that stops it.
 * @param {string} name of the prompt
 * @param {"generate" | "stop"} what
 */
export function press(name, what) {
    const button = what === "generate" ? partOf(name, "generate") : partOf(name, "interrupt", "cancel");
    const field = focused();
    field?.blur(); // a text that is still being typed is taken when its field is left
    button?.click();
    field?.focus({preventScroll: true});
}

/**
 * Find the picture that the page shows: the chosen one of the gallery, else its first.
 * @param {string} name of the prompt
 * @returns {HTMLImageElement | null}
 */
function pictureOf(name) {
    const gallery = partOf(name, "gallery");
    return gallery?.querySelector(".thumbnail-item.selected img") ?? gallery?.querySelector("img") ?? null;
}

/**
 * Return the parameters text of the picture that the page shows. What web UIs of A1111's family keep for all pictures
 * of the gallery is asked first: the text below the gallery is that of the picture that was clicked last.
 * @param {string} name of the prompt
 */
export function shownText(name) {
    /** @type {HTMLTextAreaElement | null} */
    const all = document.querySelector(`#generation_info_${name} textarea`);
    const items = [...(partOf(name, "gallery")?.querySelectorAll(".thumbnail-item") ?? [])];
    const selected = items.filter((item) => item.closest(".thumbnails")).findIndex((item) => item.matches(".selected"));
    const text = textAt(all?.value ?? "", Math.max(0, selected));
    if (text) return text;
    const texts = TEXTS.map((place) => {
        /** @type {HTMLTextAreaElement | null} */
        const element = document.querySelector(place.replace("X", name));
        return element?.value ?? element?.textContent ?? "";
    });
    return texts.find((one) => seedOf(one) !== null) ?? "";
}

/**
 * Return one parameters text of those that A1111 and its relatives keep as JSON; empty where there is none.
 * @param {string} json
 * @param {number} index of the picture
 */
export function textAt(json, index) {
    /** @type {{infotexts?: unknown}} */
    let told = {};
    try {
        told = JSON.parse(json) ?? {};
    } catch {
        return ""; // no picture was made yet
    }
    const text = Array.isArray(told.infotexts) ? told.infotexts[index] : "";
    return typeof text === "string" ? text : "";
}

/**
 * Return the seed that a parameters text tells; null where it tells none.
 * @param {string} text
 */
export function seedOf(text) {
    const seed = Number([...text.matchAll(/\bSeed: ?(\d+)/g)].pop()?.[1] ?? "x");
    return Number.isSafeInteger(seed) ? seed : null;
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
    const image = images.filter((one) => one.naturalWidth > 32 || !one.complete).pop();
    if (!image) return null;
    // a page loads no picture that is out of sight: the image has no pixels before its tab was shown
    const whole = Object.assign(new Image(), {src: image.currentSrc || image.src});
    try {
        await whole.decode();
    } catch {
        return null; // its file is gone
    }
    const {naturalWidth: width, naturalHeight: height} = whole;
    const canvas = Object.assign(document.createElement("canvas"), {width, height});
    /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).drawImage(whole, 0, 0);
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
