// Tags within prompts: javascript/remora/prompt.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import * as prompt from "../../javascript/remora/prompt.js";
import * as tag from "../../javascript/remora/tag.js";
import {EDITS} from "./cases.js";

const {difference, hasWords, plainWords, readTags, reordered, split, takenBack} = prompt;
const {withBody, withEntry, withoutEntry, withoutPhrases, withoutWords, withPhrases} = prompt;

test("tags are read as on the server", () => {
    for (const wanted of EDITS.read) {
        const [{text, name, te, unet, problem}] = readTags(wanted[0]);
        assert.deepEqual([text, name, te, unet], wanted);
        assert.equal(problem, "");
    }
});

test("a tag that the server refuses has a problem", () => {
    for (const text of EDITS.refused) assert.notEqual(readTags(text)[0].problem, "", text);
});

test("schedules are read as points in order", () => {
    for (const [text, te, unet] of EDITS.curves) {
        const [{teCurve, unetCurve, problem}] = readTags(text);
        const points = [teCurve, unetCurve].map((curve) => curve?.map(({value, at}) => [value, at]) ?? null);
        assert.deepEqual(points, [te, unet], text);
        assert.equal(problem, "");
    }
});

test("tags are read with their places", () => {
    const text = "a <lora:b:1>, <LyCO:c d:0.5> <loractl:e> <hypernet:f:1> x";
    const tags = readTags(text);
    assert.deepEqual(
        tags.map(({kind, body, name, start, end}) => [kind, body, name, text.slice(start, end)]),
        [
            ["lora", "b:1", "b", "<lora:b:1>"],
            ["LyCO", "c d:0.5", "c d", "<LyCO:c d:0.5>"],
            ["loractl", "e", "e", "<loractl:e>"],
        ],
    );
    assert.equal(readTags("<lora:a>", 0.7)[0].te, 0.7);
    assert.deepEqual(readTags("a fox"), []);
});

test("a tag that is not closed ends before the next one, and says so", () => {
    const [open, next] = readTags("<lora:a:1 <lora:b:1>");
    assert.deepEqual([open.text, open.problem], ["<lora:a:1 ", "this tag is not closed: “>” is missing"]);
    assert.deepEqual([next.text, next.problem], ["<lora:b:1>", ""]);
});

test("the body of one tag is written anew, and nothing else", () => {
    assert.equal(withBody("x <lora:a:1>, <LYCO:b:1> y", 1, "c:0.5"), "x <lora:a:1>, <LYCO:c:0.5> y");
    assert.equal(withBody("x <lora:a", 0, "a:1"), "x <lora:a:1>");
});

test("a tag is put at the end, with its words behind it", () => {
    /** @type {[before: string, words: string, wanted: string][]} */
    const cases = [
        ["", "", "<lora:b:1>"],
        ["", "fur", "<lora:b:1> fur"],
        ["a fox", "", "a fox <lora:b:1>"],
        ["a fox  \n", "", "a fox <lora:b:1>"],
        ["a fox", "fur, ink", "a fox, <lora:b:1> fur, ink"],
        ["a fox,", "fur", "a fox, <lora:b:1> fur"],
        ["a fox.", "fur", "a fox. <lora:b:1> fur"],
        ["a fox;", "fur", "a fox; <lora:b:1> fur"],
    ];
    for (const [before, words, wanted] of cases) assert.equal(withEntry(before, "<lora:b:1>", words), wanted, before);
    assert.equal(withEntry("a", "<lora:b:1>"), "a <lora:b:1>");
});

// prompt, index of the tag, its words, words of others -> prompt without both
/** @type {[prompt: string, index: number, words: string, others: string[], wanted: string][]} */
const WITHOUT = [
    ["a fox <lora:b:1>, night", 0, "", [], "a fox, night"],
    ["a fox, <lora:b:1> fur coat, night", 0, "fur coat", [], "a fox, night"],
    ["<lora:b:1> fur coat, night", 0, "fur coat", [], "night"],
    ["<lora:b:1> fur coat", 0, "fur coat", [], ""],
    ["<lora:b:1> fur coats", 0, "fur coat", [], "fur coats"],
    ["fur coat, a fox <lora:b:1>", 0, "fur coat", [], "fur coat, a fox"],
    ["a <lora:b:1>, fur coat", 0, "fur coat", [], "a, fur coat"],
    ["a, <lora:b:1> fur, ink", 0, "fur, ink", ["ink"], "a, ink"],
    ["a, <lora:b:1> fur, ink", 0, "fur, ink", ["Fur", "ink"], "a, fur, ink"],
    ["<lora:b:1> fur coat, x", 0, "fur coat", ["fur"], "fur coat, x"],
    ["a, <lora:b:1> furs, x", 0, "furs", ["fur"], "a, x"],
    ["a fox, fur coat, x <lora:b:1>", 0, "fur coat", ["fur coat"], "a fox, fur coat, x"],
    ["a (fur coat:1.2) fox <lora:b:1>", 0, "fur coat", [], "a (fur coat:1.2) fox"],
    ["x <lora:a:1> <lora:b:1> y", 1, "", [], "x <lora:a:1> y"],
    ["a<lora:b:1>c", 0, "", [], "ac"],
    ["  <lora:b:1>  c", 0, "", [], "   c"],
    ["<lora:b:1>\t c", 0, "", [], "c"],
    ["a fox, fur coat <lora:b:1>", 0, "fur coat", [], "a fox, fur coat"],
    ["a, fur coat <lora:c:1>, x <lora:b:1>", 1, "fur coat", [], "a, fur coat <lora:c:1>, x"],
    ["fur, ink, a <lora:b:1>", 0, "fur, ink", [], "fur, ink, a"],
    ["a\n<lora:b:1> fur\nc", 0, "fur", [], "a\n\nc"],
];

test("a tag goes with its words and nothing else", () => {
    for (const [text, index, words, others, wanted] of WITHOUT) {
        assert.equal(withoutEntry(text, index, words, others), wanted, text);
    }
    assert.equal(withoutEntry("x, a <lora:b:1>", 0), "x, a");
});

test("an inserted tag is removed again with its words", () => {
    /** @type {[before: string, wanted: string][]} */
    const cases = [
        ["", ""],
        ["a fox", "a fox"],
        ["a fox,", "a fox"],
        ["a fox.", "a fox."],
        ["x <lora:a:1>", "x <lora:a:1>"],
        ["a, b , c", "a, b , c"],
    ];
    for (const [before, wanted] of cases) {
        const made = withEntry(before, "<lora:b:1>", "fur, ink");
        assert.equal(withoutEntry(made, readTags(made).length - 1, "fur, ink"), wanted, made);
    }
});

test("words are found whole outside of tags", () => {
    /** @type {[prompt: string, words: string, wanted: boolean][]} */
    const cases = [
        ["a Fur Coat, x", "fur coat", true],
        ["fur coats", "fur coat", false],
        ["<lora:fur:1>", "fur", false],
        ["abc", "", true],
        ["abc", "  ", true],
        ["", "x", false],
        ["furs, a fur", " FUR ", true],
        ["(fur:1.2)", "fur", true],
        ["a (fur, tail:1.3)", "(fur, tail:1.2)", true],
        ["fur", "[fur]", true],
        ["a fur", "(fur (animal):1.2)", false],
        ["fur_x, xfur, 2fur", "fur", false],
        ["é-fur", "fur", true],
        ["éfur", "fur", false],
        ["a <s1> b", "<s1>", true],
        ["a <lora:s1:1> b", "s1", false],
    ];
    for (const [text, words, wanted] of cases) assert.equal(hasWords(text, words), wanted, `${text} | ${words}`);
});

test("phrases come to the end of a prompt and go from it whole", () => {
    /** @type {[before: string, phrases: string[], wanted: string][]} */
    const cases = [
        ["", ["cat"], "cat"],
        ["caterpillar, blurry", ["cat"], "caterpillar, blurry, cat"],
        ["blurry, \n", ["cat", "dog"], "blurry, cat, dog"],
        ["a, b", [], "a, b"],
    ];
    for (const [before, phrases, wanted] of cases) assert.equal(withPhrases(before, phrases), wanted);
    /** @type {[before: string, phrases: string[], wanted: string][]} */
    const gone = [
        ["caterpillar, blurry", ["cat"], "caterpillar, blurry"],
        ["caterpillar, blurry, cat", ["cat"], "caterpillar, blurry"],
        ["cat, dog, blurry", ["cat", "dog"], "blurry"],
        ["cat, a, cat, b", ["cat"], "cat, a, b"],
        ["cat", ["cat"], ""],
        ["Cat, x", ["cat"], "Cat, x"],
        ["", ["cat"], ""],
    ];
    for (const [before, phrases, wanted] of gone) assert.equal(withoutPhrases(before, phrases), wanted, before);
});

test("words with a strength of their own are one phrase, and are taken out at any strength", () => {
    const sets = ["(fur, tail:1.2)", "night fur", "[a, b]", ":(", "x"];
    assert.deepEqual(split(`${sets.join(", ")},`), sets);
    /** @type {[before: string, words: string, wanted: string][]} */
    const cases = [
        ["<lora:a:0.7> fur, tail, night", "fur, tail", "<lora:a:0.7> night"],
        ["a fox, <lora:a:1> (fur, tail:1.3),x", "(fur, tail:1.2)", "a fox, <lora:a:1> x"],
        ["a fox <lora:x:1> fur", "Fur", "a fox <lora:x:1>"],
        ["<lora:a:1> fur <lora:b:1>, x", "fur", "<lora:a:1> <lora:b:1>, x"],
        ["a, (fur:1.2)", "fur", "a"],
        [" fur, x,", "fur", " x,"],
        ["fur", "fur", ""],
        ["furs, (fur, tail:1.2), fur (animal)", "fur", "furs, (fur, tail:1.2), fur (animal)"],
    ];
    for (const [before, words, wanted] of cases) assert.equal(withoutWords(before, words), wanted, before);
});

test("words of a file bring no tags and no lines along, and all else stays", () => {
    /** @type {[words: string, wanted: string][]} */
    const cases = [
        ["night, <lora:night:5>", "night"],
        ["a <lora:night:5> b,<hypernet:x:1>, c", "a b, c"],
        ["night\r\nsecond\tline\u2028x", "night second line x"],
        ["a < b > c <lora:night:5", "a b c lora:night:5"],
        ["<lora:<s1>:5> <x:<lora:y:1>>", "lora:<s1>:5 x:"],
        ["<lo<x:1>ra:night:5>, <<s1>lora:a:1>", "lo ra:night:5, <s1>lora:a:1"],
        [" fur,ink ", "fur,ink"],
        ["__wildcard__, {a|b}, (fur:1.2), [x:y:0.5]", "__wildcard__, {a|b}, (fur:1.2), [x:y:0.5]"],
        ["a photo of <s0><s1>", "a photo of <s0><s1>"],
        ["<>", ""],
        ["", ""],
    ];
    for (const [words, wanted] of cases) {
        const plain = plainWords(words);
        assert.equal(plain, wanted, words);
        assert.equal(plainWords(plain), plain);
        assert.deepEqual(readTags(plain), []);
    }
});

test("words are split into phrases", () => {
    assert.deepEqual(split(" fur coat, ,ink,"), ["fur coat", "ink"]);
    assert.deepEqual(split(""), []);
});

test("tags change their order, each into the place of another", () => {
    assert.equal(reordered("x <lora:a> y <lora:b>, <lora:c> z", [2, 0, 1]), "x <lora:c> y <lora:a>, <lora:b> z");
    assert.equal(reordered("x", []), "x");
});

test("a difference is as short as it can be", () => {
    /** @type {[before: string, after: string, start: number, removed: string, inserted: string][]} */
    const cases = [
        ["abc", "abc", 3, "", ""],
        ["ac", "abc", 1, "", "b"],
        ["abc", "ac", 1, "b", ""],
        ["abc", "axc", 1, "b", "x"],
        ["", "ab", 0, "", "ab"],
        ["ab", "", 0, "ab", ""],
        ["aa", "aaa", 2, "", "a"],
        ["abab", "ab", 2, "ab", ""],
        ["a bcd", "x bcd", 0, "a", "x"],
        ["abcde", "abxcde", 2, "", "x"],
    ];
    for (const [before, after, start, removed, inserted] of cases) {
        assert.deepEqual(difference(before, after), {start, removed, inserted}, `${before} ${after}`);
    }
});

test("a change is taken back although more was typed since", () => {
    /** @type {[before: string, after: string, now: string, wanted: string | null][]} */
    const cases = [
        ["a fox", "a fox <lora:b:1>", "a fox <lora:b:1>", "a fox"],
        ["a fox", "a fox <lora:b:1>", "a big fox <lora:b:1>, night", "a big fox, night"],
        ["a <lora:b:1> c", "a <lora:b:0.5> c", "x a <lora:b:0.5> c y", "x a <lora:b:1> c y"],
        ["a fox", "a fox <lora:b:1>", "something else", null],
        ["a fox", "", "typed since", null],
        ["ab", "axb", "axb axb", null],
        ["a b", "a x b", "Q x R", "Q R"],
        ["one two", "one", "one, more", "one two, more"],
        ["x y", "x <t> y", "z <t> y x <t> y", "z <t> y x y"],
        ["a c", "a X c", "a X b, a X c", "a X b, a c"],
    ];
    for (const [before, after, now, wanted] of cases) assert.equal(takenBack(before, after, now), wanted, now);
});

test("a removed tag comes back where the text around it is still there", () => {
    assert.equal(
        takenBack(
            "a fox in the deep wood <lora:b:1> at night",
            "a fox in the deep wood at night",
            "Now a fox in the deep wood at night",
        ),
        "Now a fox in the deep wood <lora:b:1> at night",
    );
});

test("prompt.js exports the functions of tag.js as well", () => {
    assert.equal(prompt.bodyOf, tag.bodyOf);
    assert.equal(prompt.entryOf, tag.entryOf);
    assert.equal(prompt.makeTag, tag.makeTag);
    assert.equal(prompt.readBody, tag.readBody);
    assert.equal(prompt.setField, tag.setField);
    assert.equal(prompt.setMultipliers, tag.setMultipliers);
    assert.equal(prompt.tagOf, tag.tagOf);
});
