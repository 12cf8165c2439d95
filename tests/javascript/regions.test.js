// Parts of the picture: javascript/remora/regions.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {
    brushed,
    feathered,
    inverted,
    joined,
    invertedText,
    maskProblem,
    masksMeant,
    nameProblem,
    nothing,
    percent,
    readMask,
    rectangle,
    SIDE,
    stroked,
    weightsOf,
} from "../../javascript/remora/regions.js";
import {REGIONS} from "./cases.js";

const NAMES = Object.keys(REGIONS.named);
const KNOWN = Object.fromEntries(Object.entries(REGIONS.named).map(([name, edges]) => [name, rectangle(edges)]));
const NEAR = 2 / 255; // the server rounds to a byte, twice where it fades

/**
 * Return the weights of one row, with three decimals.
 * @param {number[]} weights
 * @param {number} y
 */
const row = (weights, y) => weights.slice(y * SIDE, (y + 1) * SIDE).map((weight) => Number(weight.toFixed(3)));

/**
 * Return one row that has a weight up to each of some cells.
 * @param {...[weight: number, end: number]} runs
 */
function runs(...runs) {
    return runs.flatMap(([weight, end], at) => Array(end - (runs[at - 1]?.[1] ?? 0)).fill(weight));
}

test("a text has the same weights as on the server", () => {
    for (const [mask, feather, share, cells] of REGIONS.weights) {
        const weights = weightsOf(mask, feather, KNOWN) ?? [];
        assert.equal(weights.length, SIDE * SIDE);
        for (const [x, y, wanted] of cells) {
            const got = weights[y * SIDE + x];
            assert.ok(Math.abs(got - wanted) <= NEAR, `${mask} has ${got} at ${x},${y}, and not ${wanted}`);
        }
        const mean = weights.reduce((total, weight) => total + weight) / weights.length;
        assert.ok(Math.abs(mean - share) <= NEAR, `${mask} is ${mean} of the picture, and not ${share}`);
        assert.equal(maskProblem(mask, NAMES), "", mask);
    }
});

test("texts and names that the server refuses are refused here", () => {
    for (const mask of REGIONS.refused) assert.notEqual(maskProblem(mask, NAMES), "", mask);
    for (const name of REGIONS.refused_names) assert.notEqual(nameProblem(name, NAMES), "", name);
    for (const name of REGIONS.names) assert.equal(nameProblem(name, NAMES), "", name);
});

test("a text has parts, of which each may be inverted", () => {
    assert.deepEqual(readMask(" face + !left+! ! 0, .5 ,1.,1"), [
        {name: "face", inverted: false, edges: null},
        {name: "left", inverted: true, edges: null},
        {name: "0, .5 ,1.,1", inverted: false, edges: [0, 0.5, 1, 1]},
    ]);
    assert.deepEqual(readMask(""), [{name: "", inverted: false, edges: null}]);
    assert.equal(readMask("0,0,1")[0].edges, null);
    assert.equal(readMask("0,0,1,1,1")[0].edges, null);
    assert.equal(readMask("-1,0,1,1")[0].edges, null);
});

test("the problem of a text is one sentence", () => {
    const rectangles = "is not a rectangle; write left,top,right,bottom as parts of the picture, such as 0,0,0.5,1";
    /** @type {[text: string, problem: string][]} */
    const cases = [
        ["left+!0,0,1,1", ""],
        ["left+", "the region is missing; write, for example, left or 0,0,0.5,1"],
        ["!", "the region is missing; write, for example, left or 0,0,0.5,1"],
        ["left+nose", "there is no region “nose”"],
        ["Left+top", "there is no region “Left”; did you mean left?"],
        ["0,0,1.5,1", `“0,0,1.5,1” ${rectangles}`],
        ["0.5,0,0.5,1", `“0.5,0,0.5,1” ${rectangles}`],
        ["0,1,1,0", `“0,1,1,0” ${rectangles}`],
        ["0,0.5,1,0.5", `“0,0.5,1,0.5” ${rectangles}`],
    ];
    for (const [text, problem] of cases) assert.equal(maskProblem(text, NAMES), problem, text);
});

test("a region of a similar name is suggested where it stands", () => {
    assert.deepEqual(masksMeant("nothing like it", ["left", "face"]), {names: [], texts: []});
    assert.deepEqual(masksMeant("0,0,1,0.5+ !lft +face", ["left", "face"]), {
        names: ["left"],
        texts: ["0,0,1,0.5+ !left +face"],
    });
    assert.deepEqual(masksMeant("left", ["left"]), {names: [], texts: []});
});

test("a region is inverted and put back, unless it has several parts", () => {
    assert.deepEqual(["left", "!left", "!! left", " ! 0,0,.5,1"].map(invertedText), [
        "!left",
        "left",
        "!left",
        "0,0,.5,1",
    ]);
    assert.deepEqual(["left+top", "", "!"].map(invertedText), [null, null, null]);
});

test("the problem of a name is one sentence", () => {
    const letters =
        "A name has letters, digits, spaces and - . _ ( ). It begins with a letter, and ends with a letter, a digit, _ or ).";
    assert.equal(nameProblem("", []), "Give the region a name.");
    assert.equal(nameProblem("1a", []), letters);
    assert.equal(nameProblem("a,b", []), letters);
    assert.equal(nameProblem("x".repeat(61), []), letters);
    assert.equal(nameProblem("x".repeat(60), []), "");
    assert.equal(nameProblem("𝒳".repeat(60), []), ""); // counted as the server does
    assert.equal(nameProblem("left", ["left"]), "“left” is one of Remora’s own regions; choose another name.");
    assert.equal(nameProblem("left", []), "");
});

test("a rectangle has a part of each cell that it covers in part", () => {
    const weights = rectangle([0, 0, 0.5, 1.5 / SIDE]);
    assert.equal(weights.length, SIDE * SIDE);
    assert.deepEqual(row(weights, 0), runs([1, 32], [0, 64]));
    assert.deepEqual(row(weights, 1), runs([0.5, 32], [0, 64]));
    assert.deepEqual(row(weights, 2), runs([0, 64]));
    assert.deepEqual(row(rectangle([0.25 / SIDE, 0, 0.75 / SIDE, 1]), 9), runs([0.5, 1], [0, 64]));
});

test("regions are inverted and joined weight by weight", () => {
    assert.deepEqual(inverted([0, 0.25, 1]), [1, 0.75, 0]);
    assert.deepEqual(joined([0, 0.5, 1], [0.25, 0.25, 0]), [0.25, 0.5, 1]);
    assert.deepEqual(nothing(), Array(SIDE * SIDE).fill(0));
});

test("edges fade over a part of the picture", () => {
    const left = rectangle([0, 0, 0.5, 1]);
    assert.equal(feathered(left, 0), left);
    assert.equal(feathered(left, 1 / SIDE), left);
    assert.deepEqual(row(feathered(left, 2 / SIDE), 5), runs([1, 31], [0.75, 32], [0.25, 33], [0, 64]));
    assert.deepEqual(row(feathered(left, 3 / SIDE), 5), runs([1, 31], [0.667, 32], [0.333, 33], [0, 64]));
    const top = feathered(rectangle([0, 0, 1, 0.5]), 2 / SIDE);
    assert.deepEqual(
        [0, 30, 31, 32, 33, 63].map((y) => top[y * SIDE + 5]),
        [1, 1, 0.75, 0.25, 0, 0],
    );
});

test("nothing fades at the picture’s own edge", () => {
    const first = feathered(rectangle([0, 0, 1 / SIDE, 1]), 2 / SIDE);
    assert.deepEqual(row(first, 0), runs([0.75, 1], [0.25, 2], [0, 64]));
    const last = feathered(rectangle([1 - 1 / SIDE, 0, 1, 1]), 2 / SIDE);
    assert.deepEqual(row(last, 63), runs([0, 62], [0.25, 63], [0.75, 64]));
});

test("a text that cannot be read has no weights", () => {
    assert.equal(weightsOf("left+nose", 0, KNOWN), null);
    assert.equal(weightsOf("!nose", 0, KNOWN), null);
    assert.equal(weightsOf("", 0, KNOWN), null);
    assert.equal(weightsOf("!constructor", 0, KNOWN), null);
});

test("a brush paints a round, soft by a cell", () => {
    const painted = brushed(nothing(), 32, 32, 4, 1);
    assert.deepEqual(row(painted, 31), runs([0, 29], [0, 30], [0.919, 31], [1, 33], [0.919, 34], [0, 64]));
    assert.deepEqual(row(painted, 32), row(painted, 31));
    assert.deepEqual(row(painted, 28), runs([0, 64]));
    const full = nothing().map(() => 1);
    assert.deepEqual(brushed(full, 32, 32, 4, 0), inverted(painted));
    assert.deepEqual(brushed(painted, 32, 32, 2, 1), painted);
});

test("a stroke paints all that lies between its ends", () => {
    const drawn = stroked(nothing(), {x: 8, y: 32}, {x: 56, y: 32}, 6, 1);
    const line = row(drawn, 31);
    assert.deepEqual(line.slice(8, 56), Array(48).fill(1));
    assert.deepEqual([line[2], line[61]], [0, 0]);
    assert.deepEqual(stroked(drawn, {x: 8, y: 32}, {x: 56, y: 32}, 12, 0)[31 * SIDE + 30], 0);
});

test("a stroke is as many touches as a third of the brush needs, or as there are cells", () => {
    const touched = (/** @type {[x: number, y: number][]} */ places, /** @type {number} */ size) =>
        places.reduce((drawn, [x, y]) => brushed(drawn, x, y, size, 1), nothing());
    assert.deepEqual(
        stroked(nothing(), {x: 8, y: 32}, {x: 14, y: 32}, 6, 1),
        touched(
            [
                [10, 32],
                [12, 32],
                [14, 32],
            ],
            6,
        ),
    );
    assert.deepEqual(
        stroked(nothing(), {x: 11, y: 32}, {x: 8, y: 32}, 1, 1),
        touched(
            [
                [10, 32],
                [9, 32],
                [8, 32],
            ],
            1,
        ),
    );
    assert.deepEqual(
        stroked(nothing(), {x: 8, y: 8}, {x: 14, y: 16}, 15, 1),
        touched(
            [
                [11, 12],
                [14, 16],
            ],
            15,
        ),
    );
});

test("a stroke that goes nowhere is one touch of the brush", () => {
    const at = {x: 10, y: 20};
    assert.deepEqual(stroked(nothing(), at, at, 1, 1), brushed(nothing(), 10, 20, 1, 1));
});

test("a share of the picture is told in whole percent", () => {
    assert.equal(percent(rectangle([0, 0, 0.5, 1])), "50");
    assert.equal(percent(rectangle([0, 0, 1 / 3, 1])), "33");
    assert.equal(percent(nothing()), "0");
});
