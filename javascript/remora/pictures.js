// The picture that the page shows, its seed and its LoRAs, and the page's own button that makes the next one.

/**
 * @import {MadePicture, OutputPicture} from "../api.d.ts"
 * @import {Tab} from "./main.js"
 */

import {query} from "./api.js";
import {NO_PART, pagePart, press} from "./boxes.js";
import {withSeed} from "./outputs.js";
import {same} from "./store.js";
import {t} from "./words.js";

export const PICTURES = {
    page: NO_PART,
    latest: /** @type {MadePicture | null} */ (null), // the picture that the page shows, as the server recorded it
    former: /** @type {OutputPicture | null} */ (null), // the same, where another session made it
};

const SCHEDULE = "schedule"; // the server's word for a strength that changes
const STATES = /** @type {const} */ ({
    applied: "pictures.applied",
    partly: "pictures.partly",
    waiting: "pictures.waiting",
    none: "pictures.noEffect",
    handed: "pictures.handed",
    failed: "pictures.failed",
    missing: "pictures.missing",
});
const LONGEST_SEED = 1e15; // which the server takes

export class Pictures {
    /** @param {Tab} tab */
    constructor(tab) {
        this.tab = tab;
        this.known = ""; // what `latest` was asked for
    }

    /** Read what the page shows of the prompt; ask the server at once when a picture is finished. */
    read() {
        const {page: before, target} = this.tab.state;
        const page = pagePart(target);
        if (same(page, before)) return;
        this.tab.set({page});
        if (before.busy && !page.busy) this.tab.server.poll();
    }

    /** Whether the page's own button is out of sight, so that the tab has one. */
    get needsButton() {
        const {page} = this.tab.state;
        return page.possible && !page.visible;
    }

    /** Return the seed of the picture that the page shows, else of the latest one; null where there is none. */
    get seed() {
        const {page, latest} = this.tab.state;
        return page.seed ?? latest?.seed ?? null;
    }

    generate() {
        press(this.tab.state.target, "generate");
    }

    stop() {
        press(this.tab.state.target, "stop");
    }

    /** Ask the server for the record of the picture that the page shows, if that may be another one. */
    async update() {
        const {server, page} = this.tab.state;
        const wanted = JSON.stringify([server?.pictures ?? 0, page.seed]);
        if (wanted === this.known) return;
        /** @type {{[name: string]: number}} */
        const asked = {most: 1};
        if (page.seed !== null && page.seed < LONGEST_SEED) asked.seed = page.seed;
        const told = server?.pictures
            ? await this.tab.api.get(/** @type {const} */ (`pictures?${query(asked)}`))
            : null;
        const latest = told?.pictures[0] ?? null;
        const {seed} = asked;
        const former = latest || seed === undefined ? null : await withSeed(this.tab, seed);
        this.known = wanted;
        this.tab.set({latest, former});
    }
}

/**
 * Describe the LoRAs of a picture, in a few words each.
 * @param {MadePicture} picture
 */
export function lorasOf(picture) {
    return picture.loras.map(({name, strength, state, always_on: always}) => {
        const marks = [state === "applied" ? "" : t(STATES[state]), always ? t("pictures.alwaysOn") : ""];
        const said = marks.filter(Boolean).join(t("mark.list"));
        const amount = strength === SCHEDULE ? t("pictures.schedule") : strength;
        return [name, amount, said && `(${said})`].filter(Boolean).join(" ");
    });
}
