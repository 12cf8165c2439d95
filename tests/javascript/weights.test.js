// Block weights: javascript/remora/weights.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {
    isLetter,
    nameProblem,
    painted,
    readWeights,
    shownBlocks,
    snapped,
    writeWeights,
} from "../../javascript/remora/weights.js";

const TOLD = {
    blocks: [
        {id: "BASE", title: "text encoders"},
        {id: "IN00", title: ""},
    ],
    layouts: [
        {length: 4, ids: ["BASE", "IN00", "IN01", "OUT00"]},
        {length: 3, ids: ["CLIP", "IN00", "OUT00"]},
    ],
    presets: [
        {name: "OUTALL", values: "1, 0,0,1", own: false},
        {name: "outall", values: "1,0,0,0.5", own: true},
        {name: "Short", values: "1,0", own: true},
        {name: "Odd", values: "1,q,0,0", own: true},
    ],
};
const NO_MODEL = {blocks: [], layouts: [], presets: TOLD.presets};

test("blocks are shown in the order of the first layout, with their titles", () => {
    assert.deepEqual(shownBlocks(TOLD), [
        {id: "BASE", title: "text encoders"},
        {id: "IN00", title: ""},
        {id: "IN01", title: ""},
        {id: "OUT00", title: ""},
    ]);
    assert.deepEqual(shownBlocks(NO_MODEL), []);
});

test("a block with the name of a method of every object has no title and no weight of its own", () => {
    const names = ["constructor", "toString", "__proto__", "hasOwnProperty"];
    const told = {
        blocks: [],
        layouts: [
            {length: names.length, ids: names},
            {length: 1, ids: ["BASE"]},
        ],
        presets: [],
    };
    assert.deepEqual(
        shownBlocks(told),
        names.map((id) => ({id, title: ""})),
    );
    assert.deepEqual(readWeights("0.5", told).cells, ["0", "0", "0", "0"]);
    assert.deepEqual(readWeights("1,2,3,4", told).cells, ["1", "2", "3", "4"]);
    for (const name of names) assert.match(readWeights(name, told).problem, /There is no preset/);
});

test("letters stand for weights that are drawn, or for X", () => {
    for (const cell of ["R", "U", "X", "X+0.2", "X-.5", "X+1."]) assert.equal(isLetter(cell), true, cell);
    for (const cell of ["", "r", "RU", "X0.2", "X+", "1", "X+.", " R"]) assert.equal(isLetter(cell), false, cell);
});

test("no text is every block in full", () => {
    assert.deepEqual(readWeights("", TOLD), {cells: ["1", "1", "1", "1"], preset: null, problem: "", write: []});
    assert.deepEqual(readWeights("", NO_MODEL), {cells: [], preset: null, problem: "", write: []});
});

test("weights are read where the model takes as many", () => {
    assert.deepEqual(readWeights(" 1, R ,X-0.5,0.25", TOLD), {
        cells: ["1", "R", "X-0.5", "0.25"],
        preset: null,
        problem: "",
        write: [],
    });
});

test("weights of another layout go to the same blocks, and the engine's rules fill the others", () => {
    // BASE takes the weight of CLIP; nothing gives IN01 one
    assert.deepEqual(readWeights("0.5,1,0.25", TOLD).cells, ["0.5", "1", "0", "0.25"]);
    const told = {
        layouts: [
            {length: 6, ids: ["CLIP", "T5", "IN", "OUT", "D00", "BASE"]},
            {length: 2, ids: ["T5", "D00"]},
            {length: 1, ids: ["BASE"]},
        ],
        presets: [],
    };
    // BASE takes the weight of T5, but CLIP does not: it is 1, as IN and OUT
    assert.deepEqual(readWeights("0.5,0.7", told).cells, ["1", "0.5", "1", "1", "0.7", "0.5"]);
    // CLIP and T5 take the weight of BASE
    assert.deepEqual(readWeights("0.5", told).cells, ["0.5", "0.5", "1", "1", "0", "0.5"]);
});

test("a preset is found by its name alone, as on the server, and a similar name is suggested", () => {
    assert.equal(readWeights("outall", TOLD).preset, TOLD.presets[1]);
    /** @type {[text: string, problem: string, write: string[]][]} */
    const cases = [
        ["OutAll", "There is no preset “OutAll”; did you mean OUTALL or outall?", ["OUTALL", "outall"]],
        ["OUTAL", "There is no preset “OUTAL”; did you mean OUTALL or outall?", ["OUTALL", "outall"]],
        ["short", "There is no preset “short”; did you mean Short?", ["Short"]],
        ["1,x+0.5,R,0", "“x+0.5” is not a block weight: write X+0.5.", ["1,X+0.5,R,0"]],
    ];
    for (const [text, problem, write] of cases)
        assert.deepEqual(readWeights(text, TOLD), {cells: null, preset: null, problem, write}, text);
});

test("a list of equal values fits every model", () => {
    assert.deepEqual(readWeights("0.5,0.50", TOLD), {
        cells: ["0.5", "0.5", "0.5", "0.5"],
        preset: null,
        problem: "",
        write: [],
    });
    assert.match(readWeights("R,R", TOLD).problem, /^2 values; the loaded model takes 4, 3/);
});

test("the problem of a text is one sentence", () => {
    /** @type {[text: string, problem: string][]} */
    const cases = [
        ["nothing", "There is no preset “nothing”."],
        ["1,2,y,0", "“y” is not a block weight: write a number, R, U or X."],
        ["1,,0,0", "“” is not a block weight: write a number, R, U or X."],
        ["Odd", "“q” is not a block weight: write a number, R, U or X."],
        ["1", "“1” is a single number; write a weight for each block, or the name of a preset."],
        ["1,2", "2 values; the loaded model takes 4, 3."],
        ["Short", "Short has 2 values; the loaded model takes 4, 3."],
    ];
    for (const [text, problem] of cases) {
        const read = readWeights(text, TOLD);
        assert.deepEqual([read.cells, read.problem], [null, problem], text);
    }
});

test("without a model any number of weights is good, and none is shown", () => {
    assert.deepEqual(readWeights("1,2", NO_MODEL), {cells: null, preset: null, problem: "", write: []});
    assert.equal(readWeights("nothing", NO_MODEL).problem, "There is no preset “nothing”.");
});

test("cells are written, but not where all are 1", () => {
    assert.equal(writeWeights(["1", "1.0", "+1"]), "");
    assert.equal(writeWeights(["1", "0.5", "R"]), "1,0.5,R");
    assert.equal(writeWeights(["R"]), "R");
    assert.equal(writeWeights([]), "");
});

test("a stroke sets the cells between its ends in even steps", () => {
    const cells = ["1", "1", "1", "1", "R"];
    assert.deepEqual(painted(cells, {at: 1, value: 0}, {at: 3, value: 1}), ["1", "0", "0.5", "1", "R"]);
    assert.deepEqual(painted(cells, {at: 3, value: 1}, {at: 1, value: 0}), ["1", "0", "0.5", "1", "R"]);
    assert.deepEqual(painted(cells, {at: 4, value: 0.3}, {at: 4, value: 0.72}), ["1", "1", "1", "1", "0.7"]);
    assert.deepEqual(cells, ["1", "1", "1", "1", "R"]);
});

test("values snap to twentieths", () => {
    assert.deepEqual([0.024, 0.026, 0.31, -0.33, 1.999].map(snapped), [0, 0.05, 0.3, -0.35, 2]);
});

test("a name of a preset is no weight, and has no signs of tags", () => {
    /** @type {[name: string, problem: string][]} */
    const cases = [
        ["", "Give the preset a name."],
        ["  ", "Give the preset a name."],
        ["a:b", "A name must not contain : , < > = #"],
        ["a,b", "A name must not contain : , < > = #"],
        ["<a", "A name must not contain : , < > = #"],
        ["a>", "A name must not contain : , < > = #"],
        ["a=b", "A name must not contain : , < > = #"],
        ["#a", "A name must not contain : , < > = #"],
        [" 0.5 ", "“0.5” is a weight, not a name."],
        [" R ", "“R” is a weight, not a name."],
        ["X+1", "“X+1” is a weight, not a name."],
        ["*", "“*” is a weight, not a name."],
        ["Soft out", ""],
        ["1st", ""],
    ];
    for (const [name, problem] of cases) assert.equal(nameProblem(name), problem, name);
});
