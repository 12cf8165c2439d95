// Amounts and curves: javascript/remora/curve.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {
    isByFraction,
    NUMBER,
    peak,
    readAmount,
    SHAPES,
    valueAt,
    writePoints,
    written,
} from "../../javascript/remora/curve.js";

const RAMP = [
    {value: 0, at: 0},
    {value: 1, at: 0.5},
    {value: -1, at: 1},
];

test("numbers are written as tags have them", () => {
    /** @type {[number | string, string][]} */
    const cases = [
        [1, "1"],
        [0.5, "0.5"],
        [0.30000000000000004, "0.3"],
        [-0.25, "-0.25"],
        [1e-9, "0"],
        [-1e-9, "0"],
        [2.0000004, "2"],
        ["0@0,1@1", "0@0,1@1"],
        ["", ""],
    ];
    for (const [value, wanted] of cases) assert.equal(written(value), wanted, String(value));
});

test("a number is read, with blanks around it", () => {
    for (const [text, value] of /** @type {[string, number][]} */ ([
        ["0.5", 0.5],
        [" -1 ", -1],
        ["+.5", 0.5],
        ["2.", 2],
        ["1e2", 100],
        ["-1E-1", -0.1],
    ])) {
        assert.deepEqual(readAmount(text), {value, curve: null}, text);
    }
});

test("a text that is neither a number nor a curve is none", () => {
    const refused = [
        "",
        " ",
        "x",
        "1,2",
        "0x10",
        "Infinity",
        "1e999",
        "1.1.",
        ".",
        "1@",
        "@1",
        "0@x",
        "0@0,",
        "0@0@1",
        "1e999@0",
        "1e39@0",
        "1@1e39",
    ];
    for (const text of refused) assert.equal(readAmount(text), null, text);
});

test("points are read in the order of their positions, whichever signs are between them", () => {
    assert.deepEqual(readAmount("1@1; 0 ~ 0 ,0.5@.5"), {
        value: 1,
        curve: [
            {value: 0, at: 0},
            {value: 0.5, at: 0.5},
            {value: 1, at: 1},
        ],
    });
    assert.deepEqual(readAmount("-2@3"), {value: -2, curve: [{value: -2, at: 3}]});
});

test("a point without a position stands at the end", () => {
    assert.deepEqual(readAmount("0@0,1"), {
        value: 1,
        curve: [
            {value: 0, at: 0},
            {value: 1, at: 1},
        ],
    });
});

test("points at one position stay in the order in which they are written", () => {
    assert.deepEqual(readAmount("1@0.5,0@0,2@0.5")?.curve, [
        {value: 0, at: 0},
        {value: 1, at: 0.5},
        {value: 2, at: 0.5},
    ]);
});

test("written points are read again", () => {
    assert.equal(writePoints(RAMP), "0@0,1@0.5,-1@1");
    assert.deepEqual(readAmount(writePoints(RAMP))?.curve, RAMP);
    assert.equal(writePoints([{value: 0.1 + 0.2, at: 1 / 3}]), "0.3@0.333333");
});

test("the peak is the value that is farthest from 0, and the first of equals", () => {
    assert.equal(peak(RAMP), 1);
    assert.equal(
        peak([
            {value: 0.5, at: 0},
            {value: -2, at: 1},
        ]),
        -2,
    );
    assert.equal(peak([{value: 0, at: 0}]), 0);
});

test("positions up to 1 are parts of the pass, and one behind 1 makes all of them steps", () => {
    assert.equal(isByFraction(RAMP), true);
    assert.equal(isByFraction([...RAMP, {value: 0, at: 1.5}]), false);
});

test("the first and the last value hold before and behind the points", () => {
    const points = [
        {value: 0.25, at: 2},
        {value: 0.75, at: 4},
    ];
    assert.deepEqual(
        [0, 1.9, 2, 3, 4, 9].map((at) => valueAt(points, at)),
        [0.25, 0.25, 0.25, 0.5, 0.75, 0.75],
    );
});

test("a shape says which values lie between two points", () => {
    assert.deepEqual(SHAPES, ["linear", "step", "cosine"]);
    assert.equal(valueAt(RAMP, 0.125), 0.25);
    assert.equal(valueAt(RAMP, 0.125, "linear"), 0.25);
    assert.equal(valueAt(RAMP, 0.125, "step"), 0);
    assert.equal(valueAt(RAMP, 0.5, "step"), 1);
    /** @type {[position: number, wanted: number][]} */
    const cosines = [
        [0.125, 0.5 - Math.SQRT1_2 / 2],
        [0.25, 0.5],
        [0.5, 1],
        [0.75, 0],
        [0.875, -Math.SQRT1_2],
    ];
    for (const [position, wanted] of cosines) {
        const got = valueAt(RAMP, position, "cosine");
        assert.ok(Math.abs(got - wanted) < 1e-12, `${got} at ${position}`);
    }
});

test("a curve may leap at one position", () => {
    const points = [
        {value: 0, at: 0},
        {value: 0, at: 0.5},
        {value: 1, at: 0.5},
        {value: 1, at: 1},
    ];
    assert.deepEqual(
        [0.49, 0.5, 0.51].map((at) => valueAt(points, at)),
        [0, 1, 1],
    );
});

test("a number has digits", () => {
    for (const text of ["1", "-1.", "+.5", "1e5", "1.5E-3"]) assert.match(text, NUMBER);
    for (const text of ["", "-", ".", "e5", "1e", " 1", "1 ", "--1", "١"]) assert.doesNotMatch(text, NUMBER);
});
