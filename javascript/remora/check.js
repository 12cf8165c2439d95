// What the doctor says of files, in words, and what the stack makes of it. Pure.

/**
 * @import {Blocks, CheckBlock, CheckPair, CheckVerdict, PublishedRange, Standing} from "../api.d.ts"
 * @import {Reading} from "./tag.js"
 */

import {readWeights, shownBlocks} from "./weights.js";
import {listed, number, t, translated} from "./words.js";

const STRONGEST = 10; // strength; beyond it there are no pictures

/**
 * Write a share, with a digit behind the point where it is small, or nearly all.
 * @param {number} share
 */
export function percent(share) {
    const isRound = (share >= 0.0995 && share < 0.995) || share >= 0.9995;
    return t("mark.percent", {number: number(share * 100, isRound ? 0 : 1)});
}

/**
 * Write a number with three digits.
 * @param {number} value
 */
export const short = (value) => number(Number(value.toPrecision(3)));

/**
 * Write a strength or a weight to set, with two digits.
 * @param {number} value
 */
const toSet = (value) => number(Number(value.toPrecision(2)));

/**
 * Write the numbers between two, or the one that both are.
 * @param {{[name: string]: number}} numbers
 */
function span({low, high}) {
    return low === high ? short(low) : t("mark.range", {low: short(low), high: short(high)});
}

/** @type {{[name: string]: ((numbers: {[name: string]: number}, blocks: string) => string) | undefined}} */
const SENTENCES = {
    not_finite: ({count}) => t("check.notFinite", {count}),
    clipped: ({count}) => t("check.clipped", {count}),
    dead: ({count, total}) => (count === total ? t("check.allDead") : t("check.dead", {count, total})),
    alpha: ({low, high, said}) =>
        low === high
            ? t("check.alpha", {own: short(low), said: short(said), factor: short(said / low)})
            : t("check.alphas", {own: span({low, high}), said: short(said)}),
    resized: ({low, high, said}) => t("check.resized", {own: span({low, high}), said: short(said)}),
    no_scale: () => t("check.noScale"),
    strong: ({relative, strength}) => t("check.strong", {percent: percent(relative), strength: short(strength)}),
    weak: ({relative, strength}) =>
        strength > STRONGEST
            ? t("check.weakest", {percent: percent(relative)})
            : t("check.weak", {percent: percent(relative), strength: toSet(strength)}),
    spike: ({times, largest, weight, left}, blocks) =>
        t("check.spike", {times: short(times), largest: short(largest), blocks, weight: toSet(weight), left}),
    dominant: ({share, weight, left}, blocks) =>
        weight === undefined
            ? t("check.dominantBlocks", {percent: percent(share)})
            : t("check.dominant", {percent: percent(share), blocks, weight: toSet(weight), left: percent(left)}),
    text_encoder: ({share, strength}) => t("check.textEncoder", {percent: percent(share), strength: toSet(strength)}),
    spare_rank: ({needed, rank}) => t("check.spareRank", {needed, rank}),
};

/**
 * Say a verdict; one that this page does not know is said in the words of the server.
 * @param {Pick<CheckVerdict, "name" | "sure" | "numbers" | "blocks" | "text">} verdict
 */
export function sentence({name, sure, numbers, blocks, text}) {
    const said = SENTENCES[name]?.(numbers, listed(blocks, "conjunction")) ?? translated(text);
    return sure ? said : t("check.hint", {said});
}

/**
 * Say where a figure of a file is among the other files for the model; nothing where that is not known.
 * @param {Standing | undefined} standing
 */
export function placeOf(standing) {
    if (!standing) return "";
    const {others: count, smaller, same} = standing;
    return same ? t("check.standingSame", {count, smaller, same}) : t("check.standing", {count, smaller});
}

/** @type {{[measure: string]: "check.ofScale" | "check.ofSpectral" | "check.ofRank" | undefined}} */
const MEASURES = {scale: "check.ofScale", "spectral norm": "check.ofSpectral", rank: "check.ofRank"};

/**
 * Write what others give for a measure.
 * @param {PublishedRange} published
 */
export function rangeOf({measure, low, high}) {
    const key = MEASURES[measure];
    const range = low === null ? t("check.atMost", {high: short(high)}) : span({low, high});
    return t("check.published", {measure: key ? t(key) : measure, range});
}

/**
 * Return by which factor each block of a file acts in the stack; null where its weight is drawn at random or not known,
 * or where the weights are not for this model.
 * @param {CheckBlock[]} blocks
 * @param {Pick<Reading, "te" | "unet" | "values">} entry a schedule counts with the value farthest from 0
 * @param {Pick<Blocks, "blocks" | "layouts" | "presets">} told
 * @returns {(number | null)[] | null}
 */
export function factorsOf(blocks, entry, told) {
    const {lbw = ""} = entry.values;
    const {cells} = lbw ? readWeights(lbw, told) : {cells: []};
    if (!cells) return null;
    const byId = new Map(shownBlocks(told).map(({id}, at) => [id, Number(cells[at])]));
    return blocks.map(({component, block}) => {
        const isText = component.startsWith("text_encoder");
        const weight = isText ? (byId.get("BASE") ?? byId.get("CLIP")) : byId.get(block);
        const factor = (lbw ? (weight ?? Number.NaN) : 1) * (isText ? entry.te : entry.unet);
        return Number.isFinite(factor) ? factor : null;
    });
}

/**
 * Return the share of a file's energy that the block weights of its entry leave; null where these are not known.
 * @param {CheckBlock[]} blocks
 * @param {Pick<Reading, "te" | "unet" | "values">} entry
 * @param {Pick<Blocks, "blocks" | "layouts" | "presets">} told
 */
export function leftOf(blocks, entry, told) {
    const factors = factorsOf(blocks, entry, told);
    const whole = factorsOf(blocks, {...entry, values: {}}, told) ?? [];
    let [left, all] = [0, 0];
    for (const [at, {block, share}] of blocks.entries()) {
        const factor = factors?.[at] ?? Number.NaN;
        if (!block && Number.isNaN(factor)) continue; // no weight is meant for it
        left += share * factor ** 2;
        all += share * (whole[at] ?? 0) ** 2;
    }
    return all && Number.isFinite(left) ? left / all : null;
}

const WORST = /** @type {const} */ (["cancel", "collide", "reinforce", "independent"]);

/** @typedef {typeof WORST[number]} Relation */

/**
 * Put the bands of each pair of files together. A pair has the relations of its bands, the worst first, and is
 * independent where it has no other.
 * @param {CheckPair[]} bands
 */
export function pairsOf(bands) {
    /** @type {Map<string, CheckPair[]>} */
    const found = new Map();
    for (const band of bands) found.set(band.files.join(), [...(found.get(band.files.join()) ?? []), band]);
    const pairs = [...found.values()].map((own) => ({
        files: own[0].files,
        relations: related(own),
        cosines: spread(own.map(({cosine}) => cosine)),
        bands: own,
    }));
    return pairs.sort((one, other) => WORST.indexOf(one.relations[0]) - WORST.indexOf(other.relations[0]));
}

/**
 * @param {CheckPair[]} bands
 * @returns {Relation[]}
 */
function related(bands) {
    const some = WORST.filter((one) => one !== "independent" && bands.some(({relation}) => relation === one));
    return some.length ? some : ["independent"];
}

/**
 * Write the least and the greatest of some cosines.
 * @param {number[]} cosines
 */
function spread(cosines) {
    const [low, high] = [Math.min(...cosines), Math.max(...cosines)].map(signed);
    return low === high ? low : t("mark.range", {low, high});
}

/**
 * Write a cosine with its sign.
 * @param {number} value
 */
export function signed(value) {
    const rounded = Number(value.toFixed(2));
    const sign = rounded < 0 ? "−" : rounded ? "+" : "";
    return sign + number(Math.abs(rounded), 2);
}
