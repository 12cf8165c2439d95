// What the user wants of a file that is saved: javascript/remora/save.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {bodyOf, COMBINED, copiedTag, errorOf, FIRST, nameOf, wrongOf} from "../../javascript/remora/save.js";
import {needsDensity} from "../../javascript/remora/tag.js";
import {leavePage, openPage} from "./page.js";

afterEach(leavePage);

const ROWS = [
    {name: "a", text: "<lora:a:1>", varies: false},
    {name: "b", text: "<lora:b:0.5>", varies: false},
];
const TWO = {rows: ROWS, several: true, varies: false, copied: false};

/** @type {(changes?: object) => import("../../javascript/remora/save.js").Form} */
const form = (changes = {}) => ({...FIRST, name: "mine", steps: null, ...changes});

test("what counts of the form is asked for, in the units of the server", () => {
    const usual = {what: "file", tags: ["<lora:a:1>", "<lora:b:0.5>"], dtype: "float16", how: "sum"};
    assert.deepEqual(bodyOf(form(), TWO), usual);
    assert.deepEqual(bodyOf(form({form: "rank", rank: "8"}), TWO), {...usual, rank: 8});
    assert.deepEqual(bodyOf(form({form: "size", size: "1,5"}), TWO), {...usual, size: 1572864});
    assert.deepEqual(bodyOf(form({form: "error", error: "2"}), TWO), {...usual, error: 0.02});
    const ties = {how: "ties_svd", density: "30"};
    assert.deepEqual(bodyOf(form(ties), TWO), {...usual, how: "ties_svd", density: 0.3});
    const one = {rows: ROWS.slice(0, 1), several: false, varies: true, copied: false};
    const step = bodyOf(form({...ties, step: "3", steps: 12}), one);
    assert.deepEqual(step, {what: "file", tags: ["<lora:a:1>"], dtype: "float16", step: 2, steps: 12});
    assert.equal(bodyOf(form(), one)?.steps, 20);
    const lokr = {...usual, kind: "lokr", factor: 4};
    assert.deepEqual(bodyOf(form({kind: "lokr", factor: "4", pad: "16"}), TWO), lokr, "a LoKr has no ranks to fill up");
    assert.deepEqual(bodyOf(form({pad: "16", factor: "4"}), TWO), {...usual, pad: 16});
    assert.equal(bodyOf(form({pad: "16", form: "size"}), TWO)?.pad, undefined);
    assert.equal(bodyOf(form({how: "dare_ties_svd", seed: "7"}), TWO)?.seed, 7);
    assert.deepEqual(bodyOf(form({half: "neg"}), {...TWO, half: true}), {...usual, negative: true});
    assert.equal(bodyOf(form(), {...TWO, half: true})?.negative, false);
});

test("of models, only what counts of them is asked for", () => {
    const baked = {what: "model", tags: ["<lora:a:1>", "<lora:b:0.5>"], model: "base", rounding: "nearest"};
    assert.deepEqual(bodyOf(form({what: "model", model: "base", how: "ties_svd"}), TWO), baked);
    assert.equal(bodyOf(form({what: "model"}), TWO), null, "no model is chosen");
    const drawn = bodyOf(form({what: "model", model: "base", rounding: "stochastic", seed: "3"}), {...TWO, half: true});
    assert.deepEqual(drawn, {...baked, rounding: "stochastic", seed: 3, negative: false});
    const difference = {what: "difference", model: "base", tuned: "other"};
    const made = {...difference, dtype: "float16", rank: 8};
    assert.deepEqual(bodyOf(form({...difference, form: "rank", rank: "8"}), {...TWO, varies: true}), made);
    assert.equal(bodyOf(form({...difference, tuned: ""}), TWO), null);
    assert.deepEqual(wrongOf(form({what: "model", form: "rank", rank: "x", how: "ties_svd", density: "x"}), TWO), {});
});

test("one file in another form is a tag with the strength and the layers that are chosen", () => {
    const written = (/** @type {object} */ changes) => copiedTag("my: file", form(changes)).text;
    assert.equal(written({}), "<lora:my\\: file:1>");
    assert.equal(written({strength: "0,5"}), "<lora:my\\: file:0.5>");
    assert.deepEqual(
        [written({part: "unet"}), written({part: "te"})],
        ["<lora:my\\: file:0:1>", "<lora:my\\: file:1:0>"],
    );
    const one = {...TWO, several: false, copied: true};
    assert.equal(bodyOf(form({spelling: "comfy"}), one)?.spelling, "comfy");
    assert.deepEqual(Object.keys(wrongOf(form({strength: "0"}), one)), ["strength"]);
});

test("only the numbers that count are checked", () => {
    assert.deepEqual(wrongOf(form({rank: "x", size: "", error: "-1", density: "x", step: "x"}), TWO), {});
    assert.deepEqual(Object.keys(wrongOf(form({form: "rank", rank: "1.5"}), TWO)), ["rank"]);
    assert.deepEqual(wrongOf(form({form: "rank", rank: "0"}), TWO), {
        rank: "Write a whole number from 1 to 1,000,000.",
    });
    for (const error of ["", "x", "0", "100", "1e9", "-5", "NaN"])
        assert.deepEqual(Object.keys(wrongOf(form({form: "error", error}), TWO)), ["error"], error);
    assert.deepEqual(wrongOf(form({form: "error", error: "0.5"}), TWO), {});
    assert.deepEqual(Object.keys(wrongOf(form({how: "ties_svd", density: "0"}), TWO)), ["density"]);
    assert.deepEqual(Object.keys(wrongOf(form({step: "13", steps: 12}), {...TWO, varies: true})), ["step"]);
    const lokr = {kind: "lokr", factor: "0", pad: "x"};
    assert.deepEqual(Object.keys(wrongOf(form(lokr), TWO)), ["factor"]);
    assert.deepEqual(Object.keys(wrongOf(form({...lokr, kind: "lora"}), TWO)), ["pad"]);
    assert.deepEqual(wrongOf(form({...lokr, kind: "lora", form: "size"}), TWO), {});
    const drawn = {what: "model", rounding: "stochastic", seed: "1.5"};
    assert.deepEqual(Object.keys(wrongOf(form(drawn), TWO)), ["seed"]);
    assert.deepEqual(wrongOf(form({...drawn, rounding: "nearest"}), TWO), {});
});

test("every way of combining but the sums keeps a share", () => {
    const ways = Object.keys(COMBINED);
    assert.deepEqual(
        ways.filter((how) => !needsDensity(how)),
        ["sum", "orthogonal"],
    );
});

test("a name is made of the names of the LoRA", () => {
    assert.equal(nameOf(["a", "sub/b"]), "a + b");
    assert.equal(nameOf(["Re: fur"]), "Re_ fur");
    assert.ok(nameOf(Array.from({length: 50}, () => "name")).length <= 60);
    assert.equal(nameOf([]), "");
});

test("an error that nobody sees is told as one", () => {
    assert.equal(errorOf(3e-7), "error below 0.1 %");
    assert.equal(errorOf(0.031), "error 3.1 %");
});

test("the tags that are saved are the ones that act, and which of them differ from step to step or by prompt", () => {
    const {tab} = openPage({prompts: {txt2img: "<lora:a:1> <lora:b:0@0,1@1> <lora:c:1:stop=5:half=neg>"}, loras: []});
    tab.set({
        always: {
            on: true,
            entries: [
                {name: "d", on: true, unet: 0.5, text_encoder: 0.5, more: ""},
                {name: "e", on: false, unet: 0.5, text_encoder: 0.5, more: ""},
                {name: "a", on: true, unet: 0.5, text_encoder: 0.5, more: ""},
            ],
        },
    });
    assert.deepEqual(
        tab.stack.written().map(({text, varies, half}) => [text, varies, half]),
        [
            ["<lora:d:0.5>", false, false],
            ["<lora:a:1>", false, false],
            ["<lora:b:0@0,1@1>", true, false],
            ["<lora:c:1:stop=5:half=neg>", true, true],
        ],
    );
});

test("the file comes in place of its tags, in one step, and what was always on is off", () => {
    const {tab, box} = openPage({prompts: {txt2img: "a fox <lora:a:1>, at <lora:b:0.5> dusk <lora:c:1>"}, loras: []});
    tab.set({always: {on: true, entries: [{name: "d", on: true, unet: 0.5, text_encoder: 0.5, more: ""}]}});
    const saved = [...ROWS, {name: "d", text: "<lora:d:0.5>", varies: false}];
    tab.edits.useInstead("my: file", saved);
    assert.equal(box().value, "a fox <lora:my\\: file:1>, at dusk <lora:c:1>");
    assert.equal(tab.state.always.entries[0].on, false);
    tab.stack.undo();
    assert.equal(box().value, "a fox <lora:a:1>, at <lora:b:0.5> dusk <lora:c:1>");
    assert.equal(tab.state.always.entries[0].on, true);
    box().value = "a cat";
    tab.stack.readBoxes();
    tab.edits.useInstead("mine", ROWS);
    assert.equal(box().value, "a cat <lora:mine:1>", "its tags have gone meanwhile");
});
