// What the doctor says of one file.

/**
 * @import {Blocks, CheckBlock, CheckedFile, CheckVerdict, FileCheck, Standing} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 * @import {Reading} from "../tag.js"
 */

import {html, useEffect, useState} from "../vendor/preact.js";
import {query} from "../api.js";
import {factorsOf, leftOf, percent, placeOf, rangeOf, sentence, short} from "../check.js";
import {pieces, t} from "../words.js";
import {Trouble, useLater, useLoad} from "./parts.js";

const POLL = 700; // milliseconds
const NAMED = 3; // layers of a verdict
const COMMAND = "python -m lib_lora doctor FILE --model MODEL";

/**
 * Ask for a check until it is done; while nobody asks, the server stops it.
 * @template {{result: unknown}} T
 * @param {Tab} tab
 * @param {() => Promise<T | null>} ask
 * @param {unknown[]} inputs
 */
export function useCheck(tab, ask, inputs) {
    const [told, setTold] = useState(/** @type {T | null} */ (null));
    const [round, setRound] = useState(0);
    const [trouble] = useLoad(tab, async () => setTold(await ask()), [...inputs, round]);
    useLater(told && !told.result && (() => setRound(round + 1)), POLL, [told]);
    return {told, trouble};
}

/** @param {{tab: Tab, lora: string}} props */
export function Check({tab, lora}) {
    const ask = () => tab.api.get(/** @type {const} */ (`check?${query({id: lora})}`));
    const {told, trouble} = useCheck(tab, ask, [lora]);
    return html`<div class="rt-part">
        <${Trouble} trouble=${trouble} />
        ${!trouble.text && !told?.result && html`<${Progress} told=${told} />`}
        ${told?.result && html`<${Found} tab=${tab} found=${told.result} standings=${told.standings} entry=${entryOf(tab, lora)} />`}
    </div>`;
}

/** @param {{told: Pick<CheckedFile, "done" | "layers"> | null, label?: string}} props */
export function Progress({told, label = t("check.progress")}) {
    const {done = 0, layers = 0} = told ?? {};
    return html`<div class="rt-line"><progress aria-label=${label} max=${layers || 1} value=${done}></progress>
        <span class="rt-hint">${layers ? t("check.at", {done, layers}) : t("common.loading")}</span></div>`;
}

/**
 * Return the contents of the tag that a file has in the stack, if it is on.
 * @param {Tab} tab
 * @param {string} lora
 */
function entryOf(tab, lora) {
    const always = tab.state.always.on ? tab.stack.always() : [];
    const on = [...tab.stack.rows(), ...always].filter((row) => row.on && !row.problem);
    return on.find((row) => tab.library.meaning(row.name).lora?.id === lora);
}

/** @param {{tab: Tab, found: FileCheck, standings: CheckedFile["standings"], entry: Reading | undefined}} props */
function Found({tab, found, standings, entry}) {
    const unmeasured = Object.values(found.unmeasured).reduce((one, other) => one + other, 0);
    const {blocks} = tab.state;
    useEffect(() => {
        if (entry && !blocks) tab.server.attempt(() => tab.kept.loadBlocks());
    }, [Boolean(entry), blocks]);
    const acting = entry && blocks ? factorsOf(found.blocks, entry, blocks) : null;
    const factors = acting?.some((factor) => factor !== 1) ? acting : null;
    const measured = found.blocks.length > 0;
    const components = Object.entries(found.components);
    const sizes = [
        measured && t("check.norm", {norm: short(found.norm)}),
        found.relative !== null && t("check.relative", {share: percent(found.relative)}),
        measured && placeOf(standings.norm),
    ];
    return html`<div class="rt-part" role="status">
            ${found.verdicts.map((one) => html`<${Verdict} key=${one.name} verdict=${one} standing=${standings[one.figure]} />`)}
            ${measured && !found.verdicts.length && !found.faults.length && html`<p>${t("check.fine")}</p>`}
            ${found.faults.map((fault) => html`<p class="rt-notice">${fault}</p>`)}
            ${unmeasured > 0 && html`<p class="rt-notice">${t("check.unmeasured", {count: unmeasured})}</p>`}
        </div>
        ${
            components.length > 1
            && html`<h4>${t("check.components")}</h4>
            <${Bars} label=${t("check.components")} bars=${components.map(([name, share]) => ({name, share}))} />`
        }
        ${
            measured
            && html`<h4>${t("check.blocks")}</h4>
            <${BlockBars} blocks=${found.blocks} factors=${factors} />
            <h4>${t("check.spectrum")}</h4>
            <${Spectrum} shares=${found.spectrum} />
            <h4>${t("check.kept")}</h4>
            <${Bars} label=${t("check.kept")} bars=${found.kept.map(([rank, share]) => ({name: t("check.rank", {rank}), share}))} />
            <p class="rt-hint">${t("check.needs", {low: found.rank_90, high: found.rank_99, rank: found.rank})}</p>`
        }
        <p class="rt-hint">${sizes.filter(Boolean).join(" ")} ${
            found.relative === null && pieces("check.withModel", {command: html`<code>${COMMAND}</code>`})
        }</p>`;
}

/** @param {{blocks: CheckBlock[], factors: (number | null)[] | null}} props */
function BlockBars({blocks, factors}) {
    return html`<${Bars} label=${t("check.blocks")} bars=${blocks.map(({component, block, share}, at) => ({
        name: block || component,
        share,
        factor: factors?.[at] ?? null,
    }))} />
    ${factors && html`<p class="rt-hint">${t("check.inStackHint")}</p>`}`;
}

/**
 * Draw what the strength and the block weights of an entry leave of its file, as far as that is measured.
 * @param {{tab: Tab, lora: string, entry: Reading, told: Blocks}} props
 */
export function BlockEnergy({tab, lora, entry, told: blocks}) {
    const ask = () => tab.api.get(/** @type {const} */ (`check?${query({id: lora})}`));
    const {told, trouble} = useCheck(tab, ask, [lora]);
    const found = told?.result;
    const left = found ? leftOf(found.blocks, entry, blocks) : null;
    return html`<${Trouble} trouble=${trouble} />
        ${!trouble.text && !found && html`<${Progress} told=${told} />`}
        ${left !== null && html`<p role="status">${left > 1 ? t("blocks.adds", {left: percent(left)}) : t("blocks.removes", {removed: percent(1 - left), left: percent(left)})}</p>`}
        ${found && html`<${BlockBars} blocks=${found.blocks} factors=${factorsOf(found.blocks, entry, blocks)} />`}
        ${found && !found.blocks.length && html`<p class="rt-hint">${t("check.notMeasured")}</p>`}`;
}

/**
 * Draw the share of each direction, the strongest first.
 * @param {{shares: number[]}} props
 */
function Spectrum({shares}) {
    const [first, last] = [shares[0] ?? 0, shares.at(-1) ?? 0];
    const said = t("check.directions", {count: shares.length, first: percent(first), last: percent(last)});
    const bars = shares.map((share) => (first ? Math.max(1, (share / first) * 100) : 0));
    return html`<svg class="rt-spectrum" viewBox=${`0 0 ${shares.length} 100`} preserveAspectRatio="none" role="img" aria-label=${said}>
            ${bars.map((height, at) => html`<rect key=${at} x=${at + 0.1} y=${100 - height} width="0.8" height=${height} />`)}</svg>
        <p class="rt-hint" aria-hidden="true">${said}</p>`;
}

/** @param {{verdict: CheckVerdict, standing: Standing | undefined}} props */
function Verdict({verdict, standing}) {
    const {published} = verdict;
    const names = verdict.layers.slice(0, NAMED).join(t("mark.list"));
    const more = verdict.count - Math.min(NAMED, verdict.layers.length);
    const source =
        published && html`<a href=${published.address} target="_blank" rel="noreferrer">${published.source}</a>`;
    return html`<div class=${verdict.sure ? "rt-notice" : "rt-hint"}>
        <p>${sentence(verdict)}</p>
        ${(standing || published) && html`<p class="rt-hint">${placeOf(standing)} ${published && rangeOf(published)} ${source}</p>`}
        ${names && html`<p class="rt-hint">${more > 0 ? t("check.layersMore", {names, count: more}) : names}</p>`}</div>`;
}

/**
 * Draw shares as bars, each beside its number. Where a part acts by a factor in the stack, its bar is filled as far as
 * that, and outlined as in the file.
 * @param {{label: string, bars: {name: string, share: number, factor?: number | null}[]}} props
 */
export function Bars({label, bars}) {
    const drawn = bars.map((bar) => ({...bar, applied: bar.share * (bar.factor ?? 1) ** 2}));
    const longest = Math.max(...drawn.map(({share, applied}) => Math.max(share, applied))) || 1;
    const width = (/** @type {number} */ share) => `width:${((share / longest) * 100).toFixed(2)}%`;
    const said = (/** @type {typeof drawn[number]} */ {share, factor, applied}) =>
        typeof factor === "number"
            ? t("check.inStack", {share: percent(share), applied: percent(applied)})
            : percent(share);
    return html`<ul class="rt-bars" aria-label=${label}>${drawn.map(
        (bar, at) => html`<li key=${`${bar.name} ${at}`}><span>${bar.name}</span>
            <span class="rt-measure" aria-hidden="true"><span class="rt-whole" style=${width(bar.share)}></span><span style=${width(bar.applied)}></span></span>
            <span>${said(bar)}</span></li>`,
    )}</ul>`;
}
