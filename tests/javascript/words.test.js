// The strings of the tab: javascript/remora/words.js and its languages.

import assert from "node:assert/strict";
import {readdirSync, readFileSync} from "node:fs";
import {afterEach, test} from "node:test";
import {ENGLISH} from "../../javascript/remora/languages/en.js";
import {listed, number, pieces, speak, spoken, t} from "../../javascript/remora/words.js";

const FOLDER = new URL("../../javascript/remora/", import.meta.url);
const EN = /** @type {import("../../javascript/remora/words.js").Strings} */ (ENGLISH);

afterEach(() => speak("en", EN));

test("each string of the table is used", () => {
    const files = readdirSync(FOLDER, {recursive: true, encoding: "utf8"}).filter((name) => name.endsWith(".js"));
    const sources = files.filter((name) => !name.startsWith("languages")).map((name) => read(name));
    const used = new Set(sources.flatMap((text) => [...text.matchAll(/"([a-z]+(?:\.\w+)+)"/g)].map(([, key]) => key)));
    assert.deepEqual(
        Object.keys(ENGLISH).filter((key) => !used.has(key)),
        [],
    );
});

/** @param {string} name */
const read = (name) => readFileSync(new URL(name, FOLDER), "utf8");

test("values stand in their places, and numbers are written as the language writes them", () => {
    assert.equal(t("card.rank", {kind: "lora", rank: "4"}), "lora, rank 4");
    assert.equal(t("library.count", {count: 10000}), "10,000 LoRA");
    speak("de", {"library.count": {one: "{count} LoRA", other: "{count} LoRAs"}});
    assert.equal(t("library.count", {count: 1}), "1 LoRA");
    assert.equal(t("library.count", {count: 10000}), "10.000 LoRAs");
    assert.equal(number(1.5), "1,5");
    assert.equal(number(2, 1), "2,0");
    assert.equal(listed(["a", "b", "c"], "disjunction"), "a, b oder c");
    assert.equal(spoken(), "de");
});

test("the form of a string is that of its number in the language, also where it has more forms than English", () => {
    speak("pl", {
        "common.layers": {one: "{count} warstwa", few: "{count} warstwy", many: "{count} warstw", other: "-"},
    });
    const said = [1, 3, 5, 22].map((count) => t("common.layers", {count}));
    assert.deepEqual(said, ["1 warstwa", "3 warstwy", "5 warstw", "22 warstwy"]);
    speak("ja", {"common.layers": {other: "{count}層"}});
    assert.equal(t("common.layers", {count: 1}), "1層");
});

test("a string that the language lacks is in English", () => {
    speak("de", {"common.save": "Speichern"});
    assert.equal(t("common.save"), "Speichern");
    assert.equal(t("common.cancel"), "Cancel");
    assert.equal(t("common.layers", {count: 1}), "1 layer");
});

test("a value may be an element", () => {
    const tag = {element: true};
    assert.deepEqual(pieces("stack.empty", {tag}).slice(1), [tag, " into it."]);
});
