// How files are copies of each other, in words. Pure.

/** @import {CopiedFile, Lora} from "../api.d.ts" */

import {size} from "./catalog.js";
import {short, signed} from "./check.js";
import {locale, t} from "./words.js";

/**
 * Say what a file is, beside the one that it is compared with; nothing of the first.
 * @param {Pick<CopiedFile, "alike" | "cosine" | "factor">} file
 * @param {string} other the name of the other one
 */
export function likeness({alike, cosine, factor}, other) {
    switch (alike) {
        case "same":
            return t("copies.same", {other});
        case "precision":
            return t("copies.precision", {other});
        case "rank":
            return t("copies.rank", {other});
        case "scaled":
            return t("copies.scaled", {other, factor: short(factor)});
        case "resized":
            return t("copies.resized", {other, cosine: signed(cosine)});
        case "near":
            return t("copies.near", {other, cosine: signed(cosine)});
        case "epoch":
            return t("copies.epoch", {other, cosine: signed(cosine)});
        default:
            return "";
    }
}

/**
 * Return what copies may differ in: size, kind and rank, precision, steps, date.
 * @param {Lora} lora
 * @param {Pick<CopiedFile, "precisions" | "steps">} file
 * @param {string} rank its kind and rank, in words
 */
export const factsOf = (lora, {precisions, steps}, rank) => [
    size(lora.size),
    rank,
    precisions.join(" + "),
    steps === null ? "" : t("copies.steps", {count: steps}),
    new Date(lora.mtime * 1000).toLocaleDateString(locale()),
];
