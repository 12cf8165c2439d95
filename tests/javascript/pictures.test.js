// The picture that the page shows and its record: javascript/remora/pictures.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {NO_PART} from "../../javascript/remora/boxes.js";
import {lorasOf} from "../../javascript/remora/pictures.js";
import {leavePage, openPage, serverState} from "./page.js";

afterEach(leavePage);

const LORA = {id: "1", name: "zorp", strength: "0.8", state: "applied", reason: "", always_on: false};

/**
 * Make a page whose server has made pictures.
 * @param {any[]} pictures the latest first
 */
function opened(pictures) {
    const page = openPage({
        routes: {
            "GET pictures": ({path}) => {
                const seed = new URLSearchParams(path.split("?")[1]).get("seed");
                const found = pictures.filter((one) => seed === null || String(one.seed) === seed);
                return {data: {count: pictures.length, found: found.length, pictures: found.slice(0, 1)}};
            },
        },
    });
    page.tab.set({server: serverState({pictures: pictures.length})});
    return page;
}

const made = (/** @type {number} */ seed, /** @type {any[]} */ loras) => ({
    id: seed,
    time: 0,
    seed,
    thumbnail: true,
    loras,
});

test("the record is that of the picture that the page shows, and is asked for once", async () => {
    const {tab, sent} = opened([made(2, []), made(1, [LORA])]);
    tab.set({page: {...NO_PART, picture: "x", seed: 1}});
    await tab.pictures.update();
    await tab.pictures.update();
    assert.deepEqual([tab.state.latest?.seed, tab.pictures.seed, sent.length], [1, 1, 1]);
    tab.set({page: {...NO_PART, picture: "x", seed: 2}});
    await tab.pictures.update();
    assert.deepEqual([tab.state.latest?.seed, sent.length], [2, 2]);
});

test("where the page tells no seed, the latest picture's is taken; without pictures there is none", async () => {
    const {tab} = opened([made(7, [])]);
    tab.set({page: {...NO_PART, picture: "x"}});
    await tab.pictures.update();
    assert.equal(tab.pictures.seed, 7);
    tab.set({page: NO_PART, latest: null});
    assert.equal(tab.pictures.seed, null);
});

test("without pictures, or with a seed that the server does not take, nothing fails", async () => {
    const {tab, sent} = opened([]);
    await tab.pictures.update();
    assert.deepEqual([tab.state.latest, sent.length], [null, 0]);
    tab.set({server: serverState({pictures: 1}), page: {...NO_PART, picture: "x", seed: 2 ** 52}});
    await tab.pictures.update();
    assert.equal(sent[0].path, "pictures?most=1");
});

test("the tab has a button where the page's own is out of sight", () => {
    const {tab} = opened([]);
    const needs = (/** @type {object} */ part) => {
        tab.set({page: {...NO_PART, ...part}});
        return tab.pictures.needsButton;
    };
    assert.deepEqual(
        [needs({}), needs({possible: true}), needs({possible: true, visible: true})],
        [false, true, false],
    );
});

test("a LoRA of a picture is described by its name, its strength and what is special", () => {
    const loras = [LORA, {...LORA, name: "gone", strength: "", state: "missing"}, {...LORA, always_on: true}];
    assert.deepEqual(lorasOf(made(1, loras)), ["zorp 0.8", "gone (missing)", "zorp 0.8 (always on)"]);
});
