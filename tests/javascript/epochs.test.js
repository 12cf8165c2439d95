// The epochs of a training: javascript/remora/epochs.js, and growing.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {epochsOf} from "../../javascript/remora/epochs.js";
import {leavePage, listOf, lora, openPage} from "./page.js";

afterEach(leavePage);

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

test("a comparison that is followed grows by later epochs once, until the server refuses that", async () => {
    const all = files("fur-1", "fur-2", "fur-3", "ink-4");
    let status = 200;
    let isThere = true;
    const answer = () => {
        if (!isThere) throw new TypeError("no connection");
        return {status, data: {detail: "another comparison was started since"}};
    };
    const {tab, sent} = openPage({loras: all.slice(0, 2), routes: {"POST compare": answer}});
    const prompt = "a fox <lora:fur-3:0.5>";
    const followed = {id: "c1", grows: true, names: ["fur-1", "fur-2"], prompt, body: {mode: "alone", values: [1]}};
    tab.set({followed});
    const come = (/** @type {any[]} */ loras) => {
        tab.library.catalog.take(/** @type {any} */ (listOf(loras)));
        return Promise.all([tab.growing.add(), tab.growing.add()]);
    };
    await come(all.slice(0, 2));
    assert.equal(sent.length, 0, "there are none");
    isThere = false;
    await come(all);
    isThere = true;
    assert.deepEqual(tab.state.followed, followed, "it goes on when the server is back");
    await come(all);
    assert.deepEqual(sent.splice(1)[0].body, {mode: "alone", values: [1], names: ["fur-3"], prompt, grows: "c1"});
    assert.deepEqual(tab.state.followed?.names, ["fur-1", "fur-2", "fur-3"]);
    await come(all);
    assert.equal(sent.length, 1);
    tab.set({followed: {...followed, grows: false}});
    await come(all);
    assert.equal(sent.length, 1, "the user does not want it");
    tab.set({followed});
    status = 409;
    await come(all);
    assert.deepEqual([tab.state.followed, tab.state.error], [null, "another comparison was started since"]);
});
