// What may be meant by a name that does not exist, or by a text that is no number. Pure; the server's
// extension/text/similar.py does the same, and one table of cases holds both.

import {isFiniteNumber} from "./curve.js";
import {listed, t} from "./words.js";

const MOST = 3; // suggestions
const LONGEST = 60; // characters of a name that is compared
const COMPARED = 200; // names
const FARTHEST = 3; // letters that differ
const BEGINNING = 3; // letters of a name that stand for all of it
// dashes and the minus sign, which keyboards of phones and texts from the web have for a hyphen
const DASHES = /[\u2010-\u2015\u2212]/g;
// a number with marks before it, and with marks or letters behind it, as (0.7), x0.7 and 0.7f; IN02 is a block
const AROUND = /^(?:x|[^0-9a-z.+ -]){0,2} *([+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)) *([^0-9 ]{0,2})$/i;
const WIDE = /[\uff01-\uff5e]/g; // full-width letters, digits and marks
const NARROWER = 0xfee0; // from their codes to those in ASCII

/**
 * Return up to three names that a word may mean, the most likely first: if some differ in case only, these alone.
 * @param {string} word
 * @param {string[]} names
 */
export function similar(word, names) {
    const wanted = lower(word.trim());
    if (!wanted) return [];
    const most = Math.max(1, Math.min(FARTHEST, Math.floor(wanted.length / 3)));
    return names
        .slice(0, COMPARED)
        .map((name) => ({name, distance: distance(wanted, lower(name), most)}))
        .filter((one) => one.distance <= most)
        .sort((one, other) => one.distance - other.distance)
        .slice(0, MOST)
        .filter(({distance: away}, _, [first]) => away === first.distance || first.distance > 0)
        .map(({name}) => name);
}

/** @param {string} text */
const lower = (text) => text.toLowerCase().slice(0, LONGEST);

/**
 * Count the letters that are missing, superfluous, other, or exchanged with the next one; at most `most` + 1.
 * @param {string} word
 * @param {string} name
 * @param {number} most
 */
function distance(word, name, most) {
    const [shorter, longer] = word.length < name.length ? [word, name] : [name, word];
    const more = longer.length - shorter.length;
    if (shorter.length >= BEGINNING && longer.startsWith(shorter)) return Math.min(1, more);
    if (more > most) return most + 1;
    /** @type {number[]} */
    let before = [];
    let above = Array.from({length: name.length + 1}, (_, at) => at);
    for (let i = 1; i <= word.length; i += 1) {
        const row = [i];
        for (let j = 1; j <= name.length; j += 1) {
            const other = Number(word[i - 1] !== name[j - 1]);
            row[j] = Math.min(above[j] + 1, row[j - 1] + 1, above[j - 1] + other);
            if (i > 1 && j > 1 && word[i - 1] === name[j - 2] && word[i - 2] === name[j - 1])
                row[j] = Math.min(row[j], before[j - 2] + 1);
        }
        [before, above] = [above, row];
    }
    return above[name.length];
}

/**
 * Return the number that a text may mean which is none, such as 0,7; empty if there is none.
 * @param {string} text
 */
export function numberMeant(text) {
    const plain = rangeMeant(text);
    if (isFiniteNumber(plain)) return plain === text.trim() ? "" : plain;
    const [, number = "", behind = ""] = AROUND.exec(plain) ?? [];
    if (!isFiniteNumber(number)) return "";
    return behind.includes("%") ? String(Number((Number(number) / 100).toPrecision(12))) : number;
}

/**
 * Return a text with the marks of a number or a range, such as 0.2-0.8 for 0,2–0,8; it may be neither.
 * @param {string} text
 */
export function rangeMeant(text) {
    return text
        .trim()
        .replace(WIDE, (mark) => String.fromCharCode(mark.charCodeAt(0) - NARROWER))
        .replace(DASHES, "-")
        .replaceAll(",", ".");
}

/**
 * Return a sentence that goes on with the question whether one of the names is meant; it ends where there is none.
 * @param {string} said without a full stop
 * @param {string[]} names
 * @param {string} [otherwise] the sentence without names
 */
export function asked(said, names, otherwise = t("mark.sentence", {said})) {
    return names.length ? t("tag.didYouMean", {said, names: listed(names, "disjunction")}) : otherwise;
}
