// What became of the tags of the latest picture, for the rows of the stack. Pure.

/**
 * @import {LoraOutcome} from "./api.js"
 *
 * @typedef {Pick<LoraOutcome, "where" | "written" | "name">} Asker
 * A row: what it is written in, all that its tag says, and its name.
 *
 * @typedef {{lora: LoraOutcome, changed: boolean}} Told
 * What became of a row in the latest picture, and whether the row was changed since.
 */

const MOST = 1_000_000; // pairs of tags that are compared

/** @param {LoraOutcome} lora */
export const isFailure = (lora) => lora.state === "failed" || lora.state === "missing";

/** @param {LoraOutcome} lora */
const acts = (lora) => ["applied", "partly", "handed"].includes(lora.state);

/** @param {LoraOutcome} lora */
const keyOf = (lora) => JSON.stringify([lora.where, lora.written, lora.state, lora.reason]);

/**
 * Return what became of each row. The tags of the picture and the rows are compared in their order: the longest
 * series that both have is the same tags. A tag that was moved or changed since is found among the others.
 * @param {LoraOutcome[]} loras in the order of their prompts
 * @param {Asker[]} rows in the same order
 * @returns {(Told | undefined)[]}
 */
export function told(loras, rows) {
    /** @type {(Told | undefined)[]} */
    const found = rows.map(() => undefined);
    for (const where of ["prompt", "negative", "always"]) {
        const asked = loras.filter((lora) => lora.where === where);
        const places = [...rows.keys()].filter((at) => rows[at].where === where);
        for (const {before, after, changed} of pairs(
            asked,
            places.map((at) => rows[at]),
        ))
            found[places[after]] = {lora: asked[before], changed};
    }
    return found;
}

/** @typedef {{before: number, after: number, changed: boolean}} Pair a tag of the picture, and its row */

/**
 * Pair the tags of a picture with rows.
 * @param {LoraOutcome[]} asked
 * @param {Asker[]} rows
 */
function pairs(asked, rows) {
    const same = common(
        asked.map((lora) => lora.written),
        rows.map((row) => row.written),
    );
    const found = same.map(([before, after]) => ({before, after, changed: false}));
    found.push(...moved(asked, rows, found));
    const used = new Set(found.map(({before}) => before));
    const done = new Set(found.map(({after}) => after));
    let [from, top] = [0, 0];
    for (const [before, after] of [...same, [asked.length, rows.length]]) {
        const was = numbers(from, before).filter((at) => !used.has(at));
        const is = numbers(top, after).filter((at) => !done.has(at));
        if (was.length * is.length <= MOST) found.push(...between(was, is, asked, rows));
        [from, top] = [before + 1, after + 1];
    }
    return found;
}

/**
 * Pair the tags that say the same at another place.
 * @param {LoraOutcome[]} asked
 * @param {Asker[]} rows
 * @param {Pair[]} known
 */
function moved(asked, rows, known) {
    const used = new Set(known.map(({before}) => before));
    const done = new Set(known.map(({after}) => after));
    /** @type {Map<string, number[]>} */
    const left = new Map(); // by what they say, the tags of the picture without a row
    for (const [at, {written}] of asked.entries()) {
        if (used.has(at)) continue;
        if (!left.has(written)) left.set(written, []);
        left.get(written)?.push(at);
    }
    /** @type {Pair[]} */
    const found = [];
    for (const [after, {written}] of rows.entries()) {
        const before = done.has(after) ? undefined : left.get(written)?.shift();
        if (before !== undefined) found.push({before, after, changed: true});
    }
    return found;
}

/**
 * Pair the tags between two tags that stay: all in their order, where no other LoRA came or went, else the only ones of
 * their LoRA. Of several tags of one LoRA nothing tells which one was changed.
 * @param {number[]} was
 * @param {number[]} is
 * @param {LoraOutcome[]} asked
 * @param {Asker[]} rows
 */
function between(was, is, asked, rows) {
    const fits = (/** @type {number} */ before, /** @type {number} */ after) =>
        asked[before].name === rows[after].name
        || asked[before].asked === rows[after].name
        || isCut(asked[before], rows[after]);
    const alike = was.length === is.length && was.every((before, at) => fits(before, is[at]));
    const found = alike
        ? was.map((before, at) => ({before, after: is[at]}))
        : was.flatMap((before) => {
              const [after, ...others] = is.filter((one) => fits(before, one));
              const single =
                  after !== undefined && !others.length && was.filter((one) => fits(one, after)).length === 1;
              return single ? [{before, after}] : [];
          });
    return found.map((pair) => ({...pair, changed: !isCut(asked[pair.before], rows[pair.after])}));
}

/**
 * Tell whether the web UI took the rest of a row's tag for a comment.
 * @param {LoraOutcome} lora
 * @param {Asker} row
 */
function isCut(lora, row) {
    return lora.state === "failed" && row.written.startsWith(`${lora.written}#`);
}

/**
 * Return the numbers of the items of the longest series that two lists have in common.
 * @param {string[]} before
 * @param {string[]} after
 * @returns {[number, number][]}
 */
function common(before, after) {
    let start = 0;
    const most = Math.min(before.length, after.length);
    while (start < most && before[start] === after[start]) start += 1;
    let end = 0;
    while (end < most - start && before.at(-1 - end) === after.at(-1 - end)) end += 1;
    /** @type {[number, number][]} */
    const found = numbers(0, start).map((at) => [at, at]);
    for (const [left, right] of series(
        before.slice(start, before.length - end),
        after.slice(start, after.length - end),
    ))
        found.push([start + left, start + right]);
    for (let at = end; at > 0; at -= 1) found.push([before.length - at, after.length - at]);
    return found;
}

/**
 * @param {string[]} before
 * @param {string[]} after
 * @returns {[number, number][]}
 */
function series(before, after) {
    if (before.length * after.length > MOST) return [];
    const lengths = numbers(0, before.length + 1).map(() => new Uint32Array(after.length + 1));
    for (let left = before.length - 1; left >= 0; left -= 1) {
        for (let right = after.length - 1; right >= 0; right -= 1) {
            lengths[left][right] =
                before[left] === after[right]
                    ? lengths[left + 1][right + 1] + 1
                    : Math.max(lengths[left + 1][right], lengths[left][right + 1]);
        }
    }
    /** @type {[number, number][]} */
    const found = [];
    let [left, right] = [0, 0];
    while (left < before.length && right < after.length) {
        if (before[left] === after[right]) {
            found.push([left, right]);
            left += 1;
            right += 1;
        } else if (lengths[left + 1][right] >= lengths[left][right + 1]) left += 1;
        else right += 1;
    }
    return found;
}

/**
 * @param {number} from
 * @param {number} until
 */
function numbers(from, until) {
    return Array.from({length: Math.max(0, until - from)}, (_, at) => from + at);
}

/** Outcomes of no row. */
export class Others {
    constructor() {
        /** @type {Set<string>} */
        this.had = new Set(); // outcomes without effect that had a row, here or in a former page
    }

    /**
     * Take what there was before the page: what has no effect is told at rows alone, as its prompt was another page's.
     * @param {LoraOutcome[]} loras
     */
    begin(loras) {
        this.had = new Set(loras.map(keyOf));
    }

    /**
     * Return the outcomes that no row has. One without effect is over when its row is gone; a LoRA that acts is in the
     * picture still.
     * @param {LoraOutcome[]} loras
     * @param {(Told | undefined)[]} rows what became of each row
     */
    of(loras, rows) {
        const own = new Set(rows.map((row) => row?.lora));
        const idle = new Set(loras.filter((lora) => !acts(lora)).map(keyOf));
        const had = [...own].map((lora) => (lora ? keyOf(lora) : ""));
        this.had = new Set([...this.had, ...had].filter((key) => idle.has(key)));
        return loras.filter((lora) => !own.has(lora) && !this.had.has(keyOf(lora)));
    }
}
