// What a tag sets besides its strength, in a few words each.

/** @import {Reading, Values} from "../tag.js" */

import {readAmount} from "../curve.js";
import {ruleName} from "../save.js";
import {PASSES, rangeOf} from "../tag.js";
import {t} from "../words.js";

/** @type {{[half: string]: "summary.positive" | "summary.negative" | undefined}} */
const HALVES = {pos: "summary.positive", neg: "summary.negative"};
const AMOUNTS = /** @type {const} */ ({
    hr: "summary.hires",
    hrte: "summary.hiresText",
    hrunet: "summary.hiresUnet",
    in: "summary.in",
    mid: "summary.mid",
    out: "summary.out",
});
const AMOUNT_KEYS = /** @type {(keyof typeof AMOUNTS)[]} */ (Object.keys(AMOUNTS));
/** @type {{[pass: string]: "passes.base" | "passes.hires" | "passes.refiner" | "passes.detailer"}} */
const PASS_NAMES = {
    base: "passes.base",
    hires: "passes.hires",
    refiner: "passes.refiner",
    detailer: "passes.detailer",
};

/** @param {string} pass */
export const passName = (pass) => t(PASS_NAMES[pass]);

/**
 * Describe the settings of a tag besides its strength, in a few words each.
 * @param {Pick<Reading, "values" | "flags" | "teCurve" | "unetCurve">} reading
 */
export function summary({values, flags, teCurve, unetCurve}) {
    const half = HALVES[values.half?.toLowerCase() ?? ""];
    return [
        blocks(values.lbw),
        values.lbwe && t("summary.rules", {name: values.lbwe}),
        values.x && `X ${values.x}`,
        ...AMOUNT_KEYS.map((key) => amount(AMOUNTS[key], values[key])),
        (teCurve || unetCurve) && schedule(values.curve),
        values.by && values.by !== "step" && t("summary.by", {unit: values.by}),
        steps(values),
        values.sigma && t("summary.sigma", {range: values.sigma}),
        passes(values.pass),
        values.mask && t("summary.region", {name: values.mask}),
        values.outside && Number(values.outside) < 1 && t("summary.outside", {amount: values.outside}),
        half && t(half),
        values.rows && t("summary.images", {numbers: values.rows}),
        values.module && t("summary.module", {name: values.module}),
        values.combine && ruleName(values.combine.toLowerCase()),
        values.dyn && t("summary.rank", {number: values.dyn}),
        ...flags,
    ].filter((word) => typeof word === "string" && word !== "");
}

/** @param {string | undefined} shape */
function schedule(shape) {
    return shape && shape !== "linear" ? t("summary.scheduleShape", {shape}) : t("summary.schedule");
}

/** @param {string | undefined} text */
function blocks(text) {
    if (!text) return "";
    if (!text.includes(",")) return t("summary.blocks", {name: text});
    return t("summary.weights", {count: text.split(",").length});
}

/**
 * @param {typeof AMOUNTS[keyof typeof AMOUNTS]} what
 * @param {string | undefined} text
 */
function amount(what, text) {
    if (text === undefined) return "";
    return t(what, {amount: readAmount(text)?.curve ? t("summary.aSchedule") : text});
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
        Number(text) > 0 && Number(text) < 1
            ? t("mark.percent", {number: String(Number(text) * 100)})
            : t("summary.step", {number: text});
    const first = Math.ceil(place(begin ?? 0));
    if (end === 0) return t("summary.neverEnds", {stop});
    if (of !== null && first >= of) return t("summary.neverBegins", {start: said(start), count: of});
    if (end !== null && first >= place(end)) return t("summary.neverBetween", {start: said(start), stop: said(stop)});
    const last = unetCurve?.at(-1)?.at ?? 0;
    const isByStep = !["sigma", "timestep"].includes(values.by?.toLowerCase() ?? "");
    if (of !== null && isByStep && last > 1 && last > of) return t("summary.goesOn", {last: String(last), count: of});
    return "";
}

/** @param {Values} values */
function steps(values) {
    const {start, stop} = stepsOf(values);
    if (!start && !stop) return "";
    const parts = [start, stop].filter(Boolean).map(Number);
    const share = parts.every((part) => part < 1) && parts.some((part) => part > 0);
    const [from, until] = [start, stop].map((part) =>
        share && part ? t("mark.percent", {number: String(Number((Number(part) * 100).toFixed(2)))}) : part,
    );
    if (start && stop) return t(share ? "summary.shares" : "summary.steps", {start: from, stop: until});
    const place = (/** @type {string} */ part) => (share ? part : t("summary.step", {number: part}));
    return start ? t("summary.after", {place: place(from)}) : t("summary.until", {place: place(until)});
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
    return own.length === PASSES.length || !own.length
        ? ""
        : t("summary.passes", {passes: own.map(passName).join(" + ")});
}
