// Many files at once: javascript/remora/many.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {newNames, takenNames} from "../../javascript/remora/many.js";
import {leavePage, listOf, lora, openPage} from "./page.js";

afterEach(leavePage);

const FILES = ["a", "b", "c", "d", "e"].map((name) => lora(name));

/**
 * Make the routes of a server whose list is `left` after each change.
 * @param {any[]} left
 * @param {{[request: string]: import("./page.js").Route}} [routes]
 */
const serving = (left, routes = {}) => ({
    "GET loras": () => ({data: listOf(left, {revision: 2})}),
    "GET stack": () => ({data: {version: 1, always_on: false, entries: [], problem: ""}}),
    "POST resolve": () => ({data: {names: {}}}),
    ...routes,
});

test("clicks select and take out, Shift adds all between; what is gone counts no more", () => {
    const {tab} = openPage({loras: FILES});
    assert.equal(tab.state.selected, null);
    tab.many.pick("id-b", FILES, true);
    tab.many.pick("id-d", FILES, true);
    assert.deepEqual(tab.many.chosen, ["id-b", "id-c", "id-d"]);
    tab.many.pick("id-c", FILES, false);
    tab.many.pick("id-a", FILES, true);
    assert.deepEqual(tab.many.chosen, ["id-b", "id-d", "id-a", "id-c"], "from the last one that was clicked");
    tab.many.select(FILES.map(({id}) => id));
    tab.library.catalog.byId.delete("id-e");
    assert.equal(tab.many.chosen.length, 4);
    tab.many.select(null);
    assert.deepEqual(tab.many.chosen, []);
});

test("new names have text replaced and around them; what stays as it is, is left out", async () => {
    const all = [lora("x/fox_v1"), lora("x/fox_v2"), lora("x/dog"), lora("y/cat_v1"), lora("x/A-FOX_V3")];
    const wanted = {find: "_v", replace: "$& v", front: "", behind: ""};
    assert.deepEqual([...newNames(all, wanted).values()], ["fox$& v1", "fox$& v2", "cat$& v1"]);
    const around = {find: "", replace: "never", front: "a-", behind: " b "};
    assert.deepEqual([...newNames(all.slice(2, 3), around)], [["id-x/dog", "a-dog b"]]);
    assert.equal(newNames(all, {find: "", replace: "x", front: "", behind: ""}).size, 0);
    const names = new Map([
        ["id-x/fox_v1", "a-fox_v3"],
        ["id-x/fox_v2", "new"],
        ["id-x/dog", "NEW"],
        ["id-y/cat_v1", "dog"],
        ["id-x/A-FOX_V3", "a-fox_v3"],
    ]);
    assert.deepEqual([...takenNames(all, names)], ["id-x/fox_v1", "id-x/dog"], "in its folder, whatever the case");
    const move = () => ({data: {changed: [], refused: [], undo: ""}});
    const {tab, sent} = openPage({loras: all, routes: serving(all, {"POST files/move": move})});
    await tab.many.rename(new Map(Array.from({length: 501}, (_, number) => [`id-${number}`, `${number}`])), String);
    const parts = sent.filter(({path}) => path === "files/move").map(({body}) => body);
    assert.deepEqual([parts[0].ids.length, parts[1]], [500, {ids: ["id-500"], names: ["500"]}]);
});

test("hundreds are sent in parts, and one undo takes all of them back, the last part first", async () => {
    const loras = Array.from({length: 1100}, (_, number) => lora(`n${number}`));
    /** @type {import("./page.js").Route} */
    const remove = ({body}) => ({
        data: {changed: body.ids.map((/** @type {string} */ id) => [id, ""]), refused: [], undo: body.ids[0]},
    });
    const undo = () => ({data: {changed: [["x", "id-n0"]], refused: [], undo: "again"}});
    const routes = serving([], {"POST files/delete": remove, "POST files/undo": undo});
    const {tab, sent} = openPage({loras, routes});
    const ids = loras.map(({id}) => id);
    tab.many.select(ids);
    await tab.many.send("POST", "files/delete", {}, ids, (count) => `${count} deleted`);
    const parts = sent.filter(({path}) => path === "files/delete").map(({body}) => body.ids.length);
    assert.deepEqual(parts, [500, 500, 100]);
    assert.deepEqual(tab.state.lastChange, {said: "1100 deleted", undo: ["id-n0", "id-n500", "id-n1000"]});
    assert.equal(tab.state.selected, null, "nothing is left to be selected");
    await tab.many.undo("taken back");
    const undone = sent.filter(({path}) => path === "files/undo").map(({body}) => body.undo);
    assert.deepEqual(undone, ["id-n1000", "id-n500", "id-n0"]);
    assert.deepEqual(tab.state.lastChange, {said: "taken back", undo: []});
});

test("what was done before an error is told and can be taken back", async () => {
    const loras = Array.from({length: 600}, (_, number) => lora(`n${number}`));
    let asked = 0;
    const routes = serving(loras, {
        "POST files/delete": () => {
            asked += 1;
            if (asked > 1) return {status: 500, data: {detail: "nothing was moved: no space"}};
            return {data: {changed: [["id-n0", ""]], refused: [], undo: "first"}};
        },
    });
    const {tab} = openPage({loras, routes});
    const ids = loras.map(({id}) => id);
    await assert.rejects(() => tab.many.send("POST", "files/delete", {}, ids, String), {message: /no space/});
    assert.deepEqual(tab.state.lastChange, {said: "1", undo: ["first"]});
});

test("the selection and the tags of the prompt follow files that have another name, in one step", async () => {
    const after = [lora("a2"), lora("b", {id: "id-b2", folder: "sub"}), ...FILES.slice(2)];
    const moved = () => ({
        data: {
            changed: [
                ["id-a", "id-a2"],
                ["id-b", "id-b2"],
            ],
            refused: [{id: "id-c", reason: "c stays", taken: true}],
            undo: "k",
        },
    });
    const {tab, box} = openPage({
        prompts: {txt2img: "<lora:a:0.8> and <lora:b:0.5> <lyco:a:1:stop=5> <lora:c:1>"},
        loras: FILES,
        routes: serving(after, {
            "POST files/move": moved,
            "GET loras": () => {
                tab.many.pick("id-d", FILES, false); // a click while the list is read again
                return {data: listOf(after, {revision: 2})};
            },
        }),
    });
    tab.set({loaded: true});
    tab.edits.setOn(tab.stack.rows()[0], false);
    tab.many.select(["id-a", "id-b", "id-c", "id-d"]);
    const refused = await tab.many.send("POST", "files/move", {folder: "sub"}, ["id-a", "id-b", "id-c"], String);
    assert.deepEqual(refused, [{id: "id-c", reason: "c stays", taken: true}]);
    assert.deepEqual(tab.many.chosen, ["id-a2", "id-b2", "id-c"]);
    assert.match(box().value, /<lora:b:0\.5> <lyco:a2:1:stop=5> <lora:c:1>/);
    assert.deepEqual(
        tab.stack.rows().map(({name}) => name),
        ["a2", "b", "a2", "c"],
    );
    tab.stack.undo();
    assert.match(box().value, /<lyco:a:1:stop=5>/);
});
