// Notes as Markdown: javascript/remora/markdown.js.

import assert from "node:assert/strict";
import {test} from "node:test";
import {blocksOf} from "../../javascript/remora/markdown.js";

/**
 * Write blocks as plain lists, to compare them.
 * @param {string} text
 */
const read = (text) =>
    blocksOf(text).map(({kind, lines, ...more}) => [
        "ordered" in more && more.ordered ? "ordered" : kind,
        ...lines.map((spans) => spans.map((span) => (span.kind === "text" ? span.text : {[span.kind]: span.text}))),
    ]);

test("headings, lists, paragraphs and code are blocks", () => {
    assert.deepEqual(read("# Fur\nGood at\n0.8\n\n- wet\n- dry\n1. first\n2) second\n\nend\n```\n- **x**\n```"), [
        ["heading", ["Fur"]],
        ["text", ["Good at"], ["0.8"]],
        ["list", ["wet"], ["dry"]],
        ["ordered", ["first"], ["second"]],
        ["text", ["end"]],
        ["code", ["- **x**"]],
    ]);
    assert.deepEqual(read(""), []);
});

test("bold, italic, code and links are spans, and marks within words are none", () => {
    assert.deepEqual(read("a **b** *c* _d_ `e*f*` snake_case_name 2*3*4"), [
        ["text", ["a ", {strong: "b"}, " ", {em: "c"}, " ", {em: "d"}, " ", {code: "e*f*"}, " snake_case_name 2*3*4"]],
    ]);
    const [{lines}] = blocksOf("see [it](https://a.example/b?c=1) or http://d.example.");
    assert.deepEqual(lines[0][1], {kind: "link", text: "it", address: "https://a.example/b?c=1"});
    assert.equal(lines[0][3].kind, "link");
});

test("HTML and other addresses stay text", () => {
    for (const text of [
        "<img src=x onerror=alert(1)>",
        "[a](javascript:alert(1))",
        "[a](data:text/html,x)",
        "<b>x</b>",
    ])
        assert.deepEqual(read(text), [["text", [text]]], text);
});

test("a text of marks takes no long time", () => {
    for (const mark of ["*", "_a", "`", "[", "[](", "**a", "http://", "- "]) {
        const start = process.cpuUsage();
        blocksOf(mark.repeat(20_000));
        assert.ok(process.cpuUsage(start).user < 1_000_000, mark);
    }
});
