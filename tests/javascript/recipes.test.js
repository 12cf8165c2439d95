// Recipes: javascript/remora/recipes.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {aboutLora, keepRecipe, linkTo, presetOf, readRecipe, useAll} from "../../javascript/remora/recipes.js";
import {leavePage, openPage} from "./page.js";

afterEach(leavePage);

/** @type {any} */
const RECIPE = {name: "", text: "a fox <lora:a:1>", own: "a fox <lora:b:1>", tags: "<lora:b:1> <lora:c:0.5>"};
const PICTURE = new File(["png"], "1.png", {type: "image/png"});

test("a picture, a text and a preset are each asked for in their own way", async () => {
    const routes = ["POST recipe/picture", "POST recipe", "GET preset/recipe"];
    const {tab, sent} = openPage({routes: Object.fromEntries(routes.map((one) => [one, () => ({data: RECIPE})]))});
    await readRecipe(tab, {preset: "", file: PICTURE});
    await readRecipe(tab, {preset: "", file: new File(["{}"], "a.json", {type: "application/json"})});
    await readRecipe(tab, {preset: "a & b", file: null});
    assert.deepEqual(
        sent.map(({method, path}) => `${method} ${path}`),
        ["POST recipe/picture", "POST recipe", "GET preset/recipe?name=a+%26+b"],
    );
    assert.equal(sent[0].body, PICTURE);
    assert.deepEqual(sent[1].body, {text: "{}"});
    const large = new File([new Uint8Array(3 << 20)], "large.json");
    await assert.rejects(readRecipe(tab, {preset: "", file: large}), /large.json is too large/);
    assert.equal(sent.length, 3);
});

test("it is said of each LoRA whether it is here", () => {
    /** @type {[by: any, own: string, said: RegExp][]} */
    const cases = [
        ["hash", "a", /^here$/],
        ["name", "a", /^here$/],
        ["hash", "b", /^here as b$/],
        ["tensors", "b", /^here as b, which has the same content/],
        ["other", "a", /^⚠ another file of this name/],
        ["", "a", /^✕ missing$/],
    ];
    for (const [by, own, said] of cases) assert.match(aboutLora({name: "a", strength: "", id: null, by}, own), said);
});

test("a picture is kept as a preset, with a line for each LoRA, its parameters and itself", async () => {
    const {tab, sent} = openPage({
        routes: {
            "PUT preset": () => ({data: {presets: [], problem: ""}}),
            "PUT preset/thumbnail": () => ({data: {presets: [], problem: ""}}),
        },
    });
    await keepRecipe(tab, RECIPE, PICTURE, "Mine");
    assert.deepEqual(sent[0].body, {text: "<lora:b:1>\n<lora:c:0.5>", parameters: "a fox <lora:a:1>"});
    assert.deepEqual([sent[1].path, sent[1].body], ["preset/thumbnail?name=Mine", PICTURE]);
    await keepRecipe(tab, RECIPE, new File(["x"], "a.txt"), "Mine");
    assert.equal(sent.length, 3, "a text has no picture");
});

test("a page without a button that reads parameters says so", () => {
    const {tab, box} = openPage({prompts: {txt2img: ["mine", ""]}});
    assert.throws(() => useAll(tab, RECIPE), /no button that reads parameters/);
    assert.equal(box().value, "mine");
});

test("the link to a preset leads to it, and others lead nowhere", () => {
    Object.defineProperty(globalThis, "window", {
        value: {location: {origin: "http://a", pathname: "/b/", search: "?c"}},
        configurable: true,
    });
    for (const name of ["sunset", "a & b/#%", "夕焼け"]) {
        const link = new URL(linkTo(name));
        assert.equal(presetOf(link.hash), name);
        assert.equal(link.href.split("#")[0], "http://a/b/?c");
    }
    for (const hash of ["", "#", "#other", "#remora-preset=%E3%81"]) assert.equal(presetOf(hash), "");
});
