// The colours of the tab: javascript/remora/colours.js.

/** @import {Colour, PageColours} from "../../javascript/remora/colours.js" */

import assert from "node:assert/strict";
import {test} from "node:test";
import {contrast, declarations, mix, palette, readColour} from "../../javascript/remora/colours.js";

/** @type {Colour} */
const BLACK = [0, 0, 0];
/** @type {Colour} */
const WHITE = [255, 255, 255];
const ON_BACKS = ["text", "faint"];
const BACKS = ["back", "box", "thumb", "pressed", "warn"];

/**
 * Return the colours of a page.
 * @param {Colour} back
 * @param {Colour} text
 * @param {Colour | null} [accent]
 * @returns {PageColours}
 */
const page = (back, text, accent = null) => ({back, text, accent});

test("the contrast of colours is that of WCAG", () => {
    assert.equal(contrast(BLACK, WHITE), 21);
    assert.equal(contrast(WHITE, WHITE), 1);
    assert.equal(contrast([118, 118, 118], WHITE).toFixed(2), "4.54");
    assert.equal(contrast(WHITE, [10, 10, 10]).toFixed(2), "19.80");
});

test("colours are read as computed styles have them", () => {
    /** @type {[text: string, colour: Colour, alpha: number][]} */
    const cases = [
        ["rgb(1, 2, 3)", [1, 2, 3], 1],
        ["rgba(1, 2, 3, 0.25)", [1, 2, 3], 0.25],
        ["rgba(0, 0, 0, 0)", [0, 0, 0], 0],
        ["rgb(1 2 3 / 0.5)", [1, 2, 3], 0.5],
        ["color(srgb 1 0.5 0)", [255, 128, 0], 1],
        ["color(srgb 1.2 -0.1 0 / 0.5)", [255, 0, 0], 0.5],
    ];
    for (const [text, colour, alpha] of cases) assert.deepEqual(readColour(text), {colour, alpha}, text);
    for (const text of [
        "",
        "red",
        "#fff",
        "oklch(0.7 0.1 200)",
        "color(display-p3 1 0 0)",
        "rgb(1, 2)",
        "rgb(a, b, c)",
    ]) {
        assert.equal(readColour(text), undefined, text);
    }
});

test("colours are mixed by shares", () => {
    assert.deepEqual(mix(BLACK, WHITE, 0), [0, 0, 0]);
    assert.deepEqual(mix(BLACK, WHITE, 1), [255, 255, 255]);
    assert.deepEqual(mix([10, 20, 30], [20, 40, 130], 0.5), [15, 30, 80]);
});

test("a page's own colours are taken where they can be read", () => {
    const {colours, dark} = palette(page([11, 15, 25], [243, 244, 246], [20, 184, 166]));
    assert.deepEqual(
        [colours.back, colours.text, colours.accent],
        [
            [11, 15, 25],
            [243, 244, 246],
            [20, 184, 166],
        ],
    );
    assert.equal(dark, true);
    assert.equal(palette(page(WHITE, [31, 41, 55])).dark, false);
});

test("text that cannot be read on the page's background is not taken", () => {
    assert.deepEqual(palette(page(BLACK, [17, 17, 17])).colours.text, [242, 242, 242]);
    assert.deepEqual(palette(page(WHITE, [240, 240, 240])).colours.text, [26, 26, 26]);
    assert.deepEqual(palette(page([119, 119, 119], [17, 17, 17])).colours.text, BLACK);
});

test("all text has a contrast of 4.5 and all parts of controls 3, whatever the page's colours are", () => {
    /** @type {Colour[]} */
    const some = [];
    const steps = [0, 64, 119, 128, 192, 255];
    for (const red of steps) for (const green of steps) for (const blue of steps) some.push([red, green, blue]);
    for (const back of some) {
        for (const other of [
            BLACK,
            WHITE,
            back,
            /** @type {const} */ ([200, 30, 60]),
            /** @type {const} */ ([119, 119, 119]),
        ]) {
            const {colours} = palette(page(back, other, other));
            const least = (/** @type {string} */ name, /** @type {string[]} */ backs) =>
                Math.min(...backs.map((one) => contrast(colours[name], colours[one])));
            for (const name of ON_BACKS) assert.ok(least(name, BACKS) >= 4.5, `${name} on ${back}, text ${other}`);
            for (const name of ["bad", "doubt", "good", "slider"])
                assert.ok(least(name, ["back", "box"]) >= 4.5, `${name} on ${back}`);
            assert.ok(least("accent", ["back", "box"]) >= 3, `accent on ${back}, accent ${other}`);
        }
    }
});

test("boxes, edges and what is pressed can be told from the background", () => {
    for (const back of [BLACK, WHITE, /** @type {const} */ ([119, 119, 119])]) {
        const {colours} = palette(page(back, back));
        for (const name of ["box", "thumb", "edge", "pressed", "faint"]) assert.notDeepEqual(colours[name], back, name);
        assert.notDeepEqual(colours.pressed, colours.box);
    }
});

test("colours are written as the style sheet names them", () => {
    const {"--rt-back": back, "color-scheme": scheme, "--rt-text": text} = declarations(page(BLACK, WHITE));
    assert.deepEqual([back, text, scheme], ["rgb(0, 0, 0)", "rgb(255, 255, 255)", "dark"]);
    assert.equal(declarations(page(WHITE, BLACK))["color-scheme"], "light");
});
