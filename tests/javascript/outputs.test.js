// The pictures in the output folders: javascript/remora/outputs.js, and what pictures.js asks of it.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {NO_PART} from "../../javascript/remora/boxes.js";
import {furtherOf, joined, latestOf, recipeOf, strengthIn, usesOf} from "../../javascript/remora/outputs.js";
import {useTags} from "../../javascript/remora/recipes.js";
import {leavePage, openPage, serverState} from "./page.js";

afterEach(leavePage);

/** @returns {any} */
const picture = (/** @type {number} */ id, /** @type {any[]} */ loras = []) => ({
    ...{id, time: 1, file: `${id}.png`, width: 1, height: 1, seed: 7, prompt: "a fox"},
    loras: loras.map(([name, strength, file = null]) => ({id: file, name, hash: "", strength})),
});

test("the LoRA of a picture are described by their names and strengths", () => {
    const loras = [
        ["zorp", "0.8", "1"],
        ["gone", ""],
        ["neon", "1:stop=10"],
    ];
    assert.deepEqual(usesOf(picture(1, loras)), ["zorp 0.8", "gone", "neon 1:stop=10"]);
    assert.deepEqual(usesOf(picture(1)), []);
});

test("the strength of a LoRA is found by its file, or where it is the only one", () => {
    assert.equal(
        strengthIn(
            picture(1, [
                ["a", "0.5", "1"],
                ["b", "0.7", "2"],
            ]),
            "2",
        ),
        "0.7",
    );
    assert.equal(strengthIn(picture(1, [["a", "0.5"]]), "2"), "0.5");
    assert.equal(
        strengthIn(
            picture(1, [
                ["a", "0.5"],
                ["b", "0.7"],
            ]),
            "2",
        ),
        "",
    );
});

test("a page that overlaps shows no picture twice", () => {
    const ids = joined([picture(3), picture(2)], [picture(2), picture(1)]).map(({id}) => id);
    assert.deepEqual(ids, [3, 2, 1]);
});

test("a list is loaded again as long as it is, within the server's bound", async () => {
    const {tab, sent} = openPage({routes: {"GET outputs": () => ({data: {}})}});
    for (const shown of [0, 120, 500]) await latestOf(tab, "1", "", shown);
    await furtherOf(tab, "1", "a fox", 60);
    assert.deepEqual(
        sent.map(({path}) => path),
        [
            "outputs?lora=1&words=&most=60",
            "outputs?lora=1&words=&most=120",
            "outputs?lora=1&words=&most=200",
            "outputs?lora=1&words=a+fox&skip=60",
        ],
    );
});

test("the LoRA of a picture replace those of the prompt, and the rest of it stays", async () => {
    const {tab, sent} = openPage({
        prompts: {txt2img: ["a fox <lora:old:1> in the rain", ""]},
        routes: {"GET outputs/picture": () => ({data: {tags: "<lora:zorp:0.5> <lora:neon:1:stop=10>"}})},
    });
    useTags(tab, (await recipeOf(tab, picture(5))).tags);
    assert.equal(sent[0].path, "outputs/picture?id=5");
    const tags = tab.state.prompt.match(/<[^>]*>/g);
    assert.deepEqual(tags, ["<lora:zorp:0.5>", "<lora:neon:1:stop=10>"]);
    assert.match(tab.state.prompt, /a fox.*in the rain/);
    assert.equal(tab.state.said, "The prompt has the LoRA of the picture.");
    tab.stack.undo();
    assert.equal(tab.state.prompt, "a fox <lora:old:1> in the rain", "in one step");
});

test("where this session did not make the picture on view, the output folders are asked once", async () => {
    const {tab, sent} = openPage({
        routes: {
            "GET pictures": () => ({data: {count: 1, found: 0, pictures: []}}),
            "GET outputs": ({path}) => ({data: {pictures: path.includes("seed=7") ? [picture(5)] : []}}),
        },
    });
    tab.set({server: serverState({pictures: 1}), page: {...NO_PART, picture: "x", seed: 7}});
    await tab.pictures.update();
    await tab.pictures.update();
    assert.deepEqual(
        sent.map(({path}) => path),
        ["pictures?most=1&seed=7", "outputs?seed=7&most=1"],
    );
    assert.deepEqual([tab.state.latest, tab.state.former?.id], [null, 5]);
    tab.set({page: {...NO_PART, picture: "x", seed: 8}});
    await tab.pictures.update();
    assert.equal(tab.state.former, null);
});
