// Parts of the picture: what `mask=` says, as weights on a grid over the picture. Pure; the server's
// extension/text/regions.py reads the same, and one table of cases holds both.

import {written} from "./curve.js";
import {asked, similar} from "./similar.js";
import {t} from "./words.js";

/**
 * @typedef {number[]} Weights
 * SIDE * SIDE numbers from 0 to 1, row by row from the top.
 *
 * @typedef {[left: number, top: number, right: number, bottom: number]} Edges
 * Parts of the picture, from 0 to 1.
 *
 * @typedef {{name: string, inverted: boolean, edges: Edges | null}} MaskPart
 * A rectangle has edges; anything else is a name.
 */

export const SIDE = 64; // cells along each edge
const EDGE = String.raw`\s*(?:\d+(?:\.\d*)?|\.\d+)\s*`;
const EDGES = new RegExp(`^${EDGE}(?:,${EDGE}){3}$`);
const NAME = /^\p{L}(?:[\p{L}\p{N}_ \-.()]*[\p{L}\p{N}_)])?$/u; // no file is called so that ends in a dot or a blank
const MAX_NAME = 60;

/**
 * Read the parts of a text.
 * @param {string} text
 * @returns {MaskPart[]}
 */
export function readMask(text) {
    return text.split("+").map((part) => {
        let name = part.trim(),
            inverted = false;
        while (name.startsWith("!")) {
            name = name.slice(1).trim();
            inverted = !inverted;
        }
        return {name, inverted, edges: EDGES.test(name) ? /** @type {Edges} */ (name.split(",").map(Number)) : null};
    });
}

/**
 * Return the problem of a text, empty if it has none.
 * @param {string} text
 * @param {string[]} names that are known
 */
export function maskProblem(text, names) {
    for (const {name, edges} of readMask(text)) {
        if (!name) return t("regions.missing");
        if (edges) {
            const [left, top, right, bottom] = edges;
            if (edges.some((edge) => edge > 1) || left >= right || top >= bottom) {
                return t("regions.noRectangle", {name});
            }
        } else if (!names.includes(name)) {
            const said = t("regions.unknown", {name});
            return asked(said, similar(name, names), said);
        }
    }
    return "";
}

/**
 * Return texts that may be meant by one whose first unknown name is similar to known ones.
 * @param {string} text
 * @param {string[]} names that are known
 * @returns {{names: string[], texts: string[]}}
 */
export function masksMeant(text, names) {
    const parts = text.split("+");
    const at = readMask(text).findIndex(({name, edges}) => name && !edges && !names.includes(name));
    const {name} = readMask(text)[at] ?? {name: ""};
    const meant = similar(name, names);
    const texts = meant.map((one) =>
        parts.map((part, place) => (place === at ? part.replace(name, () => one) : part)).join("+"),
    );
    return {names: meant, texts};
}

/**
 * Return a text for all of the picture but the region of a text, or the region of one for all but it; null where the
 * text has several parts, whose outside no text says.
 * @param {string} text
 */
export function invertedText(text) {
    const [{name, inverted: is}, ...others] = readMask(text);
    return others.length || !name ? null : `${is ? "" : "!"}${name}`;
}

/**
 * Return the problem of a name for a new region, empty if it has none.
 * @param {string} name
 * @param {string[]} taken
 */
export function nameProblem(name, taken) {
    if (!name) return t("regions.giveName");
    if ([...name].length > MAX_NAME || !NAME.test(name)) return t("regions.badName");
    return taken.includes(name) ? t("regions.taken", {name}) : "";
}

/**
 * Return the share of each cell that is inside of edges.
 * @param {Edges} edges
 * @returns {Weights}
 */
export function rectangle([left, top, right, bottom]) {
    const across = covered(left, right),
        down = covered(top, bottom);
    return down.flatMap((row) => across.map((column) => row * column));
}

/**
 * @param {number} start
 * @param {number} stop
 */
function covered(start, stop) {
    return Array.from(
        {length: SIDE},
        (_, at) => Math.max(0, Math.min(stop, (at + 1) / SIDE) - Math.max(start, at / SIDE)) * SIDE,
    );
}

/** @type {(weights: Weights) => Weights} */
export const inverted = (weights) => weights.map((weight) => 1 - weight);
/** @type {(one: Weights, other: Weights) => Weights} */
export const joined = (one, other) => one.map((weight, at) => Math.max(weight, other[at]));
/** @type {() => Weights} */
export const nothing = () => Array(SIDE * SIDE).fill(0);

/**
 * Fade edges over a part of the picture, but not at the picture’s own edge.
 * @param {Weights} weights
 * @param {number} width
 * @returns {Weights}
 */
export function feathered(weights, width) {
    const cells = width * SIDE,
        reach = Math.ceil(Math.max(cells - 1, 0) / 2);
    if (!reach) return weights;
    const box = Array(2 * reach + 1).fill(1);
    box[0] = box[2 * reach] = (cells - (2 * reach - 1)) / 2;
    const sum = box.reduce((total, part) => total + part);
    const within = (/** @type {number} */ place) => Math.min(SIDE - 1, Math.max(0, place));
    /** @type {(from: Weights, index: (row: number, column: number, by: number) => number) => Weights} */
    const faded = (from, index) =>
        Array.from({length: SIDE * SIDE}, (_, at) => {
            const row = Math.floor(at / SIDE),
                column = at % SIDE;
            return box.reduce((total, part, place) => total + part * from[index(row, column, place - reach)], 0) / sum;
        });
    const down = faded(weights, (row, column, by) => within(row + by) * SIDE + column);
    return faded(down, (row, column, by) => row * SIDE + within(column + by));
}

/**
 * Return the weights that a text stands for; null where it cannot be read.
 * @param {string} text
 * @param {number} feather
 * @param {{[name: string]: Weights | undefined}} known
 * @returns {Weights | null}
 */
export function weightsOf(text, feather, known) {
    const parts = readMask(text).map(({name, edges, inverted: other}) => {
        const own = edges ? rectangle(edges) : Object.hasOwn(known, name) ? known[name] : undefined;
        return own && other ? inverted(own) : own;
    });
    return parts.every((part) => part !== undefined) ? feathered(parts.reduce(joined), feather) : null;
}

/**
 * Return the weights after a round brush was at a place.
 * @param {Weights} weights
 * @param {number} x in cells, as all lengths here
 * @param {number} y
 * @param {number} size
 * @param {number} value 1 to paint and 0 to erase
 * @returns {Weights}
 */
export function brushed(weights, x, y, size, value) {
    const reach = size / 2;
    return weights.map((weight, at) => {
        const away = Math.hypot((at % SIDE) + 0.5 - x, Math.floor(at / SIDE) + 0.5 - y);
        const share = Math.min(1, Math.max(0, reach - away + 0.5)); // soft by a cell, or edges would be stairs
        return value ? Math.max(weight, share) : Math.min(weight, 1 - share);
    });
}

/**
 * Return the weights after the brush was drawn from one place to another.
 * @param {Weights} weights
 * @param {{x: number, y: number}} from
 * @param {{x: number, y: number}} to
 * @param {number} size
 * @param {number} value 1 to paint and 0 to erase
 */
export function stroked(weights, from, to, size, value) {
    const steps = Math.max(1, Math.ceil(Math.hypot(to.x - from.x, to.y - from.y) / Math.max(1, size / 3)));
    let drawn = weights;
    for (let step = 1; step <= steps; step++) {
        const share = step / steps;
        drawn = brushed(drawn, from.x + (to.x - from.x) * share, from.y + (to.y - from.y) * share, size, value);
    }
    return drawn;
}

/**
 * Tell how much of the picture weights are, in percent.
 * @param {Weights} weights
 */
export function percent(weights) {
    return written(Math.round((weights.reduce((total, weight) => total + weight, 0) / weights.length) * 100));
}
