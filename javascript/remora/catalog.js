// The list of files: kept up to date by changes, searched, filtered and sorted. Pure but for `Catalog`.

import {query} from "./api.js";

/** Files by id, and what is asked of them quickly. */
export class Catalog {
    constructor(api) {
        this.api = api;
        this.revision = 0;
        this.byId = new Map();
        this.families = {};
        this.scan = {running: false, done: 0, total: 0};
        this.problem = "";
        this.loaded = false;
        this.all = [];
        this.byName = new Map();
        this.version = 0; // grows with every change, for those that keep what they worked out
    }

    /** Ask for what changed; tells whether something did. */
    async update(method = "GET") {
        const path = method === "POST" ? "refresh" : `loras?${query({since: this.revision})}`;
        this.take(await this.api.ask(method, path));
    }

    take(answer) {
        if (answer.whole) this.byId.clear();
        for (const id of answer.gone) this.byId.delete(id);
        for (const lora of answer.loras) this.byId.set(lora.id, Object.assign(lora, {haystack: haystackOf(lora)}));
        Object.assign(this, {revision: answer.revision, scan: answer.scan, problem: answer.problem, loaded: true});
        this.families = answer.families;
        if (!answer.whole && !answer.loras.length && !answer.gone.length) return;
        this.all = [...this.byId.values()];
        this.byName = new Map();
        for (const lora of this.all) {
            const same = this.byName.get(lora.name);
            this.byName.set(lora.name, same ? [...same, lora] : [lora]);
        }
        this.version += 1;
    }

    put(lora) {
        this.take({...this, whole: false, gone: [], loras: [lora]});
    }

    /** The only file of a name; undefined where there is none, or several. */
    named(name) {
        const found = this.byName.get(name);
        return found && found.length === 1 ? found[0] : undefined;
    }

    /** Why a file cannot be used or does not fit; empty where nothing speaks against it. */
    against(lora) {
        if (!lora.readable) return lora.reason;
        if ((this.byName.get(lora.name) ?? []).length > 1) {
            return `several files have the name ${lora.name}; rename all but one to use them`;
        }
        const family = this.families[lora.family];
        return family && !family.fits ? family.reason : "";
    }
}

function haystackOf(lora) {
    const parts = [lora.file, lora.alias, lora.words, lora.tags.join(" "), lora.captions, lora.notes, lora.base_model,
        lora.kind, lora.family];
    return parts.filter(Boolean).join("\n").toLowerCase();
}

export const SORTS = {
    name: ["Name", (a, b) => order(a.name, b.name)],
    added: ["Newest first", (a, b) => b.added - a.added || b.mtime - a.mtime || order(a.name, b.name)],
    used: ["Last used", (a, b) => b.used - a.used || order(a.name, b.name)],
    uses: ["Most used", (a, b) => b.uses - a.uses || order(a.name, b.name)],
    rating: ["Rating", (a, b) => b.rating - a.rating || b.favourite - a.favourite || order(a.name, b.name)],
    size: ["Largest first", (a, b) => b.size - a.size || order(a.name, b.name)],
    path: ["Folder", (a, b) => order(a.file, b.file)],
};

const {compare: order} = new Intl.Collator(undefined, {numeric: true, sensitivity: "base"});

export const NO_FILTERS = {folder: "", family: "", kind: "", tag: "", rating: 0, favourite: false, fits: false};

/** The files that have all words and pass all filters, sorted. */
export function select(catalog, words, filters, sort) {
    const sought = words.toLowerCase().split(/\s+/).filter(Boolean);
    const below = filters.folder && `${filters.folder}/`;
    const found = sorted(catalog, sort).filter((lora) =>
        sought.every((word) => lora.haystack.includes(word))
        && (!below || `${lora.folder}/`.startsWith(below))
        && (!filters.family || lora.family === filters.family)
        && (!filters.kind || lora.kind === filters.kind)
        && (!filters.tag || lora.tags.includes(filters.tag))
        && lora.rating >= filters.rating
        && (!filters.favourite || lora.favourite)
        && (!filters.fits || !catalog.against(lora)));
    return found;
}

const kept = new WeakMap(); // what was sorted last, so that a keystroke need not

function sorted(catalog, sort) {
    const former = kept.get(catalog);
    if (former && former.sort === sort && former.version === catalog.version) return former.list;
    const list = [...catalog.all].sort((SORTS[sort] ?? SORTS.name)[1]);
    kept.set(catalog, {sort, version: catalog.version, list});
    return list;
}

/** What there is to filter by: [[value, how many], ...] for each. */
export function facets(catalog) {
    const folders = new Map(), families = new Map(), kinds = new Map(), tags = new Map();
    const count = (map, value) => value && map.set(value, (map.get(value) ?? 0) + 1);
    for (const lora of catalog.all) {
        const parts = lora.folder.split("/");
        if (lora.folder) parts.forEach((_, at) => count(folders, parts.slice(0, at + 1).join("/")));
        count(families, lora.family);
        count(kinds, lora.kind);
        for (const tag of lora.tags) count(tags, tag);
    }
    const listed = (map) => [...map].sort((a, b) => order(a[0], b[0]));
    return {folders: listed(folders), families: listed(families), kinds: listed(kinds),
        tags: [...tags].sort((a, b) => b[1] - a[1] || order(a[0], b[0])).slice(0, 300)};
}

export function size(bytes) {
    if (bytes < 1024) return `${bytes} B`;
    if (bytes < 1024 ** 2) return `${(bytes / 1024).toFixed(0)} KB`;
    return bytes < 1024 ** 3 ? `${(bytes / 1024 ** 2).toFixed(0)} MB` : `${(bytes / 1024 ** 3).toFixed(1)} GB`;
}
