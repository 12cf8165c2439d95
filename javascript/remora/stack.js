// The prompt of the page and the stack of its tags: read, changed, undone.

/**
 * @import {Lora, LoraOutcome, StackEntry} from "./api.js"
 * @import {Always} from "./kept.js"
 * @import {Tab} from "./main.js"
 * @import {Asker} from "./outcomes.js"
 * @import {Tag} from "./prompt.js"
 * @import {Reading} from "./tag.js"
 */

import * as boxes from "./boxes.js";
import {History} from "./history.js";
import {isFailure, isOf, Others} from "./outcomes.js";
import {
    bodyOf,
    entryOf,
    hasWords,
    isNeeded,
    makeTag,
    readBody,
    readTags,
    reordered,
    setMultipliers,
    split,
    tagOf,
    takenBack,
    withBody,
    withEntry,
    withoutEntry,
    withoutPhrases,
    withPhrases,
} from "./prompt.js";
import {same} from "./store.js";

/**
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
 *
 * @typedef {(body: string) => string} BodyChange
 */

const LONGEST = 500_000; // characters of a prompt that is parsed

export const STACK = {
    targets: /** @type {string[]} */ ([]), // names of the page's prompts
    target: "", // name of the shown prompt; empty without prompts
    prompt: "",
    negative: "",
    off: /** @type {Off[]} */ ([]),
    added: /** @type {Added[]} */ ([]),
    canUndo: false,
    canRedo: false,
};

export class Stack {
    /** @param {Tab} tab */
    constructor(tab) {
        this.tab = tab;
        /** @type {History<Snapshot>} */
        this.history = new History();
        this.others = new Others();
        /** @type {{prompt: string, standard: number, tags: Tag[]} | undefined} */
        this.read = undefined;
        /** @type {string | undefined} */
        this.seen = undefined; // the target whose boxes the page shows
    }

    /** Read the page's prompt boxes, and show what has changed. */
    readBoxes() {
        const found = boxes.boxes();
        const targets = found.map(({name}) => name);
        if (targets.join() !== this.tab.state.targets.join()) this.tab.set({targets});
        const seen = found.find(({box}) => box.getClientRects().length);
        let {target} = this.tab.state;
        if (seen && seen.name !== target && seen.name !== this.seen) target = seen.name;
        if (seen) this.seen = seen.name;
        if (!targets.includes(target)) target = targets[0] ?? "";
        const one = found.find(({name}) => name === target);
        const prompt = one ? one.box.value : "";
        const negative = one?.negative ? one.negative.value : "";
        if (
            target === this.tab.state.target
            && prompt === this.tab.state.prompt
            && negative === this.tab.state.negative
        )
            return;
        this.tab.set({target, prompt, negative});
        this.tab.library.resolveNames();
    }

    /** @param {string} target */
    choose(target) {
        this.tab.set({target});
        this.seen = target;
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
        if (this.read?.prompt !== prompt || this.read.standard !== this.standard) {
            this.read = {prompt, standard: this.standard, tags: this.tooLong ? [] : readTags(prompt, this.standard)};
        }
        return this.read.tags;
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

    /** Return the ids of the files in the prompt. */
    used() {
        return new Set(
            this.tags()
                .map((tag) => this.tab.library.meaning(tag.name).lora?.id)
                .filter(Boolean),
        );
    }

    /**
     * Return the outcome of the latest picture for a row, the outcomes without a row, and the number of errors that the
     * stack shows.
     * @returns {{of: (row: {name: string, body: string}, always: boolean) => LoraOutcome | undefined,
     *     others: LoraOutcome[], errors: number}}
     */
    outcomes() {
        const loras = this.tab.state.server?.loras ?? [];
        /** @type {(row: {name: string, body: string}, always: boolean) => Asker} */
        const asker = ({name, body}, always) => ({name, body, always, file: this.tab.library.meaning(name).lora?.name});
        const always = this.tab.state.always.entries.map((entry) => ({
            ...readBody(bodyOf(entry)),
            name: entry.name,
            body: bodyOf(entry),
            on: entry.on,
        }));
        const rows = [
            ...this.rows().map((row) => ({...row, always: false})),
            ...always.map((row) => ({...row, always: true})),
        ];
        /** @type {(row: {name: string, body: string}, always: boolean) => LoraOutcome | undefined} */
        const of = (row, isAlways) => loras.find((lora) => isOf(lora, asker(row, isAlways)));
        const isWrong = (/** @type {typeof rows[number]} */ row) => {
            const outcome = row.on && of(row, row.always);
            return row.problem || this.tab.library.meaning(row.name).problem || (outcome && isFailure(outcome));
        };
        const others = this.others.of(
            loras,
            rows.map((row) => asker(row, row.always)),
        );
        return {of, others, errors: rows.filter(isWrong).length + others.filter(isFailure).length};
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
            said: "",
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
        if (prompt === null) this.tab.set({said: "The prompt has changed too much since: it stays as it is."});
    }

    /**
     * Add a LoRA and its words to the prompt, or remove them if the prompt has it.
     * @param {Lora} lora
     */
    toggle(lora) {
        const index = this.tags().findIndex((tag) => this.tab.library.meaning(tag.name).lora?.id === lora.id);
        if (index >= 0) this.remove(/** @type {Row} */ (this.rows().find((row) => row.index === index)));
        else this.insert(lora);
    }

    /** @param {Lora} lora */
    insert(lora) {
        if (!this.tab.state.target) {
            this.addAlways(lora.name);
            return;
        }
        this.readBoxes();
        const strength = lora.strength ?? this.standard;
        this.change(this.withTag(lora.name, makeTag(lora.name, strength, strength)));
        this.tab.set({said: `${lora.name} inserted.`});
    }

    /** @param {Row} row */
    remove(row) {
        if (row.off) {
            this.change({off: this.tab.state.off.filter((one) => one !== row.off)});
            return;
        }
        this.readBoxes();
        this.change(this.withoutTag(row.index));
        this.tab.set({said: `${row.name} removed.`});
    }

    /**
     * Return the changes that add a tag and its words, unless the prompt has the words.
     * @param {string} name
     * @param {string} tag
     */
    withTag(name, tag) {
        const {prompt, negative, target, added} = this.tab.state;
        const words = this.tab.library.wordsOf(name);
        const missing = this.tab.library.negativesOf(name).filter((phrase) => !hasWords(negative, phrase));
        return {
            prompt: withEntry(prompt, tag, hasWords(prompt, words) ? "" : words),
            negative: withPhrases(negative, missing),
            added: [...added, ...missing.map((phrase) => ({target, phrase}))],
        };
    }

    /**
     * Return the changes that remove a tag and its words, except words that the user wrote or another LoRA needs.
     * @param {number} index
     * @param {Snapshot} [from]
     */
    withoutTag(index, from = this.tab.state) {
        const {target} = this.tab.state;
        const tags = readTags(from.prompt);
        const {name} = tags[index];
        const others = [...tags.filter((_, at) => at !== index), ...from.always.entries].map((one) => one.name);
        const needed = others.flatMap((other) => this.tab.library.negativesOf(other));
        const gone = this.tab.library
            .negativesOf(name)
            .filter(
                (phrase) =>
                    !isNeeded(phrase, needed)
                    && from.added.some((one) => one.target === target && one.phrase === phrase),
            );
        const words = others.flatMap((other) => split(this.tab.library.wordsOf(other)));
        return {
            prompt: withoutEntry(from.prompt, index, this.tab.library.wordsOf(name), words),
            negative: withoutPhrases(from.negative, gone),
            added: from.added.filter((one) => one.target !== target || !gone.includes(one.phrase)),
        };
    }

    /**
     * Change the body of an entry's tag. Consecutive changes with the same `what` are undone together.
     * @param {Row} row
     * @param {BodyChange} change
     * @param {string} [what]
     */
    edit(row, change, what = "") {
        const key = what && `${row.off ? "off " : ""}${what} ${row.key}`;
        if (row.off) {
            const tag = this.tagWith(row.off.tag.kind, change(row.off.tag.body));
            this.change({off: this.tab.state.off.map((one) => (one === row.off ? {...one, tag} : one))}, key);
            return;
        }
        this.readBoxes();
        const tag = this.tags()[row.index];
        if (tag?.name !== row.name) return; // the user has replaced it
        this.change({prompt: withBody(this.tab.state.prompt, row.index, change(tag.body))}, key);
    }

    /**
     * @param {string} kind
     * @param {string} body
     * @returns {FreeTag}
     */
    tagWith(kind, body) {
        return {...readBody(body, this.standard), kind, body};
    }

    /**
     * Set the multipliers, as numbers or as points in text.
     * @param {Row} row
     * @param {number | string} te
     * @param {number | string} unet
     */
    setStrength(row, te, unet) {
        this.edit(row, (body) => setMultipliers(body, te, unet), "strength");
    }

    /**
     * Switch an entry off, which removes it from the prompt, or on again.
     * @param {Row} row
     * @param {boolean} on
     */
    setOn(row, on) {
        this.readBoxes();
        const {state} = this.tab;
        if (!on) {
            const {index} = /** @type {OnRow} */ (row);
            const one = {target: state.target, before: index, tag: this.tagWith(row.kind, row.body)};
            const later = state.off.map((other) =>
                other.target === state.target && other.before > index ? {...other, before: other.before - 1} : other,
            );
            this.change({...this.withoutTag(index), off: [...later, one]});
            return;
        }
        const former = /** @type {OffRow} */ (row).off;
        const {tag} = former;
        const text = `<${tag.kind}:${tag.body}>`;
        const count = this.tags().length;
        const entered = this.withTag(tag.name, text);
        const before = Math.min(former.before, count);
        const order = [...Array(count).keys()];
        order.splice(before, 0, count);
        const off = state.off
            .filter((one) => one !== former)
            .map((other) =>
                other.target === state.target && other.before > before ? {...other, before: other.before + 1} : other,
            );
        this.change({...entered, prompt: reordered(entered.prompt, order), off});
    }

    /**
     * Move a row.
     * @param {number} from
     * @param {number} to
     */
    move(from, to) {
        this.readBoxes();
        const rows = this.rows();
        if (to < 0 || to >= rows.length || from === to) return;
        rows.splice(to, 0, ...rows.splice(from, 1));
        const order = rows.filter((row) => row.on).map((row) => row.index);
        let before = 0;
        /** @type {Map<Off, number>} */
        const places = new Map();
        for (const row of rows) {
            if (row.on) before += 1;
            else places.set(row.off, before);
        }
        const own = [...places].map(([one, place]) => ({...one, before: place}));
        const off = [...this.tab.state.off.filter((one) => one.target !== this.tab.state.target), ...own];
        this.change({prompt: reordered(this.tab.state.prompt, order), off});
    }

    clear() {
        this.readBoxes();
        let now = this.snapshot();
        for (let index = this.tags().length - 1; index >= 0; index -= 1) now = {...now, ...this.withoutTag(index, now)};
        this.change({...now, off: this.tab.state.off.filter((one) => one.target !== this.tab.state.target)});
    }

    /**
     * @param {Always} always
     * @param {string} [key]
     */
    changeAlways(always, key = "") {
        this.change({always}, key);
    }

    /** @param {string} name */
    addAlways(name) {
        const {always} = this.tab.state;
        if (always.entries.some((one) => one.name === name)) return;
        const strength = this.tab.library.meaning(name).lora?.strength ?? this.standard;
        const entry = {name, on: true, unet: strength, text_encoder: strength, more: ""};
        this.changeAlways({on: always.entries.length ? always.on : true, entries: [...always.entries, entry]});
    }

    /**
     * Change the tag of an always-on entry.
     * @param {StackEntry} entry
     * @param {BodyChange} change
     * @param {string} [what]
     */
    editAlways(entry, change, what = "") {
        const {always} = this.tab.state;
        const entries = always.entries.map((one) => (one === entry ? {...one, ...entryOf(change(bodyOf(one)))} : one));
        this.changeAlways({...always, entries}, what && `always ${what} ${entry.name}`);
    }

    /**
     * Move an entry from the prompt to the always-on stack.
     * @param {Row} row
     */
    pin(row) {
        const {always} = this.tab.state;
        const name = this.tab.library.meaning(row.name).lora?.name ?? row.name;
        const entry = {name, on: row.on, ...entryOf(row.body, this.standard)};
        const entries = [...always.entries.filter((one) => one.name !== name), entry];
        const changes = row.off
            ? {off: this.tab.state.off.filter((one) => one !== row.off)}
            : {prompt: withoutEntry(this.tab.state.prompt, row.index)};
        this.change({...changes, always: {on: true, entries}});
    }

    /**
     * Move an always-on entry to the prompt, replacing a tag of the same LoRA there.
     * @param {StackEntry} entry
     */
    unpin(entry) {
        this.readBoxes();
        const always = {
            ...this.tab.state.always,
            entries: this.tab.state.always.entries.filter((one) => one !== entry),
        };
        const {lora} = this.tab.library.meaning(entry.name);
        const index = this.tags().findIndex(
            ({name}) => name === entry.name || (lora && this.tab.library.meaning(name).lora?.id === lora.id),
        );
        if (index < 0) {
            this.change({...this.withTag(entry.name, tagOf(entry)), always});
            return;
        }
        const body = tagOf(entry).slice("<lora:".length, -1);
        this.change({prompt: withBody(this.tab.state.prompt, index, body), always});
        this.tab.set({said: `The tag of ${entry.name} in the prompt says now what was always on.`});
    }
}
