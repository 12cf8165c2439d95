// Many files at once: which are selected, and what is done with them.

/**
 * @import {FilesChanged, Lora} from "../api.d.ts"
 * @import {Path} from "./api.js"
 * @import {Tab} from "./main.js"
 *
 * @typedef {Extract<Path, `files${string}`>} FilesPath
 *
 * @typedef {{said: string, undo: string[]}} Change
 * What the user did last with files, and the keys that take it back.
 */

const MOST = 500; // files of a request

/**
 * @typedef {{find: string, replace: string, front: string, behind: string}} NewNames
 * How files are renamed: text that is replaced in their names, and text around them.
 */

/**
 * Return the new name of each file whose name changes, by its id.
 * @param {Lora[]} loras
 * @param {NewNames} wanted
 */
export function newNames(loras, {find, replace, front, behind}) {
    const names = loras.map(({id, file}) => {
        const former = nameOf(file);
        return {id, former, name: front + (find ? former.split(find).join(replace) : former) + behind};
    });
    return new Map(names.filter(({former, name}) => name !== former).map(({id, name}) => [id, name.trim()]));
}

/** @param {string} file its path */
export const nameOf = (file) => file.split("/").pop() ?? "";

/**
 * Return the ids of the files whose new names others have, or get before.
 * @param {Iterable<Lora>} all
 * @param {Map<string, string>} names new name of each file, by its id
 */
export function takenNames(all, names) {
    const files = new Map([...all].map(({id, file}) => [id, file]));
    const places = new Map([...files].map(([id, file]) => [file.toLowerCase(), id]));
    const taken = new Set();
    for (const [id, name] of names) {
        const file = files.get(id) ?? "";
        const place = (file.slice(0, file.length - nameOf(file).length) + name).toLowerCase();
        const other = places.get(place) ?? id;
        if (other === id) places.set(place, id);
        else taken.add(id);
    }
    return taken;
}

export const MANY = {
    selected: /** @type {ReadonlySet<string> | null} */ (null), // ids of files; null unless files are being selected
    lastChange: /** @type {Change | null} */ (null),
};

export class Many {
    /** @param {Tab} tab */
    constructor(tab) {
        this.tab = tab;
        this.latest = ""; // id of the file that was selected last
    }

    /** Return the ids of the selected files that are still there. */
    get chosen() {
        return [...(this.tab.state.selected ?? [])].filter((id) => this.tab.library.catalog.byId.has(id));
    }

    /**
     * Select these files and no others; null ends selecting.
     * @param {Iterable<string> | null} ids
     */
    select(ids) {
        this.tab.set({selected: ids && new Set(ids)});
    }

    /**
     * Select a file, or take it out; or add all files from the last one to it.
     * @param {string} id
     * @param {Lora[]} found as they are shown
     * @param {boolean} adds
     */
    pick(id, found, adds) {
        const selected = new Set(this.tab.state.selected);
        const [from, to] = [this.latest, id].map((sought) => found.findIndex((one) => one.id === sought));
        if (adds && from >= 0) {
            for (const one of found.slice(Math.min(from, to), Math.max(from, to) + 1)) selected.add(one.id);
        } else if (!selected.delete(id)) {
            selected.add(id);
        }
        this.latest = id;
        this.tab.set({selected});
    }

    /**
     * Change files in parts, one after the other, and follow them; throws errors of the server.
     * @param {"PATCH" | "POST"} method
     * @param {FilesPath} path
     * @param {object} body
     * @param {string[]} ids
     * @param {(count: number) => string} say what was done
     * @returns {Promise<FilesChanged["refused"]>}
     */
    async send(method, path, body, ids, say) {
        const parts = [];
        for (let at = 0; at < ids.length; at += MOST) parts.push({...body, ids: ids.slice(at, at + MOST)});
        return this.ask(method, path, parts, say);
    }

    /**
     * Rename files in parts; throws errors of the server.
     * @param {Map<string, string>} names new name of each file, by its id
     * @param {(count: number) => string} say what was done
     */
    async rename(names, say) {
        const [ids, wanted] = [[...names.keys()], [...names.values()]];
        const parts = [];
        for (let at = 0; at < ids.length; at += MOST)
            parts.push({ids: ids.slice(at, at + MOST), names: wanted.slice(at, at + MOST)});
        return this.ask("POST", "files/move", parts, say);
    }

    /**
     * Take the last change back; throws errors of the server.
     * @param {string} said
     */
    async undo(said) {
        const keys = this.tab.state.lastChange?.undo ?? [];
        const parts = [...keys].reverse().map((undo) => ({undo}));
        return this.ask("POST", "files/undo", parts, () => said, true);
    }

    /**
     * @param {"PATCH" | "POST"} method
     * @param {FilesPath} path
     * @param {object[]} parts bodies of requests
     * @param {(count: number) => string} say
     * @param {boolean} [isUndo] which is not taken back
     */
    async ask(method, path, parts, say, isUndo = false) {
        const named = new Map(this.tab.stack.rows().map(({name}) => [name, this.tab.library.meaning(name).lora?.id]));
        /** @type {FilesChanged[]} */
        const answers = [];
        try {
            for (const part of parts) answers.push(await this.tab.api.ask(method, path, part));
        } finally {
            const changed = new Map(answers.flatMap((one) => one.changed));
            const undo = isUndo ? [] : answers.map((one) => one.undo).filter(Boolean);
            if (changed.size) this.tab.set({lastChange: {said: say(changed.size), undo}});
            await this.follow(changed, named);
        }
        return answers.flatMap((one) => one.refused);
    }

    /**
     * Reload the list, and let the selection and the prompt go on with files that were moved.
     * @param {Map<string, string>} changed former id -> present id, empty for a deleted file
     * @param {Map<string, string | undefined>} named name in a tag -> former id of its file
     */
    async follow(changed, named) {
        const {catalog} = this.tab.library;
        await this.tab.library.refresh();
        const {selected} = this.tab.state; // the user may have changed it meanwhile
        const left = [...(selected ?? [])].map((id) => changed.get(id) ?? id).filter((id) => catalog.byId.has(id));
        if (selected) this.select(left.length || !selected.size ? left : null);
        /** @type {Map<string, string>} */
        const names = new Map();
        for (const [name, id] of named) {
            const to = catalog.byId.get(changed.get(id ?? "") ?? "");
            if (to && catalog.named(name)?.id !== to.id) names.set(name, to.name);
        }
        if (names.size) this.tab.edits.renameAll(names);
        if (changed.size) await this.tab.kept.loadStack();
    }
}
