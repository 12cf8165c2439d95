// The list of files: kept up to date by changes, searched, filtered and sorted. Pure but for `Catalog`.

/**
 * @import {Copies, CountedLora, FamilyFit, Lora, Loras} from "../api.d.ts"
 * @import {Api} from "./api.js"
 * @import {Key} from "./words.js"
 */

import {query} from "./api.js";
import {same} from "./store.js";
import {number, t, translated} from "./words.js";

/**
 * @typedef {typeof NO_FILTERS} Filters
 * @typedef {keyof typeof SORTS} Sort
 * @typedef {[value: string, count: number][]} Facet
 */

const SUFFIX = /\.safetensors$/i;

/** Files by id, and what is asked of them quickly. */
export class Catalog {
    /** @param {Pick<Api, "ask">} api */
    constructor(api) {
        this.api = api;
        this.revision = 0;
        /** @type {Map<string, Lora>} */
        this.byId = new Map();
        /** @type {{[name: string]: FamilyFit}} */
        this.families = {};
        this.scan = {running: false, done: 0, total: 0};
        this.problem = "";
        this.loaded = false;
        /** @type {Lora[]} */
        this.all = [];
        /** @type {Map<string, Lora[]>} */
        this.byName = new Map();
        this.version = 0; // grows with every change, for those that keep what they worked out
        /** @type {Set<string>} */
        this.firsts = new Set(); // ids of the files to keep of each group of copies
        /** @type {Set<string>} */
        this.others = new Set(); // ids of their copies
        /** @type {Set<string>} */
        this.superseded = new Set(); // ids of files whose training wrote a later one that is here
        /** @type {Map<string, Lora>} */
        this.versions = new Map(); // the file of each page; an older one may have the page of the newer one
        /** @type {Map<string, CountedLora>} */
        this.pictured = new Map(); // what the pictures in the output folders say of each file
        this.prompted = {words: "", ids: /** @type {Set<string>} */ (new Set())}; // whose pictures have words of a search
    }

    /**
     * Ask for the changes.
     * @param {"GET" | "POST"} [method] POST has the server look at its folders again
     */
    async update(method = "GET") {
        /** @type {"refresh" | `loras?${string}`} */
        const path = method === "POST" ? "refresh" : `loras?${query({since: this.revision})}`;
        this.take(await this.api.ask(method, path));
    }

    /**
     * Take an answer of the server.
     * @param {Loras} answer
     */
    take(answer) {
        if (answer.whole) this.byId.clear();
        for (const id of answer.gone) this.byId.delete(id);
        for (const lora of answer.loras) this.byId.set(lora.id, this.withPictures(lora));
        Object.assign(this, {revision: answer.revision, scan: answer.scan, problem: answer.problem, loaded: true});
        this.families = answer.families;
        if (!answer.whole && !answer.loras.length && !answer.gone.length) return;
        this.all = [...this.byId.values()];
        this.byName = new Map();
        this.versions = new Map();
        for (const lora of this.all) {
            if (lora.page && lora.page !== lora.newer) this.versions.set(lora.page, lora);
            const same = this.byName.get(lora.name);
            this.byName.set(lora.name, same ? [...same, lora] : [lora]);
        }
        this.version += 1;
    }

    /**
     * Take which files are copies of others; tell whether that is news.
     * @param {Pick<Copies, "firsts" | "others" | "superseded">} told
     */
    takeCopies({firsts, others, superseded}) {
        if (same([firsts, others, superseded], [[...this.firsts], [...this.others], [...this.superseded]]))
            return false;
        [this.firsts, this.others, this.superseded] = [new Set(firsts), new Set(others), new Set(superseded)];
        this.version += 1;
        return true;
    }

    /**
     * Take the counts of the pictures in the output folders; tell whether they are news.
     * @param {CountedLora[]} counted
     */
    takePictures(counted) {
        const told = counted.filter(({id}) => id !== null);
        if (same(told, [...this.pictured.values()])) return false;
        this.pictured = new Map(told.map((one) => [one.id ?? "", one]));
        const loras = told.flatMap(({id}) => this.byId.get(id ?? "") ?? []);
        this.put(...loras);
        return true;
    }

    /**
     * Return a file with the uses of its pictures: some were made before Remora was there, or by another web UI.
     * @param {Lora} lora
     * @returns {Lora}
     */
    withPictures(lora) {
        const made = this.pictured.get(lora.id);
        if (!made) return lora;
        return {...lora, uses: Math.max(lora.uses, made.pictures), used: Math.max(lora.used, made.latest)};
    }

    /**
     * Take which files made pictures whose prompts have words.
     * @param {string} words
     * @param {CountedLora[]} counted
     */
    takePrompted(words, counted) {
        this.prompted = {words, ids: new Set(counted.map(({id}) => id ?? ""))};
        this.version += 1;
    }

    /**
     * Take files, as the server told of them.
     * @param {...Lora} loras
     */
    put(...loras) {
        const {revision, families, scan, problem} = this;
        this.take({revision, families, scan, problem, whole: false, gone: [], loras});
    }

    /**
     * Return the only file of a name; undefined where there is none, or several.
     * @param {string} name
     */
    named(name) {
        const found = this.byName.get(name);
        return found && found.length === 1 ? found[0] : undefined;
    }

    /**
     * Return the file at a path, of which the LoRA folder or all folders may be missing; undefined where several may be
     * meant.
     * @param {string} path
     */
    fileAt(path) {
        const sought = `/${path.replaceAll("\\", "/").replace(SUFFIX, "")}`;
        // a file of PEFT or diffusers has the name of its folder, or of the folder of its components
        const names = new Set(sought.split("/").slice(-3));
        const same = [...names].flatMap((name) => this.byName.get(name) ?? []);
        const inside = same.filter(({file}) => sought.endsWith(`/${file}`));
        // of files in folders and in folders inside, the path of all the folders tells
        const most = Math.max(...inside.map(({file}) => file.length));
        const found = inside.length
            ? inside.filter(({file}) => file.length === most)
            : same.filter(({file}) => `/${file}`.endsWith(sought));
        return found.length === 1 ? found[0] : undefined;
    }

    /**
     * Say why a file cannot be used or does not fit; nothing where it can and does.
     * @param {Lora} lora
     */
    against(lora) {
        return this.unusable(lora) || this.misfit(lora);
    }

    /**
     * Say why a file cannot be used; nothing where it can.
     * @param {Lora} lora
     */
    unusable(lora) {
        if (!lora.readable) return translated(lora.reason);
        if (!canBeNamed(lora.name)) return t("library.badName");
        if ((this.byName.get(lora.name) ?? []).length > 1) {
            return t("library.severalFiles", {name: lora.name});
        }
        return "";
    }

    /**
     * Say why a file does not fit the loaded model; nothing where it may.
     * @param {Lora} lora
     */
    misfit(lora) {
        const family = this.familyOf(lora);
        return family && !family.fits ? translated(family.reason) : "";
    }

    /**
     * Return the family that a file is for, if it is known.
     * @param {Lora} lora
     */
    familyOf({family}) {
        return family !== null && Object.hasOwn(this.families, family) ? this.families[family] : undefined;
    }
}

/**
 * Tell whether a tag can name a file.
 * @param {string} name
 */
export const canBeNamed = (name) => !/[<>]/.test(name);

/** @param {Lora} lora */
export const canBeInserted = (lora) => lora.readable && canBeNamed(lora.name);

/**
 * A file as searches see it: parts in lower case, the most telling first, with the places where each of them ends.
 * @typedef {{lora: Lora, text: string, ends: number[]}} Folded
 */

/**
 * @param {Lora} lora
 * @param {string[]} parts
 * @returns {Folded}
 */
export function fold(lora, parts) {
    let end = -1;
    const folded = parts.map((part) => part.toLowerCase());
    return {lora, text: folded.join("\n"), ends: folded.map(({length}) => (end += 1 + length))};
}

/**
 * Files by name, trigger words, all else. They are made for the first search: for ten thousand files that takes a third
 * of the time in which the page opens.
 * @type {WeakMap<Lora, Folded>}
 */
const searched = new WeakMap();
const FOLDED_AT_ONCE = 1000; // files, so that a key in between is answered at once

/**
 * Make what searches look through, in many tasks: the first key would wait for all of it.
 * @param {Catalog} catalog
 */
export async function prepareSearch(catalog) {
    const {all} = catalog;
    for (let at = 0; at < all.length; at += FOLDED_AT_ONCE) {
        for (const lora of all.slice(at, at + FOLDED_AT_ONCE)) foldedOf(lora);
        await new Promise((done) => setTimeout(() => done(undefined)));
    }
}

/** @param {Lora} lora */
function foldedOf(lora) {
    const known = searched.get(lora);
    if (known) return known;
    const {name, alias, words, file, tags, captions, notes, base_model, kind, family} = lora;
    const parts = [[name], [words, alias], [file, tags.join(" "), captions, notes, base_model, kind, family]];
    const made = fold(
        lora,
        parts.map((texts) => texts.filter(Boolean).join("\n")),
    );
    searched.set(lora, made);
    return made;
}

/** How well a part matches, best first: it is the word, it begins with it, a word of it does, it has it in a word. */
export const MATCHES = 4;
/** @type {Set<string>} */
const NONE = new Set();
const LETTER = /[\p{L}\p{N}]/u;

/**
 * Return how far a word is from the best match of a file: 0 where it is the name; Infinity where no part has it.
 * @param {Folded} folded
 * @param {string} word without a line break
 */
export function distance({text, ends}, word) {
    let at = text.indexOf(word);
    if (at < 0) return Infinity;
    let part = 0;
    while (at >= ends[part]) part += 1;
    const [start, end] = [part && ends[part - 1] + 1, ends[part]];
    const best = part * MATCHES;
    if (at === start) return at + word.length === end ? best : best + 1;
    for (; at >= 0 && at < end; at = text.indexOf(word, at + 1)) if (!LETTER.test(text[at - 1])) return best + 2;
    return best + 3;
}

/** @satisfies {{[name: string]: [title: Key, compare: (a: Lora, b: Lora) => number]}} */
export const SORTS = {
    name: ["library.sort.name", (a, b) => order(a.name, b.name)],
    added: ["library.sort.added", (a, b) => b.added - a.added || b.mtime - a.mtime || order(a.name, b.name)],
    used: ["library.sort.used", (a, b) => b.used - a.used || order(a.name, b.name)],
    uses: ["library.sort.uses", (a, b) => b.uses - a.uses || order(a.name, b.name)],
    rating: [
        "common.rating",
        (a, b) => b.rating - a.rating || Number(b.favourite) - Number(a.favourite) || order(a.name, b.name),
    ],
    size: ["library.sort.size", (a, b) => b.size - a.size || order(a.name, b.name)],
    path: ["common.folder", (a, b) => order(a.file, b.file)],
};

const {compare: order} = new Intl.Collator(undefined, {numeric: true, sensitivity: "base"});

export const NO_FILTERS = {
    folder: "",
    family: "",
    kind: "",
    tag: "",
    show: "",
    rating: 0,
    favourite: false,
    fits: false,
    prompts: false, // search the prompts of pictures, too
};

const HALF_YEAR = 183 * 24 * 60 * 60; // seconds

/**
 * The choices of the filter "Show", and which files pass.
 * @satisfies {{[name: string]: [title: Key, passes: (lora: Lora, catalog: Catalog) => boolean]}}
 */
export const SHOWS = {
    "": ["common.all", () => true],
    copies: ["library.show.copies", ({id}, {firsts, others}) => firsts.has(id) || others.has(id)],
    single: ["library.show.single", ({id}, {others}) => !others.has(id)],
    superseded: ["library.show.superseded", ({id}, {superseded}) => superseded.has(id)],
    newer: ["library.show.newer", ({newer}, {versions}) => newer !== "" && !versions.has(newer)],
    misnamed: ["library.show.misnamed", ({named}) => named !== null],
    unused: [
        "library.show.unused",
        ({used, added, mtime}) => Math.max(used, Math.min(added, mtime)) < Date.now() / 1000 - HALF_YEAR,
    ],
    unusable: ["library.show.unusable", (lora, catalog) => !lora.readable || catalog.familyOf(lora)?.usable === false],
    hidden: ["library.show.hidden", () => true],
};

/**
 * Return the files that have all words and pass all filters. The best matches of the words come first, and what matches
 * equally well is sorted.
 * @param {Catalog} catalog
 * @param {string} words
 * @param {Filters} filters
 * @param {string} sort
 */
export function select(catalog, words, filters, sort) {
    const {list, narrowed} = filtered(catalog, filters, sort);
    const sought = words.toLowerCase().split(/\s+/).filter(Boolean);
    if (!sought.length) return list;
    const {prompted} = catalog;
    const inPrompts = filters.prompts && prompted.words === words.trim() ? prompted.ids : NONE;
    if (!narrowed.length) narrowed.push({sought: [], entries: list.map(foldedOf)});
    const isWithin = (/** @type {Narrowed} */ former) =>
        former.sought.every((part) => inPrompts === NONE && sought.some((word) => word.includes(part)));
    while (!isWithin(narrowed[narrowed.length - 1])) narrowed.pop();
    /** @type {Folded[]} */
    const entries = [];
    /** @type {Lora[][]} */
    const found = []; // by their distance
    /** @type {Lora[]} */
    const farthest = []; // only the prompts of their pictures match
    const within = narrowed[narrowed.length - 1];
    for (const entry of within.entries) {
        let far = 0;
        for (const word of sought) far += distance(entry, word);
        if (far < Infinity) {
            entries.push(entry);
            found[far] ??= [];
            found[far].push(entry.lora);
        } else if (inPrompts.has(entry.lora.id)) farthest.push(entry.lora);
    }
    if (!same(within.sought, sought)) narrowed.push({sought, entries});
    return /** @type {Lora[]} */ ([]).concat(...found.filter(Boolean), farthest); // `flat` takes ten times as long
}

/**
 * What a search found: one for more of the same words looks there only.
 * @typedef {{sought: string[], entries: Folded[]}} Narrowed
 *
 * The list that was filtered and sorted last: a keystroke need not do it again.
 * @typedef {object} Sorted
 * @property {string} sort
 * @property {number} version
 * @property {Filters} filters
 * @property {Catalog["families"]} families
 * @property {Lora[]} sorted all files
 * @property {Lora[]} list those that pass
 * @property {Narrowed[]} narrowed from the list on, each within the one before it
 */

/** @type {WeakMap<Catalog, Sorted>} */
const kept = new WeakMap();

/**
 * @param {Catalog} catalog
 * @param {Filters} filters
 * @param {string} sort
 */
function filtered(catalog, filters, sort) {
    const former = kept.get(catalog);
    const {version, families} = catalog;
    const isSorted = former !== undefined && former.sort === sort && former.version === version;
    if (isSorted && former.filters === filters && former.families === families) return former;
    const sorted = isSorted
        ? former.sorted
        : [...catalog.all].sort((SORTS[/** @type {Sort} */ (sort)] ?? SORTS.name)[1]);
    const below = filters.folder && `${filters.folder}/`;
    const [, passes] = SHOWS[/** @type {keyof typeof SHOWS} */ (filters.show)];
    const list = sorted.filter(
        (lora) =>
            lora.hidden === (filters.show === "hidden")
            && passes(lora, catalog)
            && (!below || `${lora.folder}/`.startsWith(below))
            && (!filters.family || lora.family === filters.family)
            && (!filters.kind || lora.kind === filters.kind)
            && (!filters.tag || lora.tags.includes(filters.tag))
            && lora.rating >= filters.rating
            && (!filters.favourite || lora.favourite)
            && (!filters.fits || !catalog.against(lora)),
    );
    const made = {sort, version, filters, families, sorted, list, narrowed: []};
    kept.set(catalog, made);
    return made;
}

/**
 * Count the files of each value to filter by, except folders, which are always shown.
 * @param {Catalog} catalog
 * @returns {{families: Facet, kinds: Facet, tags: Facet}}
 */
export function facets(catalog) {
    /** @type {Map<string, number>[]} */
    const [families, kinds, tags] = [new Map(), new Map(), new Map()];
    for (const lora of catalog.all) {
        count(families, lora.family);
        count(kinds, lora.kind);
        for (const tag of lora.tags) count(tags, tag);
    }
    return {
        families: listed(families),
        kinds: listed(kinds),
        tags: [...tags].sort((a, b) => b[1] - a[1] || order(a[0], b[0])).slice(0, 300),
    };
}

/**
 * Count the files of each folder, with those of the folders inside.
 * @param {Catalog} catalog
 * @returns {Facet}
 */
export function foldersOf(catalog) {
    /** @type {Map<string, number>} */
    const folders = new Map();
    /** @type {Map<string, number>} */
    const own = new Map(); // thousands of files are in few folders
    for (const lora of catalog.all) count(own, lora.folder);
    for (const [folder, files] of own) {
        const parts = folder.split("/");
        for (const at of parts.keys()) count(folders, parts.slice(0, at + 1).join("/"), files);
    }
    return listed(folders);
}

/**
 * @param {Map<string, number>} map
 * @param {string | null} value
 * @param {number} [files]
 */
function count(map, value, files = 1) {
    if (value) map.set(value, (map.get(value) ?? 0) + files);
}

/**
 * @param {Map<string, number>} map
 * @returns {Facet}
 */
const listed = (map) => [...map].sort((a, b) => order(a[0], b[0]));

/**
 * Return the folders around a folder, outermost first, and those directly in it; "" is the folder of all.
 * @param {Facet} folders every folder with the number of its files
 * @param {string} current
 * @returns {{around: string[], inside: Facet}}
 */
export function foldersAt(folders, current) {
    const parts = current ? current.split("/") : [];
    const around = parts.map((_, at) => parts.slice(0, at + 1).join("/"));
    const start = current ? `${current}/` : "";
    const inside = folders.filter(
        ([path]) => path.startsWith(start) && !path.slice(start.length).includes("/") && path !== current,
    );
    return {around, inside};
}

/**
 * Write a number of bytes for people.
 * @param {number} bytes
 */
export function size(bytes) {
    if (bytes < 1024) return `${bytes} B`;
    if (bytes < 1024 ** 2) return `${number(bytes / 1024, 0)} KB`;
    return bytes < 1024 ** 3 ? `${number(bytes / 1024 ** 2, 0)} MB` : `${number(bytes / 1024 ** 3, 1)} GB`;
}
