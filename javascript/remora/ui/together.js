// What the doctor says of the files of the stack together.

/**
 * @import {CheckPair, FilesTogether} from "../../api.d.ts"
 * @import {Relation} from "../check.js"
 * @import {Tab} from "../main.js"
 * @import {FieldEvent} from "../vendor/preact.js"
 */

import {html, useState} from "../vendor/preact.js";
import {query} from "../api.js";
import {pairsOf, percent, short, signed} from "../check.js";
import {listed, t} from "../words.js";
import {Bars, Progress, useCheck} from "./check.js";
import {Dialog, Trouble} from "./parts.js";

const SAME = 0.02; // difference of a factor from 1 that is not worth a change
const RELATIONS = /** @type {const} */ ({
    cancel: {word: "check.cancel", meaning: "check.cancelMeans"},
    collide: {word: "check.collide", meaning: "check.collideMeans"},
    reinforce: {word: "check.reinforce", meaning: "check.reinforceMeans"},
    independent: {word: "check.independent", meaning: "check.independentMeans"},
});

const UNCOUNTED = /** @type {const} */ ({
    schedule: "check.schedule",
    region: "check.region",
    passes: "check.passes",
    prompt: "check.prompt",
    images: "check.images",
    rule: "check.rule",
    random: "check.random",
});

/** @typedef {{id: string, name: string, tag: string, strength: number}} Acting */

/** @param {Acting[]} acting */
const tagsOf = (acting) => acting.map(({tag}) => tag).join("");

/** @param {{tab: Tab}} props */
export function StackCheck({tab}) {
    const [set, setSet] = useState(false); // the strengths, by the button
    const acting = tab.stack.acting();
    const tags = tagsOf(acting);
    const isPair = acting.length > 1;
    const ask = async () => (isPair ? tab.api.get(/** @type {const} */ (`check/stack?${query({tags})}`)) : null);
    const {told, trouble} = useCheck(tab, ask, [tags]);
    // an answer to the strengths before these is of no use
    const found = told?.tags === tags ? told.result : null;
    // each file alone is weaker at these: another factor would follow, and another one
    const isBalanced = tab.state.balanced === tags;
    const scale = (/** @type {number[]} */ factors) => {
        tab.edits.scale(new Map(acting.map(({id}, at) => [id, factors[at]])));
        setSet(true);
    };
    const balance = (/** @type {number} */ factor) => {
        scale(acting.map(() => factor));
        tab.set({balanced: tagsOf(tab.stack.acting())});
    };
    const undo = () => {
        tab.stack.undo();
        setSet(false);
    };
    const foot =
        set
        && html`<div class="rt-line"><span role="status">${t("check.isSet")}</span>
        <button type="button" class="rt-small" onClick=${undo}>${t("common.undo")}</button></div>`;
    return html`<${Dialog} title=${t("check.stack")} close=${() => tab.set({dialog: ""})} foot=${foot} class="rt-wide-dialog">
        <p class="rt-hint">${t("check.caution")}</p>
        <${Trouble} trouble=${trouble} />
        ${!trouble.text && !found && isPair && html`<${Progress} told=${told} />`}
        ${
            found
            && told
            && told.uncounted.length > 0
            && html`<p class="rt-notice">${t("check.uncounted", {
                what: listed(
                    told.uncounted.map((one) => t(UNCOUNTED[one])),
                    "conjunction",
                ),
            })}</p>`
        }
        ${found && html`<${Together} found=${found} acting=${acting} scale=${scale} balance=${isBalanced ? null : balance} />`}
    <//>`;
}

/**
 * @param {{found: FilesTogether, acting: Acting[], scale: (factors: number[]) => void,
 *     balance: ((factor: number) => void) | null}} props `balance` is null where that is done
 */
function Together({found, acting, scale, balance}) {
    const names = acting.map(({name}) => name);
    const unmeasured = names.filter((_, at) => !found.alone[at]);
    const energy = found.alone.reduce((sum, norm) => sum + norm ** 2, 0) || 1;
    const pairs = pairsOf(found.pairs);
    const relations = new Set(pairs.flatMap((pair) => pair.relations));
    const fights = pairs.filter((pair) => pair.relations.includes("cancel"));
    const stop = (/** @type {string} */ stopped) => scale(acting.map(({id}) => (id === stopped ? 0 : 1)));
    return html`<${Sum} found=${found} acting=${acting} balance=${balance} />
        ${fights.map(({files}) => html`<${Fight} key=${files.join()} files=${files.map((at) => acting[at])} stop=${stop} />`)}
        ${unmeasured.length > 0 && html`<p class="rt-notice">${t("check.unmeasuredFiles", {names: listed(unmeasured, "conjunction")})}</p>`}
        <h4>${t("check.shares")}</h4>
        <${Bars} label=${t("check.shares")} bars=${names
            .map((name, at) => ({name, share: found.alone[at] ** 2 / energy}))
            .filter(({share}) => share)} />
        <h4>${t("check.left")}</h4>
        <${Bars} label=${t("check.left")} bars=${names
            .map((name, at) => ({name, share: Math.max(found.left[at], 0)}))
            .filter((_, at) => found.alone[at])} />
        <p class="rt-hint">${t("check.leftHint")}</p>
        <${Alive} factors=${found.alive} acting=${acting} scale=${scale} />
        <h4>${t("check.pairs")}</h4>
        ${!pairs.length && html`<p>${t("check.noPairs")}</p>`}
        ${pairs.length > 0 && html`<${PairMap} names=${names} pairs=${pairs} measured=${found.alone.map(Boolean)} />`}
        ${Object.entries(RELATIONS).map(
            ([relation, {word, meaning}]) =>
                relations.has(/** @type {Relation} */ (relation))
                && html`<p class="rt-hint" key=${relation}>${t("check.means", {word: t(word), meaning: t(meaning)})}</p>`,
        )}
        ${pairs.map(
            ({files, relations: own, bands}) => html`<details key=${files.join()}>
            <summary>${t("check.pair", {names: listed([names[files[0]], names[files[1]]], "conjunction"), relation: said(own)})}</summary>
            <ul>${bands.map((band) => html`<li class="rt-hint" key=${`${band.component} ${band.band}`}>${aboutBand(band)}</li>`)}</ul>
        </details>`,
        )}`;
}

/**
 * Offer to go on with one of two files that may undo each other.
 * @param {{files: Acting[], stop: (id: string) => void}} props
 */
function Fight({files, stop}) {
    const names = listed(
        files.map(({name}) => name),
        "conjunction",
    );
    return html`<p class="rt-notice">${t("check.fight", {names})}</p>
        <div class="rt-line">${files.map(
            ({id, name}) =>
                html`<button type="button" class="rt-small" key=${id} onClick=${() => stop(id)}>${t("check.without", {name})}</button>`,
        )}</div>`;
}

/** @param {Relation[]} relations */
const said = (relations) =>
    listed(
        relations.map((one) => t(RELATIONS[one].word)),
        "conjunction",
    );

/** @param {CheckPair} band */
function aboutBand({component, band, relation, cosine, cosine_by_chance: deviation, mean_cosine: mean, ...shared}) {
    return t("check.band", {
        band: band === component ? band : `${component} ${band}`,
        relation: t(RELATIONS[relation].word),
        cosine: signed(cosine),
        deviation: short(deviation),
        mean: signed(mean),
        outputs: percent(shared.outputs),
        outputsByChance: percent(shared.outputs_by_chance),
        inputs: percent(shared.inputs),
        inputsByChance: percent(shared.inputs_by_chance),
    });
}

/**
 * Say how large the sum is beside one of the files, which the user chooses; at first, the strongest. Where the sum is
 * larger, a button sets strengths at which it is not.
 * @param {{found: FilesTogether, acting: Acting[], balance: ((factor: number) => void) | null}} props
 */
function Sum({found: {norm, alone}, acting, balance}) {
    const [chosen, setChosen] = useState(alone.indexOf(Math.max(...alone)));
    if (!balance) return html`<p>${t("check.balanced")}</p>`;
    const factor = norm ? alone[chosen] / norm : 1;
    return html`<label class="rt-field"><span>${t("check.beside")}</span>
            <select value=${String(chosen)} onChange=${(/** @type {FieldEvent} */ event) => setChosen(Number(event.target.value))}>
                ${acting.map(({id, name}, at) => alone[at] > 0 && html`<option key=${id} value=${String(at)}>${name}</option>`)}
            </select></label>
        <p>${sizeOf(factor, acting[chosen].name)}</p>
        ${
            factor < 1 - SAME
            && html`<div class="rt-line"><button type="button" class="rt-small rt-primary" onClick=${() => balance(factor)}>${t("check.set")}</button>
            <span class="rt-hint">${changed(
                acting,
                acting.map(() => factor),
            )}</span></div>`
        }`;
}

/**
 * Offer strengths at which the sum leaves half of each file, where it leaves less.
 * @param {{factors: number[] | null, acting: Acting[], scale: (factors: number[]) => void}} props
 */
function Alive({factors, acting, scale}) {
    if (!factors) return html`<p class="rt-notice">${t("check.noneAlive")}</p>`;
    if (Math.min(...factors) > 1 - SAME) return null;
    return html`<div class="rt-line"><button type="button" class="rt-small" onClick=${() => scale(factors)}>${t("check.keepAlive")}</button>
        <span class="rt-hint">${changed(acting, factors)}</span></div>`;
}

/**
 * Say by which factor the sum would be as large as a file.
 * @param {number} factor
 * @param {string} name
 */
function sizeOf(factor, name) {
    if (factor > 1 + SAME) return t("check.sumSmaller", {percent: percent(1 / factor), name});
    if (factor > 1 - SAME) return t("check.sumEqual", {name});
    return t("check.sumLarger", {times: short(1 / factor), factor: short(factor), name});
}

/**
 * List strengths before and after factors on them.
 * @param {Acting[]} acting
 * @param {number[]} factors
 */
function changed(acting, factors) {
    const changes = acting.map(({name, strength}, at) =>
        t("check.change", {name, before: short(strength), after: short(Number((strength * factors[at]).toFixed(2)))}),
    );
    return changes.join(t("mark.list"));
}

/** @param {{names: string[], pairs: ReturnType<typeof pairsOf>, measured: boolean[]}} props */
function PairMap({names, pairs, measured}) {
    const byFiles = new Map(pairs.map((pair) => [pair.files.join(), pair]));
    const cell = (/** @type {number} */ row, /** @type {number} */ column) => {
        const pair = byFiles.get([column, row].join());
        return pair
            ? html`<td key=${column} class=${`rt-${pair.relations[0]}`}>${said(pair.relations)} <span class="rt-hint">${pair.cosines}</span></td>`
            : html`<td key=${column} class="rt-hint">${t(measured[row] && measured[column] ? "check.apart" : "check.notMeasured")}</td>`;
    };
    return html`<div class="rt-grid-scroll" role="region" aria-label=${t("check.pairs")} tabindex="0"><table class="rt-map">
        <thead><tr><td></td>${names.slice(0, -1).map((name) => html`<th scope="col" key=${name}>${name}</th>`)}</tr></thead>
        <tbody>${names.slice(1).map(
            (name, at) => html`<tr key=${name}><th scope="row">${name}</th>
            ${names.slice(0, at + 1).map((_, column) => cell(at + 1, column))}</tr>`,
        )}</tbody></table></div>`;
}
