// What a tag names that does not exist: presets of block weights or of rules, and regions. Pure.

/**
 * @import {Blocks, Region} from "../api.d.ts"
 * @import {Problem, Reading, Values} from "./tag.js"
 */

import {maskProblem, masksMeant, readMask} from "./regions.js";
import {asked, similar} from "./similar.js";
import {setField} from "./tag.js";
import {readWeights} from "./weights.js";
import {t} from "./words.js";

/**
 * @typedef {Pick<Blocks, "layouts" | "presets" | "rules">} KnownBlocks
 * @typedef {{blocks: KnownBlocks | null, regions: Region[] | null}} Known
 * What the server keeps; null while it was not asked.
 *
 * @typedef {{said: string, write: {word: string, value: string}[]}} NameFault
 */

/**
 * Return what is wrong with a tag that can be read: a sentence, the field that it is about, and the bodies that may be
 * meant. The sentence is empty where nothing is wrong.
 * @param {Pick<Reading, "values"> & {body: string}} tag
 * @param {Known} known
 * @returns {Problem & {key: string}}
 */
export function faultOfNames({values, body}, {blocks, regions}) {
    /** @type {[key: string, fault: (text: string) => NameFault][]} */
    const checks = [
        ...(blocks ? [check("lbw", (text) => faultOfWeights(text, blocks))] : []),
        ...(blocks ? [check("lbwe", (text) => faultOfRules(text, blocks.rules))] : []),
        ...(regions ? [check("mask", (text) => faultOfMask(text, regions))] : []),
    ];
    for (const [key, fault] of checks) {
        const text = values[key];
        const {said, write} = text ? fault(text) : {said: "", write: []};
        if (!said) continue;
        const fixes = write.map(({word, value}) => ({word, instead: String(text), body: setField(body, key, value)}));
        return {key, said, fixes};
    }
    return {key: "", said: "", fixes: []};
}

/** @type {(key: string, fault: (text: string) => NameFault) => [string, (text: string) => NameFault]} */
const check = (key, fault) => [key, fault];

/** @type {(text: string, blocks: KnownBlocks) => NameFault} */
function faultOfWeights(text, blocks) {
    const {problem, write} = readWeights(text, blocks);
    return {said: problem, write: write.map((value) => ({word: value, value}))};
}

/** @type {(text: string, rules: string[]) => NameFault} */
function faultOfRules(text, rules) {
    if (rules.includes(text)) return {said: "", write: []};
    const meant = similar(text, rules);
    const said = asked(t("blocks.noSuchRules", {name: text}), meant);
    return {said, write: meant.map((value) => ({word: value, value}))};
}

/** @type {(text: string, regions: Region[]) => NameFault} */
function faultOfMask(text, regions) {
    const names = regions.map(({name}) => name);
    const {names: words, texts} = masksMeant(text, names);
    return {said: maskProblem(text, names), write: words.map((word, at) => ({word, value: texts[at]}))};
}

/**
 * Tell which lists of the server a tag has names of.
 * @param {Values} values
 */
export function listsOf({lbw, lbwe, mask}) {
    return {
        blocks: Boolean(lbw || lbwe),
        regions: mask !== undefined && readMask(mask).some(({name, edges}) => name !== "" && !edges),
    };
}
