// What may be meant: javascript/remora/similar.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {asked, numberMeant, similar} from "../../javascript/remora/similar.js";
import {SIMILAR} from "./cases.js";

test("names are suggested as on the server", () => {
    for (const [word, names, wanted] of SIMILAR.similar) assert.deepEqual(similar(word, names), wanted, word);
});

test("numbers are suggested as on the server", () => {
    for (const [text, wanted] of SIMILAR.numbers) assert.equal(numberMeant(text), wanted, text);
});

test("a suggestion is the end of a sentence", () => {
    assert.equal(asked("There is no c", ["a", "b"]), "There is no c; did you mean a or b?");
    assert.equal(asked("There is no c", []), "There is no c.");
});
