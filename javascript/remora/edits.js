// The user's edits of the stack: LoRA are inserted, removed, changed, moved, made always on.

/**
 * @import {Lora, StackEntry} from "../api.d.ts"
 * @import {Always} from "./kept.js"
 * @import {Tab} from "./main.js"
 * @import {FreeTag, Off, OffRow, OnRow, Row, Snapshot} from "./stack.js"
 *
 * @typedef {(body: string) => string} BodyChange
 */

import {canBeNamed} from "./catalog.js";
import {
    bodyOf,
    entryOf,
    hasWords,
    isNeeded,
    makeTag,
    readBody,
    readTags,
    reordered,
    scaled,
    setMultipliers,
    split,
    tagOf,
    withBody,
    withEntry,
    withName,
    withoutEntry,
    withoutPhrases,
    withoutWords,
    withPhrases,
} from "./prompt.js";
import {escapedName, RULE_KEYS, setField} from "./tag.js";
import {t} from "./words.js";

/** The edits of the stack; each can be undone. */
export class Edits {
    /** @param {Tab} tab */
    constructor(tab) {
        this.tab = tab;
    }

    /**
     * Add a LoRA and its words to the prompt, or remove them if the prompt has it.
     * @param {Lora} lora
     */
    toggle(lora) {
        const index = this.tab.stack.tags().findIndex((tag) => this.tab.library.meaning(tag.name).lora?.id === lora.id);
        if (index >= 0) this.remove(/** @type {Row} */ (this.tab.stack.rows().find((row) => row.index === index)));
        else this.insert(lora);
    }

    /** @param {Lora} lora */
    insert(lora) {
        if (!canBeNamed(lora.name)) {
            const reason = this.tab.library.catalog.against(lora);
            this.tab.set({said: t("stack.notInserted", {name: lora.name, reason})});
            return;
        }
        if (!this.tab.state.target) {
            this.addAlways(lora.name);
            return;
        }
        this.tab.stack.readBoxes();
        const strength = lora.strength ?? this.tab.stack.standard;
        const rule = RULE_KEYS.flatMap((key, at) => {
            const value = this.tab.stack.rule()?.[at];
            return value ? `${key}=${value}` : [];
        });
        const tag = makeTag([escapedName(lora.name), ...rule].join(":"), strength, strength);
        this.tab.stack.change(this.withTag(lora.name, tag));
        this.tab.set({said: t("stack.inserted", {name: lora.name})});
    }

    /** @param {Row} row */
    remove(row) {
        if (row.off) {
            this.tab.stack.change({off: this.tab.state.off.filter((one) => one !== row.off)});
            return;
        }
        if (!this.isThere(row)) return;
        this.tab.stack.change({...this.withoutTag(row.index), off: this.offWithout(row)});
        this.tab.set({said: t("stack.removed", {name: row.name})});
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
     * Read the prompt, and tell whether a row that was shown is still there: the user may have replaced its tag since.
     * @param {Row} row
     */
    isThere(row) {
        this.tab.stack.readBoxes();
        if (row.off) return this.tab.state.off.includes(row.off);
        return this.tab.stack.tags()[row.index]?.name === row.name;
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
            this.tab.stack.change({off: this.tab.state.off.map((one) => (one === row.off ? {...one, tag} : one))}, key);
            return;
        }
        if (!this.isThere(row)) return;
        const tag = this.tab.stack.tags()[row.index];
        this.tab.stack.change({prompt: withBody(this.tab.state.prompt, row.index, change(tag.body))}, key);
    }

    /**
     * @param {string} kind
     * @param {string} body
     * @returns {FreeTag}
     */
    tagWith(kind, body) {
        return {...readBody(body, this.tab.stack.standard), kind, body};
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
        if (!this.isThere(row)) return;
        const rows = this.tab.stack.rows();
        if (!on) {
            const {index} = /** @type {OnRow} */ (row);
            const one = {target: this.tab.state.target, before: index, tag: this.tagWith(row.kind, row.body)};
            const entries = rows.map((other) => (other.index === index ? one : other.off));
            this.tab.stack.change({...this.withoutTag(index), off: this.offAmong(entries)});
            return;
        }
        const former = /** @type {OffRow} */ (row).off;
        const entered = this.withTag(former.tag.name, `<${former.tag.kind}:${former.tag.body}>`);
        const entries = rows.map((other) => (other.off === former ? undefined : other.off));
        const last = this.tab.stack.tags().length; // the number of the tag that was added
        const order = rows.filter((other) => other.on || other.off === former).map((other) => other.index ?? last);
        this.tab.stack.change({
            ...entered,
            prompt: reordered(entered.prompt, order),
            off: this.offAmong(entries),
        });
    }

    /**
     * Return the entries of all prompts that are off; entries of this prompt have their new places among its tags.
     * @param {(Off | undefined)[]} entries of the rows in order, undefined for a tag
     */
    offAmong(entries) {
        const others = this.tab.state.off.filter((one) => one.target !== this.tab.state.target);
        let before = 0;
        /** @type {Off[]} */
        const own = [];
        for (const one of entries) {
            if (one) own.push({...one, before});
            else before += 1;
        }
        return [...others, ...own];
    }

    /**
     * Return the entries that are off when a row of the prompt has gone.
     * @param {Row} gone
     */
    offWithout(gone) {
        const left = this.tab.stack.rows().filter((row) => row.index !== gone.index);
        return this.offAmong(left.map((row) => row.off));
    }

    /**
     * Move a row.
     * @param {number} from
     * @param {number} to
     */
    move(from, to) {
        this.tab.stack.readBoxes();
        const rows = this.tab.stack.rows();
        if (to < 0 || to >= rows.length || from === to) return;
        rows.splice(to, 0, ...rows.splice(from, 1));
        const order = rows.filter((row) => row.on).map((row) => row.index);
        const off = this.offAmong(rows.map((row) => row.off));
        this.tab.stack.change({prompt: reordered(this.tab.state.prompt, order), off});
    }

    /**
     * Change the name in an entry's tag.
     * @param {Row} row
     * @param {string} name
     */
    rename(row, name) {
        this.edit(row, (body) => withName(body, name));
    }

    /**
     * Change the names in all tags of the prompt, also in those that are off; it is undone in one step.
     * @param {Map<string, string>} names
     */
    renameAll(names) {
        this.tab.stack.readBoxes();
        let {prompt} = this.tab.state;
        this.tab.stack.tags().forEach(({name, body}, index) => {
            const to = names.get(name);
            if (to) prompt = withBody(prompt, index, withName(body, to));
        });
        const off = this.tab.state.off.map((one) => {
            const to = names.get(one.tag.name);
            if (!to) return one;
            const body = withName(one.tag.body, to);
            return {...one, tag: {...one.tag, ...readBody(body), body}};
        });
        const isChanged = off.some((one, at) => one !== this.tab.state.off[at]);
        if (isChanged || prompt !== this.tab.state.prompt) this.tab.stack.change(isChanged ? {prompt, off} : {prompt});
    }

    /**
     * Give all tags of the stack a rule, also those that are off; it is undone in one step.
     * @param {string[]} rule the values of its fields
     */
    combineBy(rule) {
        this.tab.stack.readBoxes();
        const {target, off, always} = this.tab.state;
        const change = (/** @type {string} */ body) =>
            RULE_KEYS.reduce((text, key, at) => setField(text, key, rule[at]), body);
        let {prompt} = this.tab.state;
        this.tab.stack.tags().forEach(({body}, index) => {
            prompt = withBody(prompt, index, change(body));
        });
        const ownOff = off.map((one) =>
            one.target === target ? {...one, tag: this.tagWith(one.tag.kind, change(one.tag.body))} : one,
        );
        const entries = always.entries.map((one) => ({...one, ...entryOf(change(bodyOf(one)))}));
        this.tab.stack.change({prompt, off: ownOff, ...(always.on ? {always: {...always, entries}} : {})}, "rule");
    }

    /** Switch on that brackets around tags mean something, for all prompts. */
    async obeyBrackets() {
        const server = await this.tab.server.attempt(() => this.tab.api.ask("PUT", "grammar", {on: true}));
        if (server) this.tab.set({server, said: t("stack.brackets")});
    }

    /**
     * Multiply the strengths of the entries of files, schedules too; it is undone in one step.
     * @param {Map<string, number>} factors by the ids of the files
     */
    scale(factors) {
        this.tab.stack.readBoxes();
        const idOf = (/** @type {string} */ name) => this.tab.library.meaning(name).lora?.id ?? "";
        let {prompt} = this.tab.state;
        this.tab.stack.tags().forEach(({name, problem, body}, index) => {
            const factor = factors.get(idOf(name)) ?? 1;
            if (problem || factor === 1) return;
            prompt = withBody(prompt, index, scaled(body, factor, this.tab.stack.standard));
        });
        const {always} = this.tab.state;
        const used = this.tab.stack.used(); // a tag counts before what is always on
        const acts = (/** @type {StackEntry} */ one) => always.on && one.on && !used.has(idOf(one.name));
        const entries = always.entries.map((one) => {
            const factor = factors.get(idOf(one.name)) ?? 1;
            return acts(one) && factor !== 1 ? {...one, ...entryOf(scaled(bodyOf(one), factor))} : one;
        });
        const isChanged = entries.some((one, at) => one !== always.entries[at]);
        this.tab.stack.change(isChanged ? {prompt, always: {...always, entries}} : {prompt});
    }

    /**
     * Put the tag of a file in the place of the tags that it was made of; what was always on is switched off.
     * @param {string} name
     * @param {{text: string}[]} saved
     */
    useInstead(name, saved) {
        this.tab.stack.readBoxes();
        const texts = new Set(saved.map(({text}) => text));
        const rows = this.tab.stack.rows();
        const [first, ...others] = this.tab.stack.tags().flatMap(({text}, index) => (texts.has(text) ? [index] : []));
        const {always} = this.tab.state;
        let {prompt} = this.tab.state;
        for (const index of others.reverse()) prompt = withoutEntry(prompt, index);
        const body = `${escapedName(name)}:1`;
        prompt = first === undefined ? withEntry(prompt, `<lora:${body}>`) : withBody(prompt, first, body);
        const left = rows.filter(({index}) => index === undefined || !others.includes(index));
        const entries = always.entries.map((one) => (one.on && texts.has(tagOf(one)) ? {...one, on: false} : one));
        const isChanged = always.on && entries.some((one, at) => one !== always.entries[at]);
        this.tab.stack.change({
            prompt,
            off: this.offAmong(left.map((row) => row.off)),
            ...(isChanged ? {always: {...always, entries}} : {}),
        });
    }

    clear() {
        this.tab.stack.change(this.cleared());
    }

    /** Read the prompt, and return the changes that remove all of its LoRA and their words. */
    cleared() {
        this.tab.stack.readBoxes();
        let now = this.tab.stack.snapshot();
        for (let index = this.tab.stack.tags().length - 1; index >= 0; index -= 1)
            now = {...now, ...this.withoutTag(index, now)};
        return {...now, off: this.tab.state.off.filter((one) => one.target !== this.tab.state.target)};
    }

    /**
     * @param {Always} always
     * @param {string} [key]
     */
    changeAlways(always, key = "") {
        this.tab.stack.change({always}, key);
    }

    /** @param {string} name */
    addAlways(name) {
        const {always} = this.tab.state;
        if (always.entries.some((one) => one.name === name)) return;
        const strength = this.tab.library.meaning(name).lora?.strength ?? this.tab.stack.standard;
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
        if (!this.isThere(row)) return;
        const {always} = this.tab.state;
        const name = this.tab.library.meaning(row.name).lora?.name ?? row.name;
        const entry = {name, on: row.on, ...entryOf(row.body, this.tab.stack.standard)};
        const entries = [...always.entries.filter((one) => one.name !== name), entry];
        const changes = row.off
            ? {off: this.tab.state.off.filter((one) => one !== row.off)}
            : {prompt: withoutEntry(this.tab.state.prompt, row.index), off: this.offWithout(row)};
        this.tab.stack.change({...changes, always: {on: true, entries}});
    }

    /**
     * Return the trigger words of a LoRA that is always on, if the prompt has neither them nor a tag of it.
     * @param {string} name
     */
    wordsMissing(name) {
        const words = this.tab.library.wordsOf(name);
        if (this.tab.stack.used().has(this.tab.library.meaning(name).lora?.id ?? "")) return "";
        return words && !hasWords(this.tab.state.prompt, words) ? words : "";
    }

    /**
     * Add the trigger words of a LoRA to the prompt.
     * @param {string} name
     */
    insertWords(name) {
        this.tab.stack.readBoxes();
        const words = this.wordsMissing(name);
        if (words) this.tab.stack.change({prompt: withPhrases(this.tab.state.prompt, [words])});
    }

    /**
     * Add trigger words to the prompt, or remove those that stand between commas.
     * @param {string} words
     */
    flipWords(words) {
        this.tab.stack.readBoxes();
        const {prompt} = this.tab.state;
        const change = hasWords(prompt, words) ? withoutWords(prompt, words) : withPhrases(prompt, [words]);
        this.tab.stack.change({prompt: change});
    }

    /**
     * Move an always-on entry to the prompt, replacing a tag of the same LoRA there.
     * @param {StackEntry} entry
     */
    unpin(entry) {
        this.tab.stack.readBoxes();
        const always = {
            ...this.tab.state.always,
            entries: this.tab.state.always.entries.filter((one) => one !== entry),
        };
        const {lora} = this.tab.library.meaning(entry.name);
        const index = this.tab.stack
            .tags()
            .findIndex(
                ({name}) => name === entry.name || (lora && this.tab.library.meaning(name).lora?.id === lora.id),
            );
        if (index < 0) {
            this.tab.stack.change({...this.withTag(entry.name, tagOf(entry)), always});
            return;
        }
        const body = tagOf(entry).slice("<lora:".length, -1);
        this.tab.stack.change({prompt: withBody(this.tab.state.prompt, index, body), always});
        this.tab.set({said: t("stack.unpinned", {name: entry.name})});
    }
}
