// What became of the LoRAs of the latest picture, for the rows that asked for them. Pure.

/**
 * @import {Outcome as LoraOutcome} from "../api.d.ts"
 *
 * @typedef {{name: string, body: string, always: boolean, file: string | undefined}} Asker
 * A row: its name and all that its tag says, whether it is always on, and the name of its file.
 */

/** @param {LoraOutcome} lora */
export const isFailure = (lora) => lora.state === "failed" || lora.state === "missing";

/** @param {LoraOutcome} lora */
const keyOf = (lora) => JSON.stringify([lora.name, lora.asked, lora.always_on, lora.reason]);

/**
 * Tell whether an outcome is that of a row. A tag that could not be read is known by all that it says, which has a colon
 * as a name may have one: another tag of the same name may be good.
 * @param {LoraOutcome} lora
 * @param {Asker} row
 */
export function isOf(lora, row) {
    if (isFailure(lora) && lora.always_on !== row.always) return false;
    if (isFailure(lora) && lora.asked.includes(":") && lora.asked !== row.name) return lora.asked === row.body;
    return [lora.asked, lora.name].includes(row.name) || lora.name === row.file;
}

/** Outcomes of no row. */
export class Others {
    constructor() {
        /** @type {Set<string>} */
        this.had = new Set(); // failures that had a row, here or in a former page
    }

    /**
     * Take what there was before the page: failures of it are told at rows alone, as their prompts were another page's.
     * @param {LoraOutcome[]} loras
     */
    begin(loras) {
        this.had = new Set(loras.map(keyOf));
    }

    /**
     * Return the outcomes that no row has. A failure that had a row is over when the row is gone.
     * @param {LoraOutcome[]} loras
     * @param {Asker[]} rows
     */
    of(loras, rows) {
        const own = loras.filter((lora) => rows.some((row) => isOf(lora, row)));
        const failures = new Set(loras.filter(isFailure).map(keyOf));
        this.had = new Set([...this.had, ...own.map(keyOf)].filter((key) => failures.has(key)));
        return loras.filter((lora) => !own.includes(lora) && !this.had.has(keyOf(lora)));
    }
}
