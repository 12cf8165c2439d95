// What a site says of a file, and how far a job is, in words: javascript/remora/online.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {aboutOf, progressOf, resultOf, withNewer} from "../../javascript/remora/online.js";
import {leavePage, lora, openPage} from "./page.js";

/** @type {Parameters<typeof aboutOf>[0]} */
const ONE = {
    site: "civitai",
    page: "https://civitai.com/models/1",
    model: "Zorp",
    version: "",
    base_model: "SD 1.5",
    creator: "ann",
    licence: "",
    terms: ["credit", "no_commercial"],
    newer: null,
    checked: 1.7e9,
};

test("what is known is said, and a licence by its name or its terms", () => {
    const about = Object.fromEntries(aboutOf(ONE));
    assert.deepEqual(Object.keys(about), ["Model", "Creator", "Made from", "Licence", "Looked up"]);
    assert.equal(about.Licence, "credit needed, no commercial use");
    assert.equal(Object.fromEntries(aboutOf({...ONE, licence: "apache-2.0"})).Licence, "apache-2.0");
});

test("a job says how far it is, and what it found", () => {
    const nothing = {there: 0, size: 0};
    assert.equal(progressOf({kind: "lookup", done: 2, total: 3, ...nothing}), "2 of 3 files");
    const [done, total] = [1 << 20, 3 << 20];
    const bytes = {there: done, size: total};
    assert.equal(progressOf({kind: "download", done, total, ...bytes}), "1 MB of 3 MB");
    assert.equal(progressOf({kind: "download", done, total: 0, ...bytes, size: 0}), "1 MB");
    assert.equal(progressOf({kind: "newer", done: 1, total: 2, ...bytes}), "1 of 2 files, 1 MB of 3 MB");
    assert.equal(resultOf({kind: "lookup", found: 1, unknown: 2}), "1 file found, 2 unknown");
    assert.equal(resultOf({kind: "newer", found: 1, unknown: 2}), "1 newer version downloaded");
    const loras = ["a", "b", "c"].map((name) => lora(name, {newer: name === "b" ? "" : "24"}));
    const {tab} = openPage({loras});
    assert.deepEqual(withNewer(tab), ["id-a", "id-c"]);
    tab.set({query: "c"});
    assert.deepEqual(withNewer(tab), ["id-c"], "as the library shows them");
    tab.many.select(["id-a", "id-b"]);
    assert.deepEqual(withNewer(tab), ["id-a"], "of the selected ones");
    leavePage();
});
