// The prompt of the page and the stack of its tags: read, written, undone.

/**
 * @import {Outcome as LoraOutcome} from "../api.d.ts"
 * @import {Always} from "./kept.js"
 * @import {Tab} from "./main.js"
 * @import {Tag} from "./prompt.js"
 * @import {SavedTag} from "./save.js"
 * @import {Reading} from "./tag.js"
 */

import * as boxes from "./boxes.js";
import {faultOfNames} from "./faults.js";
import {isMeant, places as placesOf, unread, wordsOf} from "./grammar.js";
import {History} from "./history.js";
import {isFailure, Others, told} from "./outcomes.js";
import {bodyOf, readBody, readTags, tagOf, takenBack} from "./prompt.js";
import {same} from "./store.js";
import {RULE_KEYS} from "./tag.js";
import {spoken, t} from "./words.js";

/**
 * @typedef {{name: string, body: string, words: string[], unread: string}} Meant
 * What the place of a tag does, in a few words each, or a sentence on what it does not do.
 *
 * @typedef {Reading & {kind: string, body: string}} FreeTag
 * A tag outside the prompt.
 *
 * @typedef {{target: string, before: number, tag: FreeTag}} Off
 * An entry that is off: it was before the tag with this number.
 *
 * @typedef {Tag & {on: true, off?: undefined, index: number, key: string}} OnRow
 * @typedef {FreeTag & {on: false, off: Off, index?: undefined, text?: undefined, key: string}} OffRow
 * @typedef {OnRow | OffRow} Row
 * A row of the stack; keys differ.
 *
 * @typedef {{target: string, phrase: string}} Added
 * A phrase of a negative prompt that the tab added; the others are the user's.
 *
 * @typedef {{prompt: string, negative: string, always: Always, off: Off[], added: Added[]}} Snapshot
 * The part of the state that can be undone.
 */

/**
 * @param {string} prompt
 * @param {Tag[]} tags
 * @param {boolean} on
 * @param {{parts: boolean, negative?: boolean}} of
 * @returns {Meant[]}
 */
function meaningsOf(prompt, tags, on, of) {
    if (!tags.length) return [];
    const isRead = isMeant(
        tags.map(({body}) => body),
        on,
    );
    return placesOf(prompt, tags, of).map((limits, at) => ({
        name: tags[at].name,
        body: tags[at].body,
        words: isRead ? wordsOf(limits) : [],
        unread: isRead ? "" : unread(limits),
    }));
}

const TIMES = ["start", "stop", "step", "sigma"]; // fields of a tag that acts in a part of the time
const LONGEST = 500_000; // characters of a prompt that is parsed

export const STACK = {
    targets: /** @type {string[]} */ ([]), // names of the page's prompts
    target: "", // name of the shown prompt; empty without prompts
    prompt: "",
    negative: "",
    steps: /** @type {number | null} */ (null), // that the page is set to
    off: /** @type {Off[]} */ ([]),
    added: /** @type {Added[]} */ ([]),
    canUndo: false,
    canRedo: false,
};

/** The stack of the page's prompt, and its history. */
export class Stack {
    /** @param {Tab} tab */
    constructor(tab) {
        this.tab = tab;
        /** @type {History<Snapshot>} */
        this.history = new History();
        this.others = new Others();
        /** @type {{prompt: string, standard: number, language: string, tags: Tag[]} | undefined} */
        this.read = undefined;
        /** @type {{prompt: string, negative: string, on: boolean, parts: boolean, language: string, found: Meant[]} | undefined} */
        this.meant = undefined;
        /** @type {string | undefined} */
        this.seen = undefined; // the prompt that the page shows
    }

    /** Read the page's prompt boxes, and show what has changed. */
    readBoxes() {
        const found = boxes.boxes();
        const targets = found.map(({name}) => name);
        if (targets.join() !== this.tab.state.targets.join()) this.tab.set({targets});
        const seen = found.find(({box}) => box.getClientRects().length);
        let {target} = this.tab.state;
        if (seen && seen.name !== target && seen.name !== this.seen) target = seen.name;
        this.seen = seen?.name;
        if (!targets.includes(target)) target = targets[0] ?? "";
        const one = found.find(({name}) => name === target);
        const prompt = one ? one.box.value : "";
        const negative = one?.negative ? one.negative.value : "";
        this.tab.set({steps: one ? boxes.stepsOf(target) : null});
        if (
            target === this.tab.state.target
            && prompt === this.tab.state.prompt
            && negative === this.tab.state.negative
        )
            return;
        this.tab.set({target, prompt, negative});
        this.tab.library.resolveNames();
    }

    /**
     * Show another prompt, until the page shows one that it did not show before.
     * @param {string} target
     */
    choose(target) {
        this.tab.set({target});
        this.readBoxes();
    }

    get standard() {
        return this.tab.state.server ? this.tab.state.server.default_multiplier : 1;
    }

    get tooLong() {
        return this.tab.state.prompt.length > LONGEST;
    }

    tags() {
        const {prompt} = this.tab.state;
        const language = spoken(); // of what is said of a tag
        const {standard, read} = this;
        if (read?.prompt !== prompt || read.standard !== standard || read.language !== language) {
            this.read = {prompt, standard, language, tags: this.tooLong ? [] : readTags(prompt, this.standard)};
        }
        return /** @type {Tag[]} */ (this.read?.tags);
    }

    /** Return what the place of each tag of the prompt means, then of each tag of the negative prompt. */
    places() {
        const {server, prompt, negative} = this.tab.state;
        const {grammar: on = false, parts = false} = server ?? {};
        const {meant} = this;
        const language = spoken();
        const isSame = meant?.prompt === prompt && meant.negative === negative && meant.language === language;
        if (!isSame || meant.on !== on || meant.parts !== parts) {
            const tags = this.tags();
            const others = negative.length > LONGEST ? [] : readTags(negative);
            const found = [
                ...meaningsOf(prompt, tags, on, {parts}),
                ...meaningsOf(negative, others, on, {parts, negative: true}),
            ];
            this.meant = {prompt, negative, on, parts, language, found};
            return found;
        }
        return meant.found;
    }

    /**
     * Return the rows of the stack: the tags of the prompt, and between them the entries that are off.
     * @returns {Row[]}
     */
    rows() {
        const tags = this.tags();
        const off = this.tab.state.off.filter((one) => one.target === this.tab.state.target);
        /** @type {Row[]} */
        const rows = [];
        /** @type {Map<string, number>} */
        const seen = new Map();
        const key = (/** @type {string} */ name) => {
            const count = (seen.get(name) ?? 0) + 1;
            seen.set(name, count);
            return `${name}#${count}`;
        };
        for (let at = 0; at <= tags.length; at += 1) {
            for (const one of off) {
                if (Math.min(one.before, tags.length) === at)
                    rows.push({...one.tag, on: false, off: one, key: key(one.tag.name)});
            }
            if (at < tags.length) rows.push({...tags[at], on: true, index: at, key: key(tags[at].name)});
        }
        return rows;
    }

    /** Return the rows of the list that is always on. */
    always() {
        return this.tab.state.always.entries.map((entry) => {
            const body = bodyOf(entry);
            return {...readBody(body), name: entry.name, on: entry.on, key: entry.name, body, entry};
        });
    }

    /**
     * Tell whether a comment cuts a tag of the prompt, in web UIs that have comments: # begins one.
     * @param {Tag} tag
     */
    isCut({start, end}) {
        const {prompt} = this.tab.state;
        return prompt.slice(prompt.lastIndexOf("\n", start) + 1, end).includes("#");
    }

    /** Return the lists of presets and regions, as far as this page knows them. */
    get known() {
        const {blocks, regions, server} = this.tab.state;
        return {blocks: blocks && blocks.model === (server?.model ?? null) ? blocks : null, regions};
    }

    /**
     * Return what is wrong with the tag of a row, and what may be meant.
     * @param {Reading & {body: string}} row
     */
    faultOf(row) {
        return row.problem ? {key: "", said: row.problem, fixes: row.fixes} : faultOfNames(row, this.known);
    }

    /** Return the ids of the files in the prompt. */
    used() {
        return this.idsOf(this.tags());
    }

    /** Return the ids of the files that every picture gets. */
    pinned() {
        const {on, entries} = this.tab.state.always;
        return this.idsOf(on ? entries.filter((entry) => entry.on) : []);
    }

    /**
     * Return the tags of the next picture, what is always on first; a tag counts before that.
     * @returns {SavedTag[]}
     */
    written() {
        const rows = this.rows().filter((row) => row.on);
        const always = this.tab.state.always.on ? this.always() : [];
        const besides = always.filter((one) => one.on && !rows.some(({name}) => name === one.name));
        return [...besides.map((one) => ({...one, text: tagOf(one.entry)})), ...rows].map((row) => ({
            name: row.name,
            text: String(row.text),
            combined: row.values.combine !== undefined,
            half: row.values.half !== undefined,
            varies: Boolean(row.teCurve ?? row.unetCurve) || TIMES.some((key) => row.values[key] !== undefined),
        }));
    }

    /** Return the fields of the rule that all tags of the next picture have; null where they differ. */
    rule() {
        const always = this.tab.state.always.on ? this.always() : [];
        const rows = [...this.rows(), ...always].filter((row) => row.on && !row.problem);
        const of = rows.map(({values}) => RULE_KEYS.map((key) => (values[key] ?? "").toLowerCase()));
        const [first = RULE_KEYS.map(() => "")] = of;
        return of.every((one) => same(one, first)) ? first : null;
    }

    /** Return the files that act in the next picture, with their tags and strengths; a tag counts before what is always on. */
    acting() {
        const always = this.tab.state.always.on ? this.always() : [];
        const rows = [...this.rows(), ...always].filter((row) => row.on && !row.problem);
        /** @type {Map<string, {id: string, name: string, tag: string, strength: number}>} */
        const found = new Map();
        for (const {name, body, unet, te} of rows) {
            const {lora} = this.tab.library.meaning(name);
            if (!lora?.readable || found.has(lora.id)) continue;
            found.set(lora.id, {id: lora.id, name, tag: `<lora:${body}>`, strength: unet || te});
        }
        return [...found.values()].filter(({strength}) => strength);
    }

    /** @param {{name: string}[]} named */
    idsOf(named) {
        return new Set(named.map(({name}) => this.tab.library.meaning(name).lora?.id).filter(Boolean));
    }

    /**
     * Return what became of the rows in the latest picture, by what they are in and their keys; the outcomes without a
     * row; and the number of errors that the stack shows.
     */
    outcomes() {
        const loras = this.tab.state.server?.loras ?? [];
        const rows = [
            ...this.rows().map((row) => ({...row, where: /** @type {const} */ ("prompt"), written: row.body})),
            ...this.always().map((row) => ({...row, where: /** @type {const} */ ("always"), written: row.body})),
            ...this.negatives().map((tag, at) => ({
                ...{name: tag.name, key: String(at), on: true, problem: ""},
                ...{where: /** @type {const} */ ("negative"), written: tag.body},
            })),
        ];
        const found = told(loras, rows);
        const byKey = new Map(rows.map(({where, key}, at) => [`${where} ${key}`, found[at]]));
        const isWrong = (/** @type {typeof rows[number]} */ row, /** @type {number} */ at) => {
            const outcome = row.on ? found[at] : undefined;
            const said = // words else
                row.where !== "negative" && (this.faultOf(row).said || this.tab.library.meaning(row.name).problem);
            return said || (outcome && !outcome.changed && isFailure(outcome.lora));
        };
        const others = this.others.of(loras, found);
        return {
            of: (/** @type {LoraOutcome["where"]} */ where, /** @type {string} */ key) => byKey.get(`${where} ${key}`),
            others,
            errors: rows.filter(isWrong).length + others.filter(isFailure).length,
        };
    }

    /** Return what the places of the tags of the negative prompt mean. */
    negatives() {
        return this.places().slice(this.tags().length);
    }

    /** @returns {Snapshot} */
    snapshot() {
        const {prompt, negative, always, off, added} = this.tab.state;
        return {prompt, negative, always, off, added};
    }

    /**
     * Change the prompt, the negative prompt, the entries that are off, or the always-on stack; can be undone.
     * @param {Partial<Snapshot>} changes
     * @param {string} [key] consecutive changes with the same key are undone together
     */
    change(changes, key = "") {
        this.readBoxes();
        const before = this.snapshot();
        const after = {...before, ...changes};
        this.history.add({target: this.tab.state.target, before, after, key});
        this.apply(after);
    }

    /** @param {Snapshot} wanted */
    apply({prompt, negative, always, off, added}) {
        const one = boxes.find(this.tab.state.target);
        if (one) {
            boxes.write(one.box, prompt);
            boxes.write(one.negative, negative);
        }
        const saves = always !== this.tab.state.always;
        this.tab.set({
            prompt: one ? prompt : "",
            negative: one?.negative ? negative : "",
            always,
            off,
            added,
            canUndo: this.history.past.length > 0,
            canRedo: this.history.future.length > 0,
        });
        if (saves) this.tab.kept.save();
        this.tab.library.resolveNames();
    }

    undo() {
        this.travel(this.history.undo(), "before", "after");
    }

    redo() {
        this.travel(this.history.redo(), "after", "before");
    }

    /**
     * @param {{target: string, before: Snapshot, after: Snapshot} | undefined} change
     * @param {"before" | "after"} to
     * @param {"before" | "after"} from
     */
    travel(change, to, from) {
        if (!change) return;
        if (change.target !== this.tab.state.target) this.choose(change.target);
        this.readBoxes();
        const prompt = takenBack(change[to].prompt, change[from].prompt, this.tab.state.prompt);
        const negative = takenBack(change[to].negative, change[from].negative, this.tab.state.negative);
        this.apply({
            prompt: prompt ?? this.tab.state.prompt,
            negative: negative ?? this.tab.state.negative,
            always: same(change[to].always, change[from].always) ? this.tab.state.always : change[to].always,
            off: change[to].off,
            added: change[to].added,
        });
        if (prompt === null) this.tab.set({said: t("stack.changedTooMuch")});
    }
}
