// What brackets around a tag mean, as web UIs read them around words. Pure; the server's extension/text/grammar.py does
// the same, and one table of cases holds both. One pass reads a prompt, whose stack of open brackets is bounded.

/** @import {Tag} from "./prompt.js" */

import {isFiniteNumber} from "./curve.js";
import {fieldsOf} from "./tag.js";
import {listed, t} from "./words.js";

/**
 * @typedef {object} Limits
 * What the place of a tag makes of it; of each pair where it begins and where it ends.
 * @property {number} factor
 * @property {Ends} share
 * @property {Ends} steps
 * @property {[turn: number, of: number][]} turns
 * @property {number | null} part
 * @property {boolean} negative
 *
 * @typedef {[start: number | null, end: number | null]} Ends
 *
 * @typedef {object} Bracket
 * @property {string} kind
 * @property {Section | null} around
 * @property {{mark: string, at: number}[]} marks
 * @property {Set<string>} kinds of its marks
 * @property {boolean} closed
 * @property {string | null} when
 * @property {Section | null} section the latest
 *
 * @typedef {{bracket: Bracket, number: number, known: Limits | null}} Section
 */

const TOKEN = /\\[()[\]:|\\]|<\w+:[^<>]*>|[()[\]:|]|\bAND\b/g;
const DEEPEST = 32;
const LONGEST = 60; // characters of a number
const UP = 1.1;
const OPEN = new Map([
    [")", "("],
    ["]", "["],
]);

/** @type {Limits} */
const NONE = {factor: 1, share: [null, null], steps: [null, null], turns: [], part: null, negative: false};
const NEVER = {...NONE, factor: 0};

/** @param {number} value */
const written = (value) => Number(value.toPrecision(12));

/** @type {(one: Ends, other: Ends) => Ends} */
const both = (one, other) => {
    const [starts, ends] = [0, 1].map((at) =>
        [one[at], other[at]].filter((end) => end !== null).map((end) => Number(end)),
    );
    return [starts.length ? Math.max(...starts) : null, ends.length ? Math.min(...ends) : null];
};

/** @type {(around: Limits, own: Limits) => Limits} */
const together = (around, own) => ({
    factor: written(around.factor * own.factor),
    share: both(around.share, own.share),
    steps: both(around.steps, own.steps),
    turns: [...new Map([...around.turns, ...own.turns].map((turn) => [turn.join(), turn])).values()],
    part: around.part ?? own.part,
    negative: around.negative || own.negative,
});

/**
 * Return what a place between brackets means before or behind a number.
 * @param {string} when
 * @param {boolean} before
 * @returns {Limits}
 */
function timed(when, before) {
    const value = Number(when);
    if (value <= 0) return before ? NEVER : NONE;
    /** @type {Ends} */
    const ends = before ? [null, value] : [value, null];
    if (!when.includes(".") && value >= 1) return {...NONE, steps: ends};
    if (value < 1) return {...NONE, share: ends};
    return before ? NONE : NEVER;
}

/** @param {Bracket} bracket */
function isScheduled({kind, when, marks, kinds}) {
    return kind === "[" && when !== null && marks.length < 3 && !kinds.has("|");
}

/** @type {(bracket: Bracket, section: number) => Limits} */
function meaning(bracket, section) {
    const {kind, marks, kinds, closed, when} = bracket;
    if (!closed) return NONE;
    if (kind === "(") return {...NONE, factor: when === null ? UP : Number(when)};
    if (marks.length && !kinds.has(":")) return {...NONE, turns: [[section, marks.length + 1]]};
    if (isScheduled(bracket)) return timed(String(when), section === 0 && marks.length === 2);
    return {...NONE, factor: written(1 / UP)};
}

/**
 * @param {Section} section
 * @returns {Limits}
 */
function limitsOf(section) {
    const {bracket, number} = section;
    const {around} = bracket;
    section.known ??= around ? together(limitsOf(around), meaning(bracket, number)) : meaning(bracket, number);
    return section.known;
}

/**
 * Return what the place of each tag means.
 * @param {string} prompt
 * @param {Tag[]} tags of it, in order
 * @param {{parts: boolean, negative?: boolean}} of
 * @returns {Limits[]}
 */
export function places(prompt, tags, {parts, negative = false}) {
    const reader = new Reader(prompt);
    /** @type {{section: Section | null, part: number}[]} */
    const found = [];
    const note = (/** @type {number} */ until) => {
        while (found.length < tags.length && tags[found.length].start <= until)
            found.push({section: reader.open.at(-1)?.section ?? null, part: reader.part});
    };
    for (const match of prompt.matchAll(TOKEN)) {
        note(match.index);
        const inside = found.length > 0 && match.index < tags[found.length - 1].end;
        if (!inside) reader.token(match[0], match.index, parts && !negative);
    }
    note(prompt.length);
    return found.map(({section, part}, at) => {
        const ofRegion = tags[at].values.mask !== undefined; // which has a part already
        const own = {...NONE, negative, part: reader.part > 1 && !ofRegion ? part : null};
        return section ? together(own, limitsOf(section)) : own;
    });
}

class Reader {
    /** @param {string} prompt */
    constructor(prompt) {
        this.prompt = prompt;
        /** @type {Bracket[]} */
        this.open = [];
        /** @type {string[]} */
        this.deep = []; // open brackets beyond the deepest
        this.part = 1;
    }

    /** @type {(token: string, at: number, parts: boolean) => void} */
    token(token, at, parts) {
        const opens = OPEN.get(token);
        if (token === "(" || token === "[") this.begin(token);
        else if (opens) this.end(opens, at);
        else if ((token === ":" || token === "|") && !this.deep.length) this.divide(token, at);
        else if (token === "AND" && parts) {
            this.open = [];
            this.deep = [];
            this.part += 1;
        }
    }

    /** @param {string} kind */
    begin(kind) {
        if (this.open.length >= DEEPEST || this.deep.length) {
            this.deep.push(kind);
            return;
        }
        const around = this.open.at(-1)?.section ?? null;
        /** @type {Bracket} */
        const bracket = {kind, around, marks: [], kinds: new Set(), closed: false, when: null, section: null};
        bracket.section = {bracket, number: 0, known: null};
        this.open.push(bracket);
    }

    /** @type {(mark: string, at: number) => void} */
    divide(mark, at) {
        const bracket = this.open.at(-1);
        if (!bracket) return;
        bracket.marks.push({mark, at});
        bracket.kinds.add(mark);
        bracket.section = {bracket, number: bracket.marks.length, known: null};
    }

    /** @type {(kind: string, at: number) => void} */
    end(kind, at) {
        if (this.deep.length) {
            if (this.deep.at(-1) === kind) this.deep.pop();
            return;
        }
        if (!this.open.some((one) => one.kind === kind)) return;
        for (let bracket = this.open.pop(); bracket; bracket = this.open.pop()) {
            if (bracket.kind !== kind) continue; // never closed, so a word
            bracket.closed = true;
            const last = bracket.marks.at(-1);
            const text = last?.mark === ":" && at - last.at <= LONGEST ? this.prompt.slice(last.at + 1, at).trim() : "";
            bracket.when = isFiniteNumber(text) ? text : null;
            return;
        }
    }
}

/**
 * Tell whether the places of tags count.
 * @param {string[]} bodies of the prompt's tags
 * @param {boolean} on
 */
export function isMeant(bodies, on) {
    const chosen = bodies
        .flatMap((body) => fieldsOf(body).slice(1))
        .map((field) => field.split("="))
        .filter(([key]) => key.trim() === "grammar")
        .map(([, value]) => (value ?? "").trim());
    return chosen.includes("1") || (on && !chosen.includes("0"));
}

/** @param {number} value */
const short = (value) => String(Number(value.toPrecision(4)));

/**
 * Say what limits do, in a few words each.
 * @param {Limits} limits
 */
export function wordsOf({factor, share, steps, turns, part, negative}) {
    const percent = share.map((end) => end !== null && t("mark.percent", {number: short(end * 100)}));
    const step = steps.map((end) => end !== null && t("summary.step", {number: String(end)}));
    return [
        negative && t("grammar.negative"),
        part !== null && t("grammar.part", {number: part}),
        ...[percent, step].flatMap(([after, until]) => [
            after && t("grammar.after", {place: after}),
            until && t("grammar.until", {place: until}),
        ]),
        ...turns.map(([turn, of]) => t("grammar.turn", {turn: turn + 1, of})),
        factor !== 1 && (factor === 0 ? t("grammar.never") : t("grammar.times", {factor: short(factor)})),
    ].filter((word) => word !== false);
}

/**
 * Say how a tag acts whose place does not count; empty where that makes no difference.
 * @param {Limits} limits
 */
export function unread(limits) {
    const {factor, share, steps, turns, part, negative} = limits;
    if (negative) return t("grammar.unreadNegative");
    const isTimed = turns.length > 0 || [...share, ...steps].some((one) => one !== null);
    const how = [
        isTimed && t("grammar.inAllSteps"),
        factor !== 1 && t("grammar.atOwnStrength"),
        part !== null && t("grammar.inAllParts"),
    ].filter((word) => word !== false);
    const words = wordsOf(limits).join(t("mark.list"));
    return how.length ? t("grammar.unread", {how: listed(how, "conjunction"), words}) : "";
}
