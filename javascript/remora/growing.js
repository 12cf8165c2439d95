// A comparison of a training's epochs grows by the later ones, whether or not it is shown.

/** @import {Tab} from "./main.js" */

import {epochsOf} from "./epochs.js";
import {makeTag, readTags, withEntry} from "./prompt.js";
import {escapedName} from "./tag.js";

/**
 * @typedef {object} Followed
 * @property {string} id of the comparison
 * @property {boolean} grows
 * @property {string[]} names its rows, the latest epoch last
 * @property {string} prompt without tags for those that it had not
 * @property {{[field: string]: unknown}} body the request that began it
 */

export const GROWING = {followed: /** @type {Followed | null} */ (null)};

/**
 * Return a prompt with a tag for each LoRA that it has not; the comparison sets their strengths.
 * @param {string} prompt
 * @param {string[]} names
 */
export function withTags(prompt, names) {
    const there = new Set(readTags(prompt).map(({name}) => name));
    const missing = names.filter((name) => !there.has(name));
    return missing.reduce((text, name) => withEntry(text, makeTag(escapedName(name), 1, 1)), prompt);
}

export class Growing {
    /** @param {Tab} tab */
    constructor(tab) {
        this.tab = tab;
        this.asks = false;
    }

    /** Add the epochs that came since to the comparison that is followed. */
    async add() {
        const {followed} = this.tab.state;
        const {catalog} = this.tab.library;
        const last = followed?.grows && catalog.named(followed.names.at(-1) ?? "");
        if (!followed || !last || this.asks) return;
        const epochs = epochsOf(catalog.all, last);
        const names = epochs.slice(epochs.indexOf(last) + 1).map(({name}) => name);
        const others = names.filter((name) => !followed.names.includes(name));
        if (!others.length) return;
        this.asks = true;
        const {id, body, prompt} = followed;
        const wanted = {...body, names: others, prompt: withTags(prompt, others), grows: id};
        const told = await this.tab.server.attempt(() => this.tab.api.ask("POST", "compare", wanted));
        this.asks = false;
        if (this.tab.state.followed?.id !== id) return; // another one was begun
        if (told) this.tab.set({followed: {...this.tab.state.followed, names: [...followed.names, ...others]}});
        else if (!this.tab.state.lost) this.tab.set({followed: null}); // the server refuses it
    }
}
