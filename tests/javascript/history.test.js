// Undo and redo: javascript/remora/history.js.

import assert from "node:assert/strict";
import {beforeEach, mock, test} from "node:test";
import {History} from "../../javascript/remora/history.js";

beforeEach(() => {
    mock.timers.reset();
    mock.timers.enable({apis: ["Date"], now: 1_000_000});
});

/**
 * @param {string} before
 * @param {string} after
 * @param {string} [key]
 * @param {string} [target]
 */
function change(before, after, key = "", target = "txt2img") {
    return {target, before, after, key};
}

/**
 * Make a history of changes.
 * @param {...ReturnType<typeof change>} changes
 */
function historyOf(...changes) {
    /** @type {History<string>} */
    const history = new History();
    for (const one of changes) history.add(one);
    return history;
}

test("there is nothing to take back at first, and nothing to make again", () => {
    assert.equal(historyOf().undo(), undefined);
    assert.equal(historyOf().redo(), undefined);
});

test("changes are taken back from the last to the first, and made again in their order", () => {
    const history = historyOf(change("a", "b"), change("b", "c"));
    assert.equal(history.undo()?.before, "b");
    assert.equal(history.undo()?.before, "a");
    assert.equal(history.undo(), undefined);
    assert.equal(history.redo()?.after, "b");
    assert.equal(history.redo()?.after, "c");
    assert.equal(history.redo(), undefined);
    assert.equal(history.past.length, 2);
    assert.equal(history.future.length, 0);
});

test("after a new change nothing can be made again", () => {
    const history = historyOf(change("a", "b"));
    history.undo();
    history.add(change("a", "x"));
    assert.equal(history.redo(), undefined);
    assert.equal(history.undo()?.after, "x");
});

test("changes of one key within a second are one, with the first text before it", () => {
    const history = historyOf(change("a", "b", "slider"));
    mock.timers.tick(999);
    history.add(change("b", "c", "slider"));
    mock.timers.tick(999);
    history.add(change("c", "d", "slider"));
    assert.equal(history.past.length, 1);
    const {before, after} = history.past[0];
    assert.deepEqual([before, after], ["a", "d"]);
});

test("changes of one key a second apart are two", () => {
    const history = historyOf(change("a", "b", "slider"));
    mock.timers.tick(1000);
    history.add(change("b", "c", "slider"));
    assert.equal(history.past.length, 2);
});

test("changes of other keys, of no key and of other prompts are never one", () => {
    assert.equal(historyOf(change("a", "b", "x"), change("b", "c", "y")).past.length, 2);
    assert.equal(historyOf(change("a", "b"), change("b", "c")).past.length, 2);
    assert.equal(historyOf(change("a", "b", "x"), change("b", "c", "x", "img2img")).past.length, 2);
    assert.equal(historyOf(change("a", "b", "x"), change("b", "c", "y"), change("c", "d", "x")).past.length, 3);
});

test("a change that was made again takes no further change into it", () => {
    const history = historyOf(change("a", "b", "slider"));
    history.undo();
    history.redo();
    history.add(change("b", "c", "slider"));
    assert.equal(history.past.length, 2);
});

test("after a change that joins the last one nothing can be made again either", () => {
    const history = historyOf(change("a", "b", "slider"), change("b", "c"));
    history.undo();
    history.add(change("b", "d", "slider"));
    assert.equal(history.redo(), undefined);
    assert.deepEqual(
        history.past.map(({after}) => after),
        ["d"],
    );
});

test("two hundred changes are kept", () => {
    const history = historyOf(...Array.from({length: 201}, (_, at) => change(`${at}`, `${at + 1}`)));
    assert.equal(history.past.length, 200);
    assert.equal(history.past[0].before, "1");
});
