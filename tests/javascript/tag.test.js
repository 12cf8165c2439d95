// The contents of tags: javascript/remora/tag.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {
    bodyOf,
    entryOf,
    makeTag,
    PASSES,
    rangeOf,
    readBody,
    setField,
    setMultipliers,
    tagOf,
    withoutShape,
} from "../../javascript/remora/tag.js";
import {EDITS} from "./cases.js";

test("multipliers are set as on the server", () => {
    for (const [body, te, unet, wanted] of EDITS.set_multipliers) assert.equal(setMultipliers(body, te, unet), wanted);
});

test("fields are set as on the server", () => {
    for (const [body, key, value, wanted] of EDITS.set_field) assert.equal(setField(body, key, value), wanted);
});

test("a body is read with all its fields", () => {
    assert.deepEqual(readBody(" a b :0.5:0.7:8: high :lbw=OUTALL:LOW: stop = 10 "), {
        name: "a b",
        te: 0.5,
        unet: 0.7,
        teCurve: null,
        unetCurve: null,
        teText: "0.5",
        unetText: "0.7",
        values: {te: "0.5", unet: "0.7", dyn: "8", lbw: "OUTALL", stop: "10"},
        flags: ["high", "low"],
        problem: "",
        fixes: [],
    });
});

test("a missing strength is the standard one, and the UNet takes the text encoders' one", () => {
    const bare = readBody("a", 0.8);
    assert.deepEqual([bare.te, bare.unet, bare.teText, bare.unetText, bare.values], [0.8, 0.8, "0.8", "0.8", {}]);
    assert.equal(readBody("a").te, 1);
    const one = readBody("a:unet=0.5", 0.8);
    assert.deepEqual([one.te, one.unet], [0.8, 0.5]);
    const other = readBody("a:te=0.5", 0.8);
    assert.deepEqual([other.te, other.unet, other.unetText], [0.5, 0.5, "0.5"]);
});

test("a strength that cannot be read is the standard one, and a problem", () => {
    const {te, unet, teText, unetText, problem} = readBody("a:x:unet=y", 0.8);
    assert.deepEqual([te, unet, teText, unetText], [0.8, 0.8, "0.8", "0.8"]);
    assert.equal(problem, "“x” is not a number; write a number, such as 0.8");
});

test("of a curve the strength is the value farthest from 0, and the text is kept", () => {
    const {te, unet, teCurve, unetCurve, teText, unetText} = readBody("a: 0@0;-2@1 :1@0, 0@5");
    assert.deepEqual([te, unet, teText, unetText], [-2, 1, "0@0;-2@1", "1@0, 0@5"]);
    assert.deepEqual(teCurve, [
        {value: 0, at: 0},
        {value: -2, at: 1},
    ]);
    assert.deepEqual(unetCurve?.at(-1), {value: 0, at: 5});
    const alike = readBody("a:0@0,1@1");
    assert.deepEqual([alike.teText, alike.unetText, alike.unetCurve], ["0@0,1@1", "0@0,1@1", alike.teCurve]);
});

test("a value with a key beats one by its place", () => {
    assert.equal(readBody("a:te=0.3:0.5").te, 0.3);
    assert.equal(readBody("a:0.5:te=0.3").te, 0.3);
});

test("values by place are strengths and a rank, or a strength, block weights, and X or rules", () => {
    /** @type {[string, {[key: string]: string}][]} */
    const cases = [
        ["a:1:2:3", {te: "1", unet: "2", dyn: "3"}],
        ["a:1: 2", {te: "1", unet: "2"}],
        ["a:1:0@0,1@1", {te: "1", unet: "0@0,1@1"}],
        ["a:1:IN02", {te: "1", lbw: "IN02"}],
        ["a:1:IN02:0.3", {te: "1", lbw: "IN02", x: "0.3"}],
        ["a:1:IN02:ATTN", {te: "1", lbw: "IN02", lbwe: "ATTN"}],
        ["a:1:w=IN02", {te: "1", lbw: "IN02"}],
        ["a:1:5-15", {te: "1", step: "5-15"}],
        ["a: 5-15 :0.3:high", {te: "0.3", step: "5-15"}],
        ["a:1:-4", {te: "1", unet: "-4"}],
        ["a:1:1e-5", {te: "1", unet: "1e-5"}],
        ["a:1:start=0:end=0.25", {te: "1", start: "0", stop: "0.25"}],
    ];
    for (const [body, values] of cases) assert.deepEqual(readBody(body).values, values, body);
});

test("the problem of a tag is one sentence", () => {
    /** @type {[string, string][]} */
    const cases = [
        ["", "the name is missing; write, for example, <lora:name:0.8>"],
        [" :1", "the name is missing; write, for example, <lora:name:0.8>"],
        ["a:", "“” is not a number; write a number, such as 0.8"],
        ["a:1.1.", "“1.1.” is not a number; write 1.1"],
        ["a:0,7", "“0,7” is not a number; write 0.7"],
        ["a:0.7f", "“0.7f” is not a number; write 0.7"],
        ["C:\\models\\zorp.safetensors:1", "“\\models\\zorp.safetensors” is a path; write the name alone, zorp"],
        ["D:models\\zorp:1", "“models\\zorp” is a path; write the name alone, zorp"],
        ['"C:\\zorp.pt":1', '“\\zorp.pt"” is a path; write the name alone, zorp'],
        ["a:1:hr=/models/zorp", "“/models/zorp” is a path; write the name alone, zorp"],
        ["a:1e999", "“1e999” is too large a number; write a number, such as 0.8"],
        ["a:-1e39", "“-1e39” is too large a number; write a number, such as 0.8"],
        ["a:0@x", "“0@x” is not a schedule; write, for example, 0@0,1@0.5"],
        ["a:1:2:3:4", "a fourth number, “4”; write at most two strengths and a rank"],
        ["a:nope=1", "“nope” is not a setting of a LoRA tag; leave it out"],
        ["a:=5", "“” is not a setting of a LoRA tag; leave it out"],
        ["a:stop=1:stop=2", "“stop” is set twice; leave one out"],
        ["a:w=X:lbw=Y", "“lbw” is set twice; leave one out"],
        ["a:1:1:0.5", "“0.5” is not a rank; write a whole number from 1, such as 16"],
        ["a:dyn=0", "“0” is not a rank; write a whole number from 1, such as 16"],
        ["a:dyn=1234567", "“1234567” is not a rank; write a whole number from 1, such as 16"],
        ["a:lbw=", "a name is missing; write one, or leave the setting out"],
        ["a:lbwe=", "a name is missing; write one, or leave the setting out"],
        ["a:module=", "a name is missing; write one, or leave the setting out"],
        ["a:mask=", "a name is missing; write one, or leave the setting out"],
        ["a:x=y", "“y” is not a number; write a number, such as 0.8"],
        ["a:x=1e999", "“1e999” is too large a number; write a number, such as 0.8"],
        ["a:start=-1", "“-1” is below 0; write a number from 0"],
        ["a:stop=x", "“x” is not a number; write a number, such as 0.8"],
        ["a:step=5", "“5” is not a range; write a range, such as 2-10"],
        ["a:sigma=-", "“-” is not a range; write a range, such as 2-10"],
        ["a:1@0,0:by=moon", "“moon” is none of step, sigma, timestep"],
        ["a:1@0,0:curve=round", "“round” is none of linear, step, cosine"],
        ["a:half=both", "“both” is none of pos, neg"],
        ["a:pass=third", "“third” is none of base, hires, refiner, detailer"],
        ["a:pass=base,", "“” is none of base, hires, refiner, detailer"],
        ["a:mask=left:part=0", "“0” is not a part of a prompt; the parts between AND are numbered from 1"],
        ["a:mask=left:part=1000", "“1000” is not a part of a prompt; the parts between AND are numbered from 1"],
        ["a:mask=left:feather=x", "“x” is not a number; write a number, such as 0.8"],
        ["a:mask=left:feather=1.5", "1.5 is not a soft edge; write a number from 0 to 1"],
        ["a:mask=left:feather=-0.5", "-0.5 is not a soft edge; write a number from 0 to 1"],
        ["a:mask=left:outside=2", "2 is not a share of the effect; write a number from 0 to 1"],
        ["a:outside=0", "“outside” needs a region, such as mask=left"],
        ["a:rows=0", "“0” is not an image of a batch; images are numbered from 1"],
        ["a:rows=1+x", "“x” is not an image of a batch; images are numbered from 1"],
        ["a:feather=0.5", "“feather” needs a region, such as mask=left"],
        ["a:part=1", "“part” needs a region, such as mask=left"],
        ["a:1:by=sigma", "“by” needs a schedule, such as 0@0,1@0.5"],
        ["a:1:curve=cosine", "“curve” needs a schedule, such as 0@0,1@0.5"],
    ];
    for (const [body, problem] of cases) assert.equal(readBody(body).problem, problem, body);
});

test("what may be meant by a wrong tag is a body to write", () => {
    /** @type {[body: string, said: string, fixes: string[]][]} */
    const cases = [
        ["a:0,7:high", "“0,7” is not a number; write 0.7", ["a:0.7:high"]],
        ["a:1:0,7", "“0,7” is not a number; write 0.7, or for block weights lbw=0,7", ["a:1:0.7"]],
        ["a:1:hr = 80%:x=2", "“80%” is not a number; write 0.8", ["a:1:hr =0.8:x=2"]],
        ["a:mas=left", "“mas” is not a setting of a LoRA tag; did you mean mask?", ["a:mask=left"]],
        ["a:Mask=left", "“Mask” is not a setting of a LoRA tag; did you mean mask?", ["a:mask=left"]],
        ["a:1:nope=1:high", "“nope” is not a setting of a LoRA tag; leave it out", ["a:1:high"]],
        ["a:stop=1:stop=2", "“stop” is set twice; leave one out", ["a:stop=1"]],
        ["a:1:2:3:4", "a fourth number, “4”; write at most two strengths and a rank", ["a:1:2:3"]],
        [
            "a:pass=base, hire",
            "“hire” is none of base, hires, refiner, detailer; did you mean hires?",
            ["a:pass=base,hires"],
        ],
        ["a:half=positive", "“positive” is none of pos, neg; did you mean pos?", ["a:half=pos"]],
        ["a:step=0,2–0,8", "“0,2–0,8” is not a range; write 0.2-0.8", ["a:step=0.2-0.8"]],
        ["a:feather=0.5:high", "“feather” needs a region, such as mask=left", ["a:high"]],
        ["a:x", "“x” is not a number; write a number, such as 0.8", []],
    ];
    for (const [body, said, wanted] of cases) {
        const {problem, fixes} = readBody(body);
        assert.deepEqual([problem, fixes.map((fix) => fix.body)], [said, wanted], body);
        for (const fix of wanted) assert.equal(readBody(fix).problem, "", fix);
    }
    assert.deepEqual(readBody("a:0,7").fixes, [{word: "0.7", instead: "0,7", body: "a:0.7"}]);
    assert.deepEqual(readBody("a:1:nope=1").fixes, [{word: "Leave out nope=1", instead: "", body: "a:1"}]);
});

test("a good tag has no problem", () => {
    const bodies = [
        "a:hr=0@0,1@1:by=SIGMA:curve=Cosine",
        "a:dyn=1",
        "a:dyn=999999",
        "a:mask=left:feather=0",
        "a:mask=left:outside=0",
        "a:rows=01",
        "a:start=0:stop=0.5:step=2-10",
        "a:1:5-15:high",
        "a:start=0:end=0.25",
        "a:step=-8",
        "a:sigma=14.6-",
        "a:half=POS:pass= Base + hires",
        "a:mask=left:feather=1:part=007",
        "a:rows=1,2+30",
        "a:HIGH:low",
        "a:x=-0.5:module=transformer_2",
    ];
    for (const body of bodies) assert.equal(readBody(body).problem, "", body);
});

test("a range has two ends, of which one may be missing", () => {
    /** @type {[string, [string, string] | null][]} */
    const cases = [
        ["2-10", ["2", "10"]],
        [" 0.1 - .8 ", ["0.1", ".8"]],
        ["-8", ["", "8"]],
        ["2-", ["2", ""]],
        ["1e-3-1e+2", ["1e-3", "1e+2"]],
        ["-", null],
        ["", null],
        ["5", null],
        ["a-b", null],
        ["1.1.-2", null],
        ["2-.", null],
        ["--2", null],
    ];
    for (const [text, wanted] of cases) assert.deepEqual(rangeOf(text), wanted, text);
});

test("a body without points loses its shape and its unit", () => {
    assert.equal(withoutShape("a:1:by=sigma:curve=cosine:stop=5"), "a:1:stop=5");
    assert.equal(withoutShape("a:1:in=0@0,1@1:by=sigma"), "a:1:in=0@0,1@1:by=sigma");
    assert.equal(withoutShape("a:0@0,1@1:curve=step"), "a:0@0,1@1:curve=step");
    assert.equal(withoutShape("a:1:stop=5"), "a:1:stop=5");
});

test("a field that is not there is put at the end, and an empty value of it changes nothing", () => {
    assert.equal(setField("a", "mask", "left"), "a:mask=left");
    assert.equal(setField("a:1:high", "mask", ""), "a:1:high");
});

test("of a field that is set by place and by key, the one with a key is changed", () => {
    assert.equal(setField("a:0.5:te=0.3", "te", "1"), "a:0.5:te=1");
});

test("the ends of a range stay where they are while one is left", () => {
    assert.equal(setField("a:step=2-", "stop", "5"), "a:step=2-5");
    assert.equal(setField("a:step=2-8", "start", ""), "a:stop=8");
    assert.equal(setField("a:step=2-", "start", ""), "a");
    assert.equal(setField("a:sigma=2-5", "start", "3"), "a:sigma=2-5:start=3");
    assert.equal(setField("a:step=x", "start", "3"), "a:step=x:start=3");
});

test("strengths of schedules and numbers stand side by side", () => {
    assert.equal(setMultipliers("a", 1, "0@0,1@1"), "a:1:0@0,1@1");
    assert.equal(setMultipliers("a:1:0.3:high:low", 0.5, 0.5), "a:0.5:high:low");
    assert.equal(setMultipliers("a:1:2:te=3", 0.5, 0.5), "a:1:0.5:te=0.5");
});

// body of a tag -> strengths of text encoders and UNet, the rest of an entry, and the body it becomes in a prompt again
/** @type {[body: string, te: number, unet: number, more: string, again: string][]} */
const ENTRIES = [
    ["a", 1, 1, "", "a:1"],
    ["a:0.5:0.7:8", 0.5, 0.7, "dyn=8", "a:0.5:0.7:dyn=8"],
    ["a:0.5:IN02:0.3:high", 0.5, 0.5, "lbw=IN02:x=0.3:high", "a:0.5:lbw=IN02:x=0.3:high"],
    ["a:0.5: IN02 :high", 0.5, 0.5, "lbw=IN02:high", "a:0.5:lbw=IN02:high"],
    ["a:0.8:0@0,1@1:stop=10", 0.8, 1, "unet=0@0,1@1:stop=10", "a:0.8:0@0,1@1:stop=10"],
    ["a:te=0@0;1@1:pass=hires", 1, 1, "te=0@0;1@1:unet=0@0;1@1:pass=hires", "a:0@0;1@1:pass=hires"],
];

test("an entry that is always on keeps all fields of its tag", () => {
    for (const [body, te, unet, more, again] of ENTRIES) {
        const entry = {name: "a", ...entryOf(body)};
        assert.deepEqual(entry, {name: "a", text_encoder: te, unet, more});
        assert.equal(tagOf(entry), `<lora:${again}>`);
        assert.equal(entryOf(bodyOf(entry)).more, more);
    }
});

test("an entry takes the standard strength where its tag has none", () => {
    assert.deepEqual(entryOf("a:high", 0.6), {text_encoder: 0.6, unet: 0.6, more: "high"});
});

test("the body of an entry has both strengths, and its other fields where it has some", () => {
    assert.equal(bodyOf({name: "a", text_encoder: 1, unet: 0.5, more: ""}), "a:1:0.5");
    assert.equal(bodyOf({name: "a", text_encoder: 1, unet: 0.5, more: "stop=5"}), "a:1:0.5:stop=5");
});

test("a new tag has one strength where both are equal", () => {
    assert.equal(makeTag("a", 0.5, 0.5), "<lora:a:0.5>");
    assert.equal(makeTag("a", 0.5, 0.7), "<lora:a:0.5:0.7>");
    assert.equal(makeTag("a:high", "0@0,1@1", 1), "<lora:a:0@0,1@1:1:high>");
});

test("there are four passes", () => {
    assert.deepEqual(PASSES, ["base", "hires", "refiner", "detailer"]);
});
