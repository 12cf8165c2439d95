// How files are copies of each other, in words: javascript/remora/copies.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {factsOf, likeness} from "../../javascript/remora/copies.js";
import {lora} from "./page.js";

test("each way to be a copy has a sentence, with its number where it has one", () => {
    /** @type {[alike: Parameters<typeof likeness>[0]["alike"], said: string][]} */
    const cases = [
        ["same", "the same change as fur"],
        ["precision", "fur in another precision"],
        ["rank", "the same change as fur, with another rank or of another kind"],
        ["scaled", "fur, 1.5 times as strong"],
        ["resized", "fur, resized or converted (cosine +0.93)"],
        ["near", "nearly fur: maybe another epoch of one training (cosine +0.93)"],
        ["epoch", "of the same training as fur, after another number of steps (cosine +0.93)"],
        [null, ""],
    ];
    for (const [alike, said] of cases) assert.equal(likeness({alike, cosine: 0.931, factor: 1.5}, "fur"), said);
});

test("what copies may differ in is said in one order", () => {
    const file = lora("a", {size: 3 << 20, mtime: 1.7e9});
    const precisions = ["bfloat16", "float32"];
    const [size, rank, precision, steps, date] = factsOf(file, {precisions, steps: 900}, "lora, rank 4");
    assert.deepEqual([size, rank, precision, steps], ["3 MB", "lora, rank 4", "bfloat16 + float32", "900 steps"]);
    assert.equal(factsOf(file, {precisions, steps: null}, "lora, rank 4")[3], "");
    assert.match(date, /2023/);
});
