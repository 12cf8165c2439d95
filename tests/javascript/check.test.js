// What the doctor says: javascript/remora/check.js.

import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {afterEach, test} from "node:test";
import {
    factorsOf,
    leftOf,
    pairsOf,
    percent,
    placeOf,
    rangeOf,
    sentence,
    signed,
} from "../../javascript/remora/check.js";
import {readBody} from "../../javascript/remora/tag.js";
import {speak} from "../../javascript/remora/words.js";

afterEach(() => speak("en", {}));

const TOLD = {
    blocks: [],
    layouts: [
        {length: 4, ids: ["BASE", "IN00", "IN01", "OUT00"]},
        {length: 3, ids: ["CLIP", "IN00", "OUT00"]},
    ],
    presets: [{name: "HALF", values: "1,0.5,0.5,0.5", own: true}],
};
const BLOCKS = [
    ["text_encoder", "text_encoder"],
    ["denoiser", "IN01"],
    ["denoiser", "OUT00"],
    ["denoiser", "D00"],
    ["denoiser", ""],
].map(([component, block]) => ({
    component,
    block,
    layers: 1,
    share: 0.2,
    spectral: 1,
    relative: null,
    rank_90: 1,
    rank_99: 1,
}));

/** @type {(body: string) => (number | null)[] | null} */
const factors = (body) => factorsOf(BLOCKS, readBody(body), TOLD);

test("a block acts by its weight times the strength of its half", () => {
    assert.deepEqual(factors("a:0.5:2"), [0.5, 2, 2, 2, 2], "no weights of blocks");
    assert.deepEqual(factors("a:0.5:2:lbw=1,0,0.25,1"), [0.5, 0.5, 2, null, null]);
    assert.deepEqual(factors("a:1:lbw=HALF"), [1, 0.5, 0.5, null, null]);
    assert.deepEqual(factors("a:1:0.4@0,0@1:lbw=0,1,1,1"), [0, 0.4, 0.4, null, null], "a schedule at its strongest");
    assert.deepEqual(factors("a:1:lbw=R,1,R,1"), [null, null, 1, null, null], "drawn at random");
    assert.equal(factors("a:1:lbw=1,0,0,0,0,1"), null, "not for this model");
});

test("weights of blocks leave a share of the energy, as far as they are known", () => {
    const named = BLOCKS.filter(({block}) => block !== "D00");
    /** @type {(body: string, blocks?: typeof BLOCKS) => number | null} */
    const left = (body, blocks = named) => leftOf(blocks, readBody(body), TOLD);
    for (const [body, share] of /** @type {const} */ ([
        ["a:0.7", 1],
        ["a:0.7:lbw=1,1,0,1", 2 / 3], // each block has the same share, and one is 0
        ["a:0.5:2:lbw=1,1,0,1", (0.25 + 4) / (0.25 + 8)], // at their strengths
        ["a:1:lbw=1,1,2,1", 2],
    ]))
        assert.ok(Math.abs(Number(left(body)) - share) < 1e-12, body);
    assert.equal(left("a:1:lbw=1,1,R,1"), null, "drawn at random");
    assert.equal(left("a:1:lbw=1,1,0,1", BLOCKS), null, "a block that the weights do not know");
    assert.equal(left("a:1:lbw=1,0,0,0,0,1"), null, "not for this model");
    assert.equal(left("a:0:lbw=1,1,0,1"), null, "nothing acts");
});

test("a share has a digit behind the point where it needs one", () => {
    const shares = [0, 0.0004, 0.0123, 0.0996, 0.123, 0.5, 0.9949, 0.996, 0.9996, 1];
    assert.deepEqual(shares.map(percent), [
        ...["0.0 %", "0.0 %", "1.2 %", "10 %", "12 %", "50 %", "99 %", "99.6 %", "100 %", "100 %"],
    ]);
});

/** @type {(name: string, numbers: {[name: string]: number}, sure?: boolean, blocks?: string[]) => string} */
const said = (name, numbers, sure = false, blocks = []) =>
    sentence({name, sure, numbers, blocks, text: "what the server says"});

test("a verdict is said with its numbers, in the language of the tab", () => {
    assert.equal(
        said("dead", {count: 1, total: 9}, true),
        "1 of 9 layers changes nothing. It was not trained.",
        "a certain one",
    );
    assert.match(said("dead", {count: 9, total: 9}, true), /^No layer changes anything/);
    assert.match(said("alpha", {low: 1, high: 1, said: 0.25}), /^Hint: .* is 1, and 0\.25 by .* by 0\.25\.$/);
    assert.match(said("alpha", {low: 1, high: 2, said: 0.25}), /is 1 to 2, and 0\.25 .* try another strength\.$/);
    assert.match(said("strong", {relative: 2.5, strength: 0.4}), /250 % .* Try the strength 0\.4,/);
    const spike = {times: 31.49, largest: 12.34, weight: 0.7939, left: 25};
    assert.match(said("spike", spike, false, ["IN04", "M00"]), / 31\.5 times .* give IN04 and M00 the weight 0\.79:/);
    assert.match(said("weak", {relative: 0.005, strength: 2}), /At the strength 2, it has 1 %/);
    assert.ok(!said("weak", {relative: 0.0005, strength: 20}).includes("20"), "beyond it there are no pictures");
    assert.match(said("text_encoder", {share: 0.8, strength: 0.5}), /At 0\.5 times the strength/);
    assert.equal(placeOf(undefined), "");
    assert.equal(
        placeOf({others: 100, smaller: 93, same: 0}),
        "This is higher than in 93 of 100 other files for this model here.",
    );
    assert.match(placeOf({others: 1, smaller: 0, same: 1}), /0 of 1 other file .*, and the same in 1\.$/);
    const kohya = {source: "sd-scripts", address: "https://x"};
    const scale = {measure: "scale", low: 0.5, high: 1, ...kohya};
    assert.equal(rangeOf(scale), "Published for alpha divided by rank: 0.5 to 1. Source:");
    assert.match(rangeOf({...scale, measure: "a later one", low: null}), /for a later one: at most 1\./);
    const german = JSON.parse(
        readFileSync(new URL("../../javascript/remora/languages/de.json", import.meta.url), "utf8"),
    );
    speak("de", german);
    assert.match(said("dominant", {share: 0.345}), /^Hinweis: Eine Schicht hat 35.% der Energie, ihr Block fast alle/);
    assert.match(
        said("dominant", {share: 0.345, weight: 0.81, left: 0.3}, false, ["OUT05"]),
        /Gewicht 0,81 für OUT05 hat sie 30.%/,
    );
});

test("a verdict of a later version is said in the words of the server", () => {
    assert.equal(said("new", {}), "Hint: what the server says");
    assert.equal(said("new", {}, true), "what the server says");
});

/** @type {(files: [number, number], band: string, relation: string, cosine: number) => any} */
const band = (files, name, relation, cosine) => ({files, component: "denoiser", band: name, relation, cosine});

test("a pair has the relations of its bands, and the worst pairs come first", () => {
    const found = pairsOf([
        band([0, 1], "IN", "independent", 0.001),
        band([0, 1], "OUT", "independent", -0.002),
        band([0, 2], "IN", "reinforce", 0.4),
        band([0, 2], "OUT", "independent", 0.01),
        band([1, 2], "IN", "collide", 0.05),
        band([1, 2], "OUT", "cancel", -0.5),
    ]);
    assert.deepEqual(
        found.map(({files, relations, cosines, bands}) => [files, relations, cosines, bands.length]),
        [
            [[1, 2], ["cancel", "collide"], "−0.50 to +0.05", 2],
            [[0, 2], ["reinforce"], "+0.01 to +0.40", 2],
            [[0, 1], ["independent"], "0.00", 2],
        ],
    );
    assert.deepEqual([-0.004, -0.006, 0.5].map(signed), ["0.00", "−0.01", "+0.50"]);
});
