// What the searches keep from key to key changes nothing of what they find: it is what a plain search finds.

/** @import {Lora} from "../../javascript/api.d.ts" */

import assert from "node:assert/strict";
import {test} from "node:test";
import {Api} from "../../javascript/remora/api.js";
import {Catalog, NO_FILTERS, select} from "../../javascript/remora/catalog.js";
import {MOST, Names} from "../../javascript/remora/completion.js";
import {listOf, lora} from "./page.js";

const LETTERS = [..."aAbBcİΣß水1", "_", "-", " ", ".", "\t"];
const FAMILIES = {flux: {name: "flux", title: "Flux", fits: false, usable: true, reason: "made for Flux"}};
const LETTER = /[\p{L}\p{N}]/u;

/** Make numbers from 0 to 1 that are the same in every run. */
function* chances() {
    for (let state = 7; ; state = (state * 48271) % 2147483647) yield state / 2147483647;
}
const numbers = chances();
const chance = () => numbers.next().value ?? 0;
/** @type {<T>(list: T[]) => T} */
const oneOf = (list) => list[Math.floor(chance() * list.length)];
const some = (/** @type {number} */ most) => Array.from({length: chance() * most}, () => oneOf(LETTERS)).join("");

/**
 * @param {string[]} texts
 * @param {string} word
 */
function farness(texts, word) {
    const at = texts.findIndex((text) => text.includes(word));
    if (at < 0) return Infinity;
    const text = texts[at];
    if (text === word) return at * 4;
    if (text.startsWith(word)) return at * 4 + 1;
    const places = [...Array(text.length).keys()].slice(1);
    const begins = places.some((place) => text.startsWith(word, place) && !LETTER.test(text[place - 1]));
    return at * 4 + (begins ? 2 : 3);
}

/**
 * @param {Lora[]} sorted
 * @param {string} query
 */
function plainSearch(sorted, query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const far = (/** @type {Lora} */ one) => {
        const {name, alias, file, tags, captions, notes, base_model, kind, family} = one;
        const parts = [[name], [one.words, alias], [file, tags.join(" "), captions, notes, base_model, kind, family]];
        const texts = parts.map((part) => part.filter(Boolean).join("\n").toLowerCase());
        return words.reduce((sum, word) => sum + farness(texts, word), 0);
    };
    return sorted
        .filter((one) => far(one) < Infinity)
        .sort((one, other) => far(one) - far(other) || sorted.indexOf(one) - sorted.indexOf(other));
}

/**
 * @param {Lora[]} used the most used first
 * @param {string} typed
 */
function plainNames(used, typed) {
    const sought = typed.trim().toLowerCase();
    const words = sought.split(/[\s_-]+/).filter(Boolean);
    const rank = (/** @type {Lora} */ one) => {
        if (!sought) return 1;
        const texts = [one.name.toLowerCase(), `${one.words}\n${one.alias}`.toLowerCase()];
        const whole = farness(texts, sought);
        if (whole < Infinity) return whole;
        const each = words.length > 1 ? Math.max(...words.map((word) => farness(texts, word))) : Infinity;
        if (each < Infinity) return each;
        const letters = words.join("");
        /** @type {number[]} */
        const places = [];
        for (const letter of letters.split("")) places.push(texts[0].indexOf(letter, (places.at(-1) ?? -1) + 1));
        const isThere = letters.length > 1 && places.every((place, at) => place > (places[at - 1] ?? -1));
        const level = Math.floor((places[places.length - 1] - places[0] + 1) / letters.length) - 1;
        return isThere && level < 4 ? 8 + level : Infinity;
    };
    const own = (/** @type {Lora} */ one) => (one.family && rank(one) ? rank(one) + 8 : rank(one));
    return used
        .filter((one) => own(one) < Infinity)
        .sort((one, other) => own(one) - own(other) || used.indexOf(one) - used.indexOf(other))
        .slice(0, MOST);
}

test("searches that are typed, corrected and begun again find what a plain search finds", () => {
    const files = Array.from({length: 60}, (_, at) => {
        const more = {words: some(6), alias: some(4), captions: some(9), tags: [some(3)], uses: 60 - at};
        return lora(`${some(9)}${at}`, {...more, family: chance() < 0.3 ? "flux" : null});
    });
    const catalog = new Catalog(new Api(""));
    catalog.take(/** @type {any} */ (listOf(files, {families: FAMILIES})));
    const sorted = select(catalog, "", NO_FILTERS, "name");
    const names = new Names(catalog);
    let typed = "";
    let found = 0;
    for (let key = 0; key < 2000; key += 1) {
        const place = chance() < 0.8 ? typed.length : Math.floor(chance() * typed.length);
        const removed = chance() < 0.3 ? 1 + Math.floor(chance() * 2) : 0;
        typed = typed.slice(0, Math.max(0, place - removed)) + (removed ? "" : oneOf(LETTERS)) + typed.slice(place);
        if (chance() < 0.05 || typed.length > 9) typed = some(3);
        const listed = typed.trim() ? plainSearch(sorted, typed) : sorted;
        found += listed.length % sorted.length;
        assert.deepEqual(
            select(catalog, typed, NO_FILTERS, "name").map(({name}) => name),
            listed.map(({name}) => name),
            JSON.stringify(typed),
        );
        assert.deepEqual(
            names.find(typed).map(({name}) => name),
            plainNames(files, typed).map(({name}) => name),
            JSON.stringify(typed),
        );
    }
    assert.ok(found > 2000, `${found} files were found`);
    names.find("ab");
    const lists = names.narrowed.length;
    for (let again = 0; again < 9; again += 1) names.find("ab");
    assert.equal(names.narrowed.length, lists, "the same text is kept once");
});
