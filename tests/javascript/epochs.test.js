// The epochs of a training: javascript/remora/epochs.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {epochsOf} from "../../javascript/remora/epochs.js";
import {lora} from "./page.js";

/**
 * Make files by their paths.
 * @param {...string} paths
 */
const files = (...paths) =>
    paths.map((file) => lora(file, {file, folder: file.includes("/") ? file.slice(0, file.lastIndexOf("/")) : ""}));

test("epochs of one training are in order, as each trainer names them", () => {
    /** @type {[files: string[], epochs: string[]][]} the first file is asked about */
    const cases = [
        [
            ["a/fur-000010", "a/fur", "a/fur-000002", "a/wet-000002", "b/fur-000001"],
            ["a/fur-000002", "a/fur-000010", "a/fur"],
        ],
        [
            ["fur", "fur-step00000500", "fur-step00000250", "furry-000001"],
            ["fur-step00000250", "fur-step00000500", "fur"],
        ],
        [
            ["fur_000000250", "fur_000001000", "fur"],
            ["fur_000000250", "fur_000001000", "fur"],
        ],
        [
            ["out/epoch9/adapter_model", "out/epoch10/adapter_model", "out/epoch10/other"],
            ["out/epoch9/adapter_model", "out/epoch10/adapter_model"],
        ],
        [
            ["x/checkpoint-500/pytorch_lora_weights", "x/checkpoint-50/pytorch_lora_weights"],
            ["x/checkpoint-50/pytorch_lora_weights", "x/checkpoint-500/pytorch_lora_weights"],
        ],
        [
            ["epoch1/lora", "epoch2/lora"],
            ["epoch1/lora", "epoch2/lora"],
        ],
        [["style_v2", "style_v3"], ["style_v2"]],
        [["alone", "other"], ["alone"]],
    ];
    for (const [paths, epochs] of cases) {
        const [first, ...others] = files(...paths);
        const found = epochsOf([first, ...others], first).map(({file}) => file);
        assert.deepEqual(found, epochs, paths[0]);
        const last = [first, ...others].find(({file}) => file === epochs[epochs.length - 1]);
        assert.deepEqual(
            epochsOf([first, ...others], last).map(({file}) => file),
            epochs,
            "asked of the last one",
        );
    }
});

test("a file of another kind, rank or family, or one that is not whole yet, is no epoch", () => {
    const [first, second] = files("fur-000001", "fur-000002");
    const others = [{kind: "loha"}, {rank: [8, 8]}, {family: "sdxl"}, {layers: 2}, {readable: false}];
    for (const more of others) assert.deepEqual(epochsOf([first, {...second, ...more}], first), [first]);
    assert.deepEqual(epochsOf([first, second], first), [first, second]);
});
