// The store: javascript/remora/store.js.

import assert from "node:assert/strict";
import {after, before, test} from "node:test";
import {setTimeout as wait} from "node:timers/promises";
import {Store, useStore} from "../../javascript/remora/store.js";
import {h, render} from "../../javascript/remora/vendor/preact.js";

/**
 * Wait until something holds: Preact runs effects some time later where no browser draws.
 * @param {() => boolean} holds
 */
async function until(holds) {
    for (let waited = 0; !holds(); waited += 5) {
        assert.ok(waited < 10_000, String(holds));
        await wait(5);
    }
}

before(() => {
    // Preact asks whether it draws into the document itself
    Object.assign(globalThis, {document: {}});
});
after(() => {
    Reflect.deleteProperty(globalThis, "document");
});

/** Make a store, and count how often a listener is told. */
function watched() {
    const store = new Store({a: 1, b: "x"});
    const told = {count: 0};
    const end = store.subscribe(() => {
        told.count += 1;
    });
    return {store, told, end};
}

test("changes are merged into a new state", () => {
    const {store} = watched();
    const former = store.state;
    store.set({a: 2});
    assert.deepEqual(store.state, {a: 2, b: "x"});
    assert.notEqual(store.state, former);
    assert.deepEqual(former, {a: 1, b: "x"});
});

test("setting the same value changes nothing and tells nobody", async () => {
    const {store, told} = watched();
    const former = store.state;
    store.set({a: 1});
    store.set({});
    await Promise.resolve();
    assert.equal(store.state, former);
    assert.equal(told.count, 0);
});

test("listeners are told once, after all changes of the moment", async () => {
    const {store, told} = watched();
    store.set({a: 2});
    store.set({b: "y"});
    assert.equal(told.count, 0);
    await Promise.resolve();
    assert.equal(told.count, 1);
    store.set({a: 3});
    await Promise.resolve();
    assert.equal(told.count, 2);
});

test("a listener that was ended is told nothing more", async () => {
    const {store, told, end} = watched();
    end();
    store.set({a: 2});
    await Promise.resolve();
    assert.equal(told.count, 0);
});

test("a listener may end another one while they are told", async () => {
    const store = new Store({a: 1});
    /** @type {string[]} */
    const told = [];
    /** @type {() => void} */
    let end = () => {};
    store.subscribe(() => {
        told.push("first");
        end();
    });
    end = store.subscribe(() => told.push("second"));
    store.set({a: 2});
    await Promise.resolve();
    assert.deepEqual(told, ["first", "second"]);
    store.set({a: 3});
    await Promise.resolve();
    assert.deepEqual(told, ["first", "second", "first"]);
});

test("a component is drawn again with every change, until it is gone", async () => {
    const store = new Store({a: 1});
    /** @type {number[]} */
    const drawn = [];
    const Shown = () => {
        drawn.push(useStore(store).a);
        return null;
    };
    const place = /** @type {HTMLElement} */ (/** @type {unknown} */ ({childNodes: []}));
    render(h(Shown, null), place);
    assert.deepEqual(drawn, [1]);
    await until(() => store.listeners.size === 1);
    store.set({a: 2});
    await until(() => drawn.length === 2);
    assert.deepEqual(drawn, [1, 2]);
    render(null, place);
    await until(() => store.listeners.size === 0);
});
