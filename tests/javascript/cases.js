// The cases that server and browser share.

import {readFileSync} from "node:fs";

/**
 * @typedef {[value: number, at: number]} Pair
 *
 * @typedef {object} PromptEdits
 * @property {[body: string, te: number | string, unet: number | string, wanted: string][]} set_multipliers
 * @property {[body: string, key: string, value: string, wanted: string][]} set_field
 * @property {[text: string, name: string, te: number, unet: number][]} read
 * @property {[text: string, te: Pair[] | null, unet: Pair[] | null][]} curves
 * @property {string[]} refused
 *
 * @typedef {object} RegionCases
 * @property {{[name: string]: [left: number, top: number, right: number, bottom: number]}} named
 * @property {[mask: string, feather: number, share: number, cells: [x: number, y: number, weight: number][]][]} weights
 * @property {string[]} refused masks
 * @property {string[]} names that a region may have
 * @property {string[]} refused_names
 *
 * @typedef {object} SimilarCases
 * @property {[word: string, names: string[], wanted: string[]][]} similar
 * @property {[text: string, wanted: string][]} numbers
 */

/** @param {string} name */
function read(name) {
    return JSON.parse(readFileSync(new URL(`../data/${name}`, import.meta.url), "utf8"));
}

/** @type {PromptEdits} */
export const EDITS = read("prompt_edits.json");

/** @type {[prompt: string, on: boolean, text: string, words: string[][]][]} */
export const GRAMMAR = read("prompt_grammar.json");

/** @type {RegionCases} */
export const REGIONS = read("regions.json");

/** @type {SimilarCases} */
export const SIMILAR = read("similar.json");
