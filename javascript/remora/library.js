// The library of LoRA files: the catalog, the meaning of names in tags, and notes and pictures of files.

/**
 * @import {Lora, Meaning} from "../api.d.ts"
 * @import {Tab} from "./main.js"
 */

import {query} from "./api.js";
import {Catalog, NO_FILTERS, SORTS} from "./catalog.js";
import {bare, isClosed, plainWords, split} from "./prompt.js";
import {translated} from "./words.js";

const STORAGE = "remora"; // key in the browser's storage
/** @type {Meaning} */
const UNKNOWN = {id: null, problem: "", note: "", candidates: []};
const COUNT_AGAIN = 30_000; // milliseconds: the server reads a picture some seconds after it is made
const MOST_NAMES = 50; // that the server resolves in one request

/** How files are shown, from the densest: the least width and the height of each in pixels; a width of 0 is all of it. */
export const VIEWS = {
    list: {width: 0, height: 44},
    small: {width: 88, height: 128},
    medium: {width: 104, height: 168},
    large: {width: 208, height: 288},
};

export const LIBRARY = {
    version: 0, // of the catalog
    scan: {running: false, done: 0, total: 0},
    loaded: false,
    query: "",
    filters: NO_FILTERS,
    sort: "name",
    view: /** @type {keyof typeof VIEWS} */ ("medium"),
    tree: false, // folders are shown as one
    chosen: "", // tag of the language that the user chose here; empty for none
    completes: true, // what is typed in a prompt box
    badges: true, // on the web UI's own LoRA cards
};

export class Library {
    /** @param {Tab} tab */
    constructor(tab) {
        this.tab = tab;
        this.catalog = new Catalog(tab.api);
        /** @type {Map<string, Meaning>} */
        this.meanings = new Map(); // the server's answers for names in tags that are no name of one file
        /** @type {Set<string>} */
        this.requested = new Set();
        this.counted = -1; // pictures that were made when those in the output folders were counted last
        this.countAgain = 0; // when they may be counted again
    }

    /** @param {"GET" | "POST"} [method] */
    async refresh(method = "GET") {
        await this.catalog.update(method);
        // thousands of files are drawn in a task of its own: together with taking them the page would stand still
        await new Promise((done) => setTimeout(() => done(undefined)));
        this.meanings.clear();
        this.requested.clear();
        this.tab.kept.sought.clear();
        this.changed();
    }

    changed() {
        this.tab.set({version: this.catalog.version, scan: this.catalog.scan, loaded: true});
        this.resolveNames();
    }

    /** Ask what the pictures in the output folders say of the files: at first, and after pictures were made. */
    async countPictures() {
        const made = this.tab.state.server?.pictures ?? 0;
        if (this.counted === made || Date.now() < this.countAgain) return;
        this.countAgain = Date.now() + COUNT_AGAIN;
        const told = await this.tab.api.get("outputs/loras");
        this.counted = told.scan.running ? -1 : made; // else there are more
        if (this.catalog.takePictures(told.loras)) this.tab.set({version: this.catalog.version});
    }

    /**
     * Ask which files made pictures whose prompts have words; throws errors of the server.
     * @param {string} words
     */
    async searchPrompts(words) {
        const told = await this.tab.api.get(/** @type {const} */ (`outputs/loras?${query({words})}`));
        this.catalog.takePrompted(words, told.loras);
        this.tab.set({version: this.catalog.version});
    }

    async resolveNames() {
        if (this.tab.state.loaded) this.tab.kept.loadNamed();
        // a tag that is not closed is still being typed
        const names = [...this.tab.stack.tags().filter(isClosed), ...this.tab.state.always.entries]
            .map((one) => one.name)
            .filter((name) => name && !this.catalog.named(name) && !this.requested.has(name));
        if (!names.length || !this.tab.state.loaded) return;
        for (const name of names) this.requested.add(name);
        const left = [...new Set(names)];
        while (left.length) {
            const some = left.splice(0, MOST_NAMES);
            const answer = await this.tab.server.attempt(() => this.tab.api.ask("POST", "resolve", {names: some}));
            if (!answer) return;
            for (const [name, meaning] of Object.entries(answer.names)) this.meanings.set(name, meaning);
        }
        this.catalog.version += 1;
        this.tab.set({version: this.catalog.version});
    }

    /**
     * Return the file that a name in a tag means, or a problem; neither while the server resolves the name.
     * @param {string} name
     * @returns {{lora: Lora | undefined, problem: string, note: string, candidates: string[]}}
     */
    meaning(name) {
        const lora = this.catalog.named(name);
        if (lora) return {lora, problem: lora.readable ? "" : translated(lora.reason), note: "", candidates: []};
        const {id, problem, note, candidates} = this.meanings.get(name) ?? UNKNOWN;
        return {lora: id ? this.catalog.byId.get(id) : undefined, problem: translated(problem), note, candidates};
    }

    /**
     * Return the trigger words of a name, without tags.
     * @param {string} name
     */
    wordsOf(name) {
        return plainWords(this.meaning(name).lora?.words ?? "");
    }

    /**
     * Return the trigger words of a name that are switched together: the groups that Civitai lists, else each phrase.
     * @param {string} name
     */
    groupsOf(name) {
        const phrases = split(this.wordsOf(name));
        const listed = (this.meaning(name).lora?.groups ?? []).map(plainWords).filter(Boolean);
        const groups = listed.map((group) => phrases.find((phrase) => bare(phrase) === group) ?? group);
        const others = phrases.filter((phrase) => !groups.some((group) => [group, ...split(group)].includes(phrase)));
        return [...new Set(groups.length > 1 ? [...groups, ...others] : phrases)];
    }

    /**
     * Return the phrases of a name for the negative prompt.
     * @param {string} name
     */
    negativesOf(name) {
        return split(plainWords(this.meaning(name).lora?.negative ?? ""));
    }

    /**
     * Change the notes on a file; throws errors of the server.
     * @param {Lora} lora
     * @param {object} changes
     */
    async setNotes(lora, changes) {
        const path = /** @type {const} */ (`lora?${query({id: lora.id})}`);
        /** @type {{[field: string]: unknown}} */
        let now = {...lora};
        const reload = async () => {
            const told = await this.tab.api.get(path);
            now = {...told};
            this.catalog.put({...told});
            this.changed();
        };
        const part = () => Object.keys(changes).map((field) => now[field]);
        const told = await this.tab.server.write("PATCH", path, changes, {reload, part});
        this.catalog.put({...told});
        this.changed();
        return told;
    }

    /**
     * Ask which files are copies of others, which makes the server look for more; throws its errors.
     * @param {number} page of groups
     */
    async loadCopies(page) {
        const told = await this.tab.api.get(/** @type {const} */ (`copies?${query({page})}`));
        if (this.catalog.takeCopies(told)) this.tab.set({version: this.catalog.version});
        return told;
    }

    /**
     * Set the picture of a file, or put back the one that was replaced last; throws errors of the server.
     * @param {Lora} lora
     * @param {Blob | null} blob
     */
    async setPicture(lora, blob) {
        const told = await this.tab.api.ask(
            blob ? "PUT" : "DELETE",
            `picture?${query({id: lora.id})}`,
            blob ?? undefined,
        );
        this.catalog.put({...told});
        this.changed();
        return told;
    }
}

/** @typedef {Pick<typeof LIBRARY, "sort" | "view" | "tree" | "chosen" | "completes" | "badges">} Remembered */

/** @returns {Partial<Remembered>} */
export function remembered() {
    try {
        const {sort, view, tree, chosen, completes, badges} = JSON.parse(localStorage.getItem(STORAGE) ?? "{}");
        return {
            ...(Object.hasOwn(SORTS, sort) && {sort}),
            ...(Object.hasOwn(VIEWS, view) && {view}),
            ...(typeof tree === "boolean" && {tree}),
            ...(typeof chosen === "string" && {chosen}),
            ...(typeof completes === "boolean" && {completes}),
            ...(typeof badges === "boolean" && {badges}),
        };
    } catch {
        return {}; // the browser's storage is off
    }
}

/** @param {Remembered} state */
export function remember({sort, view, tree, chosen, completes, badges}) {
    try {
        localStorage.setItem(STORAGE, JSON.stringify({sort, view, tree, chosen, completes, badges}));
    } catch {
        // the browser's storage is off
    }
}
