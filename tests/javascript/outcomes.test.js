// What became of LoRAs, by row: javascript/remora/outcomes.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {Others, told} from "../../javascript/remora/outcomes.js";
import {Outcome} from "../../javascript/remora/ui/outcome.js";

/**
 * @param {string} written
 * @param {object} [values]
 * @returns {any}
 */
const outcome = (written, values) => ({
    ...{name: written.split(":")[0], asked: written.split(":")[0], where: "prompt", number: 0, written},
    ...{state: "applied", reason: "", advice: "", always_on: false},
    ...values,
});
/**
 * @param {string} written
 * @param {"prompt" | "negative" | "always"} [where]
 */
const row = (written, where = "prompt") => ({where, written, name: written.split(":")[0]});
/** @type {(tags: string, now: string) => (string | undefined)[]} what became of each row: its tag, with ~ if it changed */
const found = (tags, now) =>
    told(
        tags.split(" ").map((one) => outcome(one)),
        now.split(" ").map((one) => row(one)),
    ).map((one) => one && `${one.changed ? "~" : ""}${one.lora.written}`);

test("each row has the outcome of its own tag, also where a LoRA is written twice", () => {
    const tags = "s:1 s:1:lbw=NONE n:0.5:pass=hires n:1";
    assert.deepEqual(found(tags, tags), tags.split(" "));
    assert.deepEqual(found("s:1 s:1", "s:1 s:1"), ["s:1", "s:1"]);
    const loras = [outcome("s:1"), outcome("s:1", {state: "failed", number: 1})];
    assert.deepEqual(
        told(loras, [row("s:1"), row("s:1")]).map((one) => one?.lora),
        loras,
    );
});

test("a tag that came since has none, wherever it is written", () => {
    assert.deepEqual(found("a:1 b:1", "c:1 a:1 b:1"), [undefined, "a:1", "b:1"]);
    assert.deepEqual(found("a:1", "a:1 a:1"), ["a:1", undefined]);
    assert.deepEqual(found("a:1 b:1", "b:1"), ["b:1"]);
    assert.deepEqual(found("a:1", "b:1"), [undefined], "another LoRA in its place");
});

test("a tag that was changed or moved since has the outcome of the latest picture, and is known as changed", () => {
    assert.deepEqual(found("a:1 b:1", "a:0.8 b:1"), ["~a:1", "b:1"]);
    assert.deepEqual(found("a:1 a:1:lbw=NONE", "a:0.8 a:1:lbw=NONE"), ["~a:1", "a:1:lbw=NONE"]);
    assert.deepEqual(found("a:1 b:1 c:1", "c:1 a:1 b:1"), ["~c:1", "a:1", "b:1"]);
    assert.deepEqual(found("a:1 b:1 c:1", "x:1 a:0.5"), [undefined, "~a:1"]);
    assert.deepEqual(found("a:1 a:2 b:1", "a:3 b:1"), [undefined, "b:1"], "nothing tells which of two it was");
});

test("a tag of the prompt, of the negative prompt and of the always-on stack are three", () => {
    const loras = [outcome("a:1"), outcome("a:1", {where: "negative"}), outcome("a:1", {where: "always"})];
    const rows = [row("a:1", "always"), row("a:1"), row("a:1", "negative")];
    assert.deepEqual(
        told(loras, rows).map((one) => one?.lora.where),
        ["always", "prompt", "negative"],
    );
});

test("a tag that the web UI cut as a comment has its own outcome", () => {
    const cut = outcome("hash", {state: "failed"});
    assert.deepEqual(told([cut], [row("hash#1:1"), row("a:1")]), [{lora: cut, changed: false}, undefined]);
});

test("many tags without a common one are compared in time", () => {
    const many = Array.from({length: 5000}, (_, at) => outcome(`a:${at}`));
    const rows = Array.from({length: 5000}, (_, at) => row(`b:${at}`));
    assert.ok(told(many, rows).every((one) => one === undefined));
});

test("what no row asked for is among the others, and what has no effect goes with its row", () => {
    const others = new Others();
    const acted = outcome("zorp:1");
    for (const state of ["missing", "waiting", "none"]) {
        const idle = outcome("nowhere:1", {state, reason: "why"});
        const both = [acted, idle].map((lora) => ({lora, changed: false}));
        assert.deepEqual(others.of([acted, idle], []), [acted, idle], "of a prompt that is not shown");
        assert.deepEqual(others.of([acted, idle], both), []);
        assert.deepEqual(others.of([acted, idle], []), [acted], "its tag is gone, and the picture still has the LoRA");
        assert.deepEqual(others.of([acted], []), [acted]);
        assert.deepEqual(others.of([idle], []), [idle], "of a later picture");
    }
});

test("a failure from before the page is told at its row alone", () => {
    const others = new Others();
    const acted = outcome("zorp:1");
    const failed = outcome("nowhere:1", {state: "missing", reason: "is not there"});
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
    const idle = outcome("zorp:1", {
        state: "none",
        advice: "raise its strength",
        reason: "its strength is 0",
        unused: {},
        kinds: {},
        details: {},
        hit: 2,
        layers: 2,
    });
    const shown = textOf(Outcome({told: {lora: idle, changed: false}}));
    assert.match(shown, /^○ no effect: its strength is 0.*Raise its strength\./);
    assert.doesNotMatch(shown, /partly/);
    assert.match(textOf(Outcome({told: {lora: idle, changed: true}})), /^From the latest picture: ○ no effect/);
});
