// What the tab does: between the server, the prompt boxes and what is shown. No elements of its own.

/**
 * @import {AnswerTo, Blocks, Lora, LoraOutcome, Meaning, Path, Preset, PresetList, Region, Scan} from "./api.js"
 * @import {ServerState, StackEntry, StackOnDisk} from "./api.js"
 * @import {Filters, Listed} from "./catalog.js"
 * @import {Asker} from "./outcomes.js"
 * @import {Tag} from "./prompt.js"
 * @import {Reading} from "./tag.js"
 */

import {Api, ApiError, CHANGED, query} from "./api.js";
import * as boxes from "./boxes.js";
import {Catalog, NO_FILTERS, SORTS} from "./catalog.js";
import {History} from "./history.js";
import {isFailure, isOf, Others} from "./outcomes.js";
import {
    bodyOf,
    entryOf,
    hasWords,
    isNeeded,
    makeTag,
    plainWords,
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
import {Store} from "./store.js";

/**
 * @typedef {{on: boolean, entries: StackEntry[]}} Always
 * The stack that is always on.
 *
 * @typedef {Reading & {kind: string, body: string}} FreeTag
 * A tag that stands in no prompt.
 *
 * @typedef {{target: string, before: number, tag: FreeTag}} Off
 * An entry that is switched off: it stood before the tag with this number.
 *
 * @typedef {Tag & {on: true, off?: undefined, index: number, key: string}} OnRow
 * @typedef {FreeTag & {on: false, off: Off, index?: undefined, text?: undefined, key: string}} OffRow
 * @typedef {OnRow | OffRow} Row
 * A row of the stack; keys differ.
 *
 * @typedef {{target: string, phrase: string}} Added
 * A phrase of a negative prompt that the tab put there; the others are the user's own.
 *
 * @typedef {{prompt: string, negative: string, always: Always, off: Off[], added: Added[]}} Snapshot
 * The part of the state that the tab can change, and take back.
 *
 * @typedef {object} Known
 * The rest of the state.
 * @property {number} version of the catalog
 * @property {Scan} scan
 * @property {boolean} loaded
 * @property {string} error
 * @property {boolean} login whether to ask for a password
 * @property {string} said about the last action
 * @property {boolean} lost whether the server does not answer
 * @property {ServerState | null} server
 * @property {string[]} targets names of the prompts of the page
 * @property {string} target the name of the prompt that is shown; empty without prompts
 * @property {string} stackProblem
 * @property {Always | null} refused the stack of this page, where another page had changed it meanwhile
 * @property {string} query
 * @property {Filters} filters
 * @property {string} sort
 * @property {"grid" | "list"} view
 * @property {string} pane
 * @property {string | null} details the id of a file
 * @property {string} dialog
 * @property {boolean} canUndo
 * @property {boolean} canRedo
 * @property {Preset[] | null} presets
 * @property {string} presetProblem
 * @property {(Blocks & {model: string | null}) | null} blocks
 * @property {Region[] | null} regions
 * @property {string} regionProblem
 *
 * @typedef {Snapshot & Known} State
 * @typedef {(body: string) => string} BodyChange
 */

const POLL = 2000; // milliseconds between two looks at the state, while the tab is seen
const READ = 250; // the same at the prompts
const SAVE_AFTER = 200; // milliseconds without a change
const LONGEST = 500_000; // characters of a prompt that is read
const KEPT = "remora"; // in the browser's storage
const MOST_NAMES = 50; // that the server looks up at once

export class Controller {
    /** @param {string} base the address below which the server's routes are */
    constructor(base) {
        this.api = new Api(base);
        this.catalog = new Catalog(this.api);
        /** @type {History<Snapshot>} */
        this.history = new History();
        /** @type {Map<string, Meaning>} */
        this.meanings = new Map(); // of names in prompts that are no file's own: what the server says
        /** @type {Set<string>} */
        this.asked = new Set();
        this.others = new Others();
        /** @type {Promise<unknown>} */
        this.saving = Promise.resolve();
        /** @type {ReturnType<typeof setTimeout> | null} */
        this.pending = null;
        this.unsaved = 0; // changes of the stack that are on their way
        /** @type {{prompt: string, standard: number, tags: Tag[]} | undefined} */
        this.read = undefined;
        /** @type {string | undefined} */
        this.seen = undefined; // the target whose boxes the page shows
        /** @type {string | null | undefined} */
        this.model = undefined; // as the server had it last
        /** @type {Store<State>} */
        this.store = new Store({
            version: 0,
            scan: this.catalog.scan,
            loaded: false,
            error: "",
            login: false,
            said: "",
            lost: false,
            server: null,
            targets: [],
            target: "",
            prompt: "",
            negative: "",
            off: [],
            added: [],
            always: {on: false, entries: []},
            stackProblem: "",
            refused: null,
            query: "",
            filters: NO_FILTERS,
            sort: "name",
            view: "grid",
            pane: "library",
            details: null,
            dialog: "",
            canUndo: false,
            canRedo: false,
            presets: null,
            presetProblem: "",
            blocks: null,
            regions: null,
            regionProblem: "",
            ...remembered(),
        });
    }

    get state() {
        return this.store.state;
    }

    /** @param {Partial<State>} changes */
    set(changes) {
        this.store.set(changes);
        if (["sort", "view", "filters", "target"].some((name) => name in changes)) remember(this.state);
    }

    // --- the server ---

    /**
     * Run something that asks the server. An error of the server is shown, and the result is null.
     * @template T
     * @param {() => Promise<T>} work
     */
    async tell(work) {
        try {
            const result = await work();
            this.set({error: "", login: false, lost: false});
            return result;
        } catch (error) {
            if (!(error instanceof ApiError)) throw error;
            const login = error.status === 401 && error.message.includes("password");
            this.set({error: error.message, login: login || this.state.login});
            return null;
        }
    }

    /**
     * Change something that is kept, and take the answer. Where another page or program changed it meanwhile, what it is
     * now is taken first; the change is sent again if what it is about is as it was, and else it throws.
     * @template {Path} P
     * @param {string} method
     * @param {P} path
     * @param {object | undefined} body
     * @param {object} kept
     * @param {() => Promise<void>} kept.look takes what it is now
     * @param {() => unknown} kept.part what the change is about, as this page knows it
     * @returns {Promise<AnswerTo<P>>}
     */
    async keep(method, path, body, {look, part}) {
        try {
            return await this.api.ask(method, path, body);
        } catch (error) {
            if (!(error instanceof ApiError) || error.status !== CHANGED) throw error;
            const before = part();
            await look();
            if (!same(before, part())) throw error;
            return await this.api.ask(method, path, body);
        }
    }

    start() {
        return this.tell(async () => {
            await this.refresh();
            await this.askStack();
            await this.look();
        });
    }

    /** @param {"GET" | "POST"} [method] */
    async refresh(method = "GET") {
        await this.catalog.update(method);
        this.meanings.clear();
        this.asked.clear();
        this.catalogChanged();
    }

    catalogChanged() {
        this.set({version: this.catalog.version, scan: this.catalog.scan, loaded: true});
        this.askMeanings();
    }

    async look() {
        const server = await this.api.get("state");
        if (!this.state.server) this.others.begin(server.loras);
        if (JSON.stringify(server) !== JSON.stringify(this.state.server)) this.set({server});
        const behind = server.catalog.revision !== this.catalog.revision || this.catalog.scan.running;
        if (server.stack !== this.api.tags.get("stack")) await this.askStack();
        const other = server.model !== this.model;
        this.model = server.model;
        if (behind || other) {
            await this.catalog.update();
            if (other) this.catalog.version += 1; // what fits is another
            this.catalogChanged();
        }
    }

    /** Look at the state; called again and again while somebody looks. */
    async poll() {
        if (this.state.login || this.pending !== null) return;
        try {
            await this.look();
            if (this.state.lost) this.set({error: "", lost: false});
        } catch (error) {
            if (!(error instanceof ApiError)) throw error;
            this.set({error: error.message, lost: true});
        }
    }

    async askMeanings() {
        const names = [...this.tags(), ...this.state.always.entries]
            .map((one) => one.name)
            .filter((name) => name && !this.catalog.named(name) && !this.asked.has(name));
        if (!names.length || !this.state.loaded) return;
        for (const name of names) this.asked.add(name);
        const left = [...new Set(names)];
        while (left.length) {
            const some = left.splice(0, MOST_NAMES);
            const answer = await this.tell(() => this.api.ask("POST", "resolve", {names: some}));
            if (!answer) return;
            for (const [name, meaning] of Object.entries(answer.names)) this.meanings.set(name, meaning);
        }
        this.catalog.version += 1;
        this.set({version: this.catalog.version});
    }

    /**
     * Return the file that a name in a tag means, or a problem; neither while the server is being asked.
     * @param {string} name
     * @returns {{lora: Listed | undefined, problem: string, candidates: string[]}}
     */
    meaning(name) {
        const lora = this.catalog.named(name);
        if (lora) return {lora, problem: lora.readable ? "" : lora.reason, candidates: []};
        const said = this.meanings.get(name);
        if (!said) return {lora: undefined, problem: "", candidates: []};
        return {
            lora: said.id ? this.catalog.byId.get(said.id) : undefined,
            problem: said.problem,
            candidates: said.candidates,
        };
    }

    // --- prompts ---

    /** Look at the page's prompt boxes; what is new there is shown. */
    readBoxes() {
        const found = boxes.boxes();
        const targets = found.map(({name}) => name);
        if (targets.join() !== this.state.targets.join()) this.set({targets});
        const seen = found.find(({box}) => box.getClientRects().length);
        let {target} = this.state;
        if (seen && seen.name !== target && seen.name !== this.seen) target = seen.name;
        if (seen) this.seen = seen.name;
        if (!targets.includes(target)) target = targets[0] ?? "";
        const one = found.find(({name}) => name === target);
        const prompt = one ? one.box.value : "";
        const negative = one?.negative ? one.negative.value : "";
        if (target === this.state.target && prompt === this.state.prompt && negative === this.state.negative) return;
        this.set({target, prompt, negative});
        this.askMeanings();
    }

    /** @param {string} target */
    choose(target) {
        this.set({target});
        this.seen = target;
        this.readBoxes();
    }

    get standard() {
        return this.state.server ? this.state.server.default_multiplier : 1;
    }

    get tooLong() {
        return this.state.prompt.length > LONGEST;
    }

    tags() {
        const {prompt} = this.state;
        if (this.read?.prompt !== prompt || this.read.standard !== this.standard) {
            this.read = {prompt, standard: this.standard, tags: this.tooLong ? [] : readTags(prompt, this.standard)};
        }
        return this.read.tags;
    }

    /**
     * Return the rows of the stack: tags of the prompt, and between them the ones that are switched off.
     * @returns {Row[]}
     */
    rows() {
        const tags = this.tags();
        const off = this.state.off.filter((one) => one.target === this.state.target);
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
                .map((tag) => this.meaning(tag.name).lora?.id)
                .filter(Boolean),
        );
    }

    /**
     * Return the trigger words of a name, as they may stand in a prompt.
     * @param {string} name
     */
    wordsOf(name) {
        return plainWords(this.meaning(name).lora?.words ?? "");
    }

    /**
     * Return the phrases of a name for the negative prompt.
     * @param {string} name
     */
    negativesOf(name) {
        return split(plainWords(this.meaning(name).lora?.negative ?? ""));
    }

    /**
     * Return what became of the LoRAs of the latest picture: the one of a row, and those of no row. And how many errors
     * the stack shows.
     * @returns {{of: (row: {name: string, body: string}, always: boolean) => LoraOutcome | undefined,
     *     others: LoraOutcome[], errors: number}}
     */
    outcomes() {
        const loras = this.state.server?.loras ?? [];
        /** @type {(row: {name: string, body: string}, always: boolean) => Asker} */
        const asker = ({name, body}, always) => ({name, body, always, file: this.meaning(name).lora?.name});
        const always = this.state.always.entries.map((entry) => ({
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
            return row.problem || this.meaning(row.name).problem || (outcome && isFailure(outcome));
        };
        const others = this.others.of(
            loras,
            rows.map((row) => asker(row, row.always)),
        );
        return {of, others, errors: rows.filter(isWrong).length + others.filter(isFailure).length};
    }

    /** @returns {Snapshot} */
    snapshot() {
        const {prompt, negative, always, off, added} = this.state;
        return {prompt, negative, always, off, added};
    }

    /**
     * Change the prompt, the negative prompt, the entries that are off, or the stack that is always on; it can be taken back.
     * @param {Partial<Snapshot>} changes
     * @param {string} [key] changes of one key in a row are taken back together
     */
    change(changes, key = "") {
        this.readBoxes();
        const before = this.snapshot();
        const after = {...before, ...changes};
        this.history.add({target: this.state.target, before, after, key});
        this.apply(after);
    }

    /** @param {Snapshot} wanted */
    apply({prompt, negative, always, off, added}) {
        const one = boxes.find(this.state.target);
        if (one) {
            boxes.write(one.box, prompt);
            boxes.write(one.negative, negative);
        }
        const saves = always !== this.state.always;
        this.set({
            prompt: one ? prompt : "",
            negative: one?.negative ? negative : "",
            always,
            off,
            added,
            said: "",
            canUndo: this.history.past.length > 0,
            canRedo: this.history.future.length > 0,
        });
        if (saves) this.save();
        this.askMeanings();
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
        if (change.target !== this.state.target) this.choose(change.target);
        this.readBoxes();
        const prompt = takenBack(change[to].prompt, change[from].prompt, this.state.prompt);
        const negative = takenBack(change[to].negative, change[from].negative, this.state.negative);
        this.apply({
            prompt: prompt ?? this.state.prompt,
            negative: negative ?? this.state.negative,
            always: same(change[to].always, change[from].always) ? this.state.always : change[to].always,
            off: change[to].off,
            added: change[to].added,
        });
        if (prompt === null) this.set({said: "The prompt has changed too much since: it stays as it is."});
    }

    // --- entries of the prompt ---

    /**
     * Put a LoRA into the prompt with its words, or take both out where it is in it.
     * @param {Lora} lora
     */
    toggle(lora) {
        const index = this.tags().findIndex((tag) => this.meaning(tag.name).lora?.id === lora.id);
        if (index >= 0) this.remove(/** @type {Row} */ (this.rows().find((row) => row.index === index)));
        else this.insert(lora);
    }

    /** @param {Lora} lora */
    insert(lora) {
        if (!this.state.target) {
            this.addAlways(lora.name);
            return;
        }
        this.readBoxes();
        const strength = lora.strength ?? this.standard;
        this.change(this.entered(lora.name, makeTag(lora.name, strength, strength)));
        this.set({said: `${lora.name} inserted.`});
    }

    /** @param {Row} row */
    remove(row) {
        if (row.off) {
            this.change({off: this.state.off.filter((one) => one !== row.off)});
            return;
        }
        this.readBoxes();
        this.change(this.left(row.index));
        this.set({said: `${row.name} removed.`});
    }

    /**
     * Return what changes with one more tag in the prompt: its words come along, where they are not there yet.
     * @param {string} name
     * @param {string} tag
     */
    entered(name, tag) {
        const {prompt, negative, target, added} = this.state;
        const words = this.wordsOf(name);
        const missing = this.negativesOf(name).filter((phrase) => !hasWords(negative, phrase));
        return {
            prompt: withEntry(prompt, tag, hasWords(prompt, words) ? "" : words),
            negative: withPhrases(negative, missing),
            added: [...added, ...missing.map((phrase) => ({target, phrase}))],
        };
    }

    /**
     * Return what changes without one of the tags: its words go, but those that the user wrote or another LoRA needs.
     * @param {number} index
     * @param {Snapshot} [from]
     */
    left(index, from = this.state) {
        const {target} = this.state;
        const tags = readTags(from.prompt);
        const {name} = tags[index];
        const others = [...tags.filter((_, at) => at !== index), ...from.always.entries].map((one) => one.name);
        const needed = others.flatMap((other) => this.negativesOf(other));
        const gone = this.negativesOf(name).filter(
            (phrase) =>
                !isNeeded(phrase, needed) && from.added.some((one) => one.target === target && one.phrase === phrase),
        );
        const words = others.flatMap((other) => split(this.wordsOf(other)));
        return {
            prompt: withoutEntry(from.prompt, index, this.wordsOf(name), words),
            negative: withoutPhrases(from.negative, gone),
            added: from.added.filter((one) => one.target !== target || !gone.includes(one.phrase)),
        };
    }

    /**
     * Change the body of an entry's tag. Changes of one `what` in a row are taken back together.
     * @param {Row} row
     * @param {BodyChange} change
     * @param {string} [what]
     */
    edit(row, change, what = "") {
        const key = what && `${row.off ? "off " : ""}${what} ${row.key}`;
        if (row.off) {
            const tag = this.tagWith(row.off.tag.kind, change(row.off.tag.body));
            this.change({off: this.state.off.map((one) => (one === row.off ? {...one, tag} : one))}, key);
            return;
        }
        this.readBoxes();
        const tag = this.tags()[row.index];
        if (tag?.name !== row.name) return; // typed over meanwhile
        this.change({prompt: withBody(this.state.prompt, row.index, change(tag.body))}, key);
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
     * Set the multipliers, numbers or points as text.
     * @param {Row} row
     * @param {number | string} te
     * @param {number | string} unet
     */
    setStrength(row, te, unet) {
        this.edit(row, (body) => setMultipliers(body, te, unet), "strength");
    }

    /**
     * Switch an entry off, which takes it out of the prompt, or on again.
     * @param {Row} row
     * @param {boolean} on
     */
    setOn(row, on) {
        this.readBoxes();
        const {state} = this;
        if (!on) {
            const {index} = /** @type {OnRow} */ (row);
            const one = {target: state.target, before: index, tag: this.tagWith(row.kind, row.body)};
            const later = state.off.map((other) =>
                other.target === state.target && other.before > index ? {...other, before: other.before - 1} : other,
            );
            this.change({...this.left(index), off: [...later, one]});
            return;
        }
        const former = /** @type {OffRow} */ (row).off;
        const {tag} = former;
        const text = `<${tag.kind}:${tag.body}>`;
        const count = this.tags().length;
        const entered = this.entered(tag.name, text);
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
     * Put the row at one place to another.
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
        const off = [...this.state.off.filter((one) => one.target !== this.state.target), ...own];
        this.change({prompt: reordered(this.state.prompt, order), off});
    }

    clear() {
        this.readBoxes();
        let now = this.snapshot();
        for (let index = this.tags().length - 1; index >= 0; index -= 1) now = {...now, ...this.left(index, now)};
        this.change({...now, off: this.state.off.filter((one) => one.target !== this.state.target)});
    }

    // --- what every picture gets ---

    /** Take the stack as the server has it, unless there are changes on their way to it. */
    async askStack() {
        if (this.pending !== null || this.unsaved) return;
        const tag = this.api.tags.get("stack");
        const stack = await this.api.get("stack");
        if (this.pending === null && !this.unsaved) this.takeStack(stack);
        else if (tag === undefined) this.api.tags.delete("stack");
        else this.api.tags.set("stack", tag); // what the page shows is still the former one
    }

    /** @param {StackOnDisk} stack */
    takeStack(stack) {
        this.set({always: {on: stack.always_on, entries: stack.entries}, stackProblem: stack.problem});
        this.askMeanings();
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
        const {always} = this.state;
        if (always.entries.some((one) => one.name === name)) return;
        const strength = this.meaning(name).lora?.strength ?? this.standard;
        const entry = {name, on: true, unet: strength, text_encoder: strength, more: ""};
        this.changeAlways({on: always.entries.length ? always.on : true, entries: [...always.entries, entry]});
    }

    /**
     * Change the tag that an entry of this stack would have.
     * @param {StackEntry} entry
     * @param {BodyChange} change
     * @param {string} [what]
     */
    editAlways(entry, change, what = "") {
        const {always} = this.state;
        const entries = always.entries.map((one) => (one === entry ? {...one, ...entryOf(change(bodyOf(one)))} : one));
        this.changeAlways({...always, entries}, what && `always ${what} ${entry.name}`);
    }

    /**
     * Take an entry out of the prompt, and give it to every picture instead.
     * @param {Row} row
     */
    pin(row) {
        const {always} = this.state;
        const name = this.meaning(row.name).lora?.name ?? row.name;
        const entry = {name, on: row.on, ...entryOf(row.body, this.standard)};
        const entries = [...always.entries.filter((one) => one.name !== name), entry];
        const changes = row.off
            ? {off: this.state.off.filter((one) => one !== row.off)}
            : {prompt: withoutEntry(this.state.prompt, row.index)};
        this.change({...changes, always: {on: true, entries}});
    }

    /**
     * Put an entry that is always on into the prompt instead. A tag of the same LoRA that is there is set to it.
     * @param {StackEntry} entry
     */
    unpin(entry) {
        this.readBoxes();
        const always = {...this.state.always, entries: this.state.always.entries.filter((one) => one !== entry)};
        const {lora} = this.meaning(entry.name);
        const index = this.tags().findIndex(
            ({name}) => name === entry.name || (lora && this.meaning(name).lora?.id === lora.id),
        );
        if (index < 0) {
            this.change({...this.entered(entry.name, tagOf(entry)), always});
            return;
        }
        const body = tagOf(entry).slice("<lora:".length, -1);
        this.change({prompt: withBody(this.state.prompt, index, body), always});
        this.set({said: `The tag of ${entry.name} in the prompt says now what was always on.`});
    }

    save() {
        clearTimeout(this.pending ?? undefined);
        this.pending = setTimeout(() => {
            this.pending = null;
            this.unsaved += 1;
            // one after the other: the last change is the last that arrives
            this.saving = this.saving.then(() =>
                this.tell(() => this.put()).finally(() => {
                    this.unsaved -= 1;
                }),
            );
        }, SAVE_AFTER);
    }

    async put() {
        const {on, entries} = this.state.always;
        try {
            const stack = await this.api.ask("PUT", "stack", {always_on: on, entries});
            this.set({stackProblem: stack.problem, refused: null, said: "Saved."});
        } catch (error) {
            if (!(error instanceof ApiError) || error.status !== CHANGED) throw error;
            const now = await this.api.get("stack");
            clearTimeout(this.pending ?? undefined);
            this.pending = null;
            const mine = this.state.always;
            this.takeStack(now);
            this.set({refused: same(mine, this.state.always) ? null : mine});
        }
    }

    /**
     * Have the stack that was refused, in place of that of the other page, or forget it.
     * @param {boolean} mine
     */
    decide(mine) {
        const {refused} = this.state;
        this.set({refused: null});
        if (refused && mine) this.changeAlways(refused);
    }

    // --- presets ---

    /** Ask which presets there are; throws what the server refuses. */
    async askPresets() {
        this.takePresets(await this.api.get("presets"));
    }

    /**
     * Keep, change or delete presets; throws if the server refuses.
     * @param {string} method
     * @param {"presets" | `preset?${string}` | `preset/thumbnail?${string}`} path
     * @param {string[]} names of those that are changed
     * @param {object} [body]
     */
    async keepPresets(method, path, names, body) {
        const part = () => (this.state.presets ?? []).filter((one) => names.includes(one.name));
        this.takePresets(await this.keep(method, path, body, {look: () => this.askPresets(), part}));
    }

    /** @param {PresetList} told */
    takePresets({presets, problem}) {
        this.set({presets, presetProblem: problem});
    }

    // --- blocks of the model ---

    /** Ask which blocks the model has, where it is not known; throws what the server refuses. */
    async askBlocks() {
        const model = this.state.server?.model ?? null;
        if (this.state.blocks && this.state.blocks.model === model) return;
        this.takeBlocks(await this.api.get("blocks"), model);
    }

    /**
     * Keep block weights under a name; throws if the server refuses.
     * @param {string} name
     * @param {string} values
     */
    async saveBlocks(name, values) {
        this.takeBlocks(await this.keep("PUT", "blocks/presets", {name, values}, this.listOfBlocks(name)));
    }

    /** @param {string} name */
    async deleteBlocks(name) {
        const path = /** @type {const} */ (`blocks/presets?${query({name})}`);
        this.takeBlocks(await this.keep("DELETE", path, undefined, this.listOfBlocks(name)));
    }

    /** @param {string} name */
    listOfBlocks(name) {
        return {
            look: async () => this.takeBlocks(await this.api.get("blocks")),
            part: () => this.state.blocks?.presets.filter((one) => one.name === name),
        };
    }

    /**
     * @param {Blocks} told
     * @param {string | null} [model]
     */
    takeBlocks(told, model = this.state.blocks?.model ?? null) {
        this.set({blocks: {...told, model}});
    }

    // --- regions of the picture ---

    /** Ask which regions there are; throws what the server refuses. */
    async askRegions() {
        this.takeRegions(await this.api.get("regions"));
    }

    /**
     * Keep a picture as a region; throws if the server refuses.
     * @param {string} name
     * @param {string} picture
     */
    async saveRegion(name, picture) {
        this.takeRegions(await this.keep("PUT", "regions", {name, picture}, this.listOfRegions(name)));
    }

    /** @param {string} name */
    async deleteRegion(name) {
        const path = /** @type {const} */ (`regions?${query({name})}`);
        this.takeRegions(await this.keep("DELETE", path, undefined, this.listOfRegions(name)));
    }

    /** @param {string} name */
    listOfRegions(name) {
        return {
            look: () => this.askRegions(),
            part: () => this.state.regions?.filter((one) => one.name === name),
        };
    }

    /** @param {{regions: Region[], problem: string}} told */
    takeRegions({regions, problem}) {
        if (same(regions, this.state.regions) && problem === this.state.regionProblem) return;
        this.set({regions, regionProblem: problem});
    }

    // --- notes ---

    /**
     * Change the notes about a file; throws if the server refuses.
     * @param {Lora} lora
     * @param {object} changes
     */
    async note(lora, changes) {
        const path = /** @type {const} */ (`lora?${query({id: lora.id})}`);
        /** @type {{[field: string]: unknown}} */
        let now = {...lora};
        const look = async () => {
            const told = await this.api.get(path);
            now = {...told};
            this.catalog.put({...told});
            this.catalogChanged();
        };
        const part = () => Object.keys(changes).map((field) => now[field]);
        const told = await this.keep("PATCH", path, changes, {look, part});
        this.catalog.put({...told});
        this.catalogChanged();
        return told;
    }

    /**
     * @param {Lora} lora
     * @param {Blob} blob
     */
    async setPicture(lora, blob) {
        const told = await this.api.ask("PUT", `picture?${query({id: lora.id})}`, blob);
        this.catalog.put({...told});
        this.catalogChanged();
        return told;
    }
}

export {POLL, READ};

/**
 * @param {unknown} one
 * @param {unknown} other
 */
function same(one, other) {
    return JSON.stringify(one) === JSON.stringify(other);
}

/** @returns {Partial<Pick<State, "sort" | "view">>} */
function remembered() {
    try {
        const {sort, view} = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
        return {
            ...(Object.hasOwn(SORTS, sort) && {sort}),
            ...(["grid", "list"].includes(view) && {view}),
        };
    } catch {
        return {}; // a browser that keeps nothing
    }
}

/** @param {State} state */
function remember({sort, view}) {
    try {
        localStorage.setItem(KEPT, JSON.stringify({sort, view}));
    } catch {
        // a browser that keeps nothing
    }
}
