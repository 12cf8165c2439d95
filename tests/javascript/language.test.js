// Which language the tab speaks: javascript/remora/language.js.

import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {test} from "node:test";
import {chosenOf, wanted} from "../../javascript/remora/language.js";

const LANGUAGES = {en: "English", de: "Deutsch", ja: "日本語", "zh-CN": "简体中文"};

test("the web UI's setting counts; without one the user's choice, then the browser's languages", () => {
    const browser = ["ja-JP", "en"];
    /** @type {[settings: {[name: string]: unknown} | null, chosen: string, names: readonly string[] | null][]} */
    const cases = [
        [null, "", browser],
        [null, "de", ["de"]],
        [{}, "de", null],
        [{localization: "zh_CN"}, "de", ["zh_CN"]],
        [{localization: "None"}, "de", ["en"]],
        [
            {
                localization: "None",
                bilingual_localization_enabled: true,
                bilingual_localization_file: "zh-Hans (Stable)",
            },
            "",
            ["zh-Hans (Stable)"],
        ],
        [{localization: "None", bilingual_localization_enabled: false, bilingual_localization_file: "x"}, "", ["en"]],
        [{ui_locale: "Auto"}, "", browser],
        [{ui_locale: "zh: Chinese"}, "", ["zh"]],
        [{ui_locale: "de"}, "", ["de"]],
        [{another: 1}, "de", ["en"]],
    ];
    for (const [settings, chosen, names] of cases) assert.deepEqual(wanted(settings, chosen, browser), names);
});

test("a language is found by its tag and script, by its own name and by its English name", () => {
    /** @type {[names: string[], tag: string][]} */
    const cases = [
        [["zh_CN"], "zh-CN"],
        [["zh"], "zh-CN"],
        [["zh-Hans (Stable)"], "zh-CN"],
        [["zh-SG"], "zh-CN"],
        [["zh-TW"], "en"],
        [["zh_Hant"], "en"],
        [["简体中文 (2024)"], "zh-CN"],
        [["Chinese-All-0313"], "zh-CN"],
        [["German"], "de"],
        [["ja_JP"], "ja"],
        [["de-AT", "en"], "de"],
        [["fr-FR", "de"], "de"],
        [["en-GB", "de"], "en"],
        [["fr_FR"], "en"],
        [["de-DE-DE"], "en"],
        [["my own file"], "en"],
        [[], "en"],
    ];
    for (const [names, tag] of cases) assert.equal(chosenOf(names, LANGUAGES), tag, names.join());
});

test("a table of strings has each key once: JSON takes the last of several", () => {
    for (const language of ["de", "ja", "zh-CN"]) {
        const text = readFileSync(`javascript/remora/languages/${language}.json`, "utf-8");
        const keys = [...text.matchAll(/^ {4}"([^"]+)":/gm)].map((match) => match[1]);
        assert.ok(keys.length > 500);
        assert.deepEqual(
            keys.filter((key, at) => keys.indexOf(key) !== at),
            [],
            language,
        );
    }
});
