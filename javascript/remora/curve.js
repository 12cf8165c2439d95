// Amounts: a number, or points of a curve over the generation, `value@position`. Pure; the server's
// lib_lora/strengths/strength.py reads them alike.

/**
 * @typedef {{value: number, at: number}} Point
 * A strength, and where in the generation it holds: as a part of the pass up to 1, else a step or another position.
 *
 * @typedef {Point[]} Curve
 * At least one point, in the order of positions.
 *
 * @typedef {{value: number, curve: Curve | null}} Amount
 * A number, whose curve is null; or a curve, whose value is the one farthest from 0.
 */

export const NUMBER = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?$/i;
const LARGEST = 3.4e38; // just below the largest number of float32, in which strengths are applied
export const SHAPES = ["linear", "step", "cosine"];

/**
 * Write a number as a tag has it; a text stays as it is.
 * @param {number | string} value
 */
export function written(value) {
    return typeof value === "string" ? value : String(Number(value.toFixed(6)));
}

/**
 * Read an amount; null where the text is neither a number nor a curve.
 * @param {string} text
 * @returns {Amount | null}
 */
export function readAmount(text) {
    if (!/[@~]/.test(text)) return isFiniteNumber(text) ? {value: Number(text), curve: null} : null;
    const points = text.split(/[,;]/).map(readPoint);
    if (!points.every((point) => point !== null)) return null;
    const curve = points.sort((one, other) => one.at - other.at);
    return {value: peak(curve), curve};
}

/**
 * @param {string} text
 * @returns {Point | null}
 */
function readPoint(text) {
    const [value, at = "1", ...others] = text.split(/[@~]/).map((part) => part.trim());
    return !others.length && isFiniteNumber(value) && isFiniteNumber(at)
        ? {value: Number(value), at: Number(at)}
        : null;
}

/**
 * Tell whether a text is a number that a strength may be; one like 1e39 is not.
 * @param {string} text
 */
export const isFiniteNumber = (text) => NUMBER.test(text.trim()) && Math.abs(Number(text)) <= LARGEST;

/**
 * Write points as text.
 * @param {Curve} points
 */
export function writePoints(points) {
    return points.map(({value, at}) => `${written(value)}@${written(at)}`).join(",");
}

/**
 * Find the value that is farthest from 0.
 * @param {Curve} points
 */
export function peak(points) {
    return points.reduce((most, {value}) => (Math.abs(value) > Math.abs(most) ? value : most), 0);
}

/**
 * Tell whether positions are parts of the pass; otherwise they are steps.
 * @param {Curve} points
 */
export function isByFraction(points) {
    return points.every(({at}) => at <= 1);
}

/**
 * Return the value at a position; the first and the last value hold before and behind all points.
 * @param {Curve} points
 * @param {number} position
 * @param {string} [shape] one of SHAPES; any other is linear
 */
export function valueAt(points, position, shape = "linear") {
    const behind = points.findIndex(({at}) => at > position);
    if (behind === 0) return points[0].value;
    if (behind < 0) return points[points.length - 1].value;
    const [low, high] = [points[behind - 1], points[behind]];
    if (shape === "step") return low.value;
    const share = (position - low.at) / (high.at - low.at);
    return low.value + (high.value - low.value) * (shape === "cosine" ? 0.5 - 0.5 * Math.cos(Math.PI * share) : share);
}
