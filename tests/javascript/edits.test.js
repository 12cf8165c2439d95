// The user's edits of the stack: javascript/remora/edits.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {leavePage, lora, openPage, serverState} from "./page.js";

afterEach(leavePage);

/** @type {(name: string, more?: object) => any} */
const always = (name, more = {}) => ({name, on: true, unet: 1, text_encoder: 1, more: "", ...more});

/**
 * Return a row of the tab by its name.
 * @param {ReturnType<typeof openPage>["tab"]} tab
 * @param {string} name
 * @returns {any}
 */
const row = (tab, name) => tab.stack.rows().find((one) => one.name === name);

test("a LoRA is inserted with its words and strength, and removed with them", () => {
    const fur = lora("fur", {words: "soft fur", negative: "dog, bad", strength: 0.6});
    const {tab, box, negative} = openPage({prompts: {txt2img: ["a fox", "bad"]}, loras: [fur]});
    tab.edits.toggle(fur);
    assert.equal(box().value, "a fox, <lora:fur:0.6> soft fur");
    assert.equal(negative().value, "bad, dog");
    assert.equal(tab.state.said, "fur inserted.");
    tab.edits.toggle(fur);
    assert.equal(box().value, "a fox");
    assert.equal(negative().value, "bad", "the user wrote `bad`");
    assert.equal(tab.state.said, "fur removed.");
});

test("a rule goes into all tags, also those that are off or always on, and into a new one; it is undone at once", () => {
    const {tab, box} = openPage({
        prompts: {txt2img: "a <lora:a:0.8> <lora:b:0.5:stop=9> <lora:c:1>"},
        loras: [lora("d")],
    });
    tab.stack.readBoxes();
    tab.edits.addAlways("e");
    tab.edits.setOn(row(tab, "c"), false);
    assert.deepEqual(tab.stack.rule(), ["", "", ""]);
    const before = [box().value, tab.state.always.entries];
    tab.edits.combineBy(["dare_ties", "0.4", "7"]);
    const rule = ":combine=dare_ties:density=0.4:seed=7";
    assert.equal(box().value, `a <lora:a:0.8${rule}> <lora:b:0.5:stop=9${rule}>`);
    assert.deepEqual(tab.stack.rule(), ["dare_ties", "0.4", "7"]);
    assert.equal(tab.state.always.entries[0].more, rule.slice(1));
    tab.edits.toggle(lora("d"));
    assert.ok(box().value.endsWith(`<lora:d:1${rule}>`));
    tab.edits.setOn(row(tab, "c"), true);
    assert.ok(box().value.includes(`<lora:c:1${rule}>`));
    tab.edits.edit(row(tab, "a"), (body) => body.replace("0.4", "0.5"));
    assert.equal(tab.stack.rule(), null, "the rules differ");
    for (let step = 0; step < 4; step += 1) tab.stack.undo();
    assert.deepEqual([box().value, tab.state.always.entries], before);
    tab.edits.combineBy(["", "", ""]);
    assert.equal(box().value, before[0]);
});

test("the trigger words of what is always on are told of in a prompt without them, and inserted", () => {
    const fur = lora("fur", {words: "soft fur"});
    const {tab, box} = openPage({prompts: {txt2img: "a fox <lora:fur:1> soft fur"}, loras: [fur]});
    tab.edits.pin(row(tab, "fur"));
    assert.equal(tab.edits.wordsMissing("fur"), "", "they stay in this prompt");
    box().value = "a cat,";
    tab.stack.readBoxes();
    assert.equal(tab.edits.wordsMissing("fur"), "soft fur");
    tab.edits.insertWords("fur");
    assert.equal(box().value, "a cat, soft fur");
    assert.equal(tab.edits.wordsMissing("fur"), "");
    tab.stack.undo();
    assert.equal(box().value, "a cat,");
    box().value = "a <lora:fur:0>";
    tab.stack.readBoxes();
    assert.equal(tab.edits.wordsMissing("fur"), "", "its tag counts here");
});

test("a LoRA whose name no tag can have is not inserted, with the reason", () => {
    const {tab, box} = openPage({prompts: {txt2img: "a fox"}, loras: [lora("a>b")]});
    tab.edits.toggle(lora("a>b"));
    assert.equal(box().value, "a fox");
    assert.match(tab.state.said, /^a>b: it has < or > in its name.*rename the file\.$/);
});

test("a colon in a name is escaped, and read back", () => {
    const {tab, box} = openPage({prompts: {txt2img: "a fox"}, loras: [lora("Re: fur", {strength: 0.7})]});
    tab.edits.toggle(lora("Re: fur", {strength: 0.7}));
    assert.equal(box().value, "a fox <lora:Re\\: fur:0.7>");
    const [row] = tab.stack.rows();
    assert.deepEqual([row.name, row.unet, row.problem], ["Re: fur", 0.7, ""]);
    tab.edits.pin(row);
    assert.equal(tab.state.always.entries[0].name, "Re: fur");
    tab.edits.unpin(tab.state.always.entries[0]);
    assert.equal(box().value, "a fox <lora:Re\\: fur:0.7>");
    tab.edits.rename(tab.stack.rows()[0], "a:b");
    assert.equal(box().value, "a fox <lora:a\\:b:0.7>");
});

test("a click makes tags obey the brackets around them, and the rows say what these do", async () => {
    const {tab, sent} = openPage({
        prompts: {txt2img: "[<lora:fur:1>::0.4] <lora:a:1>"},
        routes: {"PUT grammar": () => ({data: serverState({grammar: true})})},
    });
    tab.set({server: serverState({grammar: false})});
    assert.match(tab.stack.places()[0].unread, /^Acts in all steps: .*until 40 %/);
    await tab.edits.obeyBrackets();
    assert.deepEqual(sent.at(-1)?.body, {on: true});
    assert.deepEqual(
        tab.stack.places().map(({words, unread}) => [words, unread]),
        [
            [["until 40 %"], ""],
            [[], ""],
        ],
    );
});

test("without a preferred strength it has the server's standard one", () => {
    const {tab, box} = openPage({loras: [lora("fur")]});
    tab.set({server: serverState({default_multiplier: 0.7})});
    tab.edits.insert(lora("fur"));
    assert.equal(box().value, "<lora:fur:0.7>");
});

test("a LoRA that the prompt has under another name is removed by the same button", () => {
    const fur = lora("fur");
    const {tab, box} = openPage({prompts: {txt2img: "a <lora:furry:1> b"}, loras: [fur]});
    tab.library.meanings.set("furry", {id: "id-fur", problem: "", note: "", candidates: []});
    tab.edits.toggle(fur);
    assert.equal(box().value, "a b");
});

test("words that the prompt has are not written twice, and words that another LoRA needs stay", () => {
    const loras = [lora("a", {words: "fur", negative: "dog"}), lora("b", {words: "fur", negative: "dog"})];
    const {tab, box, negative} = openPage({loras});
    tab.edits.insert(loras[0]);
    tab.edits.insert(loras[1]);
    assert.deepEqual([box().value, negative().value], ["<lora:a:1> fur <lora:b:1>", "dog"]);
    tab.edits.remove(row(tab, "a"));
    assert.deepEqual([box().value, negative().value], ["fur <lora:b:1>", "dog"]);
    tab.edits.remove(row(tab, "b"));
    assert.deepEqual([box().value, negative().value], ["fur", ""]);
});

test("in a page without prompts a LoRA is made always on, once", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const fur = lora("fur", {strength: 0.5});
    const {tab} = openPage({prompts: {}, loras: [fur]});
    tab.edits.insert(fur);
    tab.edits.insert(fur);
    assert.deepEqual(tab.state.always, {on: true, entries: [always("fur", {unet: 0.5, text_encoder: 0.5})]});
});

test("the first always-on LoRA turns the stack on, a further one leaves it as it is", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab} = openPage();
    tab.set({always: {on: false, entries: []}});
    tab.edits.addAlways("a");
    assert.equal(tab.state.always.on, true);
    tab.edits.changeAlways({...tab.state.always, on: false});
    tab.edits.addAlways("b");
    assert.deepEqual([tab.state.always.on, tab.state.always.entries.length], [false, 2]);
});

test("the strengths of one tag change and nothing else; a slider's changes are undone together", () => {
    const {tab, box} = openPage({prompts: {txt2img: "x <lora:a:1>, <lora:b:1:lbw=ALL> y"}});
    for (const strength of [0.9, 0.8, 0.7]) tab.edits.setStrength(row(tab, "b"), strength, strength);
    assert.equal(box().value, "x <lora:a:1>, <lora:b:0.7:lbw=ALL> y");
    tab.edits.setStrength(row(tab, "a"), 0.5, 0.5);
    tab.stack.undo();
    assert.equal(box().value, "x <lora:a:1>, <lora:b:0.7:lbw=ALL> y");
    tab.stack.undo();
    assert.equal(box().value, "x <lora:a:1>, <lora:b:1:lbw=ALL> y");
});

test("a tag that the user has replaced meanwhile is neither changed nor removed", () => {
    const {tab, box} = openPage({prompts: {txt2img: "<lora:a:1>"}});
    const former = row(tab, "a");
    box().value = "<lora:b:1>";
    tab.edits.setStrength(former, 0.5, 0.5);
    tab.edits.setOn(former, false);
    tab.edits.pin(former);
    tab.edits.remove(former);
    assert.equal(box().value, "<lora:b:1>");
    assert.deepEqual([tab.state.canUndo, tab.state.off, tab.state.always.entries], [false, [], []]);
});

test("an entry that is off leaves the prompt with its words and returns into its place", () => {
    const loras = [lora("a"), lora("b", {words: "fur"}), lora("c")];
    const {tab, box} = openPage({prompts: {txt2img: "x <lora:a:1> <lora:b:0.5:stop=5> fur, y <lora:c:1>"}, loras});
    tab.edits.setOn(row(tab, "b"), false);
    assert.equal(box().value, "x <lora:a:1>, y <lora:c:1>");
    assert.deepEqual(
        tab.stack.rows().map(({name, on}) => [name, on]),
        [
            ["a", true],
            ["b", false],
            ["c", true],
        ],
    );
    tab.edits.setStrength(row(tab, "b"), 0.25, 0.25);
    assert.equal(row(tab, "b").unet, 0.25);
    tab.edits.setOn(row(tab, "b"), true);
    assert.equal(box().value, "x <lora:a:1>, y <lora:b:0.25:stop=5>, <lora:c:1> fur");
    assert.deepEqual(tab.state.off, []);
});

test("entries that are off keep their places when others go off and on", () => {
    const {tab} = openPage({prompts: {txt2img: "<lora:a:1> <lora:b:1> <lora:c:1>"}});
    tab.edits.setOn(row(tab, "c"), false);
    tab.edits.setOn(row(tab, "a"), false);
    const names = () =>
        tab.stack
            .rows()
            .map(({name}) => name)
            .join("");
    assert.equal(names(), "abc");
    tab.edits.setOn(row(tab, "a"), true);
    assert.equal(names(), "abc");
    tab.edits.remove(row(tab, "c"));
    assert.equal(names(), "ab");
});

test("rows are moved; the entries that are off move along, and nothing goes over the ends", () => {
    const {tab, box} = openPage({prompts: {txt2img: "<lora:a:1> x <lora:b:1> y <lora:c:1>"}});
    tab.edits.setOn(row(tab, "b"), false);
    tab.edits.move(2, 0);
    assert.equal(box().value, "<lora:c:1> x y <lora:a:1>");
    const names = () =>
        tab.stack
            .rows()
            .map(({name}) => name)
            .join("");
    assert.equal(names(), "cab");
    tab.edits.move(2, 0);
    assert.equal(names(), "bca");
    for (const [from, to] of [
        [0, -1],
        [2, 3],
        [1, 1],
    ]) {
        const {prompt} = tab.state;
        tab.edits.move(from, to);
        assert.deepEqual([names(), tab.state.prompt], ["bca", prompt]);
    }
});

test("all is cleared in one step, and of this prompt alone", () => {
    const loras = [lora("a", {words: "fur", negative: "dog"}), lora("b")];
    const {tab, box, negative} = openPage({prompts: {txt2img: ["x", ""], img2img: "<lora:b:1>"}, loras});
    tab.stack.choose("img2img");
    tab.edits.setOn(row(tab, "b"), false);
    tab.stack.choose("txt2img");
    tab.edits.insert(loras[0]);
    tab.edits.insert(loras[1]);
    tab.edits.setOn(row(tab, "b"), false);
    tab.edits.clear();
    assert.deepEqual([box().value, negative().value, tab.stack.rows()], ["x", "", []]);
    assert.deepEqual(
        tab.state.off.map(({target}) => target),
        ["img2img"],
    );
    tab.stack.undo();
    assert.deepEqual([box().value, negative().value], ["x, <lora:a:1> fur", "dog"]);
});

test("an entry moves from the prompt to the always-on stack with all that its tag says", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab, box} = openPage({prompts: {txt2img: "x <lora:furry:0.5:stop=5> y"}, loras: [lora("fur")]});
    tab.library.meanings.set("furry", {id: "id-fur", problem: "", note: "", candidates: []});
    tab.set({always: {on: false, entries: [always("fur"), always("b")]}});
    tab.edits.pin(row(tab, "furry"));
    assert.equal(box().value, "x y");
    const moved = always("fur", {unet: 0.5, text_encoder: 0.5, more: "stop=5"});
    assert.deepEqual(tab.state.always, {on: true, entries: [always("b"), moved]});
});

test("an entry that is off moves to the always-on stack and stays off", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab} = openPage({prompts: {txt2img: "<lora:a:1>"}});
    tab.edits.setOn(row(tab, "a"), false);
    tab.edits.pin(row(tab, "a"));
    assert.deepEqual([tab.state.off, tab.state.always.entries], [[], [always("a", {on: false})]]);
});

test("an always-on entry moves into the prompt, or into the place of the tag that it has there", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const loras = [lora("fur", {words: "soft"}), lora("b")];
    const {tab, box} = openPage({prompts: {txt2img: "x <lora:furry:1> y"}, loras});
    tab.library.meanings.set("furry", {id: "id-fur", problem: "", note: "", candidates: []});
    const [fur, b] = [always("fur", {unet: 0.5, text_encoder: 0.5}), always("b", {more: "stop=5"})];
    tab.set({always: {on: true, entries: [fur, b]}});
    tab.edits.unpin(b);
    assert.equal(box().value, "x <lora:furry:1> y <lora:b:1:stop=5>");
    tab.edits.unpin(fur);
    assert.equal(box().value, "x <lora:fur:0.5> y <lora:b:1:stop=5>");
    assert.deepEqual(tab.state.always.entries, []);
    assert.equal(tab.state.said, "The tag of fur in the prompt now has the settings of “Always on”.");
});

test("a tag of an always-on entry changes; changes of one kind are undone together", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab} = openPage();
    tab.set({always: {on: true, entries: [always("a"), always("b")]}});
    for (const stop of ["4", "5"]) {
        tab.edits.editAlways(tab.state.always.entries[0], () => `a:0.5:stop=${stop}`, "steps");
    }
    assert.deepEqual(tab.state.always.entries, [
        always("a", {unet: 0.5, text_encoder: 0.5, more: "stop=5"}),
        always("b"),
    ]);
    tab.stack.undo();
    assert.deepEqual(tab.state.always.entries, [always("a"), always("b")]);
});

test("every edit begins with the prompt as the user has left it", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const loras = [lora("a"), lora("b"), lora("c")];
    /** @typedef {ReturnType<typeof openPage>["tab"]} AnyTab */
    /** @type {[what: string, edit: (tab: AnyTab) => void, wanted: string][]} */
    const cases = [
        ["insert", (tab) => tab.edits.insert(loras[2]), "typed <lora:a:1> <lora:b:1> <lora:c:1>"],
        ["remove", (tab) => tab.edits.remove(row(tab, "a")), "typed <lora:b:1>"],
        ["off", (tab) => tab.edits.setOn(row(tab, "a"), false), "typed <lora:b:1>"],
        ["strength", (tab) => tab.edits.setStrength(row(tab, "b"), 0.5, 0.5), "typed <lora:a:1> <lora:b:0.5>"],
        ["move", (tab) => tab.edits.move(0, 1), "typed <lora:b:1> <lora:a:1>"],
        ["clear", (tab) => tab.edits.clear(), "typed"],
        ["pin", (tab) => tab.edits.pin(row(tab, "a")), "typed <lora:b:1>"],
        ["unpin", (tab) => tab.edits.unpin(tab.state.always.entries[0]), "typed <lora:a:1> <lora:b:1> <lora:c:1>"],
    ];
    for (const [what, edit, wanted] of cases) {
        const {tab, box} = openPage({prompts: {txt2img: "<lora:a:1> <lora:b:1>"}, loras});
        tab.set({always: {on: true, entries: [always("c")]}});
        box().value = "typed <lora:a:1> <lora:b:1>";
        edit(tab);
        assert.equal(box().value, wanted, what);
        assert.equal(tab.state.prompt, wanted, what);
    }
});

test("edits of one prompt leave the entries that are off and the words of another as they are", () => {
    const loras = [lora("a", {negative: "dog"}), lora("b"), lora("c")];
    const {tab, negative} = openPage({prompts: {txt2img: ["<lora:b:1> <lora:c:1>", ""], img2img: ["", "x"]}, loras});
    tab.edits.insert(loras[0]);
    const other = /** @type {any} */ ({target: "img2img", before: 2, tag: {name: "z", kind: "lora", body: "z"}});
    tab.set({off: [other], added: [...tab.state.added, {target: "img2img", phrase: "dog"}]});
    tab.edits.setOn(row(tab, "b"), false);
    tab.edits.setOn(row(tab, "c"), false);
    tab.edits.setOn(row(tab, "b"), true);
    tab.edits.move(0, 1);
    tab.edits.remove(row(tab, "a"));
    assert.equal(negative().value, "");
    assert.deepEqual(tab.state.off[0], other);
    assert.deepEqual(tab.state.added, [{target: "img2img", phrase: "dog"}]);
});

test("of several entries that are off, each returns to its place", () => {
    const {tab, box} = openPage({prompts: {txt2img: "<lora:a:1> <lora:b:1> <lora:c:1> <lora:d:1>"}});
    for (const name of ["b", "d", "c"]) tab.edits.setOn(row(tab, name), false);
    assert.deepEqual(
        tab.state.off.map(({tag, before}) => [tag.name, before]),
        [
            ["b", 1],
            ["c", 1],
            ["d", 1],
        ],
    );
    const wanted = {c: "<lora:a:1> <lora:c:1>", d: "<lora:a:1> <lora:c:1> <lora:d:1>"};
    for (const [name, prompt] of Object.entries(wanted)) {
        tab.edits.setOn(row(tab, name), true);
        assert.equal(box().value, prompt);
    }
    tab.edits.setOn(row(tab, "b"), true);
    assert.equal(box().value, "<lora:a:1> <lora:b:1> <lora:c:1> <lora:d:1>");
});

test("changes of an always-on entry without a kind are undone one by one", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab} = openPage();
    tab.set({always: {on: true, entries: [always("a")]}});
    for (const stop of ["4", "5"]) tab.edits.editAlways(tab.state.always.entries[0], () => `a:1:stop=${stop}`);
    tab.stack.undo();
    assert.equal(tab.state.always.entries[0].more, "stop=4");
});

test("an entry that moves into the prompt leaves the others always on", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab} = openPage({loras: [lora("a"), lora("b")]});
    tab.set({always: {on: true, entries: [always("a"), always("b")]}});
    tab.edits.unpin(tab.state.always.entries[0]);
    assert.deepEqual(tab.state.always.entries, [always("b")]);
});

test("entries that are off keep their places when a tag before them goes", (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    for (const gone of /** @type {const} */ (["remove", "pin"])) {
        const {tab} = openPage({prompts: {txt2img: "<lora:a:1> <lora:b:1> <lora:c:1> <lora:d:1>"}});
        tab.edits.setOn(row(tab, "c"), false);
        tab.edits[gone](row(tab, "a"));
        const names = tab.stack.rows().map(({name}) => name);
        assert.equal(names.join(""), "bcd", gone);
    }
});

test("an entry that is not off any more is not put on again", () => {
    const {tab, box} = openPage({prompts: {txt2img: "<lora:a:1>"}});
    tab.edits.setOn(row(tab, "a"), false);
    const former = row(tab, "a");
    tab.edits.setOn(former, true);
    tab.edits.setOn(former, true);
    assert.equal(box().value, "<lora:a:1>");
});

test("the strengths of the files that act are multiplied, and undone in one step", () => {
    const loras = ["fur", "ink", "old", "kept", "both"].map((name) => lora(name));
    const entries = [
        always("kept", {unet: 0.5, text_encoder: 1, more: "lbw=OUTALL"}),
        always("both"),
        always("old", {on: false}),
    ];
    const prompt =
        "a fox <lora:fur:1:0.8:stop=10> <lora:ink:0.9@0,0.3@1> <lora:both:0.4> <lora:nothere:1> <lora:old:0>";
    const {tab, box} = openPage({prompts: {txt2img: prompt}, loras});
    tab.set({always: {...tab.state.always, on: true, entries}});
    tab.library.resolveNames();
    assert.deepEqual(
        tab.stack.acting().map(({tag, strength}) => [tag, strength]),
        [
            ["<lora:fur:1:0.8:stop=10>", 0.8],
            ["<lora:ink:0.9@0,0.3@1>", 0.9],
            ["<lora:both:0.4>", 0.4],
            ["<lora:kept:1:0.5:lbw=OUTALL>", 0.5],
        ],
        "a tag counts before what is always on",
    );
    tab.edits.scale(new Map(tab.stack.acting().map(({id}) => [id, 0.5])));
    assert.equal(
        box().value,
        "a fox <lora:fur:0.5:0.4:stop=10> <lora:ink:0.45@0,0.15@1> <lora:both:0.2> <lora:nothere:1> <lora:old:0>",
    );
    assert.deepEqual(tab.state.always.entries, [
        always("kept", {unet: 0.25, text_encoder: 0.5, more: "lbw=OUTALL"}),
        always("both"),
        always("old", {on: false}),
    ]);
    tab.stack.undo();
    assert.equal(box().value, prompt);
    assert.deepEqual(tab.state.always.entries, entries);
});
