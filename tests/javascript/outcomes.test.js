// What became of LoRAs, by row: javascript/remora/outcomes.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {isOf, Others} from "../../javascript/remora/outcomes.js";
import {Outcome} from "../../javascript/remora/ui/outcome.js";

/**
 * @param {object} values
 * @returns {any}
 */
const outcome = (values) => ({name: "zorp", asked: "zorp", state: "applied", reason: "", always_on: false, ...values});
/** @param {Partial<import("../../javascript/remora/outcomes.js").Asker>} [values] */
const row = (values = {}) => ({name: "zorp", body: "zorp:1", always: false, file: "zorp", ...values});

test("an outcome is that of the row with its name, its file or its tag", () => {
    assert.ok(isOf(outcome({}), row()));
    assert.ok(isOf(outcome({asked: "alias"}), row({name: "alias", file: undefined})));
    assert.ok(isOf(outcome({asked: "sub/zorp"}), row({name: "other alias"})));
    assert.ok(!isOf(outcome({}), row({name: "night", file: "night"})));
    const unread = outcome({asked: "zorp:1:lbw=NO", state: "failed"});
    assert.ok(isOf(unread, row({body: "zorp:1:lbw=NO"})));
    assert.ok(!isOf(unread, row({body: "zorp:1:lbw=ALL"})), "it was put right");
});

test("a name with a colon is no text of a tag", () => {
    const named = row({name: "a: b", body: "a\\: b:1", file: "a: b"});
    for (const state of ["applied", "failed", "missing"])
        assert.ok(isOf(outcome({name: "a: b", asked: "a: b", state}), named), state);
    assert.ok(isOf(outcome({name: "a: b", asked: "alias: b"}), named));
});

test("a failure of what is always on is that of its own row alone", () => {
    const failed = outcome({state: "failed", always_on: true});
    assert.ok(isOf(failed, row({always: true})));
    assert.ok(!isOf(failed, row()));
    assert.ok(isOf(outcome({always_on: true}), row()), "a LoRA that acts is told at both");
});

test("what no row asked for is among the others, and a failure goes with its row", () => {
    const others = new Others();
    const acted = outcome({});
    const failed = outcome({name: "nowhere", asked: "nowhere", state: "missing", reason: "is not there"});
    const both = [row(), row({name: "nowhere", body: "nowhere", file: undefined})];
    assert.deepEqual(others.of([acted, failed], []), [acted, failed], "of a prompt that is not shown");
    assert.deepEqual(others.of([acted, failed], both), []);
    assert.deepEqual(others.of([acted, failed], []), [acted], "its tag is gone, and the picture still has the LoRA");
    assert.deepEqual(others.of([acted], []), [acted]);
    assert.deepEqual(others.of([failed], []), [failed], "of a later picture");
});

test("a failure from before the page is told at its row alone", () => {
    const others = new Others();
    const acted = outcome({});
    const failed = outcome({name: "nowhere", asked: "nowhere", state: "missing", reason: "is not there"});
    others.begin([acted, failed]);
    assert.deepEqual(others.of([acted, failed], []), [acted]);
    assert.deepEqual(others.of([acted], []), [acted]);
    assert.deepEqual(others.of([failed], []), [failed], "of a later picture");
});

/** @type {(node: any) => string} */
const textOf = (node) =>
    Array.isArray(node)
        ? node.map(textOf).join("")
        : typeof node === "string"
          ? node
          : textOf(node?.props?.children ?? "");

test("a LoRA without any effect is told as such, with the reason", () => {
    const idle = outcome({
        state: "none",
        reason: "its strength is 0",
        unused: {},
        kinds: {},
        details: {},
        hit: 2,
        layers: 2,
    });
    const shown = textOf(Outcome({lora: idle}));
    assert.match(shown, /^○ no effect: its strength is 0/);
    assert.doesNotMatch(shown, /partly/);
});
