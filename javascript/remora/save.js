// What the user wants of a file or a model that is saved, as the server takes it. Pure.

/** @import {SaveWanted} from "../api.d.ts" */

import {percent} from "./check.js";
import {makeTag} from "./prompt.js";
import {escapedName, isDrawn, needsDensity, PRUNING} from "./tag.js";
import {t} from "./words.js";

/**
 * @typedef {"exact" | "rank" | "size" | "error"} FileForm
 * @typedef {"file" | "model" | "difference"} What
 *
 * @typedef {object} Form
 * What the fields hold.
 * @property {What} what
 * @property {string} model that LoRA are put into, or that another one differs from
 * @property {string} tuned the other one
 * @property {string} rounding
 * @property {string} seed of what is drawn at random
 * @property {string} name
 * @property {string} folder
 * @property {string} kind
 * @property {string} factor of a LoKr
 * @property {FileForm} form
 * @property {string} rank
 * @property {string} size in MB
 * @property {string} error in percent
 * @property {string} dtype
 * @property {string} pad the rank that lower ones are filled up to; empty for none
 * @property {string} how
 * @property {string} density in percent
 * @property {string} part of the LoRA that is saved, where it is a copy of one file
 * @property {string} strength of the same
 * @property {string} spelling of the same
 * @property {string} step from 1
 * @property {number | null} steps of the page
 * @property {string} half the prompt whose strengths are saved
 * @property {boolean} picture
 * @property {boolean} replace
 *
 * @typedef {{name: string, text: string, varies: boolean, combined?: boolean, half?: boolean}} SavedTag
 * A tag that is saved; `varies` where its strength differs from step to step, `combined` where it has a rule, `half`
 * where it acts on one prompt only.
 *
 * @typedef {{rows: SavedTag[], several: boolean, varies: boolean, half?: boolean, copied: boolean}} Parts
 * What is saved; `copied` where it is one file in another form.
 */

/** @type {Omit<Form, "name" | "steps">} */
export const FIRST = {
    what: "file",
    model: "",
    tuned: "",
    rounding: "nearest",
    seed: "0",
    part: "all",
    strength: "1",
    spelling: "kohya",
    folder: "",
    kind: "lora",
    factor: "8",
    form: "exact",
    rank: "16",
    size: "100",
    error: "5",
    dtype: "float16",
    pad: "",
    how: "sum",
    density: "50",
    step: "1",
    half: "pos",
    picture: true,
    replace: false,
};
export const WHATS = /** @type {const} */ ({
    file: "save.ofStack",
    model: "save.intoModel",
    difference: "save.ofModels",
});
export const ROUNDINGS = /** @type {const} */ ({nearest: "save.nearest", stochastic: "save.stochastic"});
export const PARTS = /** @type {const} */ ({all: "common.all", unet: "save.withoutText", te: "save.textAlone"});
export const SPELLINGS = /** @type {const} */ ({
    kohya: "save.kohya",
    diffusers: "save.diffusers",
    comfy: "save.comfy",
});
/** The names that a LoKr can have. */
export const LOKR_SPELLINGS = /** @type {const} */ ({kohya: "save.kohya", comfy: "save.comfy"});
export const KINDS = /** @type {const} */ ({lora: "save.lora", lokr: "save.lokr"});
export const HALVES = /** @type {const} */ ({pos: "save.positive", neg: "recipe.negative"});
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
/** @type {{[rule: string]: import("./words.js").Key | undefined}} */
const RULE_NAMES = {
    orthogonal: "save.orthogonal",
    ties: "save.ties",
    dare_linear: "save.dare",
    dare_ties: "save.dareTies",
    magnitude_prune: "save.magnitude",
};
/** The rules that the stack offers. */
export const RULES = ["orthogonal", ...PRUNING, ...PRUNING.map((rule) => `${rule}_svd`)];
const STEPS = 20; // where the page tells none
const TINY = 0.001; // share below which an error is not told
const MB = 1024 ** 2;
const LONGEST = 60; // characters of a name that is made
const MOST = 1e6; // of the number of a field
export const HIGHEST_SEED = 999_999_999;

/**
 * Return the tag of one file that is saved in another form.
 * @param {string} name
 * @param {Form} form
 * @returns {SavedTag}
 */
export function copiedTag(name, {part, strength}) {
    const number = numberIn(strength) || 0;
    const text = makeTag(escapedName(name), part === "unet" ? 0 : number, part === "te" ? 0 : number);
    return {name, text, varies: false};
}

/**
 * Return what a rule of a tag is called.
 * @param {string} rule
 */
export function ruleName(rule) {
    const factors = rule.replace(/_svd$/, "");
    const key = RULE_NAMES[factors];
    const name = key ? t(key) : factors;
    return factors === rule ? name : t("save.wholeChanges", {rule: name});
}

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
export const numberIn = (text) => (/^\s*\d+(?:[.,]\d+)?\s*$/.test(text) ? Number(text.replace(",", ".")) : Number.NaN);

/**
 * Say what is wrong with the numbers that count.
 * @param {Form} form
 * @param {Parts} parts
 * @returns {{[field: string]: string | undefined}}
 */
export function wrongOf(form, parts) {
    const {several, varies, copied} = parts;
    const {what, steps} = form;
    const accuracy = what === "model" ? "" : form.form;
    /** @type {[field: string, text: string, low: number, high: number, isWhole: boolean][]} */
    const limits = [
        ...(accuracy === "rank" ? [limit("rank", form.rank, 1, MOST, true)] : []),
        ...(accuracy === "size" ? [limit("size", form.size, 0.01, MOST)] : []),
        ...(accuracy === "error" ? [limit("error", form.error, 0.01, 99)] : []),
        ...(what !== "model" && form.kind === "lokr" ? [limit("factor", form.factor, 1, MOST, true)] : []),
        ...(what !== "model" && canPad(form) && form.pad.trim() ? [limit("pad", form.pad, 1, MOST, true)] : []),
        ...(needsSeed(form, parts) ? [limit("seed", form.seed, 0, HIGHEST_SEED, true)] : []),
        ...(copied ? [limit("strength", form.strength, 0.01, 10)] : []),
        ...(what === "file" && several && needsDensity(form.how) ? [limit("density", form.density, 1, 100)] : []),
        ...(what !== "difference" && varies ? [limit("step", form.step, 1, steps ?? STEPS, true)] : []),
    ];
    const said = limits.map(([field, text, low, high, isWhole]) => [field, wrongNumber(text, low, high, isWhole)]);
    return Object.fromEntries(said.filter(([, wrong]) => wrong));
}

/**
 * Return what is wrong with the text of a field for a number, or nothing.
 * @param {string} text
 * @param {number} low
 * @param {number} high
 * @param {boolean} [isWhole]
 */
export function wrongNumber(text, low, high, isWhole = false) {
    const number = numberIn(text);
    if (number >= low && number <= high && (!isWhole || Number.isInteger(number))) return "";
    return t(isWhole ? "save.wrongWhole" : "save.wrongNumber", {low, high});
}

/**
 * Return whether lower ranks can be filled up.
 * @param {Form} form
 */
export const canPad = ({kind, form}) => kind === "lora" && form !== "size";

/**
 * Return whether numbers are drawn at random.
 * @param {Form} form
 * @param {Parts} parts
 */
export function needsSeed({what, rounding, how}, {several}) {
    if (what === "model") return rounding === "stochastic";
    return what === "file" && several && isDrawn(how);
}

/** @type {(field: string, text: string, low: number, high: number, isWhole?: boolean) => [string, string, number, number, boolean]} */
const limit = (field, text, low, high, isWhole = false) => [field, text, low, high, isWhole];

/**
 * Return what the server is asked for, but for the place of the file; the numbers of the form are right. Null where a
 * model is missing.
 * @param {Form} form
 * @param {Parts} parts
 * @returns {SaveWanted | null}
 */
export function bodyOf(form, parts) {
    const {what, model, tuned} = form;
    const tags = parts.rows.map(({text}) => text);
    const drawn = needsSeed(form, parts) ? {seed: numberIn(form.seed)} : {};
    const acting = {
        ...(parts.varies ? {step: numberIn(form.step) - 1, steps: form.steps ?? STEPS} : {}),
        ...(parts.half ? {negative: form.half === "neg"} : {}),
    };
    if (what === "model")
        return model
            ? {what, tags, model, rounding: /** @type {SaveWanted["rounding"]} */ (form.rounding), ...drawn, ...acting}
            : null;
    if (what === "difference") return model && tuned ? {what, model, tuned, ...limitsOf(form)} : null;
    return {what, tags, ...limitsOf(form), ...ruleOf(form, parts), ...drawn, ...acting};
}

/**
 * @param {Form} form
 * @returns {SaveWanted}
 */
function limitsOf(form) {
    /** @type {SaveWanted} */
    const body = {dtype: /** @type {SaveWanted["dtype"]} */ (form.dtype)};
    if (form.kind === "lokr") Object.assign(body, {kind: form.kind, factor: numberIn(form.factor)});
    if (canPad(form) && form.pad.trim()) body.pad = numberIn(form.pad);
    if (form.form === "rank") body.rank = numberIn(form.rank);
    if (form.form === "size") body.size = Math.round(numberIn(form.size) * MB);
    if (form.form === "error") body.error = numberIn(form.error) / 100;
    return body;
}

/**
 * @param {Form} form
 * @param {Parts} parts
 * @returns {SaveWanted}
 */
function ruleOf(form, {several, copied}) {
    /** @type {SaveWanted} */
    const body = {};
    if (copied) body.spelling = /** @type {SaveWanted["spelling"]} */ (form.spelling);
    if (several) body.how = /** @type {SaveWanted["how"]} */ (form.how);
    if (several && needsDensity(form.how)) body.density = numberIn(form.density) / 100;
    return body;
}

/**
 * Write the error of a file.
 * @param {number} error
 */
export const errorOf = (error) =>
    error < TINY ? t("save.tinyError", {percent: percent(0.001)}) : t("save.error", {percent: percent(error)});
