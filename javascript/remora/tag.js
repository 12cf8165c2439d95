// What stands between `<lora:` and `>`: a name, and fields between colons. Read, and changed so that no other field is
// touched. Pure; the server's extension/text/prompt_edit.py does the same, and one table of cases holds both.

/** @import {Curve} from "./curve.js" */

import {isFiniteNumber, NUMBER, readAmount, SHAPES, writePoints, written} from "./curve.js";
import {asked, numberMeant, rangeMeant, similar} from "./similar.js";
import {t} from "./words.js";

/**
 * @typedef {{key: string, head: string, value: string, named: boolean}} Field
 * One field of a tag: `head` is the text up to and with `=`, empty where the field has none. The key of a flag is the
 * flag, that of a range without a key is `step`, and one value too many has no key.
 *
 * @typedef {{said: string, write: string[]}} Fault
 * What is wrong with a text, and texts that may be meant.
 *
 * @typedef {(text: string) => Fault | null} Check
 *
 * @typedef {{word: string, instead: string, body: string}} Fix
 * A body that may be meant: with a word in place of a text, or, where that is empty, as the word says.
 *
 * @typedef {{said: string, fixes: Fix[]}} Problem
 * What is wrong with a tag, empty where nothing is.
 *
 * @typedef {{[key: string]: string | undefined}} Values
 * The texts of all fields by their key.
 *
 * @typedef {object} Reading
 * The contents of a tag. Of a curve, `te` and `unet` are the value farthest from 0.
 * @property {string} name
 * @property {number} te
 * @property {number} unet
 * @property {Curve | null} teCurve
 * @property {Curve | null} unetCurve
 * @property {string} teText
 * @property {string} unetText
 * @property {Values} values
 * @property {string[]} flags
 * @property {string} problem empty where the tag can be read
 * @property {Fix[]} fixes of the problem
 *
 * @typedef {{name: string, unet: number, text_encoder: number, more: string}} Said
 * An entry of the stack that is always on: `more` has the other fields of a tag.
 */

const FLAGS = ["high", "low"];
export const ALIASES = new Map([
    ["w", "lbw"],
    ["end", "stop"],
]);
export const PASSES = ["base", "hires", "refiner", "detailer"];
export const PRUNING = ["ties", "dare_linear", "dare_ties", "magnitude_prune"];
/** What combines LoRA in another way than their sum. */
export const RULES = ["orthogonal", "svd", "linear", ...PRUNING, ...PRUNING.map((rule) => `${rule}_svd`)];
/** The fields of a rule. */
export const RULE_KEYS = ["combine", "density", "seed"];
export const AMOUNTS = ["te", "unet", "hr", "hrte", "hrunet", "in", "mid", "out"];

/** @param {string} rule */
export const needsDensity = (rule) => PRUNING.includes(rule.replace(/_svd$/, ""));
/** @param {string} rule */
export const isDrawn = (rule) => rule.startsWith("dare");

/** @type {(said: string, ...write: string[]) => Fault} */
const wrong = (said, ...write) => ({said, write});

/** @type {Check} */
const isAmount = (text) =>
    readAmount(text) ? null : /[@~]/.test(text) ? wrong(t("tag.notASchedule", {text})) : isNumber(text);
/** @type {Check} */
const isNumber = (text) => {
    if (isFiniteNumber(text)) return null;
    if (/^\/|\\/.test(text)) return wrong(t("tag.aPath", {text, name: stem(text)}));
    const meant = numberMeant(text);
    const key = NUMBER.test(text) ? "tag.tooLarge" : "tag.notANumber";
    return wrong(t(key, {text, example: meant || t("tag.aNumber")}), ...[meant].filter(Boolean));
};
/**
 * Return the name of a file in a path, without its ending.
 * @param {string} path
 */
const stem = (path) => (path.split(/[\\/]/).pop() ?? "").replace(/["' ]+$/, "").replace(/(.)\.[^.]*$/, "$1");
/** @type {Check} */
const isPlace = (text) => isNumber(text) ?? (Number(text) < 0 ? wrong(t("tag.belowZero", {text})) : null);
/** @type {Check} */
const isText = (text) => (text ? null : wrong(t("tag.noName")));
/** @type {Check} */
const isModule = (text) => isText(text) ?? (/^\w+$/.test(text) ? null : wrong(t("tag.notAModule", {text})));
/** @type {(...words: string[]) => Check} */
const isOneOf =
    (...words) =>
    (text) => {
        if (words.includes(text.toLowerCase())) return null;
        const meant = similar(text, words);
        const said = t("tag.noneOf", {text, words: words.join(", ")});
        return wrong(asked(said, meant, said), ...meant);
    };
/** @type {(digits: number, otherwise: "tag.notARank" | "tag.notAPart" | "tag.notAnImage") => Check} */
const isCount = (digits, otherwise) => {
    const count = new RegExp(`^0*[1-9]\\d{0,${digits - 1}}$`);
    return (text) => (count.test(text) ? null : wrong(t(otherwise, {text})));
};
/** @type {Check} */
const isRange = (text) => {
    if (rangeOf(text)) return null;
    const meant = rangeOf(rangeMeant(text)) ? rangeMeant(text) : "";
    return wrong(t("tag.notARange", {text, example: meant || t("tag.aRange")}), ...[meant].filter(Boolean));
};
/** @type {Check} */
const isSoftEdge = (text) => isNumber(text) ?? (isShare(text) ? null : wrong(t("tag.notASoftEdge", {text})));
/** @type {Check} */
const isRest = (text) => isNumber(text) ?? (isShare(text) ? null : wrong(t("tag.notARest", {text})));
/** @type {Check} */
const isDensity = (text) =>
    isNumber(text) ?? (isShare(text) && Number(text) > 0 ? null : wrong(t("tag.notADensity", {text})));
/** @type {Check} */
const isSeed = (text) => (/^0*\d{1,9}$/.test(text) ? null : wrong(t("tag.notASeed", {text})));
/** @param {string} text */
const isShare = (text) => Number(text) >= 0 && Number(text) <= 1;
/** @type {(check: Check) => Check} */
const each = (check) => (text) => {
    const parts = text.split(/([,+])/); // with the marks between them
    for (const [at, part] of parts.entries()) {
        const fault = at % 2 ? null : check(part.trim());
        if (fault)
            return wrong(
                fault.said,
                ...fault.write.map((meant) => parts.map((other, place) => (place === at ? meant : other)).join("")),
            );
    }
    return null;
};
/** @type {Check} */
const isList = (text) => {
    if (!/^[+-]?\d+,\d+$/.test(text)) return isText(text);
    return wrong(t("tag.numberOrWeights", {text, example: numberMeant(text)}), numberMeant(text));
};

/**
 * The check of each field. A tag may hold any key, so this is no plain object: that has `constructor` and others.
 * @type {Map<string, Check>}
 */
const CHECKS = new Map([
    ...AMOUNTS.map((key) => /** @type {[string, Check]} */ ([key, isAmount])),
    ...Object.entries({
        alpha: isNumber,
        scale: isNumber,
        dyn: isCount(6, "tag.notARank"),
        lbw: isText,
        lbwe: isText,
        x: isNumber,
        module: isModule,
        start: isPlace,
        stop: isPlace,
        step: isRange,
        sigma: isRange,
        by: isOneOf("step", "sigma", "timestep"),
        curve: isOneOf(...SHAPES),
        half: isOneOf("pos", "neg"),
        pass: each(isOneOf(...PASSES)),
        mask: isText,
        part: isCount(3, "tag.notAPart"),
        grammar: isOneOf("0", "1"),
        feather: isSoftEdge,
        outside: isRest,
        rows: each(isCount(3, "tag.notAnImage")),
        combine: isOneOf(...RULES),
        density: isDensity,
        seed: isSeed,
    }),
]);
/** What a tag may have behind its name: the keys of fields, and words alone. */
export const KEYS = [...CHECKS.keys(), ...FLAGS];

/**
 * Return the ends of `a-b`, as text, of which one may be empty; null where the text is no range.
 * @param {string} text
 * @returns {[string, string] | null}
 */
export function rangeOf(text) {
    // trimmed first, or many blanks in front would take a time that grows with their square
    const ends = text
        .trim()
        .match(/^([\d.]*(?:e[+-]?\d+)?)\s*-\s*([\d.]*(?:e[+-]?\d+)?)$/i)
        ?.slice(1);
    const good = (/** @type {string} */ end) => !end || (NUMBER.test(end) && Number.isFinite(Number(end)));
    return ends?.some(Boolean) && ends.every(good) ? [ends[0], ends[1]] : null;
}

/** @param {string} text */
const isBareRange = (text) => rangeOf(text) !== null && !NUMBER.test(text.trim());

const ESCAPED = "\uE000"; // stands for `\:` while a body is split
/**
 * Split a body at its colons. `\:` is a colon of the name, and stays as written.
 * @param {string} body
 */
export const fieldsOf = (body) =>
    body
        .replaceAll("\\:", ESCAPED)
        .split(":")
        .map((field) => field.replaceAll(ESCAPED, "\\:"));
/**
 * Return a name as a tag has it.
 * @param {string} name
 */
export const escapedName = (name) => name.replaceAll(":", "\\:");
/** @param {string} name */
const plainName = (name) => name.replaceAll("\\:", ":");

/**
 * Take a body apart into the name and the fields.
 * @param {string} body
 */
function takeApart(body) {
    const [name, ...texts] = fieldsOf(body);
    const fields = texts.map((text) => {
        const at = text.indexOf("=");
        const flag = text.trim().toLowerCase();
        if (at < 0) {
            const key = FLAGS.includes(flag) ? flag : isBareRange(text) ? "step" : "";
            return {key, head: "", value: text, named: key !== ""};
        }
        const key = text.slice(0, at).trim();
        return {key: ALIASES.get(key) ?? key, head: text.slice(0, at + 1), value: text.slice(at + 1), named: true};
    });
    const placed = fields.filter((field) => !field.named);
    placedKeys(placed.map((field) => field.value)).forEach((key, at) => {
        placed[at].key = key;
    });
    return {name, fields};
}

/**
 * Return the keys of values without one, by their place: both strengths and a rank; or one strength, block weights, and
 * X or rules for blocks.
 * @param {string[]} values
 */
function placedKeys(values) {
    const keys =
        values.length < 2 || mayBeAmount(values[1])
            ? ["te", "unet", "dyn"]
            : ["te", "lbw", values.length > 2 && mayBeAmount(values[2]) ? "x" : "lbwe"];
    return values.map((_, at) => keys[at] ?? "");
}

/** @param {string} value */
const mayBeAmount = (value) => /[@~]/.test(value) || NUMBER.test(value.trim());

/** @type {(name: string, fields: Field[]) => string} */
const joined = (name, fields) => [name, ...fields.map((field) => field.head + field.value)].join(":");
/** @type {(field: Field) => Field} */
const withKey = (field) =>
    field.named || !field.key ? field : {...field, head: `${field.key}=`, value: field.value.trim(), named: true};

/**
 * Read the body of a tag.
 * @param {string} body
 * @param {number} [standard] the strength where the tag has none
 * @returns {Reading}
 */
export function readBody(body, standard = 1) {
    const {name, fields} = takeApart(body);
    const values = valuesOf(fields);
    const te = readAmount(values.te ?? written(standard)) ?? {value: standard, curve: null};
    const unet = values.unet !== undefined ? (readAmount(values.unet) ?? {value: standard, curve: null}) : te;
    const teText = te.curve ? String(values.te) : written(te.value);
    const {said, fixes} = problemOf(name, fields);
    return {
        name: plainName(name.trim()),
        te: te.value,
        unet: unet.value,
        teCurve: te.curve,
        unetCurve: unet.curve,
        teText,
        unetText: unet === te ? teText : unet.curve ? String(values.unet) : written(unet.value),
        values,
        flags: fields.filter((field) => FLAGS.includes(field.key)).map((field) => field.key),
        problem: said,
        fixes,
    };
}

/**
 * Return the texts of the known fields that count: one with a key beats one by its place.
 * @param {Field[]} fields
 * @returns {Values}
 */
function valuesOf(fields) {
    const counting = [...fields.filter((one) => !one.named), ...fields.filter((one) => one.named)];
    return Object.fromEntries(counting.filter(({key}) => CHECKS.has(key)).map(({key, value}) => [key, value.trim()]));
}

/** @type {(name: string, fields: Field[]) => Problem} */
function problemOf(name, fields) {
    if (!name.trim()) return {said: t("tag.unnamed"), fixes: []};
    const seen = new Set();
    for (const field of fields) {
        const said = faultOfKey(field, seen);
        if (said !== null) return {said, fixes: fixesOfKey(name, fields, field)};
        const {key, value, named} = field;
        const check = key === "lbw" && !named ? isList : CHECKS.get(key);
        const fault = check?.(value.trim());
        if (fault) return {said: fault.said, fixes: fault.write.map((meant) => replaced(name, fields, field, meant))};
    }
    const [lost, said] = lostField(fields);
    return {said, fixes: lost ? [leftOut(name, fields, lost)] : []};
}

/**
 * Say what is wrong with a field, whatever its value is; null where nothing is.
 * @param {Field} field
 * @param {Set<string>} seen keys before it
 */
function faultOfKey({key, head, value, named}, seen) {
    if (!named && !key) return t("tag.fourth", {text: value});
    if (!head && FLAGS.includes(key)) return null;
    if (!CHECKS.has(key)) {
        const meant = similar(key, [...CHECKS.keys(), ...ALIASES.keys()]);
        const said = t("tag.notASetting", {key});
        return asked(said, meant, t("tag.leaveItOut", {said}));
    }
    if (named && seen.has(key)) return t("tag.twice", {key});
    if (named) seen.add(key);
    return null;
}

/**
 * Return the bodies that may be meant by one with a field that cannot be there.
 * @param {string} name
 * @param {Field[]} fields
 * @param {Field} field
 */
function fixesOfKey(name, fields, field) {
    const meant = CHECKS.has(field.key) ? [] : similar(field.key, [...CHECKS.keys(), ...ALIASES.keys()]);
    if (!field.named || !meant.length) return [leftOut(name, fields, field)];
    return meant.map((key) => ({
        word: key,
        instead: field.key,
        body: joined(
            name,
            fields.map((one) => (one === field ? {...one, head: `${key}=`} : one)),
        ),
    }));
}

/**
 * Return the field that has no effect without another one, and a sentence about it.
 * @param {Field[]} fields
 * @returns {[Field | undefined, string]}
 */
function lostField(fields) {
    const fading = fields.find(({key}) => ["feather", "outside", "part"].includes(key));
    if (fading && !fields.some(({key}) => key === "mask")) return [fading, t("tag.needsRegion", {key: fading.key})];
    const rule = valuesOf(fields).combine?.toLowerCase() ?? "";
    const ofRule = fields.find(
        ({key}) => (key === "density" && !needsDensity(rule)) || (key === "seed" && !isDrawn(rule)),
    );
    if (ofRule)
        return [ofRule, t("tag.needsRule", {key: ofRule.key, rule: ofRule.key === "seed" ? "dare_linear" : "ties"})];
    const shape = fields.find(({key}) => ["by", "curve"].includes(key));
    return shape && !hasCurve(fields) ? [shape, t("tag.needsSchedule", {key: shape.key})] : [undefined, ""];
}

/** @type {(name: string, fields: Field[], field: Field, meant: string) => Fix} */
const replaced = (name, fields, field, meant) => ({
    word: meant,
    instead: field.value.trim(),
    body: joined(
        name,
        fields.map((one) => (one === field ? {...one, value: meant} : one)),
    ),
});

/** @type {(name: string, fields: Field[], field: Field) => Fix} */
const leftOut = (name, fields, field) => ({
    word: t("tag.leaveOut", {text: field.head + field.value}),
    instead: "",
    body: joined(name, without(fields, [field])),
});

/** @param {Field[]} fields */
const hasCurve = (fields) => {
    const values = valuesOf(fields);
    return AMOUNTS.some((key) => readAmount(values[key] ?? "")?.curve);
};

/**
 * Take `by` and `curve` out of a body that has no points.
 * @param {string} body
 */
export function withoutShape(body) {
    if (hasCurve(takeApart(body).fields)) return body;
    return ["by", "curve"].reduce((text, key) => setField(text, key, ""), body);
}

/**
 * Return the body with other multipliers, numbers or points as text, each where one is written already.
 * @param {string} body
 * @param {number | string} te
 * @param {number | string} unet
 */
export function setMultipliers(body, te, unet) {
    const {name, fields} = takeApart(body);
    const [forTe, forUnet] = [written(te), written(unet)];
    const named = (/** @type {string} */ key) => fields.find((field) => field.named && field.key === key);
    const placed = (/** @type {string} */ key) => fields.find((field) => !field.named && field.key === key);
    const put = (/** @type {Field} */ field, /** @type {string} */ value) =>
        Object.assign(field, field.named ? {head: `${field.key}=`, value} : {value});
    if (!named("te") && !placed("te")) fields.unshift({key: "te", head: "", value: forTe, named: false});
    const first = placed("te");
    put(/** @type {Field} */ (named("te") ?? first), forTe);
    const own = named("unet") ?? placed("unet");
    if (own) {
        put(own, forUnet);
        const last = fields.filter((field) => !field.named).pop() === own;
        if (forTe === forUnet && last && !named("te")) fields.splice(fields.indexOf(own), 1);
    } else if (forTe !== forUnet) {
        // behind a number without a key there may stand block weights, in its place
        if (first && !placed("lbw"))
            fields.splice(fields.indexOf(first) + 1, 0, {key: "unet", head: "", value: forUnet, named: false});
        else fields.push({key: "unet", head: "unet=", value: forUnet, named: true});
    }
    return joined(name, fields);
}

/**
 * Return the body with another value of one field, where it stands, in whichever spelling; at the end where it was
 * missing. An empty value takes the field away. `start` and `stop` of a tag with `step=a-b` are set there.
 * @param {string} body
 * @param {string} key
 * @param {string} value
 */
export function setField(body, key, value) {
    const {name, fields} = takeApart(body);
    const wanted = ALIASES.get(key) ?? key;
    const steps = fields.find((field) => field.key === "step" && rangeOf(field.value));
    if (steps && (wanted === "start" || wanted === "stop"))
        return joined(name, withSteps(fields, steps, wanted, value));
    const own = fields.filter((field) => field.key === wanted);
    const field = own.find((one) => one.named) ?? own[0];
    if (value === "") return joined(name, without(fields, own));
    if (!field) fields.push({key: wanted, head: `${wanted}=`, value, named: true});
    else field.value = value;
    if (!field || field.named || keepPlaces(fields)) return joined(name, fields);
    return joined(
        name,
        fields.map((one, at) => (at < fields.indexOf(field) ? one : withKey(one))),
    );
}

/**
 * Tell whether values without a key still have the same meaning.
 * @param {Field[]} fields
 */
function keepPlaces(fields) {
    const placed = fields.filter((field) => !field.named);
    const keys = placedKeys(placed.map((field) => field.value));
    return placed.every((field, at) => field.key === keys[at]);
}

/**
 * Take fields away. Values behind one without a key get their key: they would move up to another meaning.
 * @param {Field[]} fields
 * @param {Field[]} gone
 */
function without(fields, gone) {
    const first = fields.findIndex((field) => !field.named && gone.includes(field));
    return fields
        .map((field, at) => (first >= 0 && at > first ? withKey(field) : field))
        .filter((_, at) => !gone.includes(fields[at]));
}

/**
 * @param {Field[]} fields
 * @param {Field} steps whose value is a range
 * @param {"start" | "stop"} key
 * @param {string} value
 */
function withSteps(fields, steps, key, value) {
    const [start, stop] = /** @type {[string, string]} */ (rangeOf(steps.value));
    const now = {start, stop, [key]: value};
    if (now.start && now.stop) steps.value = `${now.start}-${now.stop}`;
    else if (now.start) Object.assign(steps, {head: "start=", value: now.start});
    else if (now.stop) Object.assign(steps, {head: "stop=", value: now.stop});
    else return fields.filter((field) => field !== steps);
    return fields;
}

// --- what is always on ---

/**
 * Write an entry of the stack that is always on as the body of a tag.
 * @param {Said} entry
 */
export function bodyOf({name, text_encoder: te, unet, more}) {
    return [escapedName(name), written(te), written(unet), more].filter(Boolean).join(":");
}

/**
 * Read the body of a tag as an entry of that stack; curves are among `more`.
 * @param {string} body
 * @param {number} [standard] the strength where the tag has none
 * @returns {Omit<Said, "name">}
 */
export function entryOf(body, standard = 1) {
    const read = readBody(body, standard);
    const curves = [
        ["te", read.teCurve, read.teText],
        ["unet", read.unetCurve, read.unetText],
    ]
        .filter(([, curve]) => curve)
        .map(([key, , text]) => `${key}=${text}`);
    const others = takeApart(body)
        .fields.filter((field) => !["te", "unet"].includes(field.key))
        .map(withKey)
        .map((field) => field.head + field.value);
    return {unet: read.unet, text_encoder: read.te, more: [...curves, ...others].join(":")};
}

/**
 * Write an entry of the stack that is always on as a tag.
 * @param {Said} entry
 */
export function tagOf(entry) {
    const {teText, unetText} = readBody(bodyOf(entry));
    const others = ["te", "unet"].reduce(
        (body, key) => setField(body, key, ""),
        [escapedName(entry.name), entry.more].filter(Boolean).join(":"),
    );
    return makeTag(others, teText, unetText);
}

/**
 * Return the body with its multipliers times a factor, rounded to hundredths; so are the values of schedules.
 * @param {string} body
 * @param {number} factor
 * @param {number} [standard] the strength where the tag has none
 */
export function scaled(body, factor, standard = 1) {
    const {te, unet, teCurve, unetCurve} = readBody(body, standard);
    const times = (/** @type {number} */ value) => Number((value * factor).toFixed(2));
    const half = (/** @type {number} */ value, /** @type {Curve | null} */ curve) =>
        curve ? writePoints(curve.map((point) => ({...point, value: times(point.value)}))) : times(value);
    return setMultipliers(body, half(te, teCurve), half(unet, unetCurve));
}

/**
 * Write a new tag.
 * @param {string} name as a tag has it, maybe with fields behind it
 * @param {number | string} te
 * @param {number | string} unet
 */
export function makeTag(name, te, unet) {
    return `<lora:${setMultipliers(name, te, unet)}>`;
}

/**
 * Return the body with another name.
 * @param {string} body
 * @param {string} name
 */
export function withName(body, name) {
    return [escapedName(name), ...fieldsOf(body).slice(1)].join(":");
}
