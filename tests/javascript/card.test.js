// One file in the library: javascript/remora/ui/card.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {Card, rank} from "../../javascript/remora/ui/card.js";

const LORA = /** @type {any} */ ({
    ...{id: "1", name: "fur", alias: "furry-v2", file: "animals/fur", folder: "animals", readable: true, read: true},
    ...{kind: "lora", rank: [4, 8], size: 2 ** 20, words: "soft fur", family: "sd15", picture: "", rating: 0},
});

/** @type {string[]} What clicks did. */
const done = [];

/**
 * Return all elements of a card.
 * @param {object} [props]
 * @param {string | null} [target]
 * @returns {any[]}
 */
function elements(props = {}, target = "txt2img") {
    const does = {edits: {toggle: () => done.push("toggle")}, set: () => done.push("details")};
    const tab = /** @type {any} */ ({state: {target}, api: {}, ...does});
    const made = [/** @type {any} */ (Card({lora: LORA, tab, view: "grid", used: false, against: "", ...props}))];
    for (const one of made) made.push(...[one?.props?.children].flat(9).filter((child) => child?.props));
    return made;
}

/** @param {any[]} found */
const button = (found) => found.find((one) => one.props["aria-pressed"]).props;

test("the button says what it does to the prompt, or to what is always on", () => {
    assert.equal(button(elements())["aria-label"], "Insert fur into the prompt");
    assert.equal(button(elements({used: true}))["aria-label"], "Remove fur from the prompt");
    assert.equal(button(elements({}, null))["aria-label"], "Add fur to “Always on”");
});

test("its title has the file, the trainer's name, kind, rank and size, the words and what speaks against it", () => {
    assert.equal(
        button(elements({against: "made for SDXL"})).title,
        "animals/fur\nfurry-v2\nlora 4–8 · 1 MB\nwords: soft fur\nmade for SDXL",
    );
    const same = {...LORA, alias: "fur", words: ""};
    assert.equal(button(elements({lora: same})).title, "animals/fur\nlora 4–8 · 1 MB");
});

test("a card shows the trigger words and whether the file fits, or what speaks against it", () => {
    const hints = (/** @type {object} */ props) =>
        elements(props)
            .filter((one) => /^rt-hint/.test(one.props.class))
            .map((one) => one.props.children);
    assert.deepEqual(hints({fits: true}), ["soft fur", "✓ fits"]);
    assert.deepEqual(hints({fits: undefined, lora: {...LORA, words: ""}}), ["no trigger words"]);
    assert.deepEqual(hints({lora: {...LORA, words: "", read: false}}), ["not read yet"]);
    assert.deepEqual(hints({against: "is cut", fits: false}), ["is cut"]);
});

test("a click on a file that cannot be inserted tells why, and one in the prompt can be removed", () => {
    const label = (/** @type {any} */ found) => found["aria-label"];
    for (const lora of [
        {...LORA, readable: false},
        {...LORA, name: "f>r"},
    ]) {
        const pick = button(elements({lora}));
        assert.equal(label(pick), `Why ${lora.name} cannot be inserted`);
        pick.onClick();
        const used = button(elements({lora, used: true}));
        assert.equal(label(used), `Remove ${lora.name} from the prompt`);
        used.onClick();
    }
    button(elements()).onClick();
    assert.deepEqual(done, ["details", "toggle", "details", "toggle", "toggle"]);
});

test("ranks are one number or a range", () => {
    assert.equal(rank(LORA), "lora 4–8");
    assert.equal(rank({...LORA, rank: [8, 8]}), "lora 8");
    assert.equal(rank({...LORA, rank: null}), "lora");
});
