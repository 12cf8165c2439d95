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

/**
 * Say why no step of the first pass is one in which a LoRA acts, or which points of its schedule are not reached.
 * @param {Pick<Reading, "values" | "teCurve" | "unetCurve">} reading
 * @param {number | null} steps that the page is set to; null where they are unknown
 */
export function whyUnreached({values, unetCurve}, steps) {
    const {start, stop} = stepsOf(values);
    const of = passesOf(values.pass).includes("base") ? steps : null;
    // the first two steps count as step 0, so that 1 means 0
    const [begin, end] = [start, stop].map((text) => (text === "" ? null : Number(text) === 1 ? 0 : Number(text)));
    const place = (/** @type {number} */ at) => (at > 0 && at < 1 ? at * (of ?? Number.NaN) : at);
    const said = (/** @type {string} */ text) =>
        Number(text) > 0 && Number(text) < 1 ? `${Number(text) * 100} %` : `step ${text}`;
    const first = Math.ceil(place(begin ?? 0));
    if (end === 0) return `It acts in no step, as it ends at step ${stop}. Steps 0 and 1 are the beginning.`;
    if (of !== null && first >= of)
        return `It acts in no step: it begins after ${said(start)}, and the page is set to ${of} steps.`;
    if (end !== null && first >= place(end))
        return `It acts in no step: it begins after ${said(start)} and ends at ${said(stop)}.`;
    const last = unetCurve?.at(-1)?.at ?? 0;
    const isByStep = !["sigma", "timestep"].includes(values.by?.toLowerCase() ?? "");
    if (of !== null && isByStep && last > 1 && last > of)
        return `Its schedule goes on to step ${last}, and the page is set to ${of} steps.`;
    return "";
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
