// Strengths that are compared: javascript/remora/ui/compare.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {numbersOf, textsOf, valuesOf} from "../../javascript/remora/ui/compare.js";

test("strengths are numbers, and ranges by a step or a count", () => {
    /** @type {[text: string, wanted: number[]][]} */
    const cases = [
        ["0, 0.5,1", [0, 0.5, 1]],
        ["0-1 (0.25)", [0, 0.25, 0.5, 0.75, 1]],
        ["0-1 (0.3)", [0, 0.3, 0.6, 0.9]],
        ["-1 - 1 [3]", [-1, 0, 1]],
        ["0-1 [1]", [0]],
        ["0.1", [0.1]],
        ["0,25; 0.5;1", [0.25, 0.5, 1]],
        ["1, 0-0.2(0.1), -1", [1, 0, 0.1, 0.2, -1]],
    ];
    for (const [text, wanted] of cases) assert.deepEqual(valuesOf(text), wanted, text);
    assert.equal(valuesOf("0-1 [150]").length, 150);
});

test("other texts are refused in one sentence", () => {
    const range = "is not a range of up to 150 strengths; write, for example, 0-1 (0.25)";
    const strength = "is not a strength; write numbers, such as 0, 0.5, 1, or a range, such as 0-1 (0.25)";
    /** @type {[text: string, message: string][]} */
    const cases = [
        ["", "Write at least one strength."],
        [" , ", "Write at least one strength."],
        ["x", `“x” ${strength}`],
        ["0-1", `“0-1” ${strength}`],
        ["1,,x", `“x” ${strength}`],
        ["0-1 (0)", `“0-1 (0)” ${range}`],
        ["0-1 [999]", `“0-1 [999]” ${range}`],
        ["0-1 [0]", `“0-1 [0]” ${range}`],
        ["1-0 (0.1)", `“1-0 (0.1)” ${range}`],
    ];
    for (const [text, message] of cases) assert.throws(() => valuesOf(text), {message}, text);
});

test("a seed may be as large as those that web UIs draw, and no text", () => {
    const fields = {steps: 20, cfg_scale: "7,5", width: 512, height: 512, sampler: "Euler a"};
    const made = {...fields, cfg_scale: 7.5};
    assert.deepEqual(numbersOf({...fields, seed: 4294967295}), {...made, seed: 4294967295});
    assert.deepEqual(numbersOf({...fields, seed: "2315863932"}), {...made, seed: 2315863932});
    const message = "Seed (-1: random) must be a number, not “x”.";
    assert.throws(() => numbersOf({...fields, seed: "x"}), {message});
});

test("texts are separated by semicolons, as lists and schedules have commas", () => {
    assert.deepEqual(textsOf("None; 0@0,1@0.5 ;stop=10;"), ["None", "0@0,1@0.5", "stop=10"]);
    assert.throws(() => textsOf(" ; "), /at least one/);
});
