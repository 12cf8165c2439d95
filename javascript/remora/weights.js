// Block weights: a number for each block of the model, or the name of a preset of them. Pure.

/** @import {BlockPreset, Blocks} from "../api.d.ts" */

import {isFiniteNumber, NUMBER, written} from "./curve.js";
import {asked, similar} from "./similar.js";
import {t} from "./words.js";

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
 * list; the preset is the one that the field names. `write` has the texts that may be meant by a wrong one.
 * @param {string} text
 * @param {Pick<Blocks, "layouts" | "presets">} told
 * @returns {{cells: string[] | null, preset: BlockPreset | null, problem: string, write: string[]}}
 */
export function readWeights(text, told) {
    const ids = told.layouts[0]?.ids ?? [];
    if (!text) return {cells: ids.map(() => "1"), preset: null, problem: "", write: []};
    const preset = told.presets.find(({name}) => name === text) ?? null;
    const cells = (preset ? preset.values : text).split(",").map((cell) => cell.trim());
    const isGood = cells.every((cell) => isFiniteNumber(cell) || isLetter(cell));
    if (!isGood) return {cells: null, preset, ...faultOf(text, cells, told)};
    const layout = told.layouts.find(({length}) => length === cells.length);
    if (layout) return {cells: expanded(cells, layout.ids, ids), preset, problem: "", write: []};
    const isEven = cells.length > 1 && cells.every((cell) => !isLetter(cell) && Number(cell) === Number(cells[0]));
    // a list of equal values fits every model
    if (isEven && ids.length) return {cells: ids.map(() => cells[0]), preset, problem: "", write: []};
    const problem = cells.length === 1 || ids.length ? wrongLength(cells, preset, told) : "";
    return {cells: null, preset, problem, write: []};
}

/**
 * Say which of the cells is no weight, or that the only one is no preset.
 * @param {string} text
 * @param {string[]} cells
 * @param {Pick<Blocks, "presets">} told
 */
function faultOf(text, cells, {presets}) {
    const at = cells.findIndex((cell) => !isFiniteNumber(cell) && !isLetter(cell));
    if (cells.length === 1) {
        const names = similar(
            text,
            presets.map(({name}) => name),
        );
        return {problem: asked(t("blocks.noPreset", {name: text}), names), write: names};
    }
    const upper = cells[at].toUpperCase();
    const write = isLetter(upper) ? [cells.map((cell, place) => (place === at ? upper : cell)).join(",")] : [];
    return {
        problem: t("blocks.notAWeight", {cell: cells[at], example: isLetter(upper) ? upper : t("blocks.aWeight")}),
        write,
    };
}

/**
 * @param {string[]} cells
 * @param {BlockPreset | null} preset
 * @param {Pick<Blocks, "layouts">} told
 */
function wrongLength(cells, preset, {layouts}) {
    if (cells.length === 1) return t("blocks.single", {cell: cells[0]});
    const counts = {count: cells.length, lengths: layouts.map(({length}) => length).join(t("mark.list"))};
    return preset ? t("blocks.lengthOf", {name: preset.name, ...counts}) : t("blocks.length", counts);
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
    if (!name.trim()) return t("presets.giveName");
    if (NOT_IN_NAMES.test(name)) return t("blocks.badName");
    return NUMBER.test(name.trim()) || isLetter(name.trim()) || name.trim() === "*"
        ? t("blocks.isLetter", {name: name.trim()})
        : "";
}
