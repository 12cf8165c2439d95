// The strings of the tab, in the language that is chosen. What that language lacks is in English.

import {ENGLISH} from "./languages/en.js";

/**
 * @typedef {typeof ENGLISH} English
 * @typedef {keyof English} Key
 *
 * @typedef {string | {[form: string]: string}} Entry
 * A string, or its forms for different numbers by the names of Intl.PluralRules.
 *
 * @typedef {{[key: string]: Entry | undefined}} Strings
 * The strings of a language.
 */

/**
 * @template S
 * @typedef {S extends `${string}{${infer Name}}${infer Rest}` ? Name | Places<Rest> : never} Places
 * The names of the places for values in a string.
 */

/**
 * @template {Key} K
 * @typedef {Places<English[K] extends string ? English[K] : English[K][keyof English[K]]>} PlacesOf
 */

/**
 * @template {Key} K
 * @template V
 * @typedef {[PlacesOf<K>] extends [never] ? [] : [values: {[name in PlacesOf<K>]: V}]} ValuesOf
 */

/** The language of this page: of its strings, its plurals, its numbers and its lists. */
const now = inLanguage("en", ENGLISH);

/**
 * Return what a language needs.
 * @param {string} language as a language tag
 * @param {Strings} strings
 */
function inLanguage(language, strings) {
    const locale = localeOf(language);
    return {
        language,
        locale,
        strings,
        plurals: new Intl.PluralRules(locale),
        numbers: new Intl.NumberFormat(locale, {maximumFractionDigits: 6}),
    };
}

/**
 * Return the browser's variety of a language, as en-GB of en: dates and numbers are written as its user does.
 * @param {string} language
 */
function localeOf(language) {
    const languages = typeof navigator === "undefined" ? [] : (navigator.languages ?? []);
    return languages.find((other) => other.split("-")[0] === language) ?? language;
}

/**
 * Speak a language from now on.
 * @param {string} language as a language tag
 * @param {Strings} strings
 */
export function speak(language, strings) {
    Object.assign(now, inLanguage(language, strings));
    done.clear();
}

/** Return the tag of the language that is spoken. */
export const spoken = () => now.language;

/** Return the tag by which the browser writes numbers and dates. */
export const locale = () => now.locale;

/**
 * Return a string with values in its places; a number is written as the language writes numbers.
 * @template {Key} K
 * @param {K} key
 * @param {ValuesOf<K, string | number>} values
 */
export function t(key, ...values) {
    return filled(key, values[0] ?? {}).join("");
}

/**
 * Return the pieces of a string around its values, which may be elements.
 * @template {Key} K
 * @template V
 * @param {K} key
 * @param {ValuesOf<K, V>} values
 * @returns {(V | string)[]}
 */
export function pieces(key, ...values) {
    return /** @type {(V | string)[]} */ (filled(key, values[0] ?? {}));
}

/**
 * @param {Key} key
 * @param {{[name: string]: unknown}} values
 */
function filled(key, values) {
    const parts = formOf(now.strings[key] ?? ENGLISH[key], Number(values.count)).split(PLACE);
    return parts.map((part, at) => {
        const value = at % 2 ? values[part] : part;
        return typeof value === "number" ? number(value) : value;
    });
}

/**
 * @param {Entry} entry
 * @param {number} count
 */
function formOf(entry, count) {
    return typeof entry === "string" ? entry : (entry[now.plurals.select(count)] ?? entry.other);
}

/**
 * Write a number.
 * @param {number} value
 * @param {number} [digits] behind the point; up to six, as many as it needs, unless told
 */
export function number(value, digits) {
    if (digits === undefined) return now.numbers.format(value);
    return value.toLocaleString(now.locale, {minimumFractionDigits: digits, maximumFractionDigits: digits});
}

/**
 * Write a list of words.
 * @param {string[]} words
 * @param {"conjunction" | "disjunction"} type whether all are meant, or one of them
 */
export function listed(words, type) {
    return new Intl.ListFormat(now.locale, {type}).format(words);
}

/** @typedef {Extract<Key, `said.${string}`>} Said */

/**
 * @typedef {{key: Said, pattern: RegExp, letters: string}} Sentence
 * A sentence of the server, the pattern of its English, and its longest part without a value.
 */

/** @type {Sentence[] | undefined} */
let sentences; // the ones with most letters of their own first

/** Return the sentences of the server that have a translation. */
function known() {
    if (sentences) return sentences;
    const keys = /** @type {Said[]} */ (Object.keys(ENGLISH).filter((key) => key.startsWith("said.")));
    const forms = keys.flatMap((key) => {
        /** @type {Entry} */
        const entry = ENGLISH[key];
        return (typeof entry === "string" ? [entry] : Object.values(entry)).map((form) => ({key, form}));
    });
    const own = (/** @type {string} */ form) => form.split(PLACE).filter((_, at) => at % 2 === 0);
    const made = forms.map(({key, form}) => ({
        key,
        pattern: patternOf(form),
        letters: own(form).reduce((one, other) => (other.length > one.length ? other : one)),
        length: own(form).join("").length,
    }));
    sentences = made.sort((one, other) => other.length - one.length);
    return sentences;
}

const PLACE = /\{(\w+)\}/;
const NUMBERS = ["count", "layers", "number"]; // values that are numbers
const WHOLE = ["why", "problem", "error"]; // values that are sentences, maybe several with semicolons between them
/** Values that may have a translation. Others are names, and stay. */
const SENTENCES = [...WHOLE, "reason", "what", "how", "kind", "example", "settings", "images"];
const LONGEST = 2000; // characters of a text that is translated: patterns with two values take the square of its length
const DEEPEST = 4; // sentences in each other
const MOST_TEXTS = 500; // that are known

/** @type {Map<string, string>} */
const done = new Map(); // what was translated: an answer is shown again and again

/** @param {string} form */
function patternOf(form) {
    const escaped = form.replace(/[.*+?^$()|[\]\\]/g, "\\$&");
    return new RegExp(`^${escaped.replace(/\{(\w+)\}/g, (_, name) => `(?<${name}>${patternOfValue(name)})`)}$`, "s");
}

/** @param {string} name of a value */
function patternOfValue(name) {
    if (NUMBERS.includes(name)) return "[\\d,]+";
    if (["blocks", "layer", "rule"].includes(name)) return "[^:]+?"; // before the weight of a rule, or what is said of it
    if (name === "tag") return "(?!of the )(?:(?!; ).)+?"; // that is before it where the tag is always on
    return WHOLE.includes(name) ? ".+?" : "(?:(?!; ).)+?";
}

/**
 * Return what the server says, in the language of the tab; what has no translation, or is long, stays in English.
 * @param {string} said
 * @returns {string}
 */
export function translated(said) {
    if (now.language === "en" || !said || said.length > LONGEST) return said;
    const known = done.get(said);
    if (known !== undefined) return known;
    if (done.size >= MOST_TEXTS) done.clear();
    const found = inside(said, 0);
    done.set(said, found);
    return found;
}

/**
 * @param {string} said
 * @param {number} depth
 * @returns {string}
 */
function inside(said, depth) {
    if (depth > DEEPEST) return said;
    const found = whole(said, depth);
    if (found !== null) return found;
    const parts = said.split("; "),
        spoken = parts.map((part) => whole(part, depth) ?? part);
    return spoken.some((one, at) => one !== parts[at]) ? spoken.join(t("mark.semicolon")) : said;
}

/**
 * Return the translation of a text that is one sentence of the server; null where it is none. A value may be a sentence.
 * @param {string} said
 * @param {number} depth
 */
function whole(said, depth) {
    for (const {key, pattern, letters} of known()) {
        const found = said.includes(letters) ? pattern.exec(said) : null;
        if (!found) continue;
        const values = Object.entries(found.groups ?? {}).map(([name, value]) => [name, meantBy(name, value, depth)]);
        return filled(key, Object.fromEntries(values)).join("");
    }
    return null;
}

/** @type {(name: string, value: string, depth: number) => string} */
function meantBy(name, value, depth) {
    if (name === "names") return listed(value.split(" or "), "disjunction");
    const joined = (/** @type {string} */ word) => value.split(word).map((one) => inside(one, depth + 1));
    if (name === "how") return listed(joined(" and "), "conjunction");
    if (name === "settings") return listed(joined(" and for "), "conjunction");
    return SENTENCES.includes(name) ? inside(value, depth + 1) : value;
}
