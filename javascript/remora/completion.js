// What may come next where the user types in a prompt: names of LoRA, the fields of a tag, trigger words. Pure.

/**
 * @import {Blocks, Lora, Region} from "../api.d.ts"
 * @import {Catalog, Folded} from "./catalog.js"
 * @import {Key} from "./words.js"
 *
 * @typedef {object} Suggestion
 * A text that may stand in the prompt from `start` to `end`, and what is shown of it.
 * @property {string} text
 * @property {number} start
 * @property {number} end
 * @property {string} label
 * @property {string} hint
 * @property {number | null} [strength] that the user prefers
 * @property {string} [against] why the file cannot be used or does not fit
 * @property {Lora} [lora]
 * @property {Region} [region]
 *
 * @typedef {{kind: Place["kind"], start: number, list: Suggestion[]}} Suggestions
 * The best first. `start` is where the text that the user completes begins.
 *
 * @typedef {object} Sources
 * What this page knows.
 * @property {Names} names
 * @property {number} standard the strength where a file has no preferred one
 * @property {Blocks | null} blocks
 * @property {Region[] | null} regions
 * @property {(name: string) => Lora | undefined} loraOf the file that a name in a tag means
 *
 * @typedef {object} Place
 * Where the user types: `typed` is what a suggestion completes.
 * @property {"name" | "field" | "value" | "words"} kind
 * @property {string} typed
 * @property {number} start
 * @property {number} end
 *
 * @typedef {Place & {tag: Opened, key: string, number: number}} TagPlace
 * The number of the field counts from 0, the name.
 *
 * @typedef {object} Opened
 * The tag around the place.
 * @property {string} kind
 * @property {number} start
 * @property {number | null} end null where it is not closed
 * @property {string[]} others the other fields, the name first
 */

import {canBeInserted, distance, fold, MATCHES} from "./catalog.js";
import {SHAPES, written} from "./curve.js";
import {hasWords, plainWords, readTags, split} from "./prompt.js";
import {ALIASES, AMOUNTS, escapedName, fieldsOf, makeTag, PASSES, RULES, readBody} from "./tag.js";
import {readWeights} from "./weights.js";
import {t} from "./words.js";

const LONGEST_TAG = 2000; // characters on either side of the place
const LONGEST_PROMPT = 100_000; // characters, beyond which no trigger words are suggested
export const MOST = 8; // names and trigger words
const OPENING = /^[<\uFF1C][ \t]*(lora|lyco|loractl)[ \t]*[:\uFF1A]/i;
const REST = /^[^<>\uFF1C\uFF1E\n]*(?=[>\uFF1E])/;
const LETTER = /[\p{L}\p{N}_]/u;

/**
 * What may stand behind the name, in the order in which it is shown, with the text that says what it does.
 * @satisfies {{[key: string]: Key}}
 */
export const FIELDS = {
    lbw: "completion.lbw",
    mask: "completion.mask",
    start: "completion.start",
    stop: "completion.stop",
    te: "completion.te",
    unet: "completion.unet",
    hr: "completion.hr",
    pass: "completion.pass",
    lbwe: "completion.lbwe",
    feather: "completion.feather",
    outside: "completion.outside",
    curve: "completion.curve",
    by: "completion.by",
    half: "completion.half",
    step: "completion.step",
    sigma: "completion.sigma",
    x: "completion.x",
    in: "completion.in",
    mid: "completion.mid",
    out: "completion.out",
    hrte: "completion.hrte",
    hrunet: "completion.hrunet",
    dyn: "completion.dyn",
    alpha: "completion.alpha",
    scale: "completion.scale",
    rows: "completion.rows",
    part: "completion.part",
    module: "completion.module",
    combine: "completion.combine",
    density: "completion.density",
    seed: "completion.seed",
    high: "completion.high",
    low: "completion.low",
    grammar: "completion.grammar",
};
const FLAGS = ["high", "low"];
const NEEDED = new Map([
    ["feather", "mask"],
    ["outside", "mask"],
    ["part", "mask"],
    ["x", "lbw"],
    ["density", "combine"],
    ["seed", "combine"],
]);
const STRENGTHS = ["1", "0.8", "0.6", "0.4"];
const SHARES = ["0.2", "0.3", "0.4", "0.5", "0.6", "0.8"];

/**
 * Usual values of the fields for which the server keeps no list.
 * @type {Map<string, string[]>}
 */
export const VALUES = new Map([
    ...AMOUNTS.map((key) => /** @type {[string, string[]]} */ ([key, [...STRENGTHS, "0"]])),
    ...Object.entries({
        start: SHARES,
        stop: SHARES,
        step: ["1-10", "5-15"],
        sigma: ["14-1"],
        pass: PASSES,
        feather: ["0.05", "0.1", "0.2"],
        outside: ["0", "0.3", "0.5"],
        curve: SHAPES,
        by: ["step", "sigma", "timestep"],
        half: ["pos", "neg"],
        x: ["0.5", "0.7", "1"],
        dyn: ["8", "16", "32"],
        rows: ["1", "2", "3"],
        part: ["1", "2"],
        combine: RULES,
        density: ["0.5", "0.3", "0.7"],
        module: ["unet", "transformer", "transformer_2", "text_encoder", "text_encoder_2"],
        grammar: ["1", "0"],
    }),
]);
/** The marks between several values of a field. */
const BETWEEN = new Map([
    ["mask", /[+!]/],
    ["pass", /[,+]/],
    ["rows", /[,+]/],
]);

/**
 * Return what may come next at a place of a prompt.
 * @param {string} text
 * @param {number} caret
 * @param {Sources} sources
 * @returns {Suggestions | null}
 */
export function suggestions(text, caret, sources) {
    const inTag = tagPlace(text, caret);
    const place = inTag ?? wordsPlace(text, caret);
    if (!place) return null;
    const list = inTag ? ofTag(inTag, sources) : ofWords(place, text, sources);
    return {kind: place.kind, start: place.start, list};
}

/**
 * Return the place within a tag, whether it is closed yet or not.
 * @param {string} text
 * @param {number} caret
 * @returns {TagPlace | null}
 */
function tagPlace(text, caret) {
    const before = text.slice(Math.max(0, caret - LONGEST_TAG), caret);
    const at = Math.max(before.lastIndexOf("<"), before.lastIndexOf("\uFF1C"));
    const inside = at < 0 ? "" : before.slice(at);
    const opening = /[>\uFF1E\n]/.test(inside) ? null : OPENING.exec(inside);
    if (!opening) return null;
    const fields = parts(inside.slice(opening[0].length));
    const own = fields.pop() ?? "";
    const behind = REST.exec(text.slice(caret, caret + LONGEST_TAG));
    const [rest, ...after] = parts(behind ? behind[0] : "");
    const tag = {
        kind: opening[1],
        start: caret - inside.length,
        end: behind ? caret + behind[0].length + 1 : null,
        others: [...fields, ...after],
    };
    if (!fields.length) return {kind: "name", ...typedIn(own, rest, caret), tag, key: "", number: 0};
    const equals = own.indexOf("=");
    if (equals < 0) return {kind: "field", ...typedIn(own, rest, caret), tag, key: "", number: fields.length};
    const name = own.slice(0, equals).trim();
    const key = ALIASES.get(name) ?? name;
    const [value, end] = between(own.slice(equals + 1), rest, BETWEEN.get(key));
    return {kind: "value", ...typedIn(value, end, caret), tag, key, number: fields.length};
}

/**
 * Split the inside of a tag into its fields, which keep their lengths.
 * @param {string} body
 */
const parts = (body) => fieldsOf(body.replaceAll("\uFF1A", ":"));

/**
 * Return the one of several values that the caret is in: its text before the caret, and behind it.
 * @param {string} before
 * @param {string} after
 * @param {RegExp | undefined} mark
 */
function between(before, after, mark) {
    return mark ? [before.split(mark).at(-1) ?? "", after.split(mark)[0]] : [before, after];
}

/**
 * @param {string} before what is typed
 * @param {string} after what belongs to it behind the caret
 * @param {number} caret
 */
function typedIn(before, after, caret) {
    const typed = before.trimStart();
    return {typed, start: caret - typed.length, end: caret + after.length};
}

/**
 * Return the place among words: the words behind the last mark.
 * @param {string} text
 * @param {number} caret
 * @returns {Place | null}
 */
function wordsPlace(text, caret) {
    if (text.length > LONGEST_PROMPT || LETTER.test(text.charAt(caret))) return null;
    const [before] = /[^,\n()[\]{}<>|:\uFF0C\u3001]*$/.exec(text.slice(Math.max(0, caret - 100), caret)) ?? [""];
    if (text[caret - before.length - 1] === "<") return null; // a tag of another kind
    return {kind: "words", ...typedIn(before, "", caret)};
}

/**
 * @param {TagPlace} place
 * @param {Sources} sources
 */
function ofTag(place, sources) {
    if (place.kind === "name") return ofName(place, sources);
    const {typed, start, end} = place;
    const found = place.kind === "field" ? ofField(place, sources) : ofValue(place.key, typed, sources);
    return found.filter(({text}) => text !== typed.trim()).map((one) => ({...one, start, end}));
}

/**
 * Suggest files. The tag of a name gets the preferred strength, unless it has other fields already.
 * @param {TagPlace} place
 * @param {Sources} sources
 * @returns {Suggestion[]}
 */
function ofName({typed, start, end, tag}, {names, standard}) {
    return names.find(typed.replaceAll("\\:", ":")).map((lora) => {
        const name = escapedName(lora.name);
        const strength = lora.strength ?? standard;
        const whole = `<${tag.kind}${makeTag(name, strength, strength).slice("<lora".length)}`;
        const replaced = tag.others.length
            ? {text: name, start, end}
            : {text: whole, start: tag.start, end: tag.end ?? end};
        const against = names.catalog.against(lora);
        const shown = {label: lora.name, hint: against || lora.words, strength: lora.strength, against, lora};
        return {...replaced, ...shown};
    });
}

/** @typedef {{text: string, label: string, hint: string, strength?: number, region?: Region}} Shown */

/**
 * Suggest fields that the tag does not have: strengths in the first place, and what some values are called.
 * @param {TagPlace} place
 * @param {Sources} sources
 * @returns {Shown[]}
 */
function ofField({typed, tag, number}, sources) {
    const sought = typed.trim().toLowerCase();
    const {name, values, flags} = readBody(tag.others.join(":"), sources.standard);
    const has = (/** @type {string} */ key) => values[key] !== undefined || flags.includes(key);
    const isScheduled = /[@~]/.test(tag.others.slice(1).join());
    const mayStand = (/** @type {string} */ key) => {
        if (has(key) || (FLAGS.includes(key) && flags.length)) return false;
        if (key === "by" || key === "curve") return isScheduled;
        const needed = NEEDED.get(key);
        return needed === undefined || has(needed);
    };
    const usual = number === 1 && !has("te") ? strengths(sources.loraOf(name)?.strength ?? null) : [];
    const keys = Object.entries(FIELDS)
        .filter(([key]) => mayStand(key))
        .map(([key, about]) => {
            const text = FLAGS.includes(key) ? key : `${key}=`;
            return {text, label: text, hint: t(about)};
        });
    const beginning = [...usual, ...keys].filter(({text}) => text.startsWith(sought));
    return sought ? [...beginning, ...ofNames(sought, has, sources)] : beginning;
}

/**
 * Return strengths, the preferred one first.
 * @param {number | null} preferred
 * @returns {Shown[]}
 */
function strengths(preferred) {
    const own = preferred === null ? "" : written(preferred);
    return [...new Set([own, ...STRENGTHS])]
        .filter(Boolean)
        .map((text) => ({text, label: text, hint: text === own ? t("completion.preferred") : ""}));
}

/**
 * Return presets and regions whose names begin with a text, with the keys of their fields.
 * @param {string} sought
 * @param {(key: string) => boolean} has
 * @param {Sources} sources
 */
function ofNames(sought, has, sources) {
    return ["lbw", "mask", "lbwe"]
        .filter((key) => !has(key))
        .flatMap((key) => ofList(key, sources).map((one) => ({...one, text: `${key}=${one.text}`})))
        .filter(({label}) => label.toLowerCase().startsWith(sought))
        .map((one) => ({...one, label: one.text}));
}

/**
 * Suggest values of a field, those that begin with what is typed before those that have it in the middle.
 * @param {string} key
 * @param {string} typed
 * @param {Sources} sources
 */
function ofValue(key, typed, sources) {
    const sought = typed.trim().toLowerCase();
    const all = ofList(key, sources).map((one) => ({one, at: one.label.toLowerCase().indexOf(sought)}));
    return [...all.filter(({at}) => at === 0), ...all.filter(({at}) => at > 0)].map(({one}) => one);
}

/**
 * Return all values of a field. Of block weights these are the presets that fit the loaded model.
 * @param {string} key
 * @param {Sources} sources
 * @returns {Shown[]}
 */
function ofList(key, {blocks, regions}) {
    const named = (/** @type {string} */ name, hint = "") => ({text: name, label: name, hint});
    if (key === "mask") return (regions ?? []).map((region) => ({...named(region.name), region}));
    if (key === "lbwe") return (blocks?.rules ?? []).map((name) => named(name, blocks?.about_rules[name]));
    if (key !== "lbw") return (VALUES.get(key) ?? []).map((value) => named(value));
    if (!blocks) return [];
    return blocks.presets
        .filter(({name}) => !readWeights(name, blocks).problem)
        .map(({name, values}) => named(name, values));
}

/**
 * Suggest trigger words of the LoRA of the prompt that it lacks.
 * @param {Place} place
 * @param {string} text
 * @param {Sources} sources
 * @returns {Suggestion[]}
 */
function ofWords({typed, end}, text, {loraOf}) {
    if (!typed) return [];
    const names = new Set(readTags(text).map((tag) => tag.name));
    const phrases = new Map(
        [...names].flatMap((name) => split(plainWords(loraOf(name)?.words ?? "")).map((phrase) => [phrase, name])),
    );
    /** @type {{suggestion: Suggestion, begins: boolean}[]} */
    const found = [];
    for (const [phrase, name] of phrases) {
        const {length, begins} = overlap(typed, phrase);
        const start = end - length;
        if (!length || hasWords(text.slice(0, start) + text.slice(end), phrase)) continue;
        const shown = {label: phrase, hint: t("completion.wordsOf", {name})};
        found.push({suggestion: {text: phrase, start, end, ...shown}, begins});
    }
    const best = [...found.filter(({begins}) => begins), ...found.filter(({begins}) => !begins)];
    return best.slice(0, MOST).map(({suggestion}) => suggestion);
}

/**
 * Return how many letters at the end of a text are the beginning of a phrase, or of a later word of it.
 * @param {string} typed
 * @param {string} phrase
 */
function overlap(typed, phrase) {
    const [text, sought] = [typed.toLowerCase(), phrase.toLowerCase()];
    const starts = [...text.matchAll(/(?:^|\s)(?=\S)/g)].map(({index, 0: blank}) => index + blank.length).slice(-5);
    const ends = starts.map((start) => text.slice(start)).filter(tells);
    const end = ends.find((one) => sought.startsWith(one));
    if (end) return {length: end === sought ? 0 : end.length, begins: true};
    const last = ends.at(-1) ?? "";
    const isWord = last !== "" && sought.split(/[^\p{L}\p{N}]+/u).some((word) => word.startsWith(last));
    return {length: isWord ? last.length : 0, begins: false};
}

/**
 * Tell whether a text is long enough to mean a word: two letters, or one of a script that has many.
 * @param {string} text
 */
const tells = (text) => text.length > 1 || text > "\u2E80";

/** How well a name matches: as `distance` has it for name and words, then by its letters alone. */
const LOOSE = 2 * MATCHES;
const LEVELS = 4; // of loose matches
const WORSE = LOOSE; // a file that does not fit comes behind the ones that do, unless the text is its name
const RANKS = LOOSE + LEVELS + WORSE;

/** @typedef {Folded & {fits: boolean}} Entry */

/** The names of the files of a catalog, to be found at each keystroke: what is the same for all of these is kept. */
export class Names {
    /** @param {Catalog} catalog */
    constructor(catalog) {
        this.catalog = catalog;
        /** @type {Pick<Catalog, "all" | "families">} */
        this.known = {all: [], families: {}}; // the lists that were read
        /** @type {{sought: string, entries: Entry[]}[]} */
        this.narrowed = []; // all entries, the most used first; then the ones that match the text so far
    }

    read() {
        const {catalog} = this;
        const {all, families} = catalog;
        if (this.known.all === all && this.known.families === families) return;
        this.known = {all, families};
        const entries = all
            .filter(canBeInserted)
            .map((lora) => ({lora, name: lora.name.toLowerCase()}))
            .sort(
                (one, other) =>
                    other.lora.uses - one.lora.uses
                    || other.lora.used - one.lora.used
                    || Number(other.lora.favourite) - Number(one.lora.favourite)
                    || (one.name < other.name ? -1 : 1),
            )
            // in this order, so that they lie one after the other in memory: a search takes a third of the time
            .map(({lora}) => ({
                ...fold(lora, [lora.name, `${lora.words}\n${lora.alias}`]),
                fits: !catalog.against(lora),
            }));
        this.narrowed = [{sought: "", entries}];
    }

    /**
     * Return the files that a text may mean, the best first: a name before trigger words, a beginning before a middle,
     * letters in their order last; a file that fits the loaded model before one that does not; the most used.
     * @param {string} typed
     */
    find(typed) {
        this.read();
        const {narrowed} = this;
        const sought = typed.trim().toLowerCase();
        const words = sought.split(/[\s_-]+/).filter(Boolean);
        while (!sought.startsWith(narrowed[narrowed.length - 1].sought)) narrowed.pop();
        /** @type {Entry[]} */
        const entries = [];
        /** @type {Lora[][]} */
        const found = Array.from({length: RANKS}, () => []);
        const within = narrowed[narrowed.length - 1];
        for (const entry of within.entries) {
            const own = rankOf(entry, sought, words);
            if (own === Infinity) continue;
            entries.push(entry);
            const rank = entry.fits || own === 0 ? own : own + WORSE;
            if (own < LOOSE + LEVELS && found[rank].length < MOST) found[rank].push(entry.lora);
        }
        // what has no word of `_ink` may have both of `_ink_ne`
        if (within.sought !== sought && (words.length > 1 || words[0] === sought)) narrowed.push({sought, entries});
        return found.flat().slice(0, MOST);
    }
}

/**
 * @param {Folded} folded
 * @param {string} sought
 * @param {string[]} words
 */
function rankOf(folded, sought, words) {
    if (!sought) return 1;
    const whole = distance(folded, sought);
    if (whole < Infinity) return whole;
    const each = words.length > 1 ? Math.max(...words.map((word) => distance(folded, word))) : Infinity;
    return each < Infinity ? each : looseRank(folded, words.join(""));
}

/**
 * Return the rank of a name that has letters in their order, with others between them: the fewer, the better. A rank
 * from `LOOSE + LEVELS` on is none.
 * @param {Folded} folded
 * @param {string} letters
 */
function looseRank({text, ends: [end]}, letters) {
    if (letters.length < 2) return Infinity;
    let at = text.indexOf(letters[0]);
    const first = at;
    for (let next = 1; next < letters.length && at >= 0; next += 1) at = text.indexOf(letters[next], at + 1);
    if (at < 0 || at >= end) return Infinity;
    const others = at - first + 1 - letters.length;
    return LOOSE + Math.floor(others / letters.length);
}
