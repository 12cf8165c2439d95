// The pictures in the web UI's output folders: what they say of their LoRA, and how these are used again.

/**
 * @import {OutputPicture, OutputPictures} from "../api.d.ts"
 * @import {Tab} from "./main.js"
 */

import {query} from "./api.js";

/**
 * Describe the LoRA of a picture, in a few words each.
 * @param {OutputPicture} picture
 */
export const usesOf = (picture) => picture.loras.map(({name, strength}) => [name, strength].filter(Boolean).join(" "));

/**
 * Return the strength of one LoRA in a picture, as in its tag; of the only one where none has this file.
 * @param {OutputPicture} picture
 * @param {string} id
 */
export function strengthIn(picture, id) {
    const {loras} = picture;
    const found = loras.find((one) => one.id === id) ?? (loras.length === 1 ? loras[0] : undefined);
    return found?.strength ?? "";
}

/**
 * Return a list of pictures with a later page behind it. A picture that came or went meanwhile moves the others, and
 * none is shown twice.
 * @param {OutputPicture[]} shown
 * @param {OutputPicture[]} further
 */
export function joined(shown, further) {
    const ids = new Set(shown.map(({id}) => id));
    return [...shown, ...further.filter(({id}) => !ids.has(id))];
}

const [PAGE, LARGEST_PAGE] = [60, 200]; // pictures of an answer

/**
 * Ask for the latest pictures that used a LoRA: as many as are shown, for some of them may be gone.
 * @param {Tab} tab
 * @param {string} lora id of its file
 * @param {string} words that the prompt has
 * @param {number} shown
 * @returns {Promise<OutputPictures>}
 */
export function latestOf(tab, lora, words, shown) {
    const most = Math.min(LARGEST_PAGE, Math.max(PAGE, shown));
    return tab.api.get(/** @type {const} */ (`outputs?${query({lora, words, most})}`));
}

/**
 * Ask for further pictures that used a LoRA.
 * @param {Tab} tab
 * @param {string} lora id of its file
 * @param {string} words that the prompt has
 * @param {number} skip how many of the latest are shown
 * @returns {Promise<OutputPictures>}
 */
export const furtherOf = (tab, lora, words, skip) =>
    tab.api.get(/** @type {const} */ (`outputs?${query({lora, words, skip})}`));

/**
 * Ask for the latest picture with a seed, which another session may have made.
 * @param {Tab} tab
 * @param {number} seed
 */
export async function withSeed(tab, seed) {
    const told = await tab.api.get(/** @type {const} */ (`outputs?${query({seed, most: 1})}`));
    return told.pictures[0] ?? null;
}

/**
 * Ask what a picture was made with.
 * @param {Tab} tab
 * @param {OutputPicture} picture
 */
export const recipeOf = (tab, {id}) => tab.api.get(/** @type {const} */ (`outputs/picture?${query({id})}`));

/**
 * Return the address of a picture in a small form.
 * @param {OutputPicture} picture
 */
export const thumbnailOf = ({id, time}) => `outputs/thumbnail?${query({id, v: time})}`;
