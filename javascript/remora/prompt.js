// LoRA tags within a prompt: read, and changed so that nothing else in it is touched. Pure; the server's
// extension/prompt_edit.py does the same, and one table of cases holds both.

const TAG = /<(lora|lyco):([^<>]*)(>?)/gi;
const NUMBER = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i;
const FIELDS = ["te", "unet", "dyn"];
const FLAGS = ["high", "low"];

/** A number as it is written into a tag. */
export function written(value) {
    return String(Number(value.toFixed(6)));
}

/**
 * The tags of a prompt in order, each with its place: {name, te, unet, extra, problem, start, end, text, kind, body}.
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

function readBody(body, standard) {
    const [name, ...fields] = body.split(":");
    const read = {name: name.trim(), te: standard, unet: standard, extra: [], problem: ""};
    const values = {};
    const placed = [];
    for (const field of fields) {
        const at = field.indexOf("=");
        const key = at < 0 ? "" : field.slice(0, at).trim();
        if (at < 0 && FLAGS.includes(field.trim().toLowerCase())) {
            read.extra.push(field.trim().toLowerCase());
        } else if (at < 0) {
            placed.push(field);
        } else if (!FIELDS.includes(key)) {
            read.problem = `“${key}” is no setting of a LoRA tag; the settings are ${FIELDS.join(", ")}`;
        } else {
            values[key] = field.slice(at + 1);
        }
    }
    placed.slice(0, FIELDS.length).forEach((value, at) => {
        if (!(FIELDS[at] in values)) values[FIELDS[at]] = value;
    });
    if (placed.length > FIELDS.length) read.problem = `a fourth number, “${placed[FIELDS.length]}”`;
    if (!read.name) read.problem = "the name is missing";
    for (const key of ["te", "unet"]) {
        if (!(key in values)) continue;
        if (NUMBER.test(values[key].trim())) read[key] = Number(values[key]);
        else read.problem = `“${values[key]}” is not a number`;
    }
    if (!("unet" in values)) read.unet = read.te;
    if ("dyn" in values) read.extra.push(`rank ${values.dyn.trim()}`);
    return read;
}

/** What stands between `<lora:` and `>` with other multipliers, each where one is written already. */
export function setMultipliers(body, te, unet) {
    const [name, ...fields] = body.split(":");
    const named = {};
    fields.forEach((field, at) => {
        if (field.includes("=")) named[field.split("=")[0].trim()] = at;
    });
    let placed = fields.map((_, at) => at)
        .filter((at) => !fields[at].includes("=") && !FLAGS.includes(fields[at].trim().toLowerCase()));
    if ("te" in named) {
        fields[named.te] = `te=${written(te)}`;
    } else if (placed.length) {
        fields[placed[0]] = written(te);
    } else {
        fields.unshift(written(te));
        placed = [0];
        for (const key of Object.keys(named)) named[key] += 1;
    }
    if ("unet" in named) {
        fields[named.unet] = `unet=${written(unet)}`;
    } else if (placed.length > 1) {
        fields[placed[1]] = written(unet);
        if (te === unet && placed.length === 2 && !("te" in named)) fields.splice(placed[1], 1);
    } else if (te !== unet) {
        if (placed.length) fields.splice(placed[0] + 1, 0, written(unet));
        else fields.push(`unet=${written(unet)}`);
    }
    return [name, ...fields].join(":");
}

/** A new tag. */
export function makeTag(name, te, unet) {
    return `<lora:${setMultipliers(name, te, unet)}>`;
}

function replaced(prompt, start, end, text) {
    return prompt.slice(0, start) + text + prompt.slice(end);
}

/** The prompt with other multipliers in one of its tags. */
export function withMultipliers(prompt, index, te, unet) {
    const tag = readTags(prompt)[index];
    return replaced(prompt, tag.start, tag.end, `<${tag.kind}:${setMultipliers(tag.body, te, unet)}>`);
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
