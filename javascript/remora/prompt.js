// LoRA tags within a prompt: read, and changed so that nothing else in it is touched. Pure; the server's
// extension/prompt_edit.py does the same, and one table of cases holds both. What a tag says is read in tag.js.

import {readBody} from "./tag.js";

export {bodyOf, entryOf, makeTag, readBody, setField, setMultipliers, tagOf} from "./tag.js";

const TAG = /<(lora|lyco|loractl):([^<>]*)(>?)/gi;

/**
 * The tags of a prompt in order, each with its place and what `readBody` says of it: {start, end, text, kind, body, ...}.
 * What cannot be read has a `problem`.
 */
export function readTags(prompt, standard = 1) {
    return [...prompt.matchAll(TAG)].map((match) => {
        const place = {text: match[0], kind: match[1], body: match[2], start: match.index, end: match.index + match[0].length};
        const read = readBody(match[2], standard);
        if (!match[3]) read.problem = "this tag is not closed: “>” is missing";
        return {...place, ...read};
    });
}

function replaced(prompt, start, end, text) {
    return prompt.slice(0, start) + text + prompt.slice(end);
}

/** The prompt with something else between `<lora:` and `>` of one of its tags. */
export function withBody(prompt, index, body) {
    const tag = readTags(prompt)[index];
    return replaced(prompt, tag.start, tag.end, `<${tag.kind}:${body}>`);
}

/** The prompt with one more tag at its end, and the words that belong to it. */
export function withEntry(prompt, tag, words = "") {
    const before = prompt.trimEnd();
    if (!before) return words ? `${tag} ${words}` : tag;
    if (!words) return `${before} ${tag}`;
    return `${before}${/[,.;]$/.test(before) ? "" : ","} ${tag} ${words}`;
}

/**
 * The prompt without one of its tags, and without the words that belong to it where they are still there.
 * Words that `kept` has too, as those of another LoRA, stay.
 */
export function withoutEntry(prompt, index, words = "", kept = []) {
    const tag = readTags(prompt)[index];
    const follows = prompt.slice(tag.end).match(/^[ \t]*/)[0].length;
    const after = tag.end + follows;
    if (words && prompt.startsWith(words, after) && /^(?:[\s,.;]|$)/.test(prompt.slice(after + words.length))) {
        const before = prompt.slice(0, tag.start).replace(/,?[ \t]*$/, "");
        const rest = prompt.slice(after + words.length);
        return before ? before + rest : rest.replace(/^[,\s]+/, "");
    }
    let text = replaced(prompt, tag.start, tag.end, "");
    if (tag.start > 0 && /[ \t]/.test(prompt[tag.start - 1])) text = replaced(prompt, tag.start - 1, tag.end, "");
    else if (tag.start === 0) text = text.replace(/^[ \t]+/, "");
    return split(words).filter((word) => !kept.includes(word)).reduce(withoutPhrase, text);
}

/** Whether a prompt has words already, outside of its tags. */
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

/** The phrases of a text of words. */
export function split(words) {
    return words.split(",").map((word) => word.trim()).filter(Boolean);
}

// Without the first phrase between commas that is this one.
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

/** The prompt with its tags in another order, each in the place of another; `order` has their present numbers. */
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

/** What changed between two texts: {start, removed, inserted}. */
export function difference(before, after) {
    let start = 0;
    const most = Math.min(before.length, after.length);
    while (start < most && before[start] === after[start]) start += 1;
    let end = 0;
    while (end < most - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
    return {start, removed: before.slice(start, before.length - end), inserted: after.slice(start, after.length - end)};
}

/**
 * The text with a change taken back, though other things in it may have changed meanwhile; null where it cannot be told
 * where it was.
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
