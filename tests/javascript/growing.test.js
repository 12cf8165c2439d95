// A comparison that grows by the epochs that come: javascript/remora/growing.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {withTags} from "../../javascript/remora/growing.js";
import {leavePage, listOf, lora, openPage} from "./page.js";

afterEach(leavePage);

test("a prompt gets a tag for each LoRA that it has not", () => {
    assert.equal(withTags("a fox <lora:b\\: c:0.5>", ["a", "b: c"]), "a fox <lora:b\\: c:0.5> <lora:a:1>");
});

test("a comparison that is followed grows by later epochs once, until the server refuses that", async () => {
    const all = ["fur-1", "fur-2", "fur-3", "ink-4"].map((name) => lora(name));
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
