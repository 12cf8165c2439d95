// The strength over the generation: a curve whose points are moved, and the steps in which the LoRA acts.

/**
 * @import {Curve} from "../curve.js"
 * @import {FieldEvent, Filled, Value} from "../vendor/preact.js"
 * @import {Axis} from "./curve.js"
 * @import {Entry} from "./stack.js"
 */

import {html, useLayoutEffect, useRef, useState} from "../vendor/preact.js";
import {readAmount, SHAPES, valueAt, writePoints, written} from "../curve.js";
import {numberMeant} from "../similar.js";
import {setField, setMultipliers, withoutShape} from "../tag.js";
import {t} from "../words.js";
import {axisOf, Drawing, kept, onGrid, rounded} from "./curve.js";
import {isNumber, leaving, Meant, numberOf, numbersMeant} from "./parts.js";
import {stepsOf} from "./summary.js";

/** @type {{[shape: string]: "schedule.shape.linear" | "schedule.shape.step" | "schedule.shape.cosine"}} */
const SHAPE_TITLES = {
    linear: "schedule.shape.linear",
    step: "schedule.shape.step",
    cosine: "schedule.shape.cosine",
};

/** @param {{entry: Entry, unreached: string}} props `unreached` says why it never acts */
export function Schedule({entry, unreached}) {
    const {name, teCurve, unetCurve, teText, unetText} = entry;
    const tied = teCurve && teText === unetText;
    const write = (/** @type {string} */ text, what = "") =>
        entry.edit((body) => setMultipliers(body, tied ? text : teText, text), what);
    const full = written(entry.unet);
    const from = (/** @type {string} */ first, /** @type {string} */ last) => () => write(`${first}@0,${last}@1`);
    const end = () => entry.edit((body) => withoutShape(setMultipliers(body, entry.te, entry.unet)));
    return html`<div class="rt-part" role="group" aria-label=${t("schedule.label", {name})}>
        ${
            unetCurve
                ? html`<${Editor} entry=${entry} points=${unetCurve} text=${unetText} write=${write} end=${end} />`
                : html`<div class="rt-line">
            <button type="button" class="rt-small" onClick=${from("0", full)}>${t("schedule.fadeIn")}</button>
            <button type="button" class="rt-small" onClick=${from(full, "0")}>${t("schedule.fadeOut")}</button>
            <button type="button" class="rt-small" onClick=${from(full, full)}>${t("schedule.add")}</button></div>`
        }
        ${
            teCurve
            && html`<p class="rt-hint">${tied ? t("schedule.textSame") : t("schedule.textOther", {points: teText})}
            ${" "}${t("schedule.textOnce")}
            ${!unetCurve && html`${" "}<button type="button" class="rt-link" onClick=${end}>${t("schedule.end")}</button>`}</p>`
        }
        <${Steps} entry=${entry} />
        ${unreached && html`<p class="rt-warning">⚠ ${unreached}</p>`}
    </div>`;
}

/**
 * @param {object} props
 * @param {Entry} props.entry
 * @param {Curve} props.points
 * @param {string} props.text
 * @param {(text: string, what?: string) => void} props.write
 * @param {() => void} props.end
 */
function Editor({entry, points, text, write, end}) {
    const [chosen, choose] = useState(0);
    const at = Math.min(chosen, points.length - 1);
    const svg = /** @type {Filled<SVGSVGElement>} */ (useRef());
    const wanted = useRef(/** @type {number | null} */ (null)); // the point to have the focus when it is drawn
    const shape = entry.values.curve?.toLowerCase() ?? "linear";
    const axis = axisOf(points, entry.values.by?.toLowerCase());
    // the focus moves before the next key
    useLayoutEffect(() => {
        if (wanted.current === null) return;
        /** @type {NodeListOf<SVGElement>} */ (svg.current.querySelectorAll("[role=slider]"))[wanted.current]?.focus();
        wanted.current = null;
    });
    const put = (/** @type {Curve} */ changed, what = "schedule") => write(writePoints(changed), what);
    const add = (/** @type {number} */ position, value = valueAt(points, position, shape)) => {
        const place = points.filter((point) => point.at <= position).length;
        wanted.current = place;
        choose(place);
        put([...points.slice(0, place), {at: position, value: rounded(value)}, ...points.slice(place)], "");
        return place;
    };
    const remove = () => {
        if (points.length < 2) return;
        wanted.current = Math.min(at, points.length - 2);
        choose(wanted.current);
        put(
            kept(
                points.filter((_, place) => place !== at),
                axis,
            ),
            "",
        );
    };
    return html`
        <${Drawing} svg=${svg} name=${entry.name} points=${points} axis=${axis} shape=${shape} chosen=${at} choose=${choose}
            put=${put} add=${add} remove=${remove} />
        <p class="rt-hint">${t("schedule.hint")}</p>
        <div class="rt-line">
            <button type="button" class="rt-small" onClick=${() => add(gap(points, axis))}>${t("schedule.addPoint")}</button>
            <button type="button" class="rt-small" disabled=${points.length < 2} onClick=${remove}>${t("schedule.removePoint", {number: at + 1})}</button>
            <select aria-label=${t("schedule.shapeOf", {name: entry.name})} value=${shape} onChange=${(event) =>
                entry.edit((body) =>
                    setField(body, "curve", event.target.value === "linear" ? "" : event.target.value),
                )}>
                ${SHAPES.map((one) => html`<option key=${one} value=${one}>${t(SHAPE_TITLES[one])}</option>`)}</select>
            <button type="button" class="rt-small" onClick=${end}>${t("schedule.end")}</button>
        </div>
        <${Typed} label=${t("schedule.pointsOf", {name: entry.name})} title=${t("schedule.points")} text=${text} write=${(/** @type {string} */ typed) => write(typed.replace(/\s+/g, ""), "points")}
            problem=${(/** @type {string} */ typed) => (readAmount(typed)?.curve ? "" : t("schedule.pointsWrong"))} />`;
}

/**
 * Return the middle of the widest gap.
 * @param {Curve} points
 * @param {Axis} axis
 */
function gap(points, {max, grid}) {
    const places = [0, ...points.map(({at}) => at), max];
    const widest = places
        .slice(1)
        .map((at, index) => [at - places[index], places[index]])
        .reduce((one, other) => (other[0] > one[0] ? other : one));
    return onGrid(widest[1] + widest[0] / 2, grid);
}

/**
 * Draw a text that is written as soon as it is right.
 * @param {object} props
 * @param {string} props.label
 * @param {string} props.title
 * @param {string} props.text
 * @param {(text: string) => void} props.write
 * @param {(text: string) => string} props.problem
 * @param {boolean} [props.isNumber] whether a number that may be meant is suggested
 */
function Typed({label, title, text, write, problem, isNumber: ofNumber = false}) {
    const [typed, setTyped] = useState(/** @type {string | null} */ (null));
    const said = typed === null ? "" : problem(typed);
    const type = (/** @type {FieldEvent} */ event) => {
        setTyped(event.target.value);
        if (!problem(event.target.value)) write(event.target.value);
    };
    const pick = (/** @type {string} */ number) => {
        setTyped(null);
        write(number);
    };
    return html`<div class="rt-field" onFocusOut=${leaving(() => setTyped(null))}><label class="rt-field"><span>${title}</span>
        <input type="text" autocomplete="off" spellcheck=${false} aria-label=${label} aria-invalid=${String(said !== "")} value=${typed ?? text}
            onInput=${type} />
        <span class="rt-problem" role="alert">${said}</span></label>
        <${Meant} choices=${ofNumber && said && typed !== null ? numbersMeant(typed, pick) : []} /></div>`;
}

/** @param {{entry: Entry}} props */
function Steps({entry}) {
    const {name} = entry;
    const steps = stepsOf(entry.values);
    const problem = (/** @type {string} */ typed) =>
        !typed.trim() || (isNumber(typed) && numberOf(typed) >= 0)
            ? ""
            : t("schedule.stepWrong", {text: typed, example: numberMeant(typed) || t("schedule.aNumber")});
    /** @type {(key: "start" | "stop", title: string, label: string) => Value} */
    const field = (
        key,
        title,
        label,
    ) => html`<${Typed} title=${title} label=${label} text=${steps[key]} problem=${problem} isNumber
        write=${(/** @type {string} */ typed) => entry.edit((body) => setField(body, key, typed.trim().replace(",", ".")), "steps")} />`;
    return html`<div class="rt-steps">${field("start", t("schedule.after"), t("schedule.afterOf", {name}))}${field("stop", t("schedule.until"), t("schedule.untilOf", {name}))}</div>
        <p class="rt-hint">${t("schedule.stepsHint")}</p>`;
}
