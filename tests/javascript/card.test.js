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
    const pick = (/** @type {boolean} */ adds) => done.push(adds ? "add" : "pick");
    const does = {edits: {toggle: () => done.push("toggle")}, set: () => done.push("details")};
    const tab = /** @type {any} */ ({state: {target}, api: {}, ...does});
    const made = [
        /** @type {any} */ (
            Card({lora: LORA, tab, view: "medium", used: false, pinned: false, against: "", pick, ...props})
        ),
    ];
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

test("a card of a LoRA that is always on is marked, in words too", () => {
    const icons = (/** @type {object} */ props) =>
        elements(props)
            .map((one) => one.props.name)
            .filter((name) => ["always", "check"].includes(name));
    assert.deepEqual(
        [icons({}), icons({pinned: true}), icons({pinned: true, used: true})],
        [[], ["always"], ["always", "check"]],
    );
    assert.equal(button(elements({pinned: true}))["aria-label"], "Insert fur into the prompt; it is always on");
    assert.match(button(elements({pinned: true})).title, /\nalways on: Remora applies it to every picture$/);
});

test("its title has the file, the trainer's name, kind, rank and size, the words and what speaks against it", () => {
    assert.equal(
        button(elements({against: "made for SDXL"})).title,
        "animals/fur\nfurry-v2\nlora, rank 4 to 8 · 1 MB\nwords: soft fur\nmade for SDXL",
    );
    const same = {...LORA, alias: "fur", words: ""};
    assert.equal(button(elements({lora: same})).title, "animals/fur\nlora, rank 4 to 8 · 1 MB");
});

test("below the name a card has what differs: trigger words, what speaks against the file, and more in a list", () => {
    const hints = (/** @type {object} */ props) =>
        elements(props)
            .filter((one) => /^rt-hint/.test(one.props.class))
            .map((one) => one.props.children);
    assert.deepEqual(hints({}), ["soft fur"]);
    assert.deepEqual(hints({lora: {...LORA, words: ""}}), []);
    assert.deepEqual(hints({lora: {...LORA, words: "", read: false}}), ["not read yet"]);
    assert.deepEqual(hints({against: "is cut"}), ["is cut"]);
    assert.deepEqual(hints({view: "list"}), ["soft fur · furry-v2 · animals · sd15 · lora, rank 4 to 8"]);
});

test("a click on a file that cannot be inserted tells why, and one in the prompt can be removed", () => {
    const label = (/** @type {any} */ found) => found["aria-label"];
    for (const lora of [
        {...LORA, readable: false},
        {...LORA, name: "f>r"},
    ]) {
        const pick = button(elements({lora}));
        assert.equal(label(pick), `Why ${lora.name} cannot be inserted`);
        pick.onClick({});
        const used = button(elements({lora, used: true}));
        assert.equal(label(used), `Remove ${lora.name} from the prompt`);
        used.onClick({});
    }
    button(elements()).onClick({});
    assert.deepEqual(done.splice(0), ["details", "toggle", "details", "toggle", "toggle"]);
    for (const event of [{ctrlKey: true}, {metaKey: true}, {shiftKey: true}]) button(elements()).onClick(event);
    const chosen = button(elements({selected: true}));
    assert.deepEqual([chosen["aria-label"], chosen["aria-pressed"]], ["Select fur", "true"]);
    chosen.onClick({});
    assert.deepEqual(done, ["pick", "pick", "add", "pick"]);
});

test("ranks are one number or a range", () => {
    assert.equal(rank(LORA), "lora, rank 4 to 8");
    assert.equal(rank({...LORA, rank: [8, 8]}), "lora, rank 8");
    assert.equal(rank({...LORA, rank: null}), "lora");
});
