// Notes as Markdown: the marks that people type in notes. Pure. It makes no HTML, so that a text can bring none along.

/**
 * @typedef {{kind: "text" | "code" | "strong" | "em", text: string} | {kind: "link", text: string, address: string}} Span
 * @typedef {{kind: "heading" | "text" | "code", lines: Span[][]} | {kind: "list", ordered: boolean, lines: Span[][]}} Block
 */

const LONGEST = 20_000; // characters, which notes have
const HEADING = /^#{1,6} +(.+)$/;
const ITEM = /^ *(?:([-*+])|\d{1,4}[.)]) +(.+)$/;
const FENCE = /^ *```/;
/** Code, a link, an address alone, bold, italic; the text in each has no mark of its own in it. */
const SPAN =
    /`([^`\n]{1,1000})`|\[([^[\]\n]{1,500})\]\((https?:\/\/[^\s()<>]{1,1000})\)|(https?:\/\/[^\s<>()"]{1,1000})|\*\*([^*\n]{1,1000})\*\*|(?<![\w*])[*_]([^*_\n]{1,1000})[*_](?![\w*])/g;

/**
 * Return the blocks of a text.
 * @param {string} text
 */
export function blocksOf(text) {
    /** @type {Block[]} */
    const blocks = [];
    /** @type {Block | null} */
    let open = null; // the block that the next line may go on
    let isCode = false;
    const add = (/** @type {Block} */ block) => {
        blocks.push(block);
        open = block;
    };
    for (const line of text.slice(0, LONGEST).split("\n")) {
        if (FENCE.test(line)) {
            isCode = !isCode;
            open = null;
            if (isCode) add({kind: "code", lines: []});
            continue;
        }
        const last = /** @type {Block | null} */ (open);
        if (isCode) last?.lines.push([{kind: "text", text: line}]);
        else if (!line.trim()) open = null;
        else addLine(line, last, add);
    }
    return blocks;
}

/**
 * @param {string} line that is no code
 * @param {Block | null} last
 * @param {(block: Block) => void} add
 */
function addLine(line, last, add) {
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    if (heading) {
        add({kind: "heading", lines: [spansOf(heading[1])]});
    } else if (item) {
        const ordered = !item[1];
        if (last?.kind === "list" && last.ordered === ordered) last.lines.push(spansOf(item[2]));
        else add({kind: "list", ordered, lines: [spansOf(item[2])]});
    } else if (last?.kind === "text") {
        last.lines.push(spansOf(line));
    } else {
        add({kind: "text", lines: [spansOf(line)]});
    }
}

/**
 * @param {string} line
 * @returns {Span[]}
 */
function spansOf(line) {
    /** @type {Span[]} */
    const spans = [];
    let at = 0;
    for (const found of line.matchAll(SPAN)) {
        if (found.index > at) spans.push({kind: "text", text: line.slice(at, found.index)});
        spans.push(spanOf(found));
        at = found.index + found[0].length;
    }
    if (at < line.length) spans.push({kind: "text", text: line.slice(at)});
    return spans;
}

/**
 * @param {RegExpMatchArray} found
 * @returns {Span}
 */
function spanOf([, code, title, address, alone, strong, em]) {
    if (code) return {kind: "code", text: code};
    if (title) return {kind: "link", text: title, address};
    if (alone) return {kind: "link", text: alone, address: alone};
    return strong ? {kind: "strong", text: strong} : {kind: "em", text: em};
}
