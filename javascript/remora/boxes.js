// The web UI's own prompt boxes, and what else of its page is asked.

import {difference} from "./prompt.js";

// Where web UIs have their prompts: name, prompt, negative prompt, and the beginning of the ids of the settings.
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

/** The boxes there are: [{name, box, negative}]. */
export function boxes() {
    return BOXES.map(([name, prompt, negative]) =>
        ({name, box: document.querySelector(prompt), negative: document.querySelector(negative)})).filter(({box}) => box);
}

export function find(name) {
    return boxes().find((one) => one.name === name);
}

/** Put a text into a box: only what differs, so that the cursor stays where it is; the page learns of it as of typing. */
export function write(box, text) {
    if (!box || box.value === text) return;
    const {start, removed, inserted} = difference(box.value, text);
    box.setRangeText(inserted, start, start + removed.length, "preserve");
    box.dispatchEvent(new Event("input", {bubbles: true}));
}

/** What the page's controls are set to, as far as they are found. */
export function settings(name) {
    const [, , , start] = BOXES.find(([other]) => other === name) ?? ["", "", "", ""];
    const found = {};
    for (const [field, ids] of Object.entries(SETTINGS)) {
        for (const id of ids) {
            const root = document.getElementById(`${start}${id}`);
            const input = root && (root.querySelector("input[type=number]") ?? root.querySelector("input"));
            if (input && input.value !== "") found[field] = input.type === "number" ? Number(input.value) : input.value;
        }
    }
    return found;
}

/** The picture that the page shows, as a Blob; null where it shows none. */
export async function shownPicture() {
    const image = GALLERIES.flatMap((selector) => [...document.querySelectorAll(selector)])
        .filter((one) => one.naturalWidth > 32).pop();
    if (!image) return null;
    const canvas = Object.assign(document.createElement("canvas"), {width: image.naturalWidth, height: image.naturalHeight});
    canvas.getContext("2d").drawImage(image, 0, 0);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

export async function copy(text) {
    if (navigator.clipboard && window.isSecureContext) {
        try {
            await navigator.clipboard.writeText(text);
            return true;
        } catch {
            // not allowed; the old way may be
        }
    }
    const former = document.activeElement;
    const box = Object.assign(document.createElement("textarea"), {value: text, className: "remora-offscreen"});
    box.setAttribute("aria-hidden", "true");
    (former && former.closest("dialog") ? former.closest("dialog") : document.body).append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    if (former) former.focus();
    return done;
}
