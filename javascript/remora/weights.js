// Block weights: a number for each block of the model, or the name of a preset of them. Pure.

/** @import {BlockPreset, Blocks, Layout} from "../api.d.ts" */

import {isFiniteNumber, NUMBER, written} from "./curve.js";

const LETTER = /^(?:R|U|X(?:[+-](?:\d+(?:\.\d*)?|\.\d+))?)$/; // drawn at random, or whatever X is
const NOT_IN_NAMES = /[:,<>=#]/;
// What a block is that a list has no weight for, as the engine has it; any other is 0.
const INSTEAD = new Map([
    ["BASE", ["CLIP", "T5"]],
    ["CLIP", ["BASE"]],
    ["T5", ["BASE"]],
]);
const KEPT = ["BASE", "CLIP", "T5", "IN", "OUT"];

/** @param {string} cell */
export const isLetter = (cell) => LETTER.test(cell);

/**
 * Return the blocks that are shown.
 * @param {Pick<Blocks, "blocks" | "layouts">} told
 */
export function shownBlocks({blocks, layouts}) {
    const titles = new Map(blocks.map(({id, title}) => [id, title]));
    return (layouts[0]?.ids ?? []).map((id) => ({id, title: titles.get(id) ?? ""}));
}

/**
 * Read a field for a model. The cells are the texts for the shown blocks, null where the model takes no such
 * list; the preset is the one that the field names.
 * @param {string} text
 * @param {Pick<Blocks, "layouts" | "presets">} told
 * @returns {{cells: string[] | null, preset: BlockPreset | null, problem: string}}
 */
export function readWeights(text, told) {
    const ids = told.layouts[0]?.ids ?? [];
    if (!text) return {cells: ids.map(() => "1"), preset: null, problem: ""};
    const preset =
        told.presets.find(({name}) => name === text)
        ?? told.presets.find(({name}) => name.toLowerCase() === text.toLowerCase())
        ?? null;
    const cells = (preset ? preset.values : text).split(",").map((cell) => cell.trim());
    const layout = told.layouts.find(({length}) => length === cells.length);
    const bad = cells.find((cell) => !isFiniteNumber(cell) && !isLetter(cell));
    const problem = problemOf(text, cells, bad, layout, told, preset);
    return {cells: layout && bad === undefined ? expanded(cells, layout.ids, ids) : null, preset, problem};
}

/**
 * @param {string} text
 * @param {string[]} cells
 * @param {string | undefined} bad the first cell that is no weight
 * @param {Layout | undefined} layout
 * @param {Pick<Blocks, "layouts">} told
 * @param {BlockPreset | null} preset
 */
function problemOf(text, cells, bad, layout, told, preset) {
    if (bad !== undefined && cells.length === 1) return `There is no preset “${text}”.`;
    if (bad !== undefined) return `“${bad}” is not a block weight: write a number, R, U or X.`;
    if (layout || !told.layouts.length) return "";
    const count = cells.length === 1 ? "1 value" : `${cells.length} values`;
    return `${preset ? `${preset.name} has ${count}` : count}; the loaded model takes ${told.layouts.map(({length}) => length).join(", ")}.`;
}

/**
 * @param {string[]} cells
 * @param {string[]} from
 * @param {string[]} to
 */
function expanded(cells, from, to) {
    const given = new Map(from.map((id, at) => [id, cells[at]]));
    return to.map((id) => {
        const other = INSTEAD.get(id)?.find((one) => given.has(one)) ?? "";
        return given.get(id) ?? given.get(other) ?? (KEPT.includes(id) ? "1" : "0");
    });
}

/**
 * Write cells as text of a field: nothing where all are 1.
 * @param {string[]} cells
 */
export function writeWeights(cells) {
    return cells.every((cell) => Number(cell) === 1) ? "" : cells.join(",");
}

/**
 * Return the cells with numbers from one to another, the values between them in even steps.
 * @param {string[]} cells
 * @param {{at: number, value: number}} from
 * @param {{at: number, value: number}} to
 */
export function painted(cells, from, to) {
    const changed = [...cells];
    const count = Math.abs(to.at - from.at);
    for (let step = 0; step <= count; step += 1) {
        const at = from.at + Math.sign(to.at - from.at) * step;
        changed[at] = written(snapped(from.value + (to.value - from.value) * (count ? step / count : 1)));
    }
    return changed;
}

/** @param {number} value */
export const snapped = (value) => Number((Math.round(value * 20) / 20).toFixed(2));

/**
 * Return the problem of a name for a preset, empty if it has none.
 * @param {string} name
 */
export function nameProblem(name) {
    if (!name.trim()) return "Give the preset a name.";
    if (NOT_IN_NAMES.test(name)) return "A name must not contain : , < > = #";
    return NUMBER.test(name.trim()) || isLetter(name.trim()) || name.trim() === "*"
        ? `“${name.trim()}” is a weight, not a name.`
        : "";
}
