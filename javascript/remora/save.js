// What the user wants of a file that is saved, as the server takes it. Pure.

/** @import {SaveWanted} from "../api.d.ts" */

import {percent} from "./check.js";
import {t} from "./words.js";

/**
 * @typedef {"exact" | "rank" | "size" | "error"} FileForm
 *
 * @typedef {object} Form
 * What the fields hold.
 * @property {string} name
 * @property {string} folder
 * @property {FileForm} form
 * @property {string} rank
 * @property {string} size in MB
 * @property {string} error in percent
 * @property {string} dtype
 * @property {string} how
 * @property {string} density in percent
 * @property {string} step from 1
 * @property {number | null} steps of the page
 * @property {boolean} picture
 * @property {boolean} replace
 *
 * @typedef {{name: string, text: string, varies: boolean}} SavedTag
 * A tag that is saved; `varies` where its strength differs from step to step.
 *
 * @typedef {{rows: SavedTag[], several: boolean, varies: boolean}} Parts
 */

/** @type {Omit<Form, "name" | "steps">} */
export const FIRST = {
    folder: "",
    form: "exact",
    rank: "16",
    size: "100",
    error: "5",
    dtype: "float16",
    how: "sum",
    density: "50",
    step: "1",
    picture: true,
    replace: false,
};
export const FORMS = /** @type {const} */ ({
    exact: "save.exact",
    rank: "save.byRank",
    size: "save.bySize",
    error: "save.byError",
});
/** What the number of a form is called. */
export const UNITS = /** @type {const} */ ({
    rank: "save.rankAtMost",
    size: "save.sizeAtMost",
    error: "save.errorAtMost",
});
export const DTYPES = /** @type {const} */ ({
    float16: "save.float16",
    bfloat16: "save.bfloat16",
    float32: "save.float32",
});
export const COMBINED = /** @type {const} */ ({
    sum: "save.sum",
    orthogonal: "save.orthogonal",
    ties_svd: "save.ties",
    dare_linear_svd: "save.dare",
    dare_ties_svd: "save.dareTies",
    magnitude_prune_svd: "save.magnitude",
});
const STEPS = 20; // where the page tells none
const TINY = 0.001; // share below which an error is not told
const MB = 1024 ** 2;
const LONGEST = 60; // characters of a name that is made
const MOST = 1e6; // of the number of a field

/** @param {string} how */
export const needsDensity = (how) => how !== "sum" && how !== "orthogonal";

/**
 * Return a name for the file of some LoRA.
 * @param {string[]} names
 */
export function nameOf(names) {
    const last = names.map((name) => name.slice(name.lastIndexOf("/") + 1));
    const made = last.join(" + ").replace(/[<>:"\\|?*]/g, "_");
    return made.slice(0, LONGEST).replace(/[ .+]+$/, "");
}

/** @param {string} text */
const numberIn = (text) => (/^\s*\d+(?:[.,]\d+)?\s*$/.test(text) ? Number(text.replace(",", ".")) : Number.NaN);

/**
 * Say what is wrong with the numbers that count.
 * @param {Form} form
 * @param {Parts} parts
 * @returns {{[field: string]: string | undefined}}
 */
export function wrongOf(form, {several, varies}) {
    const steps = form.steps ?? STEPS;
    /** @type {[field: string, text: string, low: number, high: number, isWhole: boolean][]} */
    const limits = [
        ...(form.form === "rank" ? [limit("rank", form.rank, 1, MOST, true)] : []),
        ...(form.form === "size" ? [limit("size", form.size, 0.01, MOST)] : []),
        ...(form.form === "error" ? [limit("error", form.error, 0.01, 99)] : []),
        ...(several && needsDensity(form.how) ? [limit("density", form.density, 1, 100)] : []),
        ...(varies ? [limit("step", form.step, 1, steps, true)] : []),
    ];
    const wrong = limits.filter(([, text, low, high, isWhole]) => {
        const number = numberIn(text);
        return !(number >= low && number <= high) || (isWhole && !Number.isInteger(number));
    });
    return Object.fromEntries(
        wrong.map(([field, , low, high, isWhole]) => [
            field,
            t(isWhole ? "save.wrongWhole" : "save.wrongNumber", {low, high}),
        ]),
    );
}

/** @type {(field: string, text: string, low: number, high: number, isWhole?: boolean) => [string, string, number, number, boolean]} */
const limit = (field, text, low, high, isWhole = false) => [field, text, low, high, isWhole];

/**
 * Return what the server is asked for, but for the name of the file; the numbers of the form are right.
 * @param {Form} form
 * @param {Parts} parts
 * @returns {SaveWanted}
 */
export function bodyOf(form, {rows, several, varies}) {
    /** @type {SaveWanted} */
    const body = {
        tags: rows.map(({text}) => text),
        folder: form.folder,
        dtype: /** @type {SaveWanted["dtype"]} */ (form.dtype),
    };
    if (form.form === "rank") body.rank = numberIn(form.rank);
    if (form.form === "size") body.size = Math.round(numberIn(form.size) * MB);
    if (form.form === "error") body.error = numberIn(form.error) / 100;
    if (several) body.how = /** @type {SaveWanted["how"]} */ (form.how);
    if (several && needsDensity(form.how)) body.density = numberIn(form.density) / 100;
    if (varies) Object.assign(body, {step: numberIn(form.step) - 1, steps: form.steps ?? STEPS});
    return body;
}

/**
 * Write the error of a file.
 * @param {number} error
 */
export const errorOf = (error) =>
    error < TINY ? t("save.tinyError", {percent: percent(0.001)}) : t("save.error", {percent: percent(error)});
