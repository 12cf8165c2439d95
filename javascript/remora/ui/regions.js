// For which part of the picture a LoRA is: one of the regions there are, or one that is painted.

/**
 * @import {Region} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 * @import {Weights} from "../regions.js"
 * @import {FieldEvent, Filled} from "../vendor/preact.js"
 * @import {Entry} from "./stack.js"
 */

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {written} from "../curve.js";
import {invertedText, maskProblem, masksMeant, percent, readMask, weightsOf} from "../regions.js";
import {setField} from "../tag.js";
import {t} from "../words.js";
import {Painter} from "./painter.js";
import {broken, Deleted, isStill, leaving, Meant, Trouble, useLoad} from "./parts.js";
import {draw, weightsAt} from "./pixels.js";

const MOST_FEATHER = 0.5;
const SMALL = 50; // percent of the picture
const STRONGER = 1.5; // a strength that shows there

/** @param {{tab: Tab, entry: Entry}} props */
export function Regions({tab, entry}) {
    const [trouble, attempt] = useLoad(tab, () => tab.kept.loadRegions(), []);
    const [known, setKnown] = useState(/** @type {{[name: string]: Weights} | null} */ (null));
    const [painting, setPainting] = useState(/** @type {{name: string, weights: Weights | null} | null} */ (null));
    const [deleted, setDeleted] = useState(/** @type {(Region & {replaced?: boolean}) | null} */ (null));
    const {regions} = tab.state;
    useEffect(() => {
        let here = true;
        const all = (regions ?? []).map(async ({name, picture}) => [
            name,
            await weightsAt(`data:image/png;base64,${picture}`),
        ]);
        attempt(async () => {
            const found = Object.fromEntries(await Promise.all(all));
            if (here) setKnown(found);
        });
        return () => {
            here = false;
        };
    }, [regions]);
    const text = entry.values.mask ?? "",
        feather = Number(entry.values.feather ?? 0) || 0;
    const [part, ...others] = readMask(text);
    const base = others.length ? "" : part.name; // the region that is chosen, or all but it
    const own = regions?.find((one) => one.own && one.name === base);
    // without a region, nothing can fade, and nothing is outside
    const write = (/** @type {string} */ value, what = "") =>
        entry.edit((body) => setField(value ? body : withoutRegion(body), "mask", value), what);
    const save = async (/** @type {string} */ name, /** @type {string} */ picture) => {
        const former = regions?.find((one) => one.own && one.name === name);
        await tab.kept.saveRegion(name, picture);
        setDeleted(former ? {...former, replaced: true} : null);
        write(name);
        setPainting(null);
    };
    const remove = () =>
        attempt(async () => {
            await tab.kept.deleteRegion(/** @type {Region} */ (own).name);
            write("");
            setDeleted(own ?? null);
        });
    const undo = () =>
        attempt(async () => {
            const {name, picture} = /** @type {Region} */ (deleted);
            await save(name, `data:image/png;base64,${picture}`);
            setDeleted(null);
        });
    return html`<div class="rt-part" role="group" aria-label=${t("regions.label", {name: entry.name})}>
        <${Trouble} trouble=${trouble} />
        ${!regions && !trouble.text && html`<p class="rt-hint">${t("common.loading")}</p>`}
        ${
            regions
            && html`<${Choice} entry=${entry} regions=${regions} text=${text} write=${write} />
        <div class="rt-line">
            <button type="button" class="rt-small" onClick=${() => setPainting({name: "", weights: null})}>${t("regions.paint")}</button>
            ${
                own
                && known
                && html`<button type="button" class="rt-small"
                onClick=${() => setPainting({name: own.name, weights: known[own.name]})}>${t("regions.change", {name: own.name})}</button>`
            }
            ${own && html`<button type="button" class="rt-small" onClick=${remove}>${t("regions.delete", {name: own.name})}</button>`}
        </div>
        ${
            deleted
            && isStill(
                deleted.name,
                deleted.replaced,
                regions.filter((one) => one.own),
            )
            && html`<${Deleted} name=${t("regions.named", {name: deleted.name})} replaced=${deleted.replaced} undo=${undo} />`
        }
        ${text && known && html`<${Shown} entry=${entry} text=${text} feather=${feather} known=${known} />`}`
        }
        ${
            painting
            && html`<${Painter} ...${painting} taken=${(regions ?? []).filter((one) => !one.own).map((one) => one.name)}
            save=${save} close=${() => setPainting(null)} />`
        }
    </div>`;
}

/** @param {{entry: Entry, regions: Region[], text: string, write: (value: string, what?: string) => void}} props */
function Choice({entry, regions, text, write}) {
    const [typed, setTyped] = useState(/** @type {string | null} */ (null));
    const names = regions.map((one) => one.name);
    const [{name, inverted}, ...others] = readMask(text);
    const chosen = others.length || (text && !name) ? null : name;
    const other = text && invertedText(text);
    const shown = typed ?? text;
    const problem = shown.trim() ? maskProblem(shown, names) : "";
    const type = (/** @type {FieldEvent} */ event) => {
        setTyped(event.target.value);
        if (!event.target.value.trim() || !maskProblem(event.target.value, names))
            write(event.target.value.trim(), "region");
    };
    const {names: words, texts} = masksMeant(shown, names);
    const meant = words.map((word, at) => ({
        word,
        instead: shown,
        pick: () => {
            setTyped(null);
            write(texts[at], "region");
        },
    }));
    return html`<div class="rt-line" role="group" aria-label=${t("regions.byName", {name: entry.name})}>
            ${["", ...names].map(
                (
                    one,
                ) => html`<button type="button" key=${one} class="rt-chip rt-pass" aria-pressed=${String(one === chosen)}
                onClick=${() => write(inverted && one ? `!${one}` : one)}>${one ? broken(one) : t("regions.whole")}</button>`,
            )}
            <button type="button" class="rt-small" aria-pressed=${String(inverted && !others.length)} disabled=${!other}
                title=${t("regions.allButHint")} onClick=${() => write(String(other))}>${t("regions.allBut")}</button>
        </div>
        <div class="rt-field" onFocusOut=${leaving(() => setTyped(null))}><label class="rt-field"><span>${t("regions.text")}</span>
            <input type="text" autocomplete="off" spellcheck=${false} aria-label=${t("regions.asText", {name: entry.name})}
                aria-invalid=${String(problem !== "")} placeholder=${t("regions.textExample")} value=${shown} onInput=${type} />
            <span class="rt-problem" role="alert">${problem}</span></label>
        <${Meant} choices=${typed !== null ? meant : []} /></div>
        <p class="rt-hint">${t("regions.hint")}</p>`;
}

/** @param {{entry: Entry, text: string, feather: number, known: {[name: string]: Weights}}} props */
function Shown({entry, text, feather, known}) {
    const canvas = /** @type {Filled<HTMLCanvasElement>} */ (useRef());
    const weights = maskProblem(text, Object.keys(known)) ? null : weightsOf(text, feather, known);
    useEffect(() => {
        if (weights) draw(canvas.current, weights);
    });
    if (!weights) return null;
    const fade = (/** @type {FieldEvent} */ event) =>
        entry.edit(
            (body) => setField(body, "feather", event.target.valueAsNumber ? written(event.target.valueAsNumber) : ""),
            "feather",
        );
    const keep = (/** @type {FieldEvent} */ event) =>
        entry.edit((body) => setField(body, "outside", restOf(event.target.valueAsNumber)), "outside");
    const rest = Number(entry.values.outside ?? 1);
    const {unet, unetCurve, teText, unetText} = entry;
    const stronger = () => entry.setStrength(teText === unetText ? STRONGER : teText, STRONGER);
    return html`<div class="rt-region">
        <canvas width="64" height="64" ref=${canvas} role="img" aria-label=${t("regions.share", {text, percent: percent(weights)})}></canvas>
        <label class="rt-field"><span>${t("regions.softEdge")}</span>
            <input type="range" min="0" max=${MOST_FEATHER} step="0.01" value=${feather} aria-label=${t("regions.softEdgeOf", {name: entry.name})}
                aria-valuetext=${t("regions.ofPicture", {percent: Math.round(feather * 100)})} onInput=${fade} /></label>
        <label class="rt-field"><span>${t("regions.outside")}</span>
            <input type="range" min="0" max="1" step="0.05" value=${rest} aria-label=${t("regions.outsideOf", {name: entry.name})}
                aria-valuetext=${t("regions.ofEffect", {percent: Math.round(rest * 100)})} onInput=${keep} /></label>
        ${rest < 1 && html`<p class="rt-hint">${t("regions.outsideHint")}</p>`}
        ${
            Number(percent(weights)) <= SMALL
            && html`<p class="rt-hint rt-line">${t("regions.stronger", {strength: STRONGER})}
            ${
                !unetCurve
                && unet < STRONGER
                && html`<button type="button" class="rt-small" onClick=${stronger}>${t("regions.setStrength", {strength: STRONGER})}</button>`
            }</p>`
        }
    </div>`;
}

/** @param {string} body */
const withoutRegion = (body) => ["feather", "outside"].reduce((left, key) => setField(left, key, ""), body);

/** @param {number} rest */
const restOf = (rest) => (rest < 1 ? written(rest) : "");
