// Data that the server keeps: javascript/remora/kept.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {leavePage, openPage, serverState, turn} from "./page.js";

afterEach(leavePage);

const SAVE_AFTER = 200; // milliseconds

/** @type {(name: string, more?: object) => any} */
const entry = (name, more = {}) => ({name, on: true, unet: 1, text_encoder: 1, more: "", ...more});
/** @type {(names: string, more?: object) => any} */
const stack = (names, more = {}) => ({
    ...{version: 1, always_on: true, entries: [...names].map((name) => entry(name)), problem: ""},
    ...more,
});
/** @param {{state: {always: {entries: {name: string}[]}}}} tab */
const names = (tab) => tab.state.always.entries.map(({name}) => name).join("");

test("the stack of the server is shown, with what is wrong with it", async () => {
    const {tab} = openPage({
        routes: {
            "GET stack": () => ({tag: "s1", data: stack("ab", {always_on: false, problem: "the file is damaged"})}),
        },
    });
    await tab.kept.loadStack();
    assert.deepEqual([names(tab), tab.state.always.on], ["ab", false]);
    assert.equal(tab.state.stackProblem, "the file is damaged");
});

test("changes are saved together, a moment after the last one, with the tag of the stack that was shown", async (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab, sent} = openPage({
        routes: {
            "GET stack": () => ({tag: "s1", data: stack("")}),
            "PUT stack": () => ({tag: "s2", data: stack("ab")}),
        },
    });
    await tab.kept.loadStack();
    tab.edits.addAlways("a");
    t.mock.timers.tick(SAVE_AFTER - 1);
    tab.edits.addAlways("b");
    t.mock.timers.tick(SAVE_AFTER - 1);
    await turn();
    assert.equal(sent.length, 1);
    t.mock.timers.tick(1);
    await turn();
    assert.equal(sent.length, 2);
    assert.deepEqual(sent[1], {
        ...{method: "PUT", path: "stack", tag: '"s1"'},
        body: {always_on: true, entries: [entry("a"), entry("b")]},
    });
    assert.equal(tab.state.said, "“Always on” is saved.");
    assert.equal(tab.api.tags.get("stack"), "s2");
});

test("two saves are sent one after the other", async (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    /** @type {(() => void)[]} */
    const answers = [];
    const {tab, sent} = openPage({
        routes: {
            "PUT stack": () => new Promise((resolve) => answers.push(() => resolve({tag: "x", data: stack("")}))),
        },
    });
    tab.edits.addAlways("a");
    t.mock.timers.tick(SAVE_AFTER);
    await turn();
    tab.edits.addAlways("b");
    t.mock.timers.tick(SAVE_AFTER);
    await turn();
    assert.equal(sent.length, 1);
    answers[0]();
    await turn();
    assert.deepEqual([sent.length, sent[1].body.entries.length, sent[1].tag], [2, 2, '"x"']);
    assert.equal(tab.kept.unsaved, 1);
    answers[1]();
    await turn();
    assert.equal(tab.kept.unsaved, 0);
});

test("the server's stack is not loaded over changes that are not saved yet", async (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab, sent} = openPage({routes: {"GET stack": () => ({tag: "s9", data: stack("z")})}});
    tab.edits.addAlways("a");
    await tab.kept.loadStack();
    assert.deepEqual([names(tab), sent], ["a", []]);
});

test("an answer that arrives after a change is not shown, and its tag is forgotten", async (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    let tag = "s1";
    /** @type {() => void} */
    let before = () => {};
    const {tab} = openPage({
        routes: {
            "GET stack": () => {
                before();
                return {tag, data: stack("z")};
            },
        },
    });
    before = () => tab.edits.addAlways("a");
    await tab.kept.loadStack();
    assert.deepEqual([names(tab), tab.api.tags.get("stack")], ["a", undefined]);
    tab.kept.pending = null;
    before = () => {};
    await tab.kept.loadStack();
    assert.deepEqual([names(tab), tab.api.tags.get("stack")], ["z", "s1"]);
    tag = "s2";
    before = () => tab.edits.addAlways("b");
    await tab.kept.loadStack();
    assert.deepEqual([names(tab), tab.api.tags.get("stack")], ["zb", "s1"]);
});

/**
 * Have another page change the stack to `z` while this one adds `a`.
 * @param {any} t
 * @param {{[request: string]: any}} [routes]
 */
async function refused(t, routes = {}) {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const page = openPage({
        routes: {
            "GET stack": () => ({tag: "s2", data: stack("z")}),
            "PUT stack": ({tag}) => (tag === '"s2"' ? {tag: "s3", data: stack("")} : {status: 412}),
            ...routes,
        },
    });
    page.tab.edits.addAlways("a");
    t.mock.timers.tick(SAVE_AFTER);
    await turn();
    return page;
}

test("a stack that another page has changed meanwhile is shown, and the user's own is kept for a decision", async (t) => {
    const {tab, sent} = await refused(t);
    assert.deepEqual([names(tab), tab.state.refused?.entries], ["z", [entry("a")]]);
    tab.kept.decide(true);
    assert.deepEqual([names(tab), tab.state.refused], ["a", null]);
    t.mock.timers.tick(SAVE_AFTER);
    await turn();
    const last = sent[sent.length - 1];
    assert.deepEqual([last.method, last.body.entries, last.tag], ["PUT", [entry("a")], '"s2"']);
});

test("the user may keep the other page's stack", async (t) => {
    const {tab, sent} = await refused(t);
    const before = sent.length;
    tab.kept.decide(false);
    t.mock.timers.tick(SAVE_AFTER);
    await turn();
    assert.deepEqual([names(tab), tab.state.refused, sent.length], ["z", null, before]);
});

test("there is nothing to decide where the other page's change is the same", async (t) => {
    const {tab} = await refused(t, {"GET stack": () => ({tag: "s2", data: stack("a")})});
    assert.deepEqual([names(tab), tab.state.refused], ["a", null]);
});

test("a save that fails otherwise is told, and the stack of the page stays", async (t) => {
    const {tab} = await refused(t, {"PUT stack": () => ({status: 507, data: {detail: "the disk is full"}})});
    assert.deepEqual([names(tab), tab.state.error, tab.state.refused], ["a", "the disk is full", null]);
    assert.equal(tab.kept.unsaved, 0);
});

test("presets are loaded and changed; what is wrong with them is shown", async () => {
    const preset = {name: "Mine", text: "<lora:a>", thumbnail: ""};
    const {tab, sent} = openPage({
        routes: {
            "GET presets": () => ({tag: "p1", data: {presets: [], problem: "x is damaged"}}),
            "POST presets": () => ({tag: "p2", data: {presets: [preset], problem: ""}}),
        },
    });
    await tab.kept.loadPresets();
    assert.deepEqual([tab.state.presets, tab.state.presetProblem], [[], "x is damaged"]);
    await tab.kept.writePresets("POST", "presets", ["Mine"], {text: "<lora:a>"});
    assert.deepEqual([tab.state.presets, tab.state.presetProblem, sent[1].tag], [[preset], "", '"p1"']);
});

/**
 * Answer the first change with 412 and the second one with the presets.
 * @param {object[]} presets of the server by then
 */
function otherPresets(presets) {
    let count = 0;
    return {
        "GET presets": () => ({tag: "p2", data: {presets, problem: ""}}),
        "PUT preset": () => {
            count += 1;
            return count === 1
                ? {status: 412, data: {detail: "changed"}}
                : {tag: "p3", data: {presets, problem: "done"}};
        },
    };
}

test("a preset is saved although another page has changed others, but not over a change of itself", async () => {
    const mine = {name: "Mine", text: "<lora:a>", thumbnail: "", parameters: ""};
    const other = {...mine, name: "Other"};
    const first = openPage({routes: otherPresets([mine, other])});
    first.tab.set({presets: [mine]});
    await first.tab.kept.writePresets("PUT", "preset?name=Mine", ["Mine"], {});
    assert.deepEqual([first.tab.state.presetProblem, first.sent.length], ["done", 3]);
    const second = openPage({routes: otherPresets([{...mine, text: "<lora:z>"}])});
    second.tab.set({presets: [mine]});
    await assert.rejects(second.tab.kept.writePresets("PUT", "preset?name=Mine", ["Mine"], {}), /changed/);
    assert.deepEqual([second.sent.length, second.tab.state.presets?.[0].text], [2, "<lora:z>"]);
});

const BLOCKS = {blocks: [{id: "IN00", title: ""}], layouts: [], presets: [], rules: [], about_rules: {}, problem: ""};

test("blocks are loaded once for each model", async () => {
    const {tab, sent} = openPage({routes: {"GET blocks": () => ({tag: "b", data: BLOCKS})}});
    tab.set({server: serverState({model: "sd1"})});
    await tab.kept.loadBlocks();
    await tab.kept.loadBlocks();
    assert.deepEqual([sent.length, tab.state.blocks], [1, {...BLOCKS, model: "sd1"}]);
    tab.set({server: serverState({model: "sdxl"})});
    await tab.kept.loadBlocks();
    assert.deepEqual([sent.length, tab.state.blocks?.model], [2, "sdxl"]);
});

test("block weights are saved and deleted under a name, and the model of the blocks stays known", async () => {
    const {tab, sent} = openPage({
        routes: {
            "GET blocks": () => ({tag: "b1", data: BLOCKS}),
            "PUT blocks/presets": ({body}) => ({tag: "b2", data: {...BLOCKS, presets: [{...body, own: true}]}}),
            "DELETE blocks/presets": () => ({tag: "b3", data: BLOCKS}),
        },
    });
    tab.set({server: serverState({model: "sd1"})});
    await tab.kept.loadBlocks();
    await tab.kept.saveBlocks("a & b", "1,0");
    assert.deepEqual(tab.state.blocks?.presets, [{name: "a & b", values: "1,0", own: true}]);
    assert.equal(tab.state.blocks.model, "sd1");
    await tab.kept.deleteBlocks("a & b");
    assert.deepEqual(tab.state.blocks.presets, []);
    assert.deepEqual([sent[2].path, sent[2].tag], ["blocks/presets?name=a+%26+b", '"b2"']);
});

test("regions are loaded, saved and deleted; the same answer changes nothing", async () => {
    const region = {name: "sky", own: true, share: 0.5, picture: "x"};
    const {tab, sent} = openPage({
        routes: {
            "GET regions": () => ({tag: "r1", data: {regions: [region], problem: ""}}),
            "PUT regions": () => ({tag: "r2", data: {regions: [region, {...region, name: "sea"}], problem: "p"}}),
            "DELETE regions": () => ({tag: "r3", data: {regions: [], problem: ""}}),
        },
    });
    await tab.kept.loadRegions();
    const {regions} = tab.state;
    assert.deepEqual(regions, [region]);
    await tab.kept.loadRegions();
    assert.equal(tab.state.regions, regions);
    await tab.kept.saveRegion("sea", "y");
    assert.deepEqual([tab.state.regions?.length, tab.state.regionProblem], [2, "p"]);
    assert.deepEqual(sent[2].body, {name: "sea", picture: "y"});
    await tab.kept.deleteRegion("sky");
    assert.deepEqual([tab.state.regions, tab.state.regionProblem, sent[3].path], [[], "", "regions?name=sky"]);
});

test("names of a stack that is loaded are resolved", async (t) => {
    const {tab} = openPage({routes: {"GET stack": () => ({tag: "s1", data: stack("a")})}});
    const resolved = t.mock.method(tab.library, "resolveNames", async () => {});
    await tab.kept.loadStack();
    assert.equal(resolved.mock.callCount(), 1);
});

test("after a save the stack is loaded again", async (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab} = openPage({
        routes: {
            "GET stack": () => ({tag: "s3", data: stack("z")}),
            "PUT stack": () => ({tag: "s2", data: stack("a")}),
        },
    });
    tab.edits.addAlways("a");
    t.mock.timers.tick(SAVE_AFTER);
    await turn();
    assert.equal(tab.kept.pending, null);
    await tab.kept.loadStack();
    assert.equal(names(tab), "z");
});

test("a change made while a save is refused is kept with the user's stack, and not sent by itself", async (t) => {
    /** @type {any} */
    let page = null;
    page = await refused(t, {
        "GET stack": () => {
            page?.tab.edits.addAlways("b");
            return {tag: "s2", data: stack("z")};
        },
    });
    page.tab.edits.addAlways("c"); // of the other page's stack
    t.mock.timers.tick(SAVE_AFTER);
    await turn();
    assert.equal(names(page.tab), "zc");
    page.tab.api.tags.set("stack", "s0"); // a third page has changed it
    page.tab.edits.addAlways("d");
    t.mock.timers.tick(SAVE_AFTER);
    await turn();
    assert.equal(names(page.tab), "z");
    assert.equal(page.tab.state.refused.entries.map((/** @type {any} */ one) => one.name).join(""), "zcdb");
    assert.equal(page.tab.kept.pending, null);
    const before = page.sent.length;
    t.mock.timers.tick(SAVE_AFTER);
    await turn();
    assert.equal(page.sent.length, before);
});

test("block weights and regions are not saved over another page's change of the same name", async () => {
    const changed = () => ({status: 412, data: {detail: "changed"}});
    const own = {name: "x", own: true};
    const {tab, sent} = openPage({
        routes: {
            "GET blocks": () => ({tag: "b2", data: {...BLOCKS, presets: [{...own, values: "0"}]}}),
            "PUT blocks/presets": changed,
            "GET regions": () => ({tag: "r2", data: {regions: [{...own, share: 0.1, picture: "z"}], problem: ""}}),
            "PUT regions": changed,
        },
    });
    tab.set({
        blocks: {...BLOCKS, model: "sd1", presets: [{...own, values: "1"}]},
        regions: [{...own, share: 0.5, picture: "y"}],
    });
    await assert.rejects(tab.kept.saveBlocks("x", "1,1"), /changed/);
    await assert.rejects(tab.kept.saveRegion("x", "p"), /changed/);
    assert.deepEqual(
        sent.map(({method}) => method),
        ["PUT", "GET", "PUT", "GET"],
    );
    assert.deepEqual([tab.state.blocks?.presets[0].values, tab.state.regions?.[0].picture], ["0", "z"]);
});

test("presets and regions that tags name are loaded once, and once more for a name that is not there", async () => {
    const blocks = {...BLOCKS, layouts: [], presets: [{name: "OUTALL", values: "1,0", own: false}]};
    const {tab, sent, box} = openPage({
        prompts: {txt2img: "<lora:a:1:lbw=OUTALL> <lora:b:1:mask=0,0,1,0.5>"},
        loras: [],
        routes: {
            "GET blocks": () => ({data: blocks}),
            "GET regions": () => ({data: {regions: [{name: "left"}], problem: ""}}),
            "POST resolve": () => ({data: {names: {}}}),
        },
    });
    const asked = () => sent.map(({path}) => path).filter((path) => path !== "resolve");
    const write = async (/** @type {string} */ prompt) => {
        box().value = prompt;
        tab.stack.readBoxes();
        await turn();
        await turn();
    };
    tab.set({loaded: true});
    await tab.kept.loadNamed();
    assert.deepEqual(asked(), ["blocks"]);
    await write("<lora:a:1:lbw=OUTALL:high>");
    assert.deepEqual(asked(), ["blocks"]);
    for (const again of ["", " again"]) await write(`<lora:a:1:lbw=OUTAL>${again}`);
    assert.deepEqual(asked(), ["blocks", "blocks"]);
    await write("<lora:a:1:mask=left>");
    assert.deepEqual(asked(), ["blocks", "blocks", "regions"]);
    await write("<lora:a:1:mask=lft>");
    assert.equal(asked().length, 4);
    assert.deepEqual(tab.stack.faultOf(tab.stack.tags()[0]).said, "there is no region “lft”; did you mean left?");
    assert.equal(tab.stack.outcomes().errors, 1);
});
