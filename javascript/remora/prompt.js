// LoRA tags within a prompt: read, and changed so that nothing else in it is touched. Pure; the server's
// extension/text/prompt_edit.py does the same, and one table of cases holds both. What a tag says is read in tag.js.

/** @import {Reading} from "./tag.js" */

import {fieldsOf, readBody} from "./tag.js";
import {t} from "./words.js";

export {
    bodyOf,
    entryOf,
    makeTag,
    readBody,
    scaled,
    setField,
    setMultipliers,
    tagOf,
    withName,
} from "./tag.js";

/**
 * @typedef {{start: number, end: number, text: string, kind: string, body: string}} Place
 * The place of a tag in a prompt. `<kind:body>` is how it is written.
 *
 * @typedef {Place & Reading} Tag
 */

const KIND = "[ \\t]*(lora|lyco|loractl)[ \\t]*([:\uFF1A])";
// as `<lora:name>`; with the full-width marks of an input method; as HTML
const TAG = new RegExp(
    `<${KIND}([^<>]*)(>?)|\uFF1C${KIND}([^<>\uFF1C\uFF1E]*)(\uFF1E)|&lt;${KIND}((?:(?!&[lg]t;)[^<>])*)(&gt;)`,
    "gi",
);
const FULL_WIDTH = /[\uFF01-\uFF5E]/g;
const ANY_TAG = /<[^<>:]*:[^<>]*>/g; // of any kind
const PART = /((?:\([^()]*\)|\[[^[\]]*\]|[^,([]+|[([])*),/g; // up to a comma that is in no brackets
const TOKEN = /^<[\p{L}\p{N}_-]+>$/u; // the name of an embedding, as `<s1>`, which is no tag

/**
 * Read the tags of a prompt in order. A tag that cannot be read has a `problem`.
 * @param {string} prompt
 * @param {number} [standard] the strength where a tag has none
 * @returns {Tag[]}
 */
export function readTags(prompt, standard = 1) {
    return [...prompt.matchAll(TAG)].map((match) => {
        const [kind, colon, inside, end] = match.slice(1).filter((group) => group !== undefined);
        const usual = colon === ":" && match[0].startsWith("<");
        const body = usual ? inside : narrow(inside);
        const place = {text: match[0], kind, body, start: match.index, end: match.index + match[0].length};
        const read = readBody(body, standard);
        if (!end) Object.assign(read, {problem: t("tag.notClosed"), fixes: []});
        return {...place, ...read};
    });
}

/**
 * Tell whether a tag has its end.
 * @param {Place} tag
 */
export const isClosed = ({text}) => /(?:>|\uFF1E|&gt;)$/i.test(text);

/**
 * Return a body with full-width marks as a usual one; its name stays.
 * @param {string} body
 */
function narrow(body) {
    const [name, ...fields] = fieldsOf(body.replaceAll("\uFF1A", ":"));
    const ascii = (/** @type {string} */ letter) => String.fromCharCode(letter.charCodeAt(0) - 0xfee0);
    return [name, ...fields.map((field) => field.replace(FULL_WIDTH, ascii))].join(":");
}

/**
 * @param {string} prompt
 * @param {number} start
 * @param {number} end
 * @param {string} text
 */
function replaced(prompt, start, end, text) {
    return prompt.slice(0, start) + text + prompt.slice(end);
}

/**
 * Return the prompt with something else between `<lora:` and `>` of one of its tags.
 * @param {string} prompt
 * @param {number} index
 * @param {string} body
 */
export function withBody(prompt, index, body) {
    const tag = readTags(prompt)[index];
    return replaced(prompt, tag.start, tag.end, `<${tag.kind}:${body}>`);
}

/**
 * Return the prompt with one more tag at its end, and the words that belong to it.
 * @param {string} prompt
 * @param {string} tag
 * @param {string} [words]
 */
export function withEntry(prompt, tag, words = "") {
    const before = prompt.trimEnd();
    if (!before) return words ? `${tag} ${words}` : tag;
    if (!words) return `${before} ${tag}`;
    return `${before}${/[,.;]$/.test(before) ? "" : ","} ${tag} ${words}`;
}

/**
 * Return the prompt without one of its tags, and without its words where they stand directly behind it. Anywhere else
 * the user wrote them, and they stay. So do words that another LoRA needs.
 * @param {string} prompt
 * @param {number} index
 * @param {string} [words]
 * @param {string[]} [needed] phrases of other LoRAs
 */
export function withoutEntry(prompt, index, words = "", needed = []) {
    const tag = readTags(prompt)[index];
    const after = tag.end + prompt.slice(tag.end).search(/[^ \t]|$/);
    if (words && prompt.startsWith(words, after) && /^(?:[\s,.;]|$)/.test(prompt.slice(after + words.length))) {
        const rest = prompt.slice(after + words.length);
        const stays = split(words).filter((phrase) => isNeeded(phrase, needed));
        if (stays.length) return prompt.slice(0, tag.start) + stays.join(", ") + rest;
        const before = withoutEnd(prompt.slice(0, tag.start));
        return before ? before + rest : rest.replace(/^[,\s]+/, "");
    }
    if (tag.start > 0 && /[ \t]/.test(prompt[tag.start - 1])) return replaced(prompt, tag.start - 1, tag.end, "");
    const text = replaced(prompt, tag.start, tag.end, "");
    return tag.start === 0 ? text.replace(/^[ \t]+/, "") : text;
}

/**
 * Return a text without the blanks at its end, and the comma before them.
 * @param {string} text
 */
function withoutEnd(text) {
    let end = text.length; // a pattern would look at each run of blanks as often as it has blanks
    while (end > 0 && " \t".includes(text[end - 1])) end -= 1;
    return text.slice(0, text[end - 1] === "," ? end - 1 : end);
}

/**
 * Tell whether a phrase has one of others in it.
 * @param {string} phrase
 * @param {string[]} others
 */
export function isNeeded(phrase, others) {
    return others.some((other) => hasWords(phrase, other));
}

/**
 * Return the words of a file as they may stand in a prompt: a tag in them would bring another LoRA along, and a line
 * break may begin another prompt. Wildcards, brackets and weights stay, as authors write them on purpose, and so do
 * the names of embeddings, as `<s1>`.
 * @param {string} words
 */
export function plainWords(words) {
    const plain = words
        .replace(ANY_TAG, " ")
        .replace(/<[^<>]*>|[<>]/g, (found) => (TOKEN.test(found) ? found : found.replace(/[<>]/g, " ")))
        .replace(/[\p{Cc}\u2028\u2029]+/gu, " ");
    if (plain === words) return words.trim();
    return split(plain.replace(/ +/g, " ")).join(", ");
}

/**
 * Tell whether a prompt has words already, outside of its tags and at any strength.
 * @param {string} prompt
 * @param {string} words
 */
export function hasWords(prompt, words) {
    const text = prompt.replace(ANY_TAG, " ").toLowerCase();
    const sought = bare(words).toLowerCase();
    if (!sought) return true;
    if (!text.includes(sought)) return false;
    for (const at of placesOf(sought, text)) {
        const around = [text[at - 1], text[at + sought.length]];
        if (around.every((letter) => !letter || !/[\p{L}\p{N}_]/u.test(letter))) return true;
    }
    return false;
}

/**
 * Split a text of words into its phrases. What stands in brackets, as `(fur, tail:1.2)`, is one.
 * @param {string} words
 */
export function split(words) {
    return between(words)
        .map((word) => word.trim())
        .filter(Boolean);
}

/**
 * Split a text at its commas, except in brackets.
 * @param {string} text
 */
const between = (text) => [...`${text},`.matchAll(PART)].map((match) => match[1]);

/**
 * Return a phrase without the brackets that give it a strength.
 * @param {string} phrase
 */
export function bare(phrase) {
    const text = phrase.trim();
    const inside = /^\(([^()[\]\\]*?)(?::[\d.]+)?\)$/.exec(text) ?? /^\[([^()[\]\\:|]*)\]$/.exec(text);
    return inside ? inside[1].trim() : text;
}

/**
 * Return a prompt without the parts between commas and tags that consist of these words, at any strength.
 * @param {string} prompt
 * @param {string} words
 */
export function withoutWords(prompt, words) {
    const phrases = (/** @type {string} */ text) => split(bare(text)).map((one) => bare(one).toLowerCase());
    const wanted = new Set(phrases(words));
    const goes = (/** @type {string} */ text) => {
        const found = phrases(text);
        return found.length > 0 && found.every((phrase) => wanted.has(phrase));
    };
    let made = "";
    let joint = "";
    for (const part of between(prompt)) {
        const pieces = part.split(/(<[^<>:]*:[^<>]*>)/); // every second one is a tag
        const isOut = pieces.map((piece, at) => at % 2 === 0 && goes(piece));
        const kept = pieces.filter((piece, at) => !isOut[at] && piece.trim()).map((piece) => piece.trim());
        if (!isOut.includes(true)) made += joint === " " ? joint + part.trimStart() : joint + part;
        else if (kept.length) made += [joint.trim(), ...kept].join(" ");
        else continue;
        joint = isOut.at(-1) ? " " : ","; // what follows a tag has no comma before it
    }
    return /^\s/.test(prompt) ? made : made.trimStart();
}

/**
 * Return where a text has another, places that overlap included, in a time that grows with the lengths alone (the
 * algorithm of Knuth, Morris and Pratt).
 * @param {string} sought
 * @param {string} text
 */
function placesOf(sought, text) {
    const back = [0];
    const matched = (/** @type {number} */ length, /** @type {string} */ letter) => {
        let now = length;
        while (now > 0 && sought[now] !== letter) now = back[now - 1];
        return sought[now] === letter ? now + 1 : now;
    };
    for (let at = 1; at < sought.length; at += 1) back.push(matched(back[at - 1], sought[at]));
    /** @type {number[]} */
    const found = [];
    for (let at = 0, length = 0; at < text.length; at += 1) {
        length = matched(length, text[at]);
        if (length === sought.length) found.push(at + 1 - length);
    }
    return found;
}

/**
 * Return a prompt with phrases at its end.
 * @param {string} prompt
 * @param {string[]} phrases
 */
export function withPhrases(prompt, phrases) {
    if (!phrases.length) return prompt;
    const before = prompt.trimEnd().replace(/,$/, "");
    return [...(before ? [before] : []), ...phrases].join(", ");
}

/**
 * Return a prompt without phrases, of each the last between commas that is exactly it.
 * @param {string} prompt
 * @param {string[]} phrases
 */
export function withoutPhrases(prompt, phrases) {
    const parts = prompt.split(",");
    /** @type {Map<string, number>} */
    const gone = new Map();
    for (const phrase of phrases) gone.set(phrase, (gone.get(phrase) ?? 0) + 1);
    const stays = [...parts]
        .reverse()
        .map((part) => {
            const left = gone.get(part.trim()) ?? 0;
            gone.set(part.trim(), Math.max(0, left - 1));
            return left === 0;
        })
        .reverse();
    const text = parts.filter((_, at) => stays[at]).join(",");
    return stays[0] ? text : text.trimStart();
}

/**
 * Return the prompt with its tags in another order, each in the place of another.
 * @param {string} prompt
 * @param {number[]} order the present numbers of the tags
 */
export function reordered(prompt, order) {
    const tags = readTags(prompt);
    let text = "";
    let at = 0;
    tags.forEach((tag, place) => {
        text += prompt.slice(at, tag.start) + tags[order[place]].text;
        at = tag.end;
    });
    return text + prompt.slice(at);
}

/**
 * Find the change between two texts.
 * @param {string} before
 * @param {string} after
 */
export function difference(before, after) {
    let start = 0;
    const most = Math.min(before.length, after.length);
    while (start < most && before[start] === after[start]) start += 1;
    let end = 0;
    while (end < most - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
    return {start, removed: before.slice(start, before.length - end), inserted: after.slice(start, after.length - end)};
}

/**
 * Return the text with a change taken back, though other things in it may have changed meanwhile; null where it cannot
 * be told where it was.
 * @param {string} before
 * @param {string} after
 * @param {string} now
 */
export function takenBack(before, after, now) {
    if (now === after) return before;
    const {start, removed, inserted} = difference(before, after);
    for (const around of [24, 8, 0]) {
        const left = after.slice(Math.max(0, start - around), start);
        const right = after.slice(start + inserted.length, start + inserted.length + around);
        const sought = left + inserted + right;
        const at = sought ? now.indexOf(sought) : -1;
        if (at >= 0 && now.indexOf(sought, at + 1) < 0) {
            return now.slice(0, at + left.length) + removed + now.slice(at + left.length + inserted.length);
        }
    }
    return null;
}
