// Errors of what is tried in a dialog, numbers that are typed, and groups of blocks: javascript/remora/ui.

import assert from "node:assert/strict";
import {test} from "node:test";
import {groupsOf} from "../../javascript/remora/ui/blocks.js";
import {ApiError, CHANGED} from "../../javascript/remora/api.js";
import {attempts, broken, endOf, filled, isNumber, numberOf, tooStrong} from "../../javascript/remora/ui/parts.js";
import {whyUnreached} from "../../javascript/remora/ui/summary.js";
import {readBody} from "../../javascript/remora/tag.js";

test("a name breaks behind separators and before capitals, and nothing of it is lost", () => {
    /** @type {[text: string, pieces: string[]][]} */
    const cases = [
        ["StyleOf_Night-v2.1", ["Style", "Of_", "Night-", "v2.", "1"]],
        ["SDXL-Ink", ["SDXL-", "Ink"]],
        ["zorp", ["zorp"]],
        ["__a  b", ["__", "a  ", "b"]],
        ["", []],
    ];
    for (const [text, pieces] of cases) {
        const made = broken(text)
            .flat()
            .filter((one) => typeof one === "string");
        assert.deepEqual(made, pieces);
        assert.equal(made.join(""), text);
    }
});

test("the end of a name that is kept begins with a piece, or is the last characters of a long piece", () => {
    const end = (/** @type {string} */ text) => text.slice(endOf(text));
    assert.equal(end("Incredibly_Detailed_Anime-Style_for_SDXL-Watercolour-v5"), "Watercolour-v5");
    assert.equal(end("Incredibly_Detailed_Anime-Style_for_SDXL-Ink-v5"), "for_SDXL-Ink-v5");
    assert.equal(end("a_name_of_16_chr"), "", "all of it is the beginning");
    assert.equal(end("incrediblydetailedanimestylev5"), "iledanimestylev5");
    assert.equal(end("x".repeat(30)), "x".repeat(16));
});

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

test("what another page came before can be tried again, and nothing else", async () => {
    /** @type {((() => unknown) | null)[]} */
    const ways = [];
    const attempt = attempts((_, again) => ways.push(again));
    let tries = 0;
    const work = () => {
        tries += 1;
        if (tries === 1) throw new ApiError("late", CHANGED);
        return tries;
    };
    await attempt(work);
    assert.equal(await ways[0]?.(), 2);
    await attempt(() => {
        throw new ApiError("refused", 422);
    });
    assert.deepEqual(ways.slice(1), [null, null]);
});

test("a slider is filled between 0 and its value, within its ends", () => {
    /** @type {[value: number, from: number, to: number][]} */
    const cases = [
        [0, 1 / 3, 1 / 3],
        [2, 1 / 3, 1],
        [50, 1 / 3, 1],
        [-1, 0, 1 / 3],
        [0.5, 1 / 3, 0.5],
    ];
    for (const [value, from, to] of cases) assert.deepEqual(filled(value), {"--rt-from": from, "--rt-to": to});
});

test("a window that has no step of the page is said", () => {
    /** @type {[body: string, steps: number | null, said: RegExp | ""][]} */
    const cases = [
        ["a:start=99", 20, /^It acts in no step: it begins after step 99, and the page is set to 20 steps\.$/],
        ["a:start=20", 20, /begins after step 20/],
        ["a:start=19", 20, ""],
        ["a:start=99", null, ""],
        ["a:start=99:pass=hires", 20, ""],
        ["a:start=0.99", 20, /begins after 99 %/],
        ["a:start=0.95", 20, ""],
        ["a:stop=1", 20, /ends at step 1/],
        ["a:stop=0.01", 20, ""],
        ["a:10-5", null, /^It acts in no step: it begins after step 10 and ends at step 5\.$/],
        ["a:start=0.5:stop=8", 20, /begins after 50 % and ends at step 8/],
        ["a:start=0.5:stop=8", null, ""],
        ["a:0@0,1@30", 20, /^Its schedule goes on to step 30/],
        ["a:0@0,1@20", 20, ""],
        ["a:0@0,1@30:by=sigma", 20, ""],
        ["a:start=1:stop=2", 20, ""],
    ];
    for (const [body, steps, said] of cases) {
        const told = whyUnreached(readBody(body), steps);
        if (said) assert.match(told, said, body);
        else assert.equal(told, "", body);
    }
});

test("a number may have a comma for its point", () => {
    for (const [text, number] of /** @type {const} */ ([
        ["0,7", 0.7],
        [" -,5 ", -0.5],
        ["1.25", 1.25],
        ["1e-1", 0.1],
    ])) {
        assert.ok(isNumber(text), text);
        assert.equal(numberOf(text), number);
    }
    for (const text of ["", "a", "1,2,3", "1.2,3", "1e7", ","]) assert.ok(!isNumber(text), text);
});

test("a strength that ruins the picture is warned of", () => {
    for (const value of [0, 1, -10, 10]) assert.equal(tooStrong(value), "");
    for (const value of [5000, -10.5]) assert.match(tooStrong(value), /noise or black/);
});

test("blocks in a row are one group", () => {
    const shown = ["BASE", "IN00", "IN01", "M00", "OUT00", "OUT01", "OUT02"].map((id) => ({id}));
    assert.deepEqual(groupsOf(shown), [
        ["BASE", 1],
        ["IN", 2],
        ["MID", 1],
        ["OUT", 3],
    ]);
    assert.deepEqual(groupsOf([]), []);
});
