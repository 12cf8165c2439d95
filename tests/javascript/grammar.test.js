// Tags inside a prompt's grammar: javascript/remora/grammar.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {isMeant, places, unread, wordsOf} from "../../javascript/remora/grammar.js";
import {readTags} from "../../javascript/remora/prompt.js";
import {GRAMMAR} from "./cases.js";

test("places mean what they mean on the server", () => {
    for (const [prompt, , , words] of GRAMMAR) {
        const found = places(prompt, readTags(prompt), {parts: true}).map(wordsOf);
        assert.deepEqual(found, words, prompt);
    }
});

test("one tag switches all of its prompt", () => {
    assert.equal(isMeant(["a:1", "b:1: grammar = 1"], false), true);
    assert.equal(isMeant(["a:1:grammar=0"], true), false);
    assert.equal(isMeant(["a\\:grammar=1"], false), false);
});

test("a place that does not count is told", () => {
    const told = (/** @type {string} */ prompt, negative = false) =>
        places(prompt, readTags(prompt), {parts: true, negative}).map(unread);
    assert.deepEqual(told("[<lora:a:1>::0.4] <lora:b:1>"), [
        "Acts in all steps: its place in the prompt (until 40 %) does not count for tags.",
        "",
    ]);
    assert.deepEqual(told("<lora:a:1>", true), ["Not applied: tags in the negative prompt are read as words."]);
});

test("a region goes with its part of the prompt as ever", () => {
    const prompt = "a cat <lora:a:1:mask=left> AND a dog <lora:b:1>";
    const found = places(prompt, readTags(prompt), {parts: true}).map(({part}) => part);
    assert.deepEqual(found, [null, 2]);
});

test("a long prompt takes linear time", () => {
    const open = ["(<lora:a:1>", "[<lora:a:1>|", "&lt;lora:", "<lora:a ", "[(:"].map((unit) => ["", unit, ""]);
    for (const [begin, unit, end] of [...open, ["[", "<lora:a:1>|", "]"]]) {
        const times = [25_000, 100_000].map((length) => {
            const prompt = begin + unit.repeat(length / unit.length) + end;
            const tags = readTags(prompt);
            const taken = [1, 2].map(() => {
                const start = process.cpuUsage();
                places(prompt, tags, {parts: true});
                return process.cpuUsage(start).user / 1000;
            });
            return Math.min(...taken);
        });
        // four times as long; 16 times the time if it were quadratic
        assert.ok(times[1] < 12 * times[0] + 50, `${begin}${unit}: ${times}`);
    }
});
