// What a tag sets besides its strength, in a few words each.

/** @import {Reading, Values} from "../tag.js" */

import {readAmount} from "../curve.js";
import {PASSES, rangeOf} from "../tag.js";

const HALVES = new Map([
    ["pos", "positive prompt only"],
    ["neg", "negative prompt only"],
]);
/** @type {{[key: string]: string}} */
const AMOUNTS = {hr: "hires", hrte: "hires text", hrunet: "hires UNet", in: "in", mid: "mid", out: "out"};

/**
 * Describe the settings of a tag besides its strength, in a few words each.
 * @param {Pick<Reading, "values" | "flags" | "teCurve" | "unetCurve">} reading
 */
export function summary({values, flags, teCurve, unetCurve}) {
    return [
        blocks(values.lbw),
        values.lbwe && `block rules ${values.lbwe}`,
        values.x && `X ${values.x}`,
        ...Object.keys(AMOUNTS).map((key) => values[key] !== undefined && amount(AMOUNTS[key], values[key])),
        (teCurve || unetCurve)
            && ["schedule", values.curve && values.curve !== "linear" && `(${values.curve})`].filter(Boolean).join(" "),
        values.by && values.by !== "step" && `by ${values.by}`,
        steps(values),
        values.sigma && `sigma ${values.sigma}`,
        passes(values.pass),
        values.mask && `region ${values.mask}`,
        HALVES.get(values.half?.toLowerCase() ?? ""),
        values.rows && `images ${values.rows}`,
        values.module && `module ${values.module}`,
        values.dyn && `rank ${values.dyn}`,
        ...flags,
    ].filter(Boolean);
}

/** @param {string | undefined} text */
function blocks(text) {
    if (!text) return "";
    return text.includes(",") ? `${text.split(",").length} block weights` : `blocks ${text}`;
}

/**
 * @param {string} what
 * @param {string} text
 */
function amount(what, text) {
    return readAmount(text)?.curve ? `${what} schedule` : `${what} ${text}`;
}

/**
 * Return from which step a LoRA acts and until which, as text; both may be empty.
 * @param {Values} values
 */
export function stepsOf(values) {
    const [start, stop] = rangeOf(values.step ?? "") ?? ["", ""];
    return {start: start || (values.start ?? ""), stop: stop || (values.stop ?? "")};
}

/** @param {Values} values */
function steps(values) {
    const {start, stop} = stepsOf(values);
    if (!start && !stop) return "";
    const parts = [start, stop].filter(Boolean).map(Number);
    const share = parts.every((part) => part < 1) && parts.some((part) => part > 0);
    const [from, until] = [start, stop].map((part) =>
        share && part ? `${Number((Number(part) * 100).toFixed(2))} %` : part,
    );
    if (start && stop) return share ? `${from} to ${until}` : `steps ${from}-${until}`;
    return start ? `after ${share ? "" : "step "}${from}` : `until ${share ? "" : "step "}${until}`;
}

/**
 * Return the passes that a field names, in their order.
 * @param {string | undefined} text
 */
export function passesOf(text) {
    if (!text) return PASSES;
    const named = text.split(/[,+]/).map((part) => part.trim().toLowerCase());
    return PASSES.filter((one) => named.includes(one));
}

/** @param {string | undefined} text */
function passes(text) {
    const own = passesOf(text);
    return own.length === PASSES.length || !own.length ? "" : `${own.join(" + ")} only`;
}
