// What a site says of a file, and how far a job is, in words: javascript/remora/online.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {aboutOf, progressOf, resultOf} from "../../javascript/remora/online.js";

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
    assert.equal(progressOf({kind: "lookup", done: 2, total: 3}), "2 of 3 files");
    assert.equal(progressOf({kind: "download", done: 1 << 20, total: 3 << 20}), "1 MB of 3 MB");
    assert.equal(progressOf({kind: "download", done: 1 << 20, total: 0}), "1 MB");
    assert.equal(resultOf({found: 1, unknown: 2}), "1 file found, 2 unknown");
});
