// Block weights: a number for each block of the model, or the name of a preset of them. Pure.

import {NUMBER, written} from "./curve.js";

const LETTER = /^(?:R|U|X(?:[+-](?:\d+\.?\d*|\.\d+))?)$/; // drawn at random, or whatever X is
const NOT_IN_NAMES = /[:,<>=#]/;
// What a block is that a list has no weight for, as the engine has it; any other is 0.
const INSTEAD = {BASE: ["CLIP", "T5"], CLIP: ["BASE"], T5: ["BASE"]};
const KEPT = ["BASE", "CLIP", "T5", "IN", "OUT"];

export const isLetter = (cell) => LETTER.test(cell);

/** The blocks that are shown: [{id, title}]. */
export function shownBlocks({blocks, layouts}) {
    const titles = Object.fromEntries(blocks.map(({id, title}) => [id, title]));
    return (layouts[0]?.ids ?? []).map((id) => ({id, title: titles[id] ?? ""}));
}

/**
 * What a field says to a model: {cells, preset, problem}. Cells are the texts for the shown blocks, null where the
 * model takes no such list; the preset is that whose name it is.
 */
export function readWeights(text, told) {
    const ids = told.layouts[0]?.ids ?? [];
    if (!text) return {cells: ids.map(() => "1"), preset: null, problem: ""};
    const preset = told.presets.find(({name}) => name === text)
        ?? told.presets.find(({name}) => name.toLowerCase() === text.toLowerCase()) ?? null;
    const cells = (preset ? preset.values : text).split(",").map((cell) => cell.trim());
    const layout = told.layouts.find(({length}) => length === cells.length);
    const bad = cells.find((cell) => !NUMBER.test(cell) && !isLetter(cell));
    const problem = problemOf(text, cells, bad, layout, told, preset);
    return {cells: layout && bad === undefined ? expanded(cells, layout.ids, ids) : null, preset, problem};
}

function problemOf(text, cells, bad, layout, told, preset) {
    if (bad !== undefined && cells.length === 1) return `There is no preset “${text}”.`;
    if (bad !== undefined) return `“${bad}” is no block weight: write a number, R, U or X.`;
    if (layout || !told.layouts.length) return "";
    const count = cells.length === 1 ? "1 value" : `${cells.length} values`;
    return `${preset ? `${preset.name} has ${count}` : count}; the loaded model takes ${told.layouts.map(({length}) => length).join(", ")}.`;
}

function expanded(cells, from, to) {
    const given = Object.fromEntries(from.map((id, at) => [id, cells[at]]));
    return to.map((id) => given[id] ?? given[INSTEAD[id]?.find((other) => other in given)] ?? (KEPT.includes(id) ? "1" : "0"));
}

/** The cells as text of a field: nothing where all are 1. */
export function writeWeights(cells) {
    return cells.every((cell) => Number(cell) === 1) ? "" : cells.join(",");
}

/** The cells with numbers from one to another, the values between them in even steps. */
export function painted(cells, from, to) {
    const changed = [...cells];
    const count = Math.abs(to.at - from.at);
    for (let step = 0; step <= count; step += 1) {
        const at = from.at + Math.sign(to.at - from.at) * step;
        changed[at] = written(snapped(from.value + (to.value - from.value) * (count ? step / count : 1)));
    }
    return changed;
}

export const snapped = (value) => Number((Math.round(value * 20) / 20).toFixed(2));

/** What is wrong with the name of a preset; empty where nothing is. */
export function nameProblem(name) {
    if (!name.trim()) return "Give the preset a name.";
    if (NOT_IN_NAMES.test(name)) return "A name has none of : , < > = #";
    return NUMBER.test(name.trim()) || isLetter(name.trim()) || name.trim() === "*" ? `“${name.trim()}” is a weight, and no name.` : "";
}
