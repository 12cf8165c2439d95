// What may come next where the user types in a prompt: javascript/remora/completion.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {Api} from "../../javascript/remora/api.js";
import {Catalog} from "../../javascript/remora/catalog.js";
import {FIELDS, Names, suggestions, VALUES} from "../../javascript/remora/completion.js";
import {KEYS, readBody} from "../../javascript/remora/tag.js";
import {listOf, lora} from "./page.js";

const FAMILIES = {
    sd1: {name: "sd1", title: "SD 1", fits: true, usable: true, reason: ""},
    flux: {name: "flux", title: "Flux", fits: false, usable: true, reason: "made for Flux"},
};
const BLOCKS = {
    ...{blocks: [], layouts: [{length: 2, ids: ["IN00", "OUT00"]}], rules: ["ATTNDEEPOFF"], problem: ""},
    about_rules: {ATTNDEEPOFF: "attention of deep blocks off"},
    presets: [
        {name: "OUTALL", values: "0,1", own: false},
        {name: "INALL", values: "1,0", own: false},
        {name: "OTHER", values: "1,0,1", own: false},
    ],
};
const REGIONS = ["left", "right", "left third"].map((name) => ({name, own: false, share: 0.5, picture: "x"}));

/**
 * Make what a page knows, of some files.
 * @param {any[]} loras
 * @param {object} [more]
 * @returns {any}
 */
function sources(loras, more = {}) {
    const catalog = new Catalog(new Api(""));
    catalog.take(/** @type {any} */ (listOf(loras, {families: FAMILIES})));
    const loraOf = (/** @type {string} */ name) => catalog.named(name);
    return {names: new Names(catalog), standard: 1, blocks: BLOCKS, regions: REGIONS, loraOf, ...more};
}

/**
 * Return what is suggested where a prompt has `|`, and the prompt that each makes.
 * @param {string} marked
 * @param {any} known
 */
function at(marked, known) {
    const caret = marked.indexOf("|");
    const text = marked.replace("|", "");
    const found = suggestions(text, caret, known);
    const list = found?.list ?? [];
    const made = list.map((one) => text.slice(0, one.start) + one.text + text.slice(one.end));
    return {kind: found?.kind, list, labels: list.map(({label}) => label), made};
}

const FILES = [
    lora("ink_style", {words: "ink wash, brush", strength: 0.7, uses: 2}),
    lora("old_ink", {family: "sd1"}),
    lora("pinkish"),
    lora("watercolour", {words: "ink splash"}),
    lora("ink_flux", {family: "flux"}),
    lora("i-n-k"),
    lora("neon"),
];

test("names: a beginning before a middle, names before words, then letters in their order; what fits first", () => {
    const {kind, labels} = at("a fox <lora:ink|", sources(FILES));
    assert.equal(kind, "name");
    assert.deepEqual(labels, ["ink_style", "old_ink", "pinkish", "watercolour", "i-n-k", "ink_flux"]);
    assert.deepEqual(at("<lora:ink_flux|", sources(FILES)).labels[0], "ink_flux", "its whole name");
    assert.deepEqual(at("<lora:style ink|", sources(FILES)).labels, ["ink_style"], "words in any order");
    assert.deepEqual(at("<lora:inkst|", sources(FILES)).labels, ["ink_style"]);
    assert.deepEqual(at("<lora:xyz|", sources(FILES)).labels, []);
});

test("names that match equally well: the most used first, then the latest, then the favourites", () => {
    const files = [
        lora("ink a"),
        lora("ink b", {favourite: true}),
        lora("ink c", {used: 5}),
        lora("ink d", {uses: 1}),
        lora("ink e", {uses: 3, readable: false}),
    ];
    const wanted = ["ink d", "ink c", "ink b", "ink a"];
    assert.deepEqual(at("<lora:ink|", sources(files)).labels, wanted);
    assert.deepEqual(at("<lora:|", sources(files)).labels, wanted, "nothing is typed yet");
});

test("a changed catalog is read again, and only then", () => {
    const known = sources(FILES);
    const before = known.names.read();
    assert.equal(known.names.read(), before);
    known.names.catalog.put(lora("inkling", {uses: 9}));
    assert.equal(at("<lora:ink|", known).labels[0], "inkling");
});

test("a name becomes a tag with the preferred strength, or the web UI's", () => {
    const known = sources(FILES, {standard: 0.9});
    assert.equal(at("a <lora:ink_s|", known).made[0], "a <lora:ink_style:0.7>");
    assert.equal(at("<lora:neo|", known).made[0], "<lora:neon:0.9>");
    assert.equal(at("<lyco: neo| b", known).made[0], "<lyco:neon:0.9> b", "the kind stays, what follows too");
    assert.equal(at("<lora:neo|>", known).made[0], "<lora:neon:0.9>");
    assert.equal(at("<lora:ne|on:0.5>", known).made[0], "<lora:neon:0.5>", "fields stay");
    assert.equal(at("\uFF1Clora\uFF1Aneo|", known).made[0], "<lora:neon:0.9>", "marks of an input method");
    assert.equal(at("<lora:neo| <lora:b:1>", known).made[0], "<lora:neon:0.9> <lora:b:1>");
    assert.equal(at("<lora:a\\:b|", sources([lora("a:b")])).made[0], "<lora:a\\:b:1>");
    assert.equal(at("<lora:odd|", sources([lora("odd<x>")])).made[0], undefined, "no tag can name it");
});

test("what is shown of a name: words, strength, and why a file does not fit", () => {
    const [ink, , , , , other] = at("<lora:ink|", sources(FILES)).list;
    assert.deepEqual([ink.hint, ink.strength, ink.against], ["ink wash, brush", 0.7, ""]);
    assert.deepEqual([other.hint, other.strength, other.against], ["made for Flux", null, "made for Flux"]);
});

test("behind the name: strengths, then the fields that the tag may have", () => {
    const known = sources(FILES);
    const {kind, labels, made, list} = at("<lora:ink_style:|>", known);
    assert.equal(kind, "field");
    assert.deepEqual(labels.slice(0, 7), ["0.7", "1", "0.8", "0.6", "0.4", "lbw=", "mask="]);
    assert.equal(list[0].hint, "preferred strength");
    assert.equal(made[0], "<lora:ink_style:0.7>");
    for (const key of ["feather=", "outside=", "part=", "x=", "by=", "curve=", "density=", "seed="])
        assert.ok(!labels.includes(key), key);
    assert.deepEqual(at("<lora:a:1:fea|:mask=left>", known).labels, ["feather="]);
    assert.deepEqual(at("<lora:a:0@0,1@1:c|>", known).labels, ["curve=", "combine="]);
    assert.deepEqual(at("<lora:a:1:combine=t|>", known).made[0], "<lora:a:1:combine=ties>");
    assert.deepEqual(at("<lora:a:1:mask=left:ma|", known).labels, [], "it has one already");
    assert.deepEqual(at("<lora:a:1:w=OUTALL:lb|", known).labels, ["lbwe="], "w= is lbw=");
    assert.deepEqual(at("<lora:a:high:l|", known).labels, ["lbw=", "lbwe=", "mask=left", "mask=left third"]);
    assert.deepEqual(at("<lora:a:0.|", known).labels, ["0.8", "0.6", "0.4"]);
    assert.deepEqual(at("<lora:a:0.6|", known).labels, [], "nothing is left to type");
});

test("names of presets, regions and rules stand for their fields", () => {
    const known = sources(FILES);
    assert.deepEqual(at("<lora:a:1:outa|", known).made, ["<lora:a:1:lbw=OUTALL"]);
    assert.deepEqual(at("<lora:a:1:right|>", known).made, ["<lora:a:1:mask=right>"]);
    assert.deepEqual(at("<lora:a:1:attn|", known).labels, ["lbwe=ATTNDEEPOFF"]);
    assert.deepEqual(at("<lora:a:1:right|", sources(FILES, {blocks: null, regions: null})).labels, []);
});

test("values: presets that fit the model, regions, rules, and usual ones", () => {
    const known = sources(FILES);
    assert.deepEqual(at("<lora:a:1:lbw=|", known).labels, ["OUTALL", "INALL"]);
    assert.deepEqual(at("<lora:a:1:lbw=all|", known).labels, ["OUTALL", "INALL"]);
    assert.equal(at("<lora:a:1:lbw=|", known).list[0].hint, "0,1");
    assert.deepEqual(at("<lora:a:1:lbwe=a|", known).list[0].hint, "attention of deep blocks off");
    assert.deepEqual(at("<lora:a:1:mask=le|:feather=0.1>", known).made, [
        "<lora:a:1:mask=left:feather=0.1>",
        "<lora:a:1:mask=left third:feather=0.1>",
    ]);
    assert.deepEqual(at("<lora:a:1:mask=left+!ri|", known).made, ["<lora:a:1:mask=left+!right"]);
    assert.deepEqual(at("<lora:a:1:mask=le|+right>", known).made[0], "<lora:a:1:mask=left+right>");
    assert.deepEqual(at("<lora:a:1:pass=base,h|", known).made, ["<lora:a:1:pass=base,hires"]);
    assert.deepEqual(at("<lora:a:1:end=0.4|", known).labels, []);
    assert.deepEqual(at("<lora:a:1:nothing=|", known).labels, []);
    const unknown = sources(FILES, {blocks: null, regions: null});
    assert.deepEqual([at("<lora:a:1:lbw=|", unknown).labels, at("<lora:a:1:mask=|", unknown).labels], [[], []]);
});

test("every key of a tag has a description, and every usual value can be read", () => {
    assert.deepEqual(Object.keys(FIELDS).sort(), [...KEYS].sort());
    for (const [key, values] of VALUES) {
        for (const value of values) {
            const around = ["by", "curve"].includes(key) ? "0@0,1@1" : "1";
            const mask = ["feather", "outside", "part"].includes(key) ? ":mask=left" : "";
            const rule = key === "density" ? ":combine=ties" : "";
            const {problem} = readBody(`a:${around}${mask}${rule}:${key}=${value}`);
            assert.equal(problem, "", `${key}=${value}`);
        }
    }
});

test("words: what the LoRA of the prompt need and the prompt lacks", () => {
    const known = sources(FILES);
    assert.deepEqual(at("<lora:ink_style:1> a br|", known).made, ["<lora:ink_style:1> a brush"]);
    assert.deepEqual(at("<lora:ink_style:1> a big IN|, b", known).made, ["<lora:ink_style:1> a big ink wash, b"]);
    assert.deepEqual(at("<lora:ink_style:1> ink wa|", known).made, ["<lora:ink_style:1> ink wash"]);
    assert.deepEqual(at("<lora:ink_style:1> was|", known).made, ["<lora:ink_style:1> ink wash"], "a later word of it");
    assert.equal(at("<lora:ink_style:1> br|", known).list[0].hint, "trigger words of ink_style");
    for (const none of [
        "a br|", // no LoRA
        "<lora:ink_style:1> brush, br|", // the prompt has it
        "<lora:ink_style:1> brush|",
        "<lora:ink_style:1> b|", // one letter says nothing
        "<lora:ink_style:1> br|x",
        "<lora:ink_style:1> <br|",
        "<lora:ink_style:1> |",
        "<lora:unknown:1> br|",
    ])
        assert.deepEqual(at(none, known).labels, [], none);
    assert.deepEqual(at("<lora:a:1> 水|", sources([lora("a", {words: "水墨"})])).labels, ["水墨"]);
});

test("words of several LoRA, each once, the ones that begin so first", () => {
    const known = sources([lora("a", {words: "red ink, inky"}), lora("b", {words: "inky, <lora:c:1> inks"})]);
    assert.deepEqual(at("<lora:a:1> <lora:b:1> in|", known).labels, ["inky", "inks", "red ink"]);
});

test("ten thousand files are searched in a few milliseconds", () => {
    const parts = ["style", "ink", "of", "night", "portrait", "v2", "anime", "detail", "slider", "xl"];
    const name = (/** @type {number} */ at) => [at, at * 7, at * 13].map((one) => parts[one % 10]).join("_") + at;
    const files = Array.from({length: 10_000}, (_, at) =>
        lora(name(at), {words: `word${at} ${parts[at % 7]}`, uses: at % 5, family: at % 3 ? "sd1" : "flux"}),
    );
    const known = sources(files);
    known.names.read();
    const typed = ["", "n", "ni", "nig", "night_", "night po", "nghtprt", "zzzz", "word99"];
    const search = () => {
        for (const text of typed) at(`a fox <lora:${text}|`, known);
    };
    search(); // compiled by then
    const begun = process.cpuUsage();
    for (let again = 0; again < 5; again += 1) search();
    const {user} = process.cpuUsage(begun);
    const each = user / 1000 / 5 / typed.length;
    assert.ok(each < 16, `${each} milliseconds of a key`);
});
