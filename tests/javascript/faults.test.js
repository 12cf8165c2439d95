// Names in tags that do not exist: javascript/remora/faults.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {faultOfNames, listsOf} from "../../javascript/remora/faults.js";
import {readBody} from "../../javascript/remora/tag.js";

const BLOCKS = {
    layouts: [{length: 3, ids: ["BASE", "IN00", "OUT00"]}],
    presets: [{name: "OUTALL", values: "1,0,1", own: false}],
    rules: ["ATTNDEEPON"],
};
/** @type {any[]} */
const REGIONS = [{name: "left"}, {name: "face"}];

/** @type {(body: string, known?: any) => ReturnType<typeof faultOfNames>} */
const faultOf = (body, known = {blocks: BLOCKS, regions: REGIONS}) => faultOfNames({...readBody(body), body}, known);

test("a preset, rules and a region that do not exist are said, and similar ones are bodies to write", () => {
    /** @type {[body: string, key: string, said: string, fixes: string[]][]} */
    const cases = [
        ["a:1:lbw=OUTAL:high", "lbw", "There is no preset “OUTAL”; did you mean OUTALL?", ["a:1:lbw=OUTALL:high"]],
        ["a:1:outall", "lbw", "There is no preset “outall”; did you mean OUTALL?", ["a:1:OUTALL"]],
        ["a:1:lbw=1,1,1,0", "lbw", "4 values; the loaded model takes 3.", []],
        ["a:1:OUTALL:ATTN", "lbwe", "There are no rules “ATTN”; did you mean ATTNDEEPON?", ["a:1:OUTALL:ATTNDEEPON"]],
        ["a:lbwe=no", "lbwe", "There are no rules “no”.", []],
        ["a:mask=!Left+face", "mask", "there is no region “Left”; did you mean left?", ["a:mask=!left+face"]],
        ["a:mask=nose", "mask", "there is no region “nose”", []],
    ];
    for (const [body, key, said, wanted] of cases) {
        const fault = faultOf(body);
        assert.deepEqual([fault.key, fault.said, fault.fixes.map((fix) => fix.body)], [key, said, wanted]);
    }
    assert.deepEqual(faultOf("a:mask=Left").fixes, [{word: "left", instead: "Left", body: "a:mask=left"}]);
});

test("what exists has no fault, and neither has what the server was not asked about", () => {
    for (const body of ["a", "a:1:OUTALL:ATTNDEEPON", "a:lbw=1,0,0", "a:lbw=1,1", "a:mask=left+!0,0,1,0.5"])
        assert.equal(faultOf(body).said, "", body);
    assert.equal(faultOf("a:lbw=OUTAL:lbwe=no:mask=nose", {blocks: null, regions: null}).said, "");
});

test("a tag tells which lists it has names of", () => {
    assert.deepEqual(listsOf({lbw: "OUTALL"}), {blocks: true, regions: false});
    assert.deepEqual(listsOf({mask: "0,0,1,0.5"}), {blocks: false, regions: false});
    assert.deepEqual(listsOf({mask: "0,0,1,0.5+left", lbwe: "X"}), {blocks: true, regions: true});
    assert.deepEqual(listsOf({}), {blocks: false, regions: false});
});
