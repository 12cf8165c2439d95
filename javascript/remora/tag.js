// What stands between `<lora:` and `>`: a name, and fields between colons. Read, and changed so that no other field is
// touched. Pure; the server's extension/prompt_edit.py does the same, and one table of cases holds both.

import {NUMBER, readAmount, SHAPES, written} from "./curve.js";

const FLAGS = ["high", "low"];
const ALIASES = {w: "lbw"};
export const PASSES = ["base", "hires", "refiner", "detailer"];
const AMOUNTS = ["te", "unet", "hr", "hrte", "hrunet", "in", "mid", "out"];

const isAmount = (text) => readAmount(text) ? "" : /[@~]/.test(text)
    ? `“${text}” is no schedule; write one as 0@0,1@0.5` : `“${text}” is not a number`;
const isNumber = (text) => NUMBER.test(text) && Number.isFinite(Number(text)) ? "" : `“${text}” is not a number`;
const isPlace = (text) => isNumber(text) || (Number(text) < 0 ? `“${text}” is below 0` : "");
const isText = (text) => text ? "" : "a name is missing";
const isOneOf = (...words) => (text) => words.includes(text.toLowerCase()) ? "" : `“${text}” is none of ${words.join(", ")}`;
const isRange = (text) => rangeOf(text) ? "" : `“${text}” is no range; write one as 2-10`;
const each = (check, between = ",") => (text) => text.split(between).map((part) => check(part.trim())).find(Boolean) ?? "";

// What a field may be; each says what is wrong with a text.
const CHECKS = {
    ...Object.fromEntries(AMOUNTS.map((key) => [key, isAmount])),
    dyn: (text) => /^\d{1,6}$/.test(text) && Number(text) > 0 ? "" : `“${text}” is not a rank (a whole number from 1)`,
    lbw: isText, lbwe: isText, x: isNumber, module: isText,
    start: isPlace, stop: isPlace, step: isRange, sigma: isRange,
    by: isOneOf("step", "sigma", "timestep"), curve: isOneOf(...SHAPES), half: isOneOf("pos", "neg"),
    pass: each(isOneOf(...PASSES), /[,+]/), mask: isText,
    part: (text) => /^0*[1-9]\d{0,2}$/.test(text) ? "" : `“${text}” is no part of a prompt; those between AND are numbered from 1`,
    feather: (text) => isNumber(text) || (Number(text) < 0 || Number(text) > 1 ? `${text} is no part of the picture; it is from 0 to 1` : ""),
    rows: each((text) => /^0*[1-9]\d{0,2}$/.test(text) ? "" : `“${text}” is no image of a batch; they are numbered from 1`, /[,+]/),
};

/** The ends of `a-b`, as text, of which one may be empty; null where it is none. */
export function rangeOf(text) {
    const ends = text.match(/^\s*([\d.]*(?:e[+-]?\d+)?)\s*-\s*([\d.]*(?:e[+-]?\d+)?)\s*$/i)?.slice(1);
    return ends?.some(Boolean) && ends.every((end) => !end || NUMBER.test(end)) ? ends : null;
}

// The name, and the fields: {key, head, value, named}; a flag's key is itself. What is too many has no key.
function takeApart(body) {
    const [name, ...texts] = body.split(":");
    const fields = texts.map((text) => {
        const at = text.indexOf("=");
        const flag = text.trim().toLowerCase();
        if (at < 0) return {key: FLAGS.includes(flag) ? flag : "", head: "", value: text, named: FLAGS.includes(flag)};
        const key = text.slice(0, at).trim();
        return {key: ALIASES[key] ?? key, head: text.slice(0, at + 1), value: text.slice(at + 1), named: true};
    });
    const placed = fields.filter((field) => !field.named);
    placedKeys(placed.map((field) => field.value)).forEach((key, at) => {
        placed[at].key = key;
    });
    return {name, fields};
}

// What values without a key set, by their place: both strengths and a rank; or one strength, block weights, and what X
// is, or rules for blocks.
function placedKeys(values) {
    const keys = values.length < 2 || mayBeAmount(values[1]) ? ["te", "unet", "dyn"]
        : ["te", "lbw", values.length > 2 && mayBeAmount(values[2]) ? "x" : "lbwe"];
    return values.map((_, at) => keys[at] ?? "");
}

const mayBeAmount = (value) => /[@~]/.test(value) || NUMBER.test(value.trim());

const joined = (name, fields) => [name, ...fields.map((field) => field.head + field.value)].join(":");
const withKey = (field) => field.named || !field.key ? field
    : {...field, head: `${field.key}=`, value: field.value.trim(), named: true};

/**
 * What a tag says: {name, te, unet, teCurve, unetCurve, teText, unetText, values, flags, problem}. Of a curve, te and
 * unet are the value farthest from 0; values are the texts of all fields by their key.
 */
export function readBody(body, standard = 1) {
    const {name, fields} = takeApart(body);
    const values = {};
    // named ones last: they beat those by place
    for (const field of [...fields.filter((one) => !one.named), ...fields.filter((one) => one.named && one.head)]) {
        values[field.key] = field.value.trim();
    }
    const te = readAmount(values.te ?? written(standard)) ?? {value: standard, curve: null};
    const unet = "unet" in values ? readAmount(values.unet) ?? {value: standard, curve: null} : te;
    const teText = te.curve ? values.te : written(te.value);
    return {
        name: name.trim(), te: te.value, unet: unet.value, teCurve: te.curve, unetCurve: unet.curve, teText,
        unetText: unet === te ? teText : unet.curve ? values.unet : written(unet.value),
        values, flags: fields.filter((field) => field.named && !field.head).map((field) => field.key),
        problem: problemOf(name, fields),
    };
}

function problemOf(name, fields) {
    if (!name.trim()) return "the name is missing";
    const seen = new Set();
    for (const {key, head, value, named} of fields) {
        if (!named && !key) return `a fourth number, “${value}”`;
        if (!head && named) continue; // a flag
        if (!(key in CHECKS)) return `“${key}” is no setting of a LoRA tag; the settings are ${Object.keys(CHECKS).join(", ")}`;
        if (named && seen.has(key)) return `“${key}” is set twice`;
        if (named) seen.add(key);
        const problem = CHECKS[key](value.trim());
        if (problem) return problem;
    }
    const fading = fields.find(({key}) => ["feather", "part"].includes(key));
    if (fading && !fields.some(({key}) => key === "mask")) return `“${fading.key}” is for a region, and there is none, as mask=left`;
    const lost = fields.find(({key}) => ["by", "curve"].includes(key));
    return lost && !hasCurve(fields) ? `“${lost.key}” says how points are meant, and there are none, as 0@0,1@0.5` : "";
}

const hasCurve = (fields) => fields.some(({key, value}) => AMOUNTS.includes(key) && readAmount(value.trim())?.curve);

/** The body without what says how points are meant, where there are none. */
export function withoutShape(body) {
    if (hasCurve(takeApart(body).fields)) return body;
    return ["by", "curve"].reduce((text, key) => setField(text, key, ""), body);
}

/** The body with other multipliers, numbers or points as text, each where one is written already. */
export function setMultipliers(body, te, unet) {
    const {name, fields} = takeApart(body);
    const [forTe, forUnet] = [written(te), written(unet)];
    const named = (key) => fields.find((field) => field.named && field.key === key);
    const placed = (key) => fields.find((field) => !field.named && field.key === key);
    const put = (field, value) => Object.assign(field, field.named ? {head: `${field.key}=`, value} : {value});
    if (!named("te") && !placed("te")) fields.unshift({key: "te", head: "", value: forTe, named: false});
    const first = placed("te");
    put(named("te") ?? first, forTe);
    const own = named("unet") ?? placed("unet");
    if (own) {
        put(own, forUnet);
        const last = fields.filter((field) => !field.named).pop() === own;
        if (forTe === forUnet && last && !named("te")) fields.splice(fields.indexOf(own), 1);
    } else if (forTe !== forUnet) {
        // behind a number without a key there may stand block weights, in its place
        if (first && !placed("lbw")) fields.splice(fields.indexOf(first) + 1, 0, {key: "unet", head: "", value: forUnet, named: false});
        else fields.push({key: "unet", head: "unet=", value: forUnet, named: true});
    }
    return joined(name, fields);
}

/**
 * The body with another value of one field, where it stands, in whichever spelling; at the end where it was missing.
 * Without it where the value is empty. `start` and `stop` of a tag with `step=a-b` are set there.
 */
export function setField(body, key, value) {
    const {name, fields} = takeApart(body);
    const wanted = ALIASES[key] ?? key;
    const steps = fields.find((field) => field.key === "step" && rangeOf(field.value));
    if (steps && (wanted === "start" || wanted === "stop")) return joined(name, withSteps(fields, steps, wanted, value));
    const own = fields.filter((field) => field.key === wanted);
    const field = own.find((one) => one.named) ?? own[0];
    if (value === "") return joined(name, without(fields, own));
    if (!field) fields.push({key: wanted, head: `${wanted}=`, value, named: true});
    else field.value = value;
    if (!field || field.named || keepPlaces(fields)) return joined(name, fields);
    return joined(name, fields.map((one, at) => at < fields.indexOf(field) ? one : withKey(one)));
}

// Whether values without a key still mean what they did.
function keepPlaces(fields) {
    const placed = fields.filter((field) => !field.named);
    const keys = placedKeys(placed.map((field) => field.value));
    return placed.every((field, at) => field.key === keys[at]);
}

// Those that stood behind one without a key get their key: they would move up to another meaning.
function without(fields, gone) {
    const first = fields.findIndex((field) => !field.named && gone.includes(field));
    return fields.map((field, at) => first >= 0 && at > first ? withKey(field) : field).filter((field, at) => !gone.includes(fields[at]));
}

function withSteps(fields, steps, key, value) {
    const [start, stop] = rangeOf(steps.value);
    const now = {start, stop, [key]: value};
    if (now.start && now.stop) steps.value = `${now.start}-${now.stop}`;
    else if (now.start) Object.assign(steps, {head: "start=", value: now.start});
    else if (now.stop) Object.assign(steps, {head: "stop=", value: now.stop});
    else return fields.filter((field) => field !== steps);
    return fields;
}

// --- what is always on ---

/** What a tag says of an entry of the stack that is always on. */
export function bodyOf({name, text_encoder: te, unet, more}) {
    return [name, written(te), written(unet), more].filter(Boolean).join(":");
}

/** The other way round: {unet, text_encoder, more}; curves are among `more`. */
export function entryOf(body, standard = 1) {
    const read = readBody(body, standard);
    const curves = [["te", read.teCurve, read.teText], ["unet", read.unetCurve, read.unetText]]
        .filter(([, curve]) => curve).map(([key, , text]) => `${key}=${text}`);
    const others = takeApart(body).fields.filter((field) => !["te", "unet"].includes(field.key))
        .map(withKey).map((field) => field.head + field.value);
    return {unet: read.unet, text_encoder: read.te, more: [...curves, ...others].join(":")};
}

/** An entry of the stack that is always on, as a tag. */
export function tagOf(entry) {
    const {teText, unetText} = readBody(bodyOf(entry));
    const others = ["te", "unet"].reduce((body, key) => setField(body, key, ""), [entry.name, entry.more].filter(Boolean).join(":"));
    return makeTag(others, teText, unetText);
}

/** A new tag. */
export function makeTag(name, te, unet) {
    return `<lora:${setMultipliers(name, te, unet)}>`;
}
