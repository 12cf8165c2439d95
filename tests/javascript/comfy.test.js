// The text of Remora Stack in ComfyUI: javascript/remora/ui/comfy.js.

import assert from "node:assert/strict";
import {readdirSync} from "node:fs";
import {test} from "node:test";
import {LANGUAGES, meaning, readLines, writeLines} from "../../javascript/remora/ui/comfy.js";

test("a line of a text is a row, off behind a #, and is written as it was read", () => {
    const text = "<lora:a:0.8>\n# <lora:b\\: c:1:start=0.5>\n<lora:a:0@0,1@1:mask=left>";
    const lines = readLines(text);
    const shown = lines.map(({name, on, unet, key}) => [name, on, unet, key]);
    assert.deepEqual(shown, [
        ["a", true, 0.8, "a#1"],
        ["b: c", false, 1, "b: c#1"],
        ["a", true, 1, "a#2"],
    ]);
    assert.deepEqual(lines.map(({problem}) => problem).join(""), "");
    assert.equal(writeLines(lines), text);
    assert.equal(writeLines(readLines(" <lora:a> <lora:b> \n\n  #<lora:c>\r\n")), "<lora:a>\n<lora:b>\n# <lora:c>");
});

test("a line that has more than tags is a row with a problem, and nothing of it is lost", () => {
    for (const text of ["style", "a fox <lora:a:1>", "# style"]) {
        const [line] = readLines(text);
        assert.equal(line.problem, "This line is no LoRA tag; write <lora:name:1>.");
        assert.equal(writeLines([line]), text);
    }
    assert.deepEqual(readLines("style")[0].fixes, [{word: "<lora:style>", instead: "style", body: "style"}]);
    const [two] = readLines("<lora:a:1> and <lora:b:1:lbw=OUTALL>");
    assert.deepEqual([two.fixes, two.values], [[], {}], "no name is made of several tags");
    assert.equal(readLines("<lora:a:1")[0].problem, "this tag is not closed: “>” is missing");
});

test("a name is a file's, with its folder and its ending or without; of another, the like are told", () => {
    const files = ["style.safetensors", "people/anna.v2.safetensors", "one/eva.safetensors", "two/eva.safetensors"];
    for (const name of ["style", "people/anna.v2", "people\\anna.v2", "anna.v2", "style.safetensors", "one/eva"])
        assert.equal(meaning(name, files).problem, "", name);
    const {problem, candidates} = meaning("stile", files);
    assert.deepEqual([problem, candidates], ["No LoRA file has this name; did you mean style?", ["style"]]);
    assert.equal(meaning("zzz", files).problem, "No LoRA file has this name.");
    assert.match(meaning("eva", files).problem, /^Several files have this name; did you mean one\/eva\.safetensors/);
    assert.deepEqual(meaning("eva", files).candidates, files.slice(2));
});

test("the rows speak every language that the tab speaks", () => {
    const files = readdirSync(new URL("../../javascript/remora/languages", import.meta.url));
    assert.deepEqual([...LANGUAGES].sort(), files.map((file) => file.replace(/\.\w+$/, "")).sort());
});
