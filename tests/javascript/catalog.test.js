// The list of files: javascript/remora/catalog.js.

/** @import {Lora, Loras} from "../../javascript/api.d.ts" */

import assert from "node:assert/strict";
import {test} from "node:test";
import {Api} from "../../javascript/remora/api.js";
import {
    Catalog,
    facets,
    foldersAt,
    foldersOf,
    NO_FILTERS,
    prepareSearch,
    SHOWS,
    SORTS,
    select,
    size,
} from "../../javascript/remora/catalog.js";

/**
 * Make a file, readable and of no family unless something else is said.
 * @param {string} name
 * @param {Partial<Lora>} [more]
 * @returns {Lora}
 */
function lora(name, more = {}) {
    return {
        id: name,
        name,
        alias: name,
        file: name,
        folder: "",
        read: true,
        readable: true,
        reason: "",
        family: null,
        named: null,
        base_model: null,
        kind: "lora",
        rank: [4, 4],
        layers: 1,
        format: "kohya",
        size: 1,
        mtime: 0,
        words: "",
        negative: "",
        groups: [],
        tags: [],
        notes: "",
        alpha: null,
        page: "",
        newer: "",
        rating: 0,
        favourite: false,
        hidden: false,
        strength: null,
        captions: "",
        added: 0,
        used: 0,
        uses: 0,
        picture: "",
        ...more,
    };
}

/**
 * Make what the pictures in the output folders say of a file.
 * @param {string} id
 * @param {number} pictures
 * @param {number} latest
 */
const counted = (id, pictures, latest) => ({id, name: id, pictures, latest, strength: "", strengths: null});

/**
 * Make an answer of the server that tells everything.
 * @param {Lora[]} loras
 * @param {Partial<Loras>} [more]
 * @returns {Loras}
 */
function answer(loras, more = {}) {
    const scan = {running: false, done: 0, total: 0};
    return {revision: 1, whole: true, loras, gone: [], families: {}, scan, problem: "", ...more};
}

/**
 * Make a catalog that has these files.
 * @param {...Lora} loras
 */
function catalogOf(...loras) {
    const catalog = new Catalog(new Api(""));
    catalog.take(answer(loras));
    return catalog;
}

/** @param {{name: string}[]} found */
const names = (found) => found.map((one) => one.name);

test("a catalog has nothing before it has asked", () => {
    const catalog = new Catalog(new Api(""));
    assert.deepEqual(
        [catalog.all, catalog.revision, catalog.version, catalog.loaded, catalog.problem],
        [[], 0, 0, false, ""],
    );
});

test("it asks for the changes since its revision, or has the server look again", async () => {
    /** @type {[method: string, path: string][]} */
    const asked = [];
    const api = new Api("");
    api.send = async (method, path) => {
        asked.push([method, path]);
        return Response.json(answer([lora("a")], {revision: 7}));
    };
    const catalog = new Catalog(api);
    await catalog.update();
    await catalog.update("GET");
    await catalog.update("POST");
    assert.deepEqual(asked, [
        ["GET", "loras?since=0"],
        ["GET", "loras?since=7"],
        ["POST", "refresh"],
    ]);
    assert.deepEqual(names(catalog.all), ["a"]);
});

test("a whole answer replaces everything", () => {
    const catalog = catalogOf(lora("a"), lora("b"));
    const scan = {running: true, done: 1, total: 2};
    const families = {sd1: {name: "sd1", title: "SD 1", fits: true, usable: true, reason: ""}};
    catalog.take(answer([lora("c")], {revision: 5, scan, families, problem: "a disk is full"}));
    assert.deepEqual(names(catalog.all), ["c"]);
    assert.deepEqual(
        [catalog.revision, catalog.scan, catalog.families, catalog.problem, catalog.loaded, catalog.version],
        [5, scan, families, "a disk is full", true, 2],
    );
    catalog.take(answer([]));
    assert.deepEqual([catalog.all, catalog.version], [[], 3]);
});

test("an answer of changes adds, changes and takes away files", () => {
    const catalog = catalogOf(lora("a"), lora("b"));
    catalog.take(answer([lora("c"), lora("a", {words: "fur"})], {whole: false, gone: ["b", "unknown"]}));
    assert.deepEqual(
        catalog.all.map((one) => [one.name, one.words]),
        [
            ["a", "fur"],
            ["c", ""],
        ],
    );
    assert.equal(catalog.named("b"), undefined);
    assert.equal(catalog.version, 2);
});

test("an answer without changes keeps the list and its version", () => {
    const catalog = catalogOf(lora("a"));
    const {all} = catalog;
    catalog.take(answer([], {whole: false, revision: 3, problem: "p"}));
    assert.equal(catalog.all, all);
    assert.deepEqual([catalog.version, catalog.revision, catalog.problem], [1, 3, "p"]);
});

test("one file is taken as the server told of it", () => {
    const catalog = catalogOf(lora("a"), lora("b"));
    catalog.put(lora("a", {rating: 5}));
    assert.equal(catalog.named("a")?.rating, 5);
    assert.deepEqual([catalog.all.length, catalog.revision, catalog.version], [2, 1, 2]);
});

test("a name means a file where one alone has it", () => {
    const catalog = catalogOf(lora("a"), lora("b", {id: "1"}), lora("b", {id: "2"}), lora("b", {id: "3"}));
    assert.equal(catalog.named("a")?.id, "a");
    assert.equal(catalog.named("b"), undefined);
    assert.equal(catalog.named("c"), undefined);
    assert.equal(catalog.byName.get("b")?.length, 3);
});

test("a path means the file with the longest end of it, a shorter one where one file alone has it", () => {
    const files = ["ink", "a/ink", "b/a/ink", "a/fur", "b/old", "c/old"];
    const named = {
        dog: "dog/unet/adapter_model",
        "pytorch lora": "pytorch lora/pytorch_lora_weights",
        a: "a/a",
        owl: "a/owl/unet/adapter_model",
    };
    const catalog = catalogOf(
        ...files.map((file) => lora(file.slice(file.lastIndexOf("/") + 1), {id: file, file})),
        ...Object.entries(named).map(([name, file]) => lora(name, {id: name, file})),
    );
    const cases = {
        "/models/Lora/a/owl/unet/adapter_model.safetensors": "owl",
        "/models/Lora/a/owl/text_encoder/adapter_model.safetensors": undefined,
        "/models/Lora/ink.safetensors": "ink",
        "/models/Lora/a/ink.safetensors": "a/ink",
        "C:\\models\\Lora\\b\\a\\ink.SAFETENSORS": "b/a/ink",
        fur: "a/fur",
        "a/fur": "a/fur",
        "/models/Lora/b/old.safetensors": "b/old",
        old: undefined,
        "/models/Lora/dog/unet/adapter_model.safetensors": "dog",
        "pytorch lora/pytorch_lora_weights": "pytorch lora",
        "/models/Lora/a/a.safetensors": "a",
        "/elsewhere/unet/adapter_model.safetensors": undefined,
        "/elsewhere/fur.safetensors": undefined,
        "/models/Lora/a/thefur.safetensors": undefined,
        "": undefined,
    };
    const found = Object.keys(cases).map((path) => [path, catalog.fileAt(path)?.id]);
    assert.deepEqual(Object.fromEntries(found), cases);
});

test("it is said why a file cannot be used or does not fit", () => {
    const broken = lora("broken", {readable: false, reason: "its header is cut off"});
    const [twin, other] = [lora("twin", {id: "1"}), lora("twin", {id: "2"})];
    const [fits, misfit, unknown] = [
        lora("fits", {family: "sd1"}),
        lora("misfit", {family: "flux"}),
        lora("unknown", {family: "new"}),
    ];
    const catalog = catalogOf(broken, twin, other, fits, misfit, unknown);
    catalog.families = {
        sd1: {name: "sd1", title: "SD 1", fits: true, usable: true, reason: ""},
        flux: {name: "flux", title: "FLUX", fits: false, usable: true, reason: "made for FLUX"},
    };
    assert.equal(catalog.against(broken), "its header is cut off");
    assert.equal(catalog.against(twin), "several files have the name twin; rename all but one to use them");
    assert.equal(catalog.against(misfit), "made for FLUX");
    assert.equal(catalog.against(fits), "");
    assert.equal(catalog.against(unknown), "");
    assert.equal(catalog.against(lora("elsewhere")), "");
    for (const family of ["constructor", "toString", "__proto__"]) {
        assert.equal(catalog.familyOf(lora("odd", {family})), undefined);
        assert.equal(catalog.against(lora("odd", {family})), "");
    }
});

test("a search finds all words in the texts of a file", () => {
    const catalog = catalogOf(
        lora("fox", {file: "animals/fox", words: "Red Fur", captions: "snow", base_model: "sd_v15"}),
        lora("cat", {tags: ["animal", "pet"], notes: "FOXY", kind: "dora", family: "sd1", alias: "tom"}),
    );
    /** @type {[words: string, found: string[]][]} */
    const cases = [
        ["", ["cat", "fox"]],
        ["  FOX ", ["fox", "cat"]],
        ["fox fur", ["fox"]],
        ["animal", ["fox", "cat"]],
        ["pet dora", ["cat"]],
        ["sd_v15", ["fox"]],
        ["snow", ["fox"]],
        ["tom sd1", ["cat"]],
        ["fox dog", []],
    ];
    for (const [words, found] of cases)
        assert.deepEqual(names(select(catalog, words, NO_FILTERS, "name")), found, words);
});

test("the best match of a search comes first: the name, then trigger words, then other text", () => {
    const catalog = catalogOf(
        lora("a", {captions: "a zorp"}),
        lora("b", {captions: "unzorped"}),
        lora("c", {words: "two zorp"}),
        lora("d", {alias: "zorp-v2"}),
        lora("e_bizorp"),
        lora("old.zorp"),
        lora("Zorped"),
        lora("ZORP"),
        lora("nothing"),
    );
    const ranked = ["ZORP", "Zorped", "old.zorp", "e_bizorp", "d", "c", "a", "b"];
    for (const sort of ["name", "path", "added"])
        assert.deepEqual(names(select(catalog, "zorp", NO_FILTERS, sort)), ranked, sort);
    assert.deepEqual(names(select(catalog, "ZORP two", NO_FILTERS, "name")), ["c"]);
});

test("what matches a search equally well is in the chosen order", () => {
    const catalog = catalogOf(
        lora("night_sky", {size: 1}),
        lora("night_owl", {size: 2}),
        lora("knight_owl", {size: 3}),
        lora("owl", {words: "night", size: 4}),
    );
    assert.deepEqual(names(select(catalog, "night", NO_FILTERS, "size")), [
        "night_owl",
        "night_sky",
        "knight_owl",
        "owl",
    ]);
    assert.deepEqual(names(select(catalog, "owl night", NO_FILTERS, "name")), ["night_owl", "knight_owl", "owl"]);
});

test("a file passes the filters if it passes each of them", () => {
    const catalog = catalogOf(
        lora("a", {folder: "x", family: "sd1", kind: "lora", tags: ["t"], rating: 3, favourite: true}),
        lora("b", {folder: "x/y", family: "flux", kind: "dora", rating: 5}),
        lora("c", {folder: "xy", readable: false, reason: "cut off"}),
    );
    /** @type {[filters: Partial<typeof NO_FILTERS>, found: string[]][]} */
    const cases = [
        [{}, ["a", "b", "c"]],
        [{folder: "x"}, ["a", "b"]],
        [{folder: "x/y"}, ["b"]],
        [{family: "sd1"}, ["a"]],
        [{kind: "dora"}, ["b"]],
        [{tag: "t"}, ["a"]],
        [{rating: 3}, ["a", "b"]],
        [{rating: 4}, ["b"]],
        [{favourite: true}, ["a"]],
        [{fits: true}, ["a", "b"]],
        [{folder: "x", kind: "dora", rating: 5}, ["b"]],
        [{folder: "x", tag: "t", rating: 4}, []],
    ];
    for (const [filters, found] of cases) {
        const got = select(catalog, "", {...NO_FILTERS, ...filters}, "name");
        assert.deepEqual(names(got), found, JSON.stringify(filters));
    }
});

test("a filter shows copies, or one file of each group, or what cannot be used; hidden files are shown alone", () => {
    const catalog = catalogOf(
        lora("a"),
        lora("a copy"),
        lora("b"),
        lora("bad", {readable: false, reason: "cut off", newer: "24"}),
        lora("foreign", {family: "wan", named: "FLUX.1"}),
        lora("gone", {hidden: true}),
        lora("hidden copy", {hidden: true}),
    );
    const {version} = catalog;
    catalog.families = {wan: {name: "wan", title: "Wan", fits: false, usable: false, reason: "made for Wan"}};
    const told = {firsts: ["a"], others: ["a copy", "hidden copy"], superseded: ["a copy"]};
    assert.equal(catalog.takeCopies(told), true);
    assert.equal(catalog.takeCopies(told), false, "no news");
    assert.equal(catalog.version, version + 1);
    /** @type {{[show: string]: string[]}} */
    const cases = {
        "": ["a", "a copy", "b", "bad", "foreign"],
        copies: ["a", "a copy"],
        single: ["a", "b", "bad", "foreign"],
        superseded: ["a copy"],
        newer: ["bad"],
        misnamed: ["foreign"],
        unused: ["a", "a copy", "b", "bad", "foreign"],
        unusable: ["bad", "foreign"],
        hidden: ["gone", "hidden copy"],
    };
    assert.deepEqual(Object.keys(cases), Object.keys(SHOWS));
    for (const [show, found] of Object.entries(cases))
        assert.deepEqual(names(select(catalog, "", {...NO_FILTERS, show}, "name")), found, show);
    assert.deepEqual(names(select(catalog, "copy", {...NO_FILTERS, show: "hidden"}, "name")), ["hidden copy"]);
});

test("a newer version is told of until it is here; on some sites it has the page of the older file", () => {
    const olds = [lora("old", {page: "22", newer: "24"}), lora("file", {page: "main", newer: "main"})];
    const shown = (/** @type {Lora[]} */ ...more) =>
        names(select(catalogOf(...olds, ...more), "", {...NO_FILTERS, show: "newer"}, "name"));
    assert.deepEqual(shown(), ["file", "old"]);
    assert.deepEqual(shown(lora("new", {page: "24", newer: "26"})), ["file", "new"]);
    assert.deepEqual(shown(lora("new", {page: "24"}), lora("file-2", {page: "main"})), []);
});

test("a file was not used for six months if it is older, and neither a picture nor its date says otherwise", () => {
    const now = Date.now() / 1000;
    const [old, lately] = [now - 200 * 86400, now - 100 * 86400];
    const catalog = catalogOf(
        lora("never", {added: old, mtime: old}),
        lora("copied with its date", {added: lately, mtime: old}),
        lora("new", {added: lately, mtime: lately}),
        lora("used", {added: old, mtime: old, used: lately}),
        lora("pictured", {added: old, mtime: old, used: old}),
    );
    catalog.takePictures([counted("pictured", 3, lately)]);
    assert.deepEqual(names(select(catalog, "", {...NO_FILTERS, show: "unused"}, "name")), [
        "copied with its date",
        "never",
    ]);
    assert.deepEqual(names(select(catalog, "", NO_FILTERS, "uses"))[0], "pictured");
});

test("files whose pictures have the words come last, if that is asked for", () => {
    const catalog = catalogOf(lora("rain"), lora("fur"), lora("other"));
    const found = (/** @type {string} */ words, prompts = true) =>
        names(select(catalog, words, {...NO_FILTERS, prompts}, "name"));
    assert.deepEqual(found("rain"), ["rain"]);
    catalog.takePrompted("rain", [counted("fur", 1, 0)]);
    assert.deepEqual(found(" rain "), ["rain", "fur"]);
    assert.deepEqual(found("rain", false), ["rain"]);
    assert.deepEqual(found("rain fox"), [], "the answer is of other words");
});

test("files are sorted in every order, and by name where they are alike", () => {
    const catalog = catalogOf(
        lora("file10", {added: 1, mtime: 5, used: 2, uses: 1, rating: 2, favourite: true, size: 10, file: "a/file10"}),
        lora("File9", {added: 1, mtime: 6, used: 1, uses: 1, rating: 2, size: 10, file: "b/File9"}),
        lora("b", {added: 2, used: 2, uses: 3, rating: 5, size: 9, file: "c"}),
        lora("a", {added: 1, mtime: 5, used: 2, uses: 1, rating: 2, size: 10, file: "d"}),
    );
    /** @type {{[sort: string]: string[]}} */
    const wanted = {
        name: ["a", "b", "File9", "file10"],
        added: ["b", "File9", "a", "file10"],
        used: ["a", "b", "file10", "File9"],
        uses: ["b", "a", "File9", "file10"],
        rating: ["b", "file10", "a", "File9"],
        size: ["a", "File9", "file10", "b"],
        path: ["file10", "File9", "b", "a"],
        unknown: ["a", "b", "File9", "file10"],
    };
    for (const sort of [...Object.keys(SORTS), "unknown"]) {
        assert.deepEqual(names(select(catalog, "", NO_FILTERS, sort)), wanted[sort], sort);
    }
});

test("of files with one rating the favourites come first, whichever came first", () => {
    const [liked, other, best] = [lora("b", {favourite: true}), lora("a"), lora("c", {favourite: true})];
    for (const order of [
        [liked, other, best],
        [best, other, liked],
        [other, best, liked],
    ]) {
        assert.deepEqual(names(select(catalogOf(...order), "", NO_FILTERS, "rating")), ["b", "c", "a"]);
    }
});

test("a sorted list is kept until files or the order change", () => {
    const catalog = catalogOf(lora("b"), lora("a"));
    assert.deepEqual(names(select(catalog, "", NO_FILTERS, "name")), ["a", "b"]);
    catalog.all.push(...catalogOf(lora("0")).all); // no new version: the kept list is shown
    assert.deepEqual(names(select(catalog, "", NO_FILTERS, "name")), ["a", "b"]);
    assert.deepEqual(names(select(catalog, "", NO_FILTERS, "path")), ["0", "a", "b"]);
    catalog.put(lora("c"));
    assert.deepEqual(names(select(catalog, "", NO_FILTERS, "path")), ["a", "b", "c"]);
});

test("values to filter by are counted, folders with everything below them", () => {
    const catalog = catalogOf(
        lora("a", {folder: "x/y", family: "sd1", tags: ["t", "u", "s"]}),
        lora("b", {folder: "x", family: "sd1", kind: "dora", tags: ["u"]}),
        lora("c", {kind: ""}),
    );
    assert.deepEqual(foldersOf(catalog), [
        ["x", 2],
        ["x/y", 1],
    ]);
    assert.deepEqual(facets(catalog), {
        families: [["sd1", 2]],
        kinds: [
            ["dora", 1],
            ["lora", 1],
        ],
        tags: [
            ["u", 2],
            ["s", 1],
            ["t", 1],
        ],
    });
});

test("of many tags the three hundred most frequent are there to filter by", () => {
    const tags = Array.from({length: 301}, (_, at) => `t${at}`);
    const found = facets(catalogOf(lora("a", {tags}), lora("b", {tags: ["t300"]}))).tags;
    assert.equal(found.length, 300);
    assert.deepEqual(found.slice(0, 3), [
        ["t300", 2],
        ["t0", 1],
        ["t1", 1],
    ]);
    assert.deepEqual(found.at(-1), ["t298", 1]);
});

test("sizes are written for people", () => {
    /** @type {[bytes: number, wanted: string][]} */
    const cases = [
        [0, "0 B"],
        [1023, "1023 B"],
        [1024, "1 KB"],
        [1536, "2 KB"],
        [1024 ** 2, "1 MB"],
        [144 * 1024 ** 2, "144 MB"],
        [1024 ** 3, "1.0 GB"],
        [2.25 * 1024 ** 3, "2.3 GB"],
    ];
    for (const [bytes, wanted] of cases) assert.equal(size(bytes), wanted);
});

test("folders are walked one level at a time", () => {
    /** @type {[string, number][]} */
    const folders = [
        ["art", 3],
        ["art/ink", 2],
        ["art/ink/old", 1],
        ["art2", 1],
    ];
    assert.deepEqual(foldersAt(folders, ""), {
        around: [],
        inside: [
            ["art", 3],
            ["art2", 1],
        ],
    });
    assert.deepEqual(foldersAt(folders, "art"), {around: ["art"], inside: [["art/ink", 2]]});
    assert.deepEqual(foldersAt(folders, "art/ink/old"), {around: ["art", "art/ink", "art/ink/old"], inside: []});
});

test("the text of a file that searches look through is made once, by the first search", () => {
    const catalog = new Catalog(new Api(""));
    let read = 0;
    const captions = () => {
        read += 1;
        return "Red Fur";
    };
    const counted = Object.defineProperty(lora("fox"), "captions", {get: captions});
    catalog.take(answer([counted]));
    assert.equal(read, 0, "ten thousand texts take a third of the time in which the page opens");
    for (const [words, found] of /** @type {const} */ ([
        ["red fur", 1],
        ["fox", 1],
        ["blue", 0],
    ]))
        assert.equal(select(catalog, words, NO_FILTERS, "name").length, found);
    assert.equal(read, 1);
});

test("what searches look through is made before the first key, in many tasks", async () => {
    const catalog = new Catalog(new Api(""));
    let read = 0;
    const captions = () => {
        read += 1;
        return "Red Fur";
    };
    const files = [...Array(2500).keys()].map((at) =>
        Object.defineProperty(lora(`${at}`), "captions", {get: captions}),
    );
    catalog.take(answer(files));
    const prepared = prepareSearch(catalog);
    assert.ok(read < files.length / 2, "a key in between waits for a part only");
    await prepared;
    assert.equal(read, files.length);
    assert.equal(select(catalog, "fur", NO_FILTERS, "name").length, files.length);
    assert.equal(read, files.length);
});
