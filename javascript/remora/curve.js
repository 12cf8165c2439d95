// Amounts: a number, or points of a curve over the generation, `value@position`. Pure; the server's
// lib_lora/schedule.py reads them alike.

export const NUMBER = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i;
export const SHAPES = ["linear", "step", "cosine"];

/** A number as it is written into a tag; what is text already stays. */
export function written(value) {
    return typeof value === "string" ? value : String(Number(value.toFixed(6)));
}

/** An amount from text: {value, curve}, where value is the farthest from 0 and curve null for a number; null for neither. */
export function readAmount(text) {
    if (!/[@~]/.test(text)) return isFinite(text) ? {value: Number(text), curve: null} : null;
    const points = text.split(/[,;]/).map(readPoint);
    if (points.includes(null)) return null;
    const curve = points.sort((one, other) => one.at - other.at);
    return {value: peak(curve), curve};
}

function readPoint(text) {
    const [value, at = "1", ...others] = text.split(/[@~]/).map((part) => part.trim());
    return !others.length && isFinite(value) && isFinite(at) ? {value: Number(value), at: Number(at)} : null;
}

const isFinite = (text) => NUMBER.test(text.trim()) && Number.isFinite(Number(text));

/** The points as text. */
export function writePoints(points) {
    return points.map(({value, at}) => `${written(value)}@${written(at)}`).join(",");
}

/** The value that is farthest from 0. */
export function peak(points) {
    return points.reduce((most, {value}) => Math.abs(value) > Math.abs(most) ? value : most, 0);
}

/** Whether positions are parts of the pass; otherwise they are steps. */
export function isByFraction(points) {
    return points.every(({at}) => at <= 1);
}

/** The value at a position; the first and the last hold before and behind them. */
export function valueAt(points, position, shape = "linear") {
    const behind = points.findIndex(({at}) => at > position);
    if (behind === 0) return points[0].value;
    if (behind < 0) return points[points.length - 1].value;
    const [low, high] = [points[behind - 1], points[behind]];
    if (shape === "step") return low.value;
    const share = (position - low.at) / (high.at - low.at);
    return low.value + (high.value - low.value) * (shape === "cosine" ? 0.5 - 0.5 * Math.cos(Math.PI * share) : share);
}
