// Data that the server keeps: the always-on stack, presets, block weights and regions.

/**
 * @import {Blocks, Preset, Presets as PresetList, Region, StackEntry, Stack as StackOnDisk} from "../api.d.ts"
 * @import {Tab} from "./main.js"
 */

import {ApiError, CHANGED, query} from "./api.js";
import {faultOfNames, listsOf} from "./faults.js";
import {same} from "./store.js";
import {t} from "./words.js";

/**
 * @typedef {{on: boolean, entries: StackEntry[]}} Always
 * The always-on stack.
 */

const SAVE_AFTER = 200; // milliseconds without a change

export const KEPT = {
    always: /** @type {Always} */ ({on: false, entries: []}),
    stackProblem: "",
    refused: /** @type {Always | null} */ (null), // this page's stack, if another page has changed it meanwhile
    presets: /** @type {Preset[] | null} */ (null),
    presetProblem: "",
    blocks: /** @type {(Blocks & {model: string | null}) | null} */ (null),
    regions: /** @type {Region[] | null} */ (null),
    regionProblem: "",
};

export class Kept {
    /** @param {Tab} tab */
    constructor(tab) {
        this.tab = tab;
        /** @type {Promise<unknown>} */
        this.saving = Promise.resolve();
        /** @type {ReturnType<typeof setTimeout> | null} */
        this.pending = null;
        this.unsaved = 0; // changes of the stack that are being sent
        /** @type {Set<string>} */
        this.sought = new Set(); // tags for which the lists were loaded
    }

    /** Load the always-on stack, unless changes of it are being saved. */
    async loadStack() {
        if (this.pending !== null || this.unsaved) return;
        const tag = this.tab.api.tags.get("stack");
        const stack = await this.tab.api.get("stack");
        if (this.pending === null && !this.unsaved) this.showStack(stack);
        else if (tag === undefined) this.tab.api.tags.delete("stack");
        else this.tab.api.tags.set("stack", tag); // the page still shows the previous one
    }

    /** @param {StackOnDisk} stack */
    showStack(stack) {
        this.tab.set({always: {on: stack.always_on, entries: stack.entries}, stackProblem: stack.problem});
        this.tab.library.resolveNames();
    }

    save() {
        clearTimeout(this.pending ?? undefined);
        this.pending = setTimeout(() => {
            this.pending = null;
            this.unsaved += 1;
            // in sequence, so that the last change arrives last
            this.saving = this.saving.then(() =>
                this.tab.server
                    .attempt(() => this.put())
                    .finally(() => {
                        this.unsaved -= 1;
                    }),
            );
        }, SAVE_AFTER);
    }

    async put() {
        const {on, entries} = this.tab.state.always;
        try {
            const stack = await this.tab.api.ask("PUT", "stack", {always_on: on, entries});
            this.tab.set({stackProblem: stack.problem, refused: null, said: t("stack.alwaysSaved")});
        } catch (error) {
            if (!(error instanceof ApiError) || error.status !== CHANGED) throw error;
            const now = await this.tab.api.get("stack");
            clearTimeout(this.pending ?? undefined);
            this.pending = null;
            const mine = this.tab.state.always;
            this.showStack(now);
            this.tab.set({refused: same(mine, this.tab.state.always) ? null : mine});
        }
    }

    /**
     * Replace the other page's stack by the refused one, or drop that.
     * @param {boolean} mine
     */
    decide(mine) {
        const {refused} = this.tab.state;
        this.tab.set({refused: null});
        if (refused && mine) this.tab.edits.changeAlways(refused);
    }

    /** Load the presets; throws errors of the server. */
    async loadPresets() {
        this.showPresets(await this.tab.api.get("presets"));
    }

    /**
     * Save, change or delete presets; throws errors of the server.
     * @param {string} method
     * @param {"presets" | `preset?${string}` | `preset/thumbnail?${string}`} path
     * @param {string[]} names of the changed presets
     * @param {object} [body]
     */
    async writePresets(method, path, names, body) {
        const part = () => (this.tab.state.presets ?? []).filter((one) => names.includes(one.name));
        this.showPresets(await this.tab.server.write(method, path, body, {reload: () => this.loadPresets(), part}));
    }

    /** @param {PresetList} told */
    showPresets({presets, problem}) {
        this.tab.set({presets, presetProblem: problem});
    }

    /**
     * Load the lists of presets and regions that a tag has names of. A name that is in none of them is looked for once
     * more: another page may have made it.
     */
    async loadNamed() {
        const wanted = {blocks: false, regions: false};
        for (const tag of [...this.tab.stack.rows(), ...this.tab.stack.always()]) {
            if (tag.problem) continue; // it may still be typed
            const lists = listsOf(tag.values);
            const known = this.tab.stack.known;
            const isMissing = (lists.blocks && !known.blocks) || (lists.regions && !known.regions);
            if (!isMissing && !faultOfNames(tag, known).said) continue;
            const {lbw, lbwe, mask} = tag.values;
            const text = JSON.stringify([this.tab.state.server?.model, lbw, lbwe, mask]);
            if (this.sought.has(text)) continue;
            this.sought.add(text);
            wanted.blocks ||= lists.blocks;
            wanted.regions ||= lists.regions;
        }
        const model = this.tab.state.server?.model ?? null;
        if (wanted.blocks)
            await this.tab.server.attempt(async () => this.showBlocks(await this.tab.api.get("blocks"), model));
        if (wanted.regions) await this.tab.server.attempt(() => this.loadRegions());
    }

    /** Load the model's blocks, unless they are known; throws errors of the server. */
    async loadBlocks() {
        const model = this.tab.state.server?.model ?? null;
        if (this.tab.state.blocks && this.tab.state.blocks.model === model) return;
        this.showBlocks(await this.tab.api.get("blocks"), model);
    }

    /**
     * Save block weights under a name; throws errors of the server.
     * @param {string} name
     * @param {string} values
     */
    async saveBlocks(name, values) {
        this.showBlocks(await this.tab.server.write("PUT", "blocks/presets", {name, values}, this.listOfBlocks(name)));
    }

    /** @param {string} name */
    async deleteBlocks(name) {
        const path = /** @type {const} */ (`blocks/presets?${query({name})}`);
        this.showBlocks(await this.tab.server.write("DELETE", path, undefined, this.listOfBlocks(name)));
    }

    /** @param {string} name */
    listOfBlocks(name) {
        return {
            reload: async () => this.showBlocks(await this.tab.api.get("blocks")),
            part: () => this.tab.state.blocks?.presets.filter((one) => one.name === name),
        };
    }

    /**
     * @param {Blocks} told
     * @param {string | null} [model]
     */
    showBlocks(told, model = this.tab.state.blocks?.model ?? null) {
        this.tab.set({blocks: {...told, model}});
    }

    /** Load the regions; throws errors of the server. */
    async loadRegions() {
        this.showRegions(await this.tab.api.get("regions"));
    }

    /**
     * Save a picture as a region; throws errors of the server.
     * @param {string} name
     * @param {string} picture
     */
    async saveRegion(name, picture) {
        this.showRegions(await this.tab.server.write("PUT", "regions", {name, picture}, this.listOfRegions(name)));
    }

    /** @param {string} name */
    async deleteRegion(name) {
        const path = /** @type {const} */ (`regions?${query({name})}`);
        this.showRegions(await this.tab.server.write("DELETE", path, undefined, this.listOfRegions(name)));
    }

    /** @param {string} name */
    listOfRegions(name) {
        return {
            reload: () => this.loadRegions(),
            part: () => this.tab.state.regions?.filter((one) => one.name === name),
        };
    }

    /** @param {{regions: Region[], problem: string}} told */
    showRegions({regions, problem}) {
        if (same(regions, this.tab.state.regions) && problem === this.tab.state.regionProblem) return;
        this.tab.set({regions, regionProblem: problem});
    }
}
