// The time of everything that reads a text from outside grows with its length. The server's
// tests/extension/text/test_growth.py holds the same for its twins.

import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {test} from "node:test";

import {suggestions} from "../../javascript/remora/completion.js";
import {readAmount} from "../../javascript/remora/curve.js";
import {isMeant, places} from "../../javascript/remora/grammar.js";
import * as prompt from "../../javascript/remora/prompt.js";
import {maskProblem, nameProblem as regionProblem} from "../../javascript/remora/regions.js";
import * as tag from "../../javascript/remora/tag.js";
import {nameProblem, readWeights} from "../../javascript/remora/weights.js";
import {speak, translated} from "../../javascript/remora/words.js";

const SIZES = [8, 10, 12, 14, 16, 18, 20].map((power) => 2 ** power); // characters; four times as many each time
const MOST = 128; // times as long for 16 times as many characters: in proportion it is 16, with the square 256
const FLOOR = 0.0003; // seconds, below which a time says nothing
const ENOUGH = 0.025; // seconds that tell

/**
 * @param {() => unknown} work
 * @returns seconds that this process computes
 */
function seconds(work) {
    const begun = process.cpuUsage();
    work();
    const {user, system} = process.cpuUsage(begun);
    return (user + system) / 1e6;
}

/**
 * Return how many times as long a text of 16 times as many characters takes at most.
 * @param {(text: string) => unknown} read
 * @param {[before: string, run: string, after: string]} shape
 */
function growth(read, [before, run, after]) {
    /** @type {number[]} */
    const times = [];
    let most = 0;
    for (let again = 0; again < 10; again += 1) read(before + run.repeat(256 / run.length) + after); // compiled by then
    for (const size of SIZES) {
        const text = before + run.repeat(size / run.length) + after;
        const limit = MOST * Math.max(FLOOR, times[times.length - 2] ?? ENOUGH);
        let time = seconds(() => read(text));
        // the collector of memory and the compiler run in any of them
        for (let again = 0; again < 9 && time > limit; again += 1)
            time = Math.min(
                time,
                seconds(() => read(text)),
            );
        most = Math.max(most, (MOST * time) / limit);
        times.push(time);
        if (time > ENOUGH) break;
    }
    return most;
}

/** @type {any} */
const known = {
    ...{names: {find: () => []}, standard: 1, blocks: null, regions: null},
    loraOf: () => ({name: "a", words: "ab, a b"}),
};
const told = {blocks: [], layouts: [{length: 17, ids: ["BASE"]}], presets: []};
/** @type {(text: string) => void} */
const edited = (text) => {
    const tags = prompt.readTags(text);
    if (!tags.length) return;
    for (const at of [0, tags.length - 1]) {
        prompt.withoutEntry(text, at, "b", ["x"]);
        prompt.withBody(text, at, "b");
    }
    const order = tags.map((_, at) => tags.length - 1 - at);
    prompt.reordered(text, order);
};

/** @type {{[what: string]: (text: string) => unknown}} */
const PROMPTS = {
    "the tags of a prompt": prompt.readTags,
    "the brackets of a prompt": (text) => places(text, prompt.readTags(text), {parts: true}),
    "whether brackets count": (text) => isMeant([text], true),
    "a changed prompt": edited,
    "words that a prompt has": (text) => prompt.hasWords(text, text.slice(0, text.length / 2)),
    "words at its end": (text) => prompt.hasWords(text, text.slice(text.length / 2)),
    "words of a file": prompt.plainWords,
    "phrases that are put in": (text) => prompt.withPhrases(text, ["x"]),
    "phrases that are taken out": (text) => prompt.withoutPhrases(text, prompt.split(text)),
    "words that are taken out": (text) => prompt.withoutWords(text, text),
    "what may come next": (text) => [text.length, text.length >> 1].map((caret) => suggestions(text, caret, known)),
    "a change that is taken back": (text) => prompt.takenBack(text, `${text}x`, `y${text}`),
};
/** @type {{[what: string]: (text: string) => unknown}} */
const BODIES = {
    "the body of a tag": (text) => tag.readBody(`x:${text}`),
    "a range": tag.rangeOf,
    "a field that is set": (text) => ["stop", "te", "lbw"].map((key) => tag.setField(`x:${text}`, key, "7")),
    "multipliers that are set": (text) => tag.setMultipliers(`x:${text}`, 0.5, 0.25),
    "an entry of the stack": (text) => tag.tagOf({name: "a", ...tag.entryOf(`x:${text}`)}),
    "a schedule": readAmount,
    "block weights": (text) => readWeights(text, told),
    "a name of block weights": nameProblem,
    "a region": (text) => maskProblem(text, []),
    "a name of a region": (text) => regionProblem(text, []),
};
speak("de", {}); // whose strings are English, and read all the same
const page = readFileSync(new URL("../../extension/standalone/page.js", import.meta.url), "utf8");
const parameters = new RegExp(/looksLikeOne = .*?\/(.*)\/\.test/.exec(page)?.[1] ?? "");
const SENTENCES = {
    "what the server says": translated,
    "a parameters text": (/** @type {string} */ text) => parameters.test(text),
};
/** @type {[string, string, string][]} */
const IN_SENTENCES = [
    ["", "made for ", "!"],
    ["", "fits several files: ", "!"],
    ["", "it is truncated or damaged: ", "!"],
    ["it is truncated, or not a safetensors file (header claims ", " bytes of ", "!"],
    ["", "; ", "x"],
    ["", "a", ""],
    ["", "\n", "x"],
    ["", " ", "x"],
    ["", "Steps: 1, ", ""],
];

test("a parameters text is known", () => {
    assert.ok(parameters.test("a cat\nNegative prompt: b\nSteps: 20, Sampler: Euler"));
    assert.ok(!parameters.test("Steps: many, Sampler: Euler") && !parameters.test("a cat, Steps: 20, Sampler: Euler"));
});
/** @type {[string, string, string][]} */
const IN_PROMPTS = [
    ["a <lora:a:", " ", "-1>"],
    ["a <lora:a:1", " ", "x> b"],
    ["a", " ", "<lora:a:1> b"],
    ["a", " ", "x<lora:a:1> b"],
    ["", "<lora:a:1> ", ""],
    ["", "<lora:a", ""],
    ["", "<", ">"],
    ["&lt;lora:a:", "&l", ""],
    ["", "\uFF1Clora\uFF1Aa", ""],
    ["<lora:a", "\\:", ":1>"],
    ["", "([", ""],
    ["[<lora:a:1>", ":", ":0.5]"],
    ["(", "|", "<lora:a:1>)"],
    ["", "a,", ""],
    ["", "a ", "AND b"],
    ["", "aab", "a"],
    ["", "a", ""],
];
/** @type {[string, string, string][]} */
const IN_BODIES = [
    ["", " ", "-"],
    ["-", " ", "x"],
    ["1", " ", "-1"],
    ["1e", "1", "-"],
    ["", "1", "-x"],
    ["", ".", "1"],
    ["0@0", ",1@1", ""],
    ["1", ":", ""],
    ["1:mask=", "!", "left"],
    ["", "left+", "left"],
    ["1,", "0,", "X+"],
    ["0,0,0,1", " ", "x"],
    ["1:rows=", "1,", ""],
    ["", "a ", "."],
    ["1:step=", "=", ""],
];

for (const [readers, shapes] of /** @type {const} */ ([
    [PROMPTS, IN_PROMPTS],
    [BODIES, IN_BODIES],
    [SENTENCES, IN_SENTENCES],
])) {
    for (const [what, read] of Object.entries(readers)) {
        test(`the time of ${what} grows with the text`, () => {
            for (const shape of shapes) {
                const times = growth(read, shape);
                assert.ok(times < MOST, `${JSON.stringify(shape)}: ${times} times as long`);
            }
        });
    }
}

test("a pattern that grows with the square is seen", () => {
    const trimmed = (/** @type {string} */ text) => text.replace(/,?[ \t]*$/, "");
    // other programs may make the time of a short text long, so that the long one's looks in proportion
    assert.ok([...Array(10)].some(() => growth(trimmed, ["a", " ", "x"]) > MOST));
});
