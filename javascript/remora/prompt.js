// LoRA tags within a prompt: read, and changed so that nothing else in it is touched. Pure; the server's
// extension/prompt_edit.py does the same, and one table of cases holds both. What a tag says is read in tag.js.

/** @import {Reading} from "./tag.js" */

import {readBody} from "./tag.js";

export {bodyOf, entryOf, makeTag, readBody, setField, setMultipliers, tagOf} from "./tag.js";

/**
 * @typedef {{start: number, end: number, text: string, kind: string, body: string}} Place
 * The place of a tag in a prompt. `<kind:body>` is how it is written.
 *
 * @typedef {Place & Reading} Tag
 */

const TAG = /<(lora|lyco|loractl):([^<>]*)(>?)/gi;

/**
 * Read the tags of a prompt in order. A tag that cannot be read has a `problem`.
 * @param {string} prompt
 * @param {number} [standard] the strength where a tag has none
 * @returns {Tag[]}
 */
export function readTags(prompt, standard = 1) {
    return [...prompt.matchAll(TAG)].map((match) => {
        const place = {
            text: match[0],
            kind: match[1],
            body: match[2],
            start: match.index,
            end: match.index + match[0].length,
        };
        const read = readBody(match[2], standard);
        if (!match[3]) read.problem = "this tag is not closed: “>” is missing";
        return {...place, ...read};
    });
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
 * Return the prompt without one of its tags, and without the words that belong to it where they are still there.
 * Words that `kept` has too, as another LoRA’s, stay.
 * @param {string} prompt
 * @param {number} index
 * @param {string} [words]
 * @param {string[]} [kept]
 */
export function withoutEntry(prompt, index, words = "", kept = []) {
    const tag = readTags(prompt)[index];
    const after = tag.end + prompt.slice(tag.end).search(/[^ \t]|$/);
    if (words && prompt.startsWith(words, after) && /^(?:[\s,.;]|$)/.test(prompt.slice(after + words.length))) {
        const before = prompt.slice(0, tag.start).replace(/,?[ \t]*$/, "");
        const rest = prompt.slice(after + words.length);
        return before ? before + rest : rest.replace(/^[,\s]+/, "");
    }
    let text = replaced(prompt, tag.start, tag.end, "");
    if (tag.start > 0 && /[ \t]/.test(prompt[tag.start - 1])) text = replaced(prompt, tag.start - 1, tag.end, "");
    else if (tag.start === 0) text = text.replace(/^[ \t]+/, "");
    return split(words)
        .filter((word) => !kept.includes(word))
        .reduce(withoutPhrase, text);
}

/**
 * Tell whether a prompt has words already, outside of its tags.
 * @param {string} prompt
 * @param {string} words
 */
export function hasWords(prompt, words) {
    const text = prompt.replace(/<[^<>]*>/g, " ").toLowerCase();
    const sought = words.trim().toLowerCase();
    if (!sought) return true;
    for (let at = text.indexOf(sought); at >= 0; at = text.indexOf(sought, at + 1)) {
        const around = [text[at - 1], text[at + sought.length]];
        if (around.every((letter) => !letter || !/[\p{L}\p{N}_]/u.test(letter))) return true;
    }
    return false;
}

/**
 * Split a text of words into its phrases.
 * @param {string} words
 */
export function split(words) {
    return words
        .split(",")
        .map((word) => word.trim())
        .filter(Boolean);
}

/**
 * Take away the first phrase between commas that is this one.
 * @param {string} prompt
 * @param {string} phrase
 */
function withoutPhrase(prompt, phrase) {
    let at = 0;
    for (const part of prompt.split(",")) {
        if (part.replace(/<[^<>]*>/g, "").trim() === phrase && !part.includes("<")) {
            const first = at === 0;
            const end = at + part.length;
            return first ? prompt.slice(end).replace(/^,\s*/, "") : prompt.slice(0, at - 1) + prompt.slice(end);
        }
        at += part.length + 1;
    }
    return prompt;
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
