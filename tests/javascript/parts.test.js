// Errors of what is tried in a dialog: javascript/remora/ui/parts.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {attempts} from "../../javascript/remora/ui/parts.js";

/** Return what is shown, and a function that tries something. */
function shown() {
    /** @type {string[]} */
    const texts = [];
    return {texts, attempt: attempts((text) => texts.push(text))};
}

test("an error is shown until something that began later succeeds", async () => {
    const {texts, attempt} = shown();
    assert.equal(
        await attempt(() => {
            throw new Error("bad");
        }),
        undefined,
    );
    assert.equal(await attempt(async () => 3), 3);
    assert.deepEqual(texts, ["bad", ""]);
});

test("what began before an error and ends after it does not clear it", async () => {
    const {texts, attempt} = shown();
    let end = /** @type {(value: number) => void} */ (() => {});
    const first = attempt(
        () =>
            /** @type {Promise<number>} */ (
                new Promise((resolve) => {
                    end = resolve;
                })
            ),
    );
    await attempt(async () => {
        throw new Error("bad");
    });
    end(1);
    assert.equal(await first, 1);
    assert.deepEqual(texts, ["bad"]);
});

test("an attempt in the background shows its error and clears none", async () => {
    const {texts, attempt} = shown();
    await attempt(async () => {
        throw new Error("bad");
    });
    await attempt(async () => 1, false);
    await attempt(async () => {
        throw new Error("worse");
    }, false);
    assert.deepEqual(texts, ["bad", "worse"]);
});
