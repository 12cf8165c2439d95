// The prompt of the page and its tags: javascript/remora/stack.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {leavePage, lora, openPage, serverState} from "./page.js";

afterEach(leavePage);

/** @param {any[]} rows */
const shown = (rows) => rows.map(({name, on, key}) => [name, on, key]);

test("the tab shows the prompt of the page that the page shows", () => {
    const {tab, box} = openPage({prompts: {txt2img: ["a fox", "blurry"], img2img: "a cat"}});
    assert.deepEqual(tab.state.targets, ["txt2img", "img2img"]);
    assert.deepEqual([tab.state.target, tab.state.prompt, tab.state.negative], ["txt2img", "a fox", "blurry"]);
    box().shown = false;
    box("img2img").shown = true;
    tab.stack.readBoxes();
    assert.deepEqual([tab.state.target, tab.state.prompt, tab.state.negative], ["img2img", "a cat", ""]);
});

test("a prompt that the user chose in the tab stays until the page shows another", () => {
    const {tab, box} = openPage({prompts: {txt2img: "a fox", img2img: "a cat"}});
    tab.stack.choose("img2img");
    box("img2img").value = "a big cat";
    tab.stack.readBoxes();
    assert.deepEqual([tab.state.target, tab.state.prompt], ["img2img", "a big cat"]);
    box().shown = false;
    tab.stack.readBoxes();
    assert.equal(tab.state.target, "img2img");
    box().shown = true;
    tab.stack.readBoxes();
    assert.equal(tab.state.target, "txt2img");
});

test("what is said of a stack ends when the stack is another", () => {
    /** @type {((page: ReturnType<typeof openPage>) => void)[]} */
    const changes = [
        ({tab}) => tab.stack.choose("img2img"),
        ({tab, box}) => {
            box().value = "typed";
            tab.stack.readBoxes();
        },
        ({tab, negative}) => {
            negative().value = "typed";
            tab.stack.readBoxes();
        },
        ({tab}) => tab.edits.addAlways("b"),
        ({tab}) => tab.kept.showStack({version: 1, always_on: true, entries: [], problem: ""}),
        ({tab}) => tab.stack.change({prompt: "other"}),
    ];
    for (const change of changes) {
        const page = openPage({prompts: {txt2img: ["a fox", ""], img2img: ["a fox", ""]}});
        page.tab.set({said: "Preset Mine in use."});
        page.tab.stack.readBoxes();
        page.tab.set({pane: "library"});
        assert.equal(page.tab.state.said, "Preset Mine in use.");
        change(page);
        assert.equal(page.tab.state.said, "", String(change));
    }
});

test("a page without prompts has no target and no rows", () => {
    const {tab} = openPage({prompts: {}});
    assert.deepEqual([tab.state.target, tab.state.prompt, tab.stack.rows()], ["", "", []]);
});

test("the tags are read again only when the prompt or the standard strength has changed", () => {
    const {tab, box} = openPage({prompts: {txt2img: "<lora:a> <lora:b:0.5>"}});
    const before = tab.stack.tags();
    assert.deepEqual(
        before.map((tag) => tag.unet),
        [1, 0.5],
    );
    assert.equal(tab.stack.tags(), before);
    tab.set({server: serverState({default_multiplier: 0.7})});
    assert.deepEqual(
        tab.stack.tags().map((tag) => tag.unet),
        [0.7, 0.5],
    );
    box().value = "<lora:b>";
    tab.stack.readBoxes();
    assert.deepEqual(shown(tab.stack.rows()), [["b", true, "b#1"]]);
});

test("a prompt that is too long is not parsed", () => {
    const most = `<lora:a>${" ".repeat(500_000 - 8)}`;
    const {tab, box} = openPage({prompts: {txt2img: most}});
    assert.deepEqual([tab.stack.tooLong, tab.stack.tags().length], [false, 1]);
    box().value = `${most} `;
    tab.stack.readBoxes();
    assert.deepEqual([tab.stack.tooLong, tab.stack.tags().length], [true, 0]);
});

test("rows are the tags and, in their places, the entries that are off; keys differ", () => {
    const {tab} = openPage({prompts: {txt2img: "<lora:a> <lora:a:0.5>", img2img: ""}});
    /** @type {(target: string, before: number, name: string) => any} */
    const off = (target, before, name) => ({target, before, tag: {name, kind: "lora", body: name}});
    tab.set({off: [off("txt2img", 1, "a"), off("img2img", 0, "x"), off("txt2img", 9, "late")]});
    assert.deepEqual(shown(tab.stack.rows()), [
        ["a", true, "a#1"],
        ["a", false, "a#2"],
        ["a", true, "a#3"],
        ["late", false, "late#1"],
    ]);
});

test("the files in the prompt are known by id, once each", () => {
    const {tab} = openPage({prompts: {txt2img: "<lora:a> <lora:a:2> <lora:nowhere>"}, loras: [lora("a"), lora("b")]});
    assert.deepEqual([...tab.stack.used()], ["id-a"]);
});

/** @type {(name: string, state: string, more?: object) => any} */
const outcome = (name, state, more = {}) => ({
    ...{name, asked: name, where: "prompt", number: 0, written: name, state, reason: "", always_on: false},
    ...more,
});

test("the files that every picture gets are known by id, unless all or one are off", () => {
    const {tab} = openPage({loras: [lora("a"), lora("b")]});
    const entries = ["a", "b", "unknown"].map((name) => ({name, on: name !== "b", unet: 1, text_encoder: 1, more: ""}));
    tab.set({always: {on: true, entries}});
    assert.deepEqual([...tab.stack.pinned()], ["id-a"]);
    tab.set({always: {on: false, entries}});
    assert.deepEqual([...tab.stack.pinned()], []);
});

test("the outcomes of the latest picture are those of rows, or others; errors are counted once each", () => {
    const {tab} = openPage({
        prompts: {txt2img: "<lora:a> <lora:b> <lora:c:x>"},
        loras: ["a", "b", "c"].map((n) => lora(n)),
    });
    const loras = [outcome("a", "applied"), outcome("b", "failed"), outcome("gone", "missing")];
    tab.set({server: serverState({loras})});
    const {of, others, errors} = tab.stack.outcomes();
    const [a, b, c] = tab.stack.rows();
    assert.equal(of("prompt", a.key)?.lora, loras[0]);
    assert.equal(of("prompt", b.key)?.lora, loras[1]);
    assert.equal(of("prompt", c.key), undefined);
    assert.deepEqual(others, [loras[2]]);
    // b failed, c cannot be read, gone is missing
    assert.equal(errors, 3);
});

test("an outcome of an always-on entry is its row's; one that is off is no error", () => {
    const {tab} = openPage({loras: [lora("a")]});
    const failed = outcome("a", "failed", {always_on: true, where: "always", written: "a:1:1"});
    tab.set({server: serverState({loras: [failed]})});
    const entry = {name: "a", on: true, unet: 1, text_encoder: 1, more: ""};
    tab.set({always: {on: true, entries: [entry]}});
    const {of, errors} = tab.stack.outcomes();
    assert.equal(of("always", "a")?.lora, failed);
    assert.equal(errors, 1);
    tab.set({always: {on: true, entries: [{...entry, on: false}]}});
    assert.equal(tab.stack.outcomes().errors, 0);
});

test("a change is written into the boxes, undone, and made again", () => {
    const {tab, box, negative} = openPage({prompts: {txt2img: ["a fox", "blurry"]}});
    tab.set({said: "before"});
    tab.stack.change({prompt: "a fox <lora:a:1>", negative: "blurry, dog"});
    assert.deepEqual([box().value, negative().value], ["a fox <lora:a:1>", "blurry, dog"]);
    assert.deepEqual(
        [tab.state.prompt, tab.state.canUndo, tab.state.canRedo, tab.state.said],
        ["a fox <lora:a:1>", true, false, ""],
    );
    tab.stack.undo();
    assert.deepEqual([box().value, negative().value], ["a fox", "blurry"]);
    assert.deepEqual([tab.state.canUndo, tab.state.canRedo], [false, true]);
    tab.stack.redo();
    assert.deepEqual([box().value, negative().value], ["a fox <lora:a:1>", "blurry, dog"]);
    tab.stack.redo();
    assert.equal(box().value, "a fox <lora:a:1>");
});

test("undo takes back the tab's change alone, not what the user typed since", () => {
    const {tab, box} = openPage({prompts: {txt2img: "a fox"}});
    tab.stack.change({prompt: "a fox <lora:a:1>"});
    box().value = "a red fox <lora:a:1>, night";
    tab.stack.undo();
    assert.equal(box().value, "a red fox, night");
    assert.equal(tab.state.said, "");
});

test("a prompt that has changed too much stays, and the user is told", () => {
    const {tab, box} = openPage({prompts: {txt2img: "a fox"}});
    tab.stack.change({prompt: "a fox <lora:a:1>"});
    box().value = "something else";
    tab.stack.undo();
    assert.equal(box().value, "something else");
    assert.equal(tab.state.said, "The prompt has changed too much since, so it stays as it is.");
});

test("undo goes back to the prompt that was changed", () => {
    const {tab, box} = openPage({prompts: {txt2img: "a fox", img2img: "a cat"}});
    tab.stack.change({prompt: "a fox <lora:a:1>"});
    tab.stack.choose("img2img");
    tab.stack.undo();
    assert.deepEqual([tab.state.target, box().value, box("img2img").value], ["txt2img", "a fox", "a cat"]);
});

test("undo saves the always-on stack only where the change was one of it", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab} = openPage();
    const saved = t.mock.method(tab.kept, "save", () => {});
    tab.stack.change({prompt: "a"});
    tab.stack.undo();
    assert.equal(saved.mock.callCount(), 0);
    const entry = {name: "a", on: true, unet: 1, text_encoder: 1, more: ""};
    tab.stack.change({always: {on: true, entries: [entry]}});
    assert.equal(saved.mock.callCount(), 1);
    tab.stack.undo();
    assert.deepEqual([saved.mock.callCount(), tab.state.always.entries], [2, []]);
});

test("what the user typed since the tab last looked stays when the tab changes something else", () => {
    const {tab, box, negative} = openPage({prompts: {txt2img: ["a fox", "blurry"]}});
    box().value = "a red fox";
    negative().value = "blurry, dog";
    tab.stack.change({off: []});
    assert.deepEqual([box().value, negative().value], ["a red fox", "blurry, dog"]);
});

test("a change of the negative prompt alone is seen", () => {
    const {tab, negative} = openPage({prompts: {txt2img: ["a fox", "blurry"]}});
    negative().value = "dog";
    tab.stack.readBoxes();
    assert.equal(tab.state.negative, "dog");
});

test("names that a change brings are resolved", (t) => {
    const {tab} = openPage();
    const resolved = t.mock.method(tab.library, "resolveNames", async () => {});
    tab.stack.change({prompt: "<lora:new>"});
    assert.equal(resolved.mock.callCount(), 1);
});
