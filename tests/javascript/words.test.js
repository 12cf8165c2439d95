// The strings of the tab: javascript/remora/words.js and its languages.

import assert from "node:assert/strict";
import {readdirSync, readFileSync} from "node:fs";
import {afterEach, test} from "node:test";
import {ENGLISH} from "../../javascript/remora/languages/en.js";
import {listed, number, pieces, speak, spoken, t, translated} from "../../javascript/remora/words.js";

const FOLDER = new URL("../../javascript/remora/", import.meta.url);
/** @typedef {import("../../javascript/remora/words.js").Strings} Strings */
const EN = /** @type {Strings} */ (ENGLISH);
const LANGUAGES = readdirSync(new URL("languages/", FOLDER)).filter((name) => name.endsWith(".json"));

afterEach(() => speak("en", EN));

test("each string of the table is used", () => {
    const files = readdirSync(FOLDER, {recursive: true, encoding: "utf8"}).filter((name) => name.endsWith(".js"));
    const sources = files.filter((name) => !name.startsWith("languages")).map((name) => read(name));
    const used = new Set(sources.flatMap((text) => [...text.matchAll(/"([a-z]+(?:\.\w+)+)"/g)].map(([, key]) => key)));
    const own = Object.keys(ENGLISH).filter((key) => !key.startsWith("said.")); // the others are the server's
    assert.deepEqual(
        own.filter((key) => !used.has(key)),
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

for (const file of LANGUAGES) {
    const strings = /** @type {Strings} */ (JSON.parse(read(`languages/${file}`)));

    test(`${file} has the strings that English has, with the same places for values`, () => {
        assert.deepEqual(
            Object.keys(strings).filter((key) => !(key in EN)),
            [],
            "strings that English has not",
        );
        for (const [key, entry] of Object.entries(strings)) {
            const places = placesIn(formsOf(EN[key]).join());
            assert.deepEqual(placesIn(formsOf(entry).join()), places, key);
            // one form may say its number as a word
            for (const form of formsOf(entry)) assert.deepEqual(numberless(placesIn(form)), numberless(places), key);
        }
    });

    test(`${file} has the forms that its language needs`, () => {
        const needed = new Intl.PluralRules(file.replace(".json", "")).resolvedOptions().pluralCategories.sort();
        for (const [key, entry] of Object.entries(strings)) {
            if (typeof entry === "object") assert.deepEqual(Object.keys(entry).sort(), needed, key);
        }
    });

    test(`${file} lacks no string`, () => {
        assert.deepEqual(
            Object.keys(EN).filter((key) => !(key in strings)),
            [],
        );
    });
}

/** @param {Strings[string]} entry */
const formsOf = (entry) => (typeof entry === "object" ? Object.values(entry) : [String(entry)]);

/** @param {string} form */
const placesIn = (form) => [...new Set([...form.matchAll(/\{(\w+)\}/g)].map(([, name]) => name))].sort();

/** @param {string[]} places */
const numberless = (places) => places.filter((name) => name !== "count");

test("a sentence of the server is translated, with the sentences in it; what has no translation stays", () => {
    /** @type {[said: string, wanted: string][]} */
    const cases = [
        ["is not in the LoRA folders; did you mean a or b?", "ist nicht in den LoRA-Ordnern; meinst du a oder b?"],
        ["is not in the LoRA folders; 8 LoRA files are known", "ist nicht in den LoRA-Ordnern; 8 Dateien bekannt"],
        ["LoRA 'x' cannot be used: it is empty (0 bytes)", "LoRA 'x' geht nicht: leer"],
        ["2 of 8 layers fit this model; the moon is full", "2 von 8 Schichten passen; the moon is full"],
        ["1 of 8 layers fits this model", "eine von 8 Schichten passt"],
        ["the moon is full", "the moon is full"],
        ["", ""],
    ];
    for (const [said] of cases) assert.equal(translated(said), said, "in English");
    speak("de", {
        "said.unknown": "ist nicht in den LoRA-Ordnern",
        "said.meant": "meinst du {names}?",
        "said.filesKnown": "{count} Dateien bekannt",
        "said.unusable": "LoRA {name} geht nicht: {problem}",
        "said.empty": "leer",
        "said.layersFit": {one: "eine von {layers} Schichten passt", other: "{count} von {layers} Schichten passen"},
    });
    for (const [said, wanted] of cases) assert.equal(translated(said), wanted);
});

test("names stay as they are, also where a word of the page has a translation", () => {
    speak("de", {
        "said.rule.weight": "{what}: Gewicht {weight}.",
        "said.rule.withIn": "Schichten mit {words} in {blocks}",
        "said.page.steps": "Schritte",
        "said.block.down": "Abwärts {number}",
        "said.hasNoPicture": "{name} hat kein Bild",
        "said.actsAnyway": "{name} wirkt {how} ({words})",
        "said.inAllSteps": "in allen Schritten",
        "said.atOwnStrength": "mit eigener Stärke",
    });
    /** @type {[said: string, wanted: string][]} */
    const cases = [
        ["Steps has no picture", "Steps hat kein Bild"],
        ["Steps", "Schritte"],
        ["Down block 3", "Abwärts 3"],
        ["Layers with “attn” in their names, in IN04: weight 0.5.", "Schichten mit “attn” in IN04: Gewicht 0.5."],
        [
            "a acts in all steps and at its own strength: its place in the prompt (step 5) does not count for tags",
            "a wirkt in allen Schritten und mit eigener Stärke (step 5)",
        ],
    ];
    for (const [said, wanted] of cases) assert.equal(translated(said), wanted);
});

test("an error of a tag that is always on, and a file that is no LoRA, are translated as a whole", () => {
    speak("de", {
        "said.ofAlways": "aus „Immer an“: {why}",
        "said.atCharacter": "{tag}, Zeichen {number}: {why}",
        "said.noRegion": "kein Bereich {name}",
        "said.itIs": "erkannt als {kind}: {why}",
        "said.kind.vae": "VAE",
        "said.load.vae": "in den VAE-Ordner legen",
        "said.noKeys": "ohne Schlüssel ({keys})",
        "said.combine.out": "{loras}: ohne {rule}: {why}",
        "said.combine.ranks": "{layer} braucht einen Rang ({ranks}); {rule}, {other}",
    });
    /** @type {[said: string, wanted: string][]} */
    const cases = [
        [
            "of the always-on stack: '<lora:a:1:mask=x>', at character 16 of the prompt: there is no region 'x'",
            "aus „Immer an“: '<lora:a:1:mask=x>', Zeichen 16: kein Bereich 'x'",
        ],
        [
            "it is a VAE: put it into the folder of VAE and select it there; it has no keys of a LoRA (a, …)",
            "erkannt als VAE: in den VAE-Ordner legen; ohne Schlüssel (a, …)",
        ],
        [
            "a + b: combine=ties is left out, and they add up: up.0: combine=ties takes one rank, and the files have 4, 8; write combine=ties_svd",
            "a + b: ohne ties: up.0 braucht einen Rang (4, 8); ties, ties_svd",
        ],
    ];
    for (const [said, wanted] of cases) assert.equal(translated(said), wanted);
});

test("a text that has no translation keeps its marks", () => {
    speak("ja", {"mark.semicolon": "。", "common.done": "完了"});
    assert.equal(translated("a cat; a dog"), "a cat; a dog");
});

test("a sentence within sentences without end is read a few times", () => {
    speak("de", {"said.noEffectNow": "{name} wirkt nicht: {why}"});
    const said = `${"a has no effect: ".repeat(100)}b`;
    assert.equal(translated(said), `${"a wirkt nicht: ".repeat(5)}${"a has no effect: ".repeat(95)}b`);
});
