// The library of LoRA files: javascript/remora/library.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {remember, remembered} from "../../javascript/remora/library.js";
import {leavePage, listOf, lora, openPage, turn} from "./page.js";

afterEach(leavePage);

/** @type {(meanings: {[name: string]: object}) => import("./page.js").Route} */
const resolves =
    (meanings) =>
    ({body}) => ({
        data: {
            names: Object.fromEntries(
                body.names.map((/** @type {string} */ name) => [
                    name,
                    {id: null, problem: "", note: "", candidates: [], ...meanings[name]},
                ]),
            ),
        },
    });

test("the name of one file means it; what is wrong with the file is the name's problem", () => {
    const broken = lora("broken", {readable: false, reason: "its header is cut off"});
    const {tab} = openPage({loras: [lora("a"), broken]});
    assert.deepEqual([tab.library.meaning("a").lora?.id, tab.library.meaning("a").problem], ["id-a", ""]);
    assert.equal(tab.library.meaning("broken").problem, "its header is cut off");
    assert.deepEqual(tab.library.meaning("x"), {lora: undefined, problem: "", note: "", candidates: []});
});

test("names that are no file's are resolved by the server, each once", async () => {
    const {tab, sent, box} = openPage({
        prompts: {txt2img: "<lora:a> <lora:furry> <lora:furry> <lora:zorpp>"},
        loras: [lora("a"), lora("fur")],
        routes: {
            "POST resolve": resolves({
                furry: {id: "id-fur"},
                zorpp: {problem: "there is no zorpp", candidates: ["zorp"]},
            }),
        },
    });
    await tab.library.resolveNames();
    assert.equal(sent.length, 0, "before the list of files is there, every name is unknown");
    tab.set({loaded: true});
    const {version} = tab.library.catalog;
    await tab.library.resolveNames();
    assert.deepEqual(sent[0].body, {names: ["furry", "zorpp"]});
    assert.equal(tab.library.meaning("furry").lora?.name, "fur");
    assert.deepEqual(tab.library.meaning("zorpp"), {
        lora: undefined,
        problem: "there is no zorpp",
        note: "",
        candidates: ["zorp"],
    });
    assert.equal(tab.state.version, version + 1);
    await tab.library.resolveNames();
    assert.equal(sent.length, 1);
    box().value += " <lora:new>";
    tab.stack.readBoxes();
    await turn();
    assert.deepEqual(sent[1].body, {names: ["new"]});
});

test("no request asks for more names than the server takes", async () => {
    const many = Array.from({length: 120}, (_, at) => `<lora:n${at}>`).join(" ");
    const {tab, sent} = openPage({prompts: {txt2img: many}, routes: {"POST resolve": resolves({})}});
    tab.set({loaded: true});
    await tab.library.resolveNames();
    assert.deepEqual(
        sent.map(({body}) => body.names.length),
        [50, 50, 20],
    );
});

test("names of the always-on stack are resolved, too", async () => {
    const {tab, sent} = openPage({routes: {"POST resolve": resolves({})}});
    tab.set({loaded: true, always: {on: true, entries: [{name: "x", on: true, unet: 1, text_encoder: 1, more: ""}]}});
    await tab.library.resolveNames();
    assert.deepEqual(sent[0].body, {names: ["x"]});
});

test("a server that does not answer is told of, and what is asked no further", async () => {
    const many = Array.from({length: 60}, (_, at) => `<lora:n${at}>`).join(" ");
    const {tab, sent} = openPage({
        prompts: {txt2img: many},
        routes: {"POST resolve": () => ({status: 500, data: {detail: "it is broken"}})},
    });
    tab.set({loaded: true});
    await tab.library.resolveNames();
    assert.deepEqual([tab.state.error, sent.length], ["it is broken", 1]);
});

test("a refresh has all names resolved again, as their files may be there now", async () => {
    let there = false;
    const {tab, sent} = openPage({
        prompts: {txt2img: "<lora:fur>"},
        routes: {
            "POST refresh": () => ({data: listOf(there ? [lora("fur")] : [])}),
            "GET loras": () => ({data: listOf([], {whole: false})}),
            "POST resolve": resolves({fur: {problem: "there is no fur"}}),
        },
    });
    await tab.library.refresh();
    await turn();
    assert.deepEqual([tab.library.meaning("fur").problem, tab.state.loaded], ["there is no fur", true]);
    there = true;
    await tab.library.refresh("POST");
    assert.deepEqual([tab.library.meaning("fur").problem, tab.library.meaning("fur").lora?.id], ["", "id-fur"]);
    assert.deepEqual(
        sent.map(({method, path}) => `${method} ${path}`),
        ["GET loras?since=1", "POST resolve", "POST refresh"],
    );
});

test("words of a file are put into prompts without tags", () => {
    const fur = lora("fur", {words: "soft fur, <lora:night:5>", negative: "dog,\nbad <lora:night:5>"});
    const {tab} = openPage({loras: [fur]});
    assert.equal(tab.library.wordsOf("fur"), "soft fur");
    assert.deepEqual(tab.library.negativesOf("fur"), ["dog", "bad"]);
    assert.deepEqual([tab.library.wordsOf("x"), tab.library.negativesOf("x")], ["", []]);
});

test("trigger words are switched by the groups that Civitai lists, else each for itself", () => {
    const groups = ["red dress, hat", "<lora:x:1> armor"];
    const {tab, box} = openPage({
        prompts: {txt2img: ["a cat, red dress, hat", ""]},
        loras: [
            lora("a", {words: "red dress, hat, boots", groups}),
            lora("b", {words: "one, two", groups: ["one, two"]}),
            lora("c", {words: "(red dress, hat:1.2), (boots:0.8)", groups: ["red dress, hat", "gloves"]}),
        ],
    });
    assert.deepEqual(tab.library.groupsOf("a"), ["red dress, hat", "armor", "boots"]);
    assert.deepEqual(tab.library.groupsOf("b"), ["one", "two"]);
    assert.deepEqual(tab.library.groupsOf("c"), ["(red dress, hat:1.2)", "gloves", "(boots:0.8)"]);
    assert.deepEqual(tab.library.groupsOf("none"), []);
    tab.edits.flipWords("armor");
    assert.equal(box().value, "a cat, red dress, hat, armor");
    tab.edits.flipWords("red dress, hat");
    assert.equal(box().value.replaceAll(", ", ","), "a cat,armor");
    tab.stack.undo();
    assert.equal(box().value, "a cat, red dress, hat, armor");
});

test("notes are changed on the server, and the list has them", async () => {
    const {tab, sent} = openPage({
        loras: [lora("a b")],
        routes: {"PATCH lora": ({body}) => ({tag: "n1", data: {...lora("a b"), ...body}})},
    });
    await tab.library.setNotes(lora("a b"), {rating: 4});
    assert.deepEqual([sent[0].path, sent[0].body], ["lora?id=id-a+b", {rating: 4}]);
    assert.equal(tab.library.catalog.named("a b")?.rating, 4);
    assert.equal(tab.state.version, tab.library.catalog.version);
});

/**
 * Answer the first change with 412, later ones as usual.
 * @param {object} now the file as another page has changed it
 */
function changedMeanwhile(now) {
    let count = 0;
    return {
        "GET lora": () => ({tag: "n2", data: {...lora("a"), ...now}}),
        "PATCH lora": (/** @type {import("./page.js").Sent} */ {body}) => {
            count += 1;
            return count === 1
                ? {status: 412, data: {detail: "changed"}}
                : {tag: "n3", data: {...lora("a"), ...now, ...body}};
        },
    };
}

test("notes are saved although another page has changed other fields, but not over a change of the same field", async () => {
    const first = openPage({loras: [lora("a")], routes: changedMeanwhile({notes: "elsewhere"})});
    await first.tab.library.setNotes(lora("a"), {rating: 4});
    const {rating, notes} = first.tab.library.catalog.named("a") ?? {};
    assert.deepEqual([rating, notes, first.sent.length, first.sent[2].tag], [4, "elsewhere", 3, '"n2"']);
    const second = openPage({loras: [lora("a")], routes: changedMeanwhile({rating: 1})});
    await assert.rejects(second.tab.library.setNotes(lora("a"), {rating: 4}), /changed/);
    assert.deepEqual([second.tab.library.catalog.named("a")?.rating, second.sent.length], [1, 2]);
    assert.equal(second.tab.state.version, second.tab.library.catalog.version);
});

test("a picture is sent as it is, and the card has the new one", async () => {
    const {tab, sent} = openPage({
        loras: [lora("a")],
        routes: {"PUT picture": () => ({data: lora("a", {picture: "p2"})})},
    });
    const blob = new Blob(["x"], {type: "image/png"});
    await tab.library.setPicture(lora("a"), blob);
    assert.deepEqual([sent[0].path, sent[0].body], ["picture?id=id-a", blob]);
    assert.equal(tab.library.catalog.named("a")?.picture, "p2");
    assert.equal(tab.state.version, tab.library.catalog.version);
});

test("order, view, language, completion and badges are remembered in the browser; anything else there is ignored", () => {
    const {tab, kept} = openPage();
    assert.deepEqual(remembered(), {});
    tab.set({sort: "added"});
    tab.set({view: "list", query: "x"});
    tab.set({chosen: "de"});
    tab.set({completes: false, badges: false});
    tab.set({tree: true});
    assert.deepEqual(remembered(), {
        ...{sort: "added", view: "list", tree: true, chosen: "de"},
        ...{completes: false, badges: false},
    });
    for (const text of [
        '{"sort": "constructor", "view": "grid", "query": "x", "chosen": 3, "completes": 1, "badges": 0, "tree": 1}',
        "no JSON",
        "null",
    ]) {
        kept.set("remora", text);
        assert.deepEqual(remembered(), {}, text);
    }
});

test("a browser that remembers nothing is no fault", () => {
    openPage();
    Object.defineProperty(globalThis, "localStorage", {
        get: () => {
            throw new Error("it is off");
        },
        configurable: true,
    });
    remember({sort: "name", view: "medium", tree: false, chosen: "", completes: true, badges: true});
    assert.deepEqual(remembered(), {});
});

test("after a refresh a name that the server resolved is asked for again", async () => {
    let meant = "fur";
    const {tab} = openPage({
        prompts: {txt2img: "<lora:alias>"},
        loras: [lora("fur"), lora("ink")],
        routes: {
            "GET loras": () => ({data: listOf([], {whole: false})}),
            "POST resolve": () => ({data: {names: {alias: {id: `id-${meant}`, problem: "", candidates: []}}}}),
        },
    });
    await tab.library.refresh();
    await turn();
    assert.equal(tab.library.meaning("alias").lora?.name, "fur");
    meant = "ink";
    const again = tab.library.refresh();
    await again;
    assert.equal(tab.library.meaning("alias").lora, undefined, "the former meaning may be wrong by now");
    await turn();
    assert.equal(tab.library.meaning("alias").lora?.name, "ink");
});

test("the files that are copies are asked for by page, and the list is drawn again where they changed", async () => {
    const told = {firsts: ["id-a"], others: ["id-b"], superseded: [], groups: [], found: 60, running: false};
    const {tab, sent} = openPage({loras: [lora("a"), lora("b")], routes: {"GET copies": () => ({data: told})}});
    const {version} = tab.library.catalog;
    assert.equal((await tab.library.loadCopies(1)).found, 60);
    assert.match(sent[0].path, /copies\?page=1$/);
    assert.equal(tab.state.version, version + 1);
    await tab.library.loadCopies(0);
    assert.equal(tab.state.version, version + 1);
});
