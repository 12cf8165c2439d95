// The page's prompt boxes: javascript/remora/boxes.js, on a document that is made here.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {
    boxes,
    copy,
    find,
    insert,
    isPrompt,
    pagePart,
    press,
    seedOf,
    settings,
    shownPicture,
    textAt,
    write,
    writeSettings,
} from "../../javascript/remora/boxes.js";

const BEFORE = Object.getOwnPropertyDescriptors(globalThis);

afterEach(() => {
    for (const name of ["document", "window", "navigator"]) {
        Reflect.deleteProperty(globalThis, name);
        if (BEFORE[name]) Object.defineProperty(globalThis, name, BEFORE[name]);
    }
});

/** A box of the page that records its changes. */
class Box extends EventTarget {
    /** @param {string} value */
    constructor(value = "") {
        super();
        this.value = value;
        /** @type {unknown[][]} */
        this.ranges = [];
        /** @type {Event[]} */
        this.events = [];
        this.addEventListener("input", (event) => this.events.push(event));
    }

    /** @type {(text: string, start: number, end: number, mode: string) => void} */
    setRangeText(text, start, end, mode) {
        this.ranges.push([text, start, end, mode]);
        this.value = this.value.slice(0, start) + text + this.value.slice(end);
    }
}

/**
 * Make a box as the code takes it.
 * @param {Box} box
 */
const asBox = (box) => /** @type {HTMLTextAreaElement} */ (/** @type {unknown} */ (box));

/**
 * Put things into the place of the page.
 * @param {object} document
 * @param {object} [more]
 */
function page(document, more = {}) {
    for (const [name, value] of Object.entries({document, window: {}, navigator: {}, ...more})) {
        Object.defineProperty(globalThis, name, {value, configurable: true});
    }
}

/**
 * Make a document that has these elements by their selectors.
 * @param {{[selector: string]: object}} elements
 */
const withElements = (elements) => page({querySelector: (/** @type {string} */ one) => elements[one] ?? null});

test("a text is put in as if it were typed, or directly where the browser refuses that", () => {
    for (const isDone of [true, false]) {
        const box = Object.assign(new Box("a <lo b"), {
            setSelectionRange: (/** @type {number[]} */ ...at) => done.push(at),
        });
        /** @type {unknown[]} */
        const done = [];
        page({execCommand: (/** @type {unknown[]} */ ...what) => done.push(what) && isDone});
        insert(asBox(box), 2, 5, "<lora:x:1>");
        assert.deepEqual(done, [
            [2, 5],
            ["insertText", false, "<lora:x:1>"],
        ]);
        assert.deepEqual(box.ranges, isDone ? [] : [["<lora:x:1>", 2, 5, "end"]]);
        assert.deepEqual(box.events.length, isDone ? 0 : 1);
    }
});

test("the boxes of prompts are known, in every web UI", () => {
    const of = (/** @type {string} */ id) =>
        /** @type {any} */ ({matches: (/** @type {string} */ all) => all.split(", ").includes(`#${id} textarea`)});
    for (const id of ["txt2img_prompt", "img2img_neg_prompt", "control_prompt", "prompt", "negative"])
        assert.ok(isPrompt(of(id)), id);
    assert.ok(!isPrompt(of("infotext")));
});

test("boxes are found where web UIs have them, in their order", () => {
    const [first, negative, other] = [new Box(), new Box(), new Box()];
    withElements({
        "#prompt textarea": other,
        "#txt2img_prompt textarea": first,
        "#txt2img_neg_prompt textarea": negative,
        "#img2img_neg_prompt textarea": new Box(),
    });
    assert.deepEqual(boxes(), [
        {name: "txt2img", box: first, negative},
        {name: "prompt", box: other, negative: null},
    ]);
    assert.equal(find("prompt")?.box, other);
    assert.equal(find("img2img"), undefined);
});

test("only the difference is written, and the page hears of it", () => {
    const box = new Box("a fox, night");
    write(asBox(box), "a red fox, night");
    assert.equal(box.value, "a red fox, night");
    assert.deepEqual(box.ranges, [["red ", 2, 2, "preserve"]]);
    assert.deepEqual(
        box.events.map(({type, bubbles}) => [type, bubbles]),
        [["input", true]],
    );
    write(asBox(box), "a cat, night");
    assert.deepEqual(box.ranges[1], ["cat", 2, 9, "preserve"]);
});

test("nothing is written where nothing differs, or where there is no box", () => {
    const box = new Box("a fox");
    write(asBox(box), "a fox");
    write(null, "a fox");
    assert.deepEqual([box.ranges, box.events], [[], []]);
});

/**
 * Make a control with inputs by their selectors.
 * @param {{[selector: string]: {type: string, value: string}}} inputs
 */
const control = (inputs) => ({querySelector: (/** @type {string} */ selector) => inputs[selector] ?? null});

test("settings are read from the controls that are there", () => {
    /** @type {{[id: string]: object}} */
    const controls = {
        txt2img_steps: control({
            "input[type=number]": {type: "number", value: "30"},
            input: {type: "range", value: "31"},
        }),
        txt2img_cfg_scale: control({"input[type=number]": {type: "number", value: "6.5"}}),
        txt2img_width: control({"input[type=number]": {type: "number", value: ""}}),
        txt2img_height: control({}),
        txt2img_sampling: control({input: {type: "text", value: "Euler a"}}),
        steps: control({input: {type: "number", value: "8"}}),
        cfg: control({input: {type: "number", value: "4"}}),
    };
    page({getElementById: (/** @type {string} */ id) => controls[id] ?? null});
    assert.deepEqual(settings("txt2img"), {steps: 30, cfg_scale: 6.5, sampler: "Euler a"});
    assert.deepEqual(settings("prompt"), {steps: 8, cfg_scale: 4});
    assert.deepEqual(settings("unknown"), {steps: 8, cfg_scale: 4});
    assert.deepEqual(settings("control"), {});
});

test("the picture that is shown is the last large one", async () => {
    const [small, shown] = [
        {naturalWidth: 32, complete: true},
        {naturalWidth: 0, complete: false, src: "/out of sight"},
    ];
    /** @type {{[selector: string]: object[]}} */
    const images = {
        "#txt2img_gallery img": [{naturalWidth: 512, complete: true}, shown],
        "#img2img_gallery img": [small],
    };
    const blob = new Blob(["x"]);
    /** @type {any[][]} */
    const drawn = [];
    const canvas = {
        width: 0,
        height: 0,
        getContext: () => ({drawImage: (/** @type {any[]} */ ...given) => drawn.push(given)}),
        toBlob: (/** @type {(blob: Blob) => void} */ take, /** @type {string} */ type) =>
            take(type === "image/png" ? blob : new Blob()),
    };
    page({
        querySelectorAll: (/** @type {string} */ one) => images[one] ?? [],
        createElement: () => canvas,
    });
    class Picture {
        naturalWidth = 640;
        naturalHeight = 480;
        decode = async () => {};
    }
    Object.assign(globalThis, {Image: Picture});
    assert.equal(await shownPicture(), blob);
    assert.deepEqual([canvas.width, canvas.height], [640, 480]);
    assert.deepEqual(
        drawn.map(([{src}, ...place]) => [src, ...place]),
        [["/out of sight", 0, 0]],
    );
    class Gone {
        decode = () => Promise.reject(new Error("no such file"));
    }
    Object.assign(globalThis, {Image: Gone});
    assert.equal(await shownPicture(), null);
});

test("a page without a large picture shows none", async () => {
    page({querySelectorAll: () => [{naturalWidth: 16, complete: true}]});
    assert.equal(await shownPicture(), null);
});

/**
 * Make a page that copies the old way; the clipboard is not used.
 * @param {object} former the element with the focus
 * @param {object} more of the page
 */
function copying(former, more = {}) {
    /** @type {string[]} */
    const steps = [];
    const area = {
        value: "",
        setAttribute: (/** @type {string} */ name, /** @type {string} */ value) => steps.push(`${name}=${value}`),
        select: () => steps.push(`select ${area.value}`),
        remove: () => steps.push("remove"),
    };
    const place = (/** @type {string} */ name) => ({
        append: (/** @type {object} */ one) => steps.push(`${name} ${one === area}`),
    });
    page(
        {
            activeElement: former,
            body: place("body"),
            createElement: (/** @type {string} */ name) => (name === "textarea" ? area : null),
            execCommand: (/** @type {string} */ name) => name === "copy",
        },
        more,
    );
    return {steps, dialog: place("dialog")};
}

test("a text is copied by the clipboard where the page may use it", async () => {
    /** @type {string[]} */
    const written = [];
    const navigator = {clipboard: {writeText: async (/** @type {string} */ text) => written.push(text)}};
    const {steps} = copying({}, {navigator, window: {isSecureContext: true}});
    assert.equal(await copy("<lora:a:1>"), true);
    assert.deepEqual([written, steps], [["<lora:a:1>"], []]);
});

test("a text is copied the old way where the clipboard refuses", async () => {
    const navigator = {
        clipboard: {
            writeText: async () => {
                throw new Error("not allowed");
            },
        },
    };
    const {steps} = copying({closest: () => null, focus: () => {}}, {navigator, window: {isSecureContext: true}});
    assert.equal(await copy("x"), true);
    assert.deepEqual(steps, [
        "style=position: fixed; left: -100vw; top: 0",
        "aria-hidden=true",
        "body true",
        "select x",
        "remove",
    ]);
});

test("the old way is taken on pages that are not secure, within the dialog that has the focus", async () => {
    let focused = 0;
    const former = {
        /** @type {(selector: string) => object | null} */
        closest: () => null,
        focus: () => {
            focused += 1;
        },
    };
    const {steps, dialog} = copying(former, {navigator: {clipboard: {}}, window: {isSecureContext: false}});
    former.closest = (selector) => (selector === "dialog" ? dialog : null);
    assert.equal(await copy("x"), true);
    assert.deepEqual(steps, [
        "style=position: fixed; left: -100vw; top: 0",
        "aria-hidden=true",
        "dialog true",
        "select x",
        "remove",
    ]);
    assert.equal(focused, 1);
});

test("the dialog of the tab is found within its shadow root", async () => {
    const former = {
        closest: (/** @type {string} */ selector) => (selector === "dialog" ? dialog : null),
        focus: () => {},
    };
    const {steps, dialog} = copying({closest: () => null, shadowRoot: {activeElement: former}});
    assert.equal(await copy("x"), true);
    assert.equal(steps[2], "dialog true");
});

test("a browser that copies nothing is told of, also where nothing has the focus", async () => {
    const {steps} = copying({});
    Object.assign(document, {activeElement: null, execCommand: () => false});
    assert.equal(await copy("x"), false);
    assert.equal(steps.at(-1), "remove");
});

test("numbers are written into the controls that the page has, and the others are told", () => {
    const [steps, cfg] = [new Box("20"), new Box("7")];
    const changes = /** @type {string[]} */ ([]);
    for (const box of [steps, cfg]) box.addEventListener("change", () => changes.push(box.value));
    /** @type {{[id: string]: object}} */
    const roots = {txt2img_steps: {querySelector: () => steps}, txt2img_cfg_scale: {querySelector: () => cfg}};
    page({getElementById: (/** @type {string} */ id) => roots[id] ?? null});
    assert.deepEqual(writeSettings("txt2img", {steps: 4, cfg_scale: 1.5}), []);
    assert.deepEqual([steps.value, cfg.value, changes], ["4", "1.5", ["4", "1.5"]]);
    assert.deepEqual([steps.events.length, cfg.events.length], [1, 1]);
    assert.deepEqual(writeSettings("img2img", {steps: 4}), ["steps"]);
});

/**
 * Make an element as a web UI has one: its children are found by the classes that the tab asks for.
 * @param {{[field: string]: unknown}} fields
 */
const element = (fields) => ({
    ...{style: {display: ""}, disabled: false, textContent: "", clicks: 0, querySelector: () => null},
    ...{querySelectorAll: () => [], getClientRects: () => []},
    click() {
        this.clicks += 1;
    },
    ...fields,
});

/**
 * Make a gallery of A1111's: a picture in full, and its thumbnails, of which one may be chosen.
 * @param {number} count
 * @param {number} chosen
 */
function gallery(count, chosen) {
    const thumbnails = Array.from({length: count}, (_, at) => ({
        closest: () => ({}),
        matches: () => at === chosen,
        img: {src: `picture-${at}`},
    }));
    const found = (/** @type {string} */ selector) =>
        selector === "img" ? thumbnails[0]?.img : thumbnails.find((one) => one.matches())?.img;
    return element({
        querySelector: (/** @type {string} */ selector) => found(selector) ?? null,
        querySelectorAll: () => thumbnails,
    });
}

const SEEDS = JSON.stringify({infotexts: ["a\nSteps: 2, Seed: 11, Size: 8x8", "b\nSteps: 2, Seed: 12, Size: 8x8"]});

/**
 * Show a page of A1111's family with these pictures.
 * @param {object} gallery
 * @param {{[selector: string]: object}} texts
 * @param {{[id: string]: object}} [more]
 */
function a1111(gallery, texts, more = {}) {
    /** @type {{[id: string]: any}} */
    const ids = {
        txt2img_generate: element({childNodes: [{nodeName: "#text", textContent: " Generate "}]}),
        txt2img_interrupt: element({}),
        txt2img_gallery: gallery,
        ...more,
    };
    const field = {blur: () => {}, focus: () => {}, shadowRoot: null};
    page({
        activeElement: field,
        getElementById: (/** @type {string} */ id) => ids[id] ?? null,
        querySelector: (/** @type {string} */ selector) => texts[selector] ?? null,
    });
    return ids;
}

test("the button, the picture that is chosen and its seed are found where A1111's family has them", () => {
    const texts = {
        "#generation_info_txt2img textarea": {value: SEEDS},
        "#html_info_txt2img": {textContent: "Seed: 99"},
    };
    a1111(gallery(2, 1), texts);
    const shown = {possible: true, visible: false, label: "Generate", busy: false, picture: "picture-1", seed: 12};
    assert.deepEqual(pagePart("txt2img"), shown);
    a1111(gallery(2, -1), texts);
    assert.deepEqual([pagePart("txt2img").picture, pagePart("txt2img").seed], ["picture-0", 11]);
    assert.deepEqual(pagePart("img2img"), {...shown, possible: false, label: "", picture: "", seed: null});
});

test("without the texts of all pictures the one below the gallery counts, and without a picture none", () => {
    a1111(gallery(1, 0), {"#html_info_txt2img": {textContent: "a\nSteps: 2, Seed: 99, Size: 8x8"}});
    assert.equal(pagePart("txt2img").seed, 99);
    a1111(gallery(0, -1), {"#html_info_txt2img": {textContent: "Seed: 99"}});
    assert.equal(pagePart("txt2img").seed, null);
});

test("a web UI is busy while it offers to interrupt, and its own buttons are pressed", () => {
    const ids = a1111(gallery(0, -1), {});
    press("txt2img", "generate");
    press("txt2img", "stop");
    assert.deepEqual([ids.txt2img_generate.clicks, ids.txt2img_interrupt.clicks], [1, 1]);
    ids.txt2img_interrupt.style.display = "block";
    assert.equal(pagePart("txt2img").busy, true);
    ids.txt2img_interrupt.style.display = "none";
    assert.equal(pagePart("txt2img").busy, false);
});

test("a seed is the last one that a parameters text tells, and a text without one tells none", () => {
    assert.equal(seedOf("Seed: 5 in the prompt\nSteps: 20, Variation seed: 3, Seed: 7, Size: 8x8"), 7);
    assert.equal(seedOf("Seed: 99999999999999999999"), null);
    assert.equal(seedOf("a fox"), null);
    assert.deepEqual([textAt("", 0), textAt("null", 0), textAt("{}", 0), textAt(SEEDS, 5)], ["", "", "", ""]);
});
