// A schedule as a curve: drawn, and its points moved.

/**
 * @import {Curve, Point as CurvePoint} from "../curve.js"
 * @import {Filled, Key, Pointer} from "../vendor/preact.js"
 */

import {html, useRef} from "../vendor/preact.js";
import {isByFraction, peak, valueAt, written} from "../curve.js";
import {t} from "../words.js";
import {Button} from "./parts.js";

const LOWEST = -1,
    HIGHEST = 2; // by keys and drags; any number can be typed
const BOX = {width: 240, height: 84, left: 12, right: 228, top: 10, bottom: 74};
/** @type {{[key: string]: [along: number, up: number]}} */
const KEYS = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, 1],
    ArrowDown: [0, -1],
    PageUp: [0, 5],
    PageDown: [0, -5],
};
const NUDGE = 0.05;

/** @param {number} value */
export const rounded = (value) => Number(value.toFixed(2));
/**
 * @param {number} position
 * @param {number} grid
 */
export const onGrid = (position, grid) => Number((Math.round(position / grid) * grid).toFixed(4));

/**
 * @typedef {object} Axis
 * How positions are counted.
 * @property {number} max
 * @property {number} least the last point is at least here
 * @property {number} nudge
 * @property {number} grid
 * @property {(at: number) => string} say
 * @property {[start: string, end: string]} ends
 */

/**
 * @typedef {{low: number, high: number}} View
 * The lowest and the highest value that is drawn.
 *
 * @typedef {(number: number) => number} Scale
 */

/** @param {number} at */
const atStep = (at) => t("curve.step", {number: written(at)});
/** @param {number} share */
const percent = (share) => t("mark.percent", {number: written(share * 100)});

/**
 * Tell how positions are counted.
 * @param {Curve} points
 * @param {string | undefined} by
 * @returns {Axis}
 */
export function axisOf(points, by) {
    const last = Math.max(...points.map(({at}) => at));
    if (by === "sigma" || by === "timestep") {
        const max = last > 0 ? last : by === "sigma" ? 15 : 1000;
        return {
            max,
            least: 0,
            nudge: Number((max / 20).toPrecision(2)),
            grid: 0.01,
            say: (at) => `${by} ${written(at)}`,
            ends: [`${by} 0`, written(max)],
        };
    }
    if (isByFraction(points))
        return {
            max: 1,
            least: 0,
            nudge: NUDGE,
            grid: 0.01,
            say: percent,
            ends: [percent(0), percent(1)],
        };
    // of steps, one must be past 1: all would be parts of the pass otherwise
    return {
        max: Math.max(2, last),
        least: 2,
        nudge: 1,
        grid: 1,
        say: atStep,
        ends: [atStep(0), atStep(last)],
    };
}

/**
 * Return the points, which if they mean steps must not come to mean parts of the pass.
 * @param {Curve} points
 * @param {Pick<Axis, "least">} axis
 * @returns {Curve}
 */
export function kept(points, {least}) {
    const last = points[points.length - 1];
    return last.at < least ? [...points.slice(0, -1), {...last, at: least}] : points;
}

/**
 * Draw the curve with a handle for each point. A pointer on the line between them adds one and takes it along.
 * @param {object} props
 * @param {Filled<SVGSVGElement>} props.svg
 * @param {string} props.name
 * @param {Curve} props.points
 * @param {Axis} props.axis
 * @param {string} props.shape
 * @param {number} props.chosen
 * @param {(index: number) => void} props.choose
 * @param {(points: Curve) => void} props.put
 * @param {(position: number) => number} props.add
 * @param {() => void} props.remove
 */
export function Drawing({svg, name, points, axis, shape, chosen, choose, put, add, remove}) {
    // while a pointer is down: view and axis stay as they are
    const drag = useRef(/** @type {{point: number, view: View, axis: Axis} | null} */ (null));
    const view = drag.current?.view ?? viewOf(points);
    const shown = drag.current?.axis ?? axis;
    const {x, y, place} = scaled(svg, shown, view);
    /** @type {(index: number, at: number, value: number) => void} */
    const move = (index, at, value) => put(kept(moved(points, index, at, value, shown), shown));
    const grab = (/** @type {Pointer} */ event, /** @type {number} */ index) => {
        event.preventDefault();
        svg.current.setPointerCapture(event.pointerId);
        drag.current = {point: index, view, axis: shown};
        choose(index);
    };
    const dragged = (/** @type {Pointer} */ event) => {
        if (!drag.current) return;
        const {at, value} = place(event);
        move(drag.current.point, at, Math.min(view.high, Math.max(view.low, value)));
    };
    const released = () => {
        drag.current = null;
    };
    const pressed = (/** @type {Key} */ event, /** @type {number} */ index) => {
        if (event.key === "Delete" || event.key === "Backspace") remove();
        else if (isMove(event.key)) move(index, ...keyed(event.key, points[index], axis.nudge));
        else return;
        event.preventDefault();
    };
    const line = path(points, shown, shape, x, y);
    return html`<div class="rt-curve">
        <svg viewBox=${`0 0 ${BOX.width} ${BOX.height}`} ref=${svg} role="group" aria-label=${t("curve.label", {name})}
            onPointerMove=${dragged} onPointerUp=${released} onPointerCancel=${released}>
            <${Lines} view=${view} y=${y} />
            <path class="rt-area" aria-hidden="true" d=${`${line}V${y(0)}H${BOX.left}Z`} />
            <path class="rt-line-drawn" aria-hidden="true" d=${line} />
            <path class="rt-line-hit" aria-hidden="true" d=${line}
                onPointerDown=${(/** @type {Pointer} */ event) => event.button === 0 && grab(event, add(place(event).at))} />
            ${points.map(
                (point, index) => html`<${Point} key=${index} point=${point} cx=${x(point.at)} cy=${y(point.value)}
                label=${t("curve.point", {number: index + 1, total: points.length, name})} said=${saying(point, axis)} chosen=${index === chosen}
                choose=${() => choose(index)} pressed=${(/** @type {Key} */ event) => pressed(event, index)} grab=${(/** @type {Pointer} */ event) => grab(event, index)} />`,
            )}
        </svg>
        <div class="rt-axis rt-hint" aria-hidden="true"><span>${axis.ends[0]}</span>
            <strong>${saying(points[chosen], axis)}</strong><span>${axis.ends[1]}</span></div>
    </div>`;
}

/** @type {(point: CurvePoint, axis: Axis) => string} */
const saying = ({at, value}, axis) => t("curve.at", {value: written(value), place: axis.say(at)});
/** @param {string} key */
const isMove = (key) => key in KEYS || key === "Home" || key === "End";

/**
 * Return the position and the value that a key leads to.
 * @param {string} key
 * @param {CurvePoint} point
 * @param {number} nudge
 * @returns {[at: number, value: number]}
 */
function keyed(key, {at, value}, nudge) {
    if (!(key in KEYS)) return [at, key === "Home" ? 0 : 1];
    const [along, up] = KEYS[key];
    return [Number((at + along * nudge).toFixed(4)), rounded(value + up * NUDGE)];
}

/** @param {{view: View, y: Scale}} props */
function Lines({view, y}) {
    return [...new Set([view.low, 0, 1, view.high])].map(
        (value) => html`<g key=${value} aria-hidden="true">
        <path class="rt-grid-line" d=${`M${BOX.left} ${y(value)}H${BOX.right}`} /><text x="1" y=${y(value) + 3}>${value}</text></g>`,
    );
}

/**
 * @param {object} props
 * @param {CurvePoint} props.point
 * @param {number} props.cx
 * @param {number} props.cy
 * @param {string} props.label
 * @param {string} props.said
 * @param {boolean} props.chosen
 * @param {() => void} props.choose
 * @param {(event: Key) => void} props.pressed
 * @param {(event: Pointer) => void} props.grab
 */
function Point({point, cx, cy, label, said, chosen, choose, pressed, grab}) {
    const {value} = point;
    const down = (/** @type {Pointer} */ event) => {
        if (event.button !== 0) return;
        grab(event);
        event.currentTarget.focus();
    };
    return html`<g role="slider" tabindex="0" class=${chosen ? "rt-chosen" : ""} aria-label=${label} aria-valuemin=${Math.min(LOWEST, value)}
        aria-valuemax=${Math.max(HIGHEST, value)} aria-valuenow=${value} aria-valuetext=${said}
        onFocus=${choose} onKeyDown=${pressed} onPointerDown=${down}>
        <title>${said}</title>
        <circle class="rt-point-hit" cx=${cx} cy=${cy} r="11" /><circle class="rt-point" cx=${cx} cy=${cy} r="4.5" />
    </g>`;
}

/**
 * Return the functions from points of the curve to points of the drawing, and back.
 * @param {Filled<SVGSVGElement>} svg
 * @param {Axis} axis
 * @param {View} view
 * @returns {{x: Scale, y: Scale, place: (event: Pointer) => CurvePoint}}
 */
function scaled(svg, axis, {low, high}) {
    const [width, height] = [BOX.right - BOX.left, BOX.bottom - BOX.top];
    return {
        x: (at) => BOX.left + (at / axis.max) * width,
        y: (value) => BOX.top + ((high - value) / (high - low)) * height,
        place: (event) => {
            const {x, y} = new DOMPoint(event.clientX, event.clientY).matrixTransform(
                /** @type {DOMMatrix} */ (svg.current.getScreenCTM()).inverse(),
            );
            const at = Math.min(1, Math.max(0, (x - BOX.left) / width)) * axis.max;
            const value = high - ((y - BOX.top) / height) * (high - low);
            return {at: onGrid(at, axis.grid), value: rounded(Math.round(value / NUDGE) * NUDGE)};
        },
    };
}

/**
 * @param {Curve} points
 * @returns {View}
 */
function viewOf(points) {
    const values = points.map(({value}) => value);
    return {low: Math.min(0, Math.floor(Math.min(...values))), high: Math.max(1, Math.ceil(Math.max(...values)))};
}

/**
 * Move one point. Points stay in their order: one goes no farther than its neighbours.
 * @param {Curve} points
 * @param {number} index
 * @param {number} at
 * @param {number} value
 * @param {Axis} axis
 */
function moved(points, index, at, value, {max}) {
    const low = points[index - 1]?.at ?? 0;
    const high = points[index + 1]?.at ?? Math.max(max, points[index].at);
    /** @type {(number: number, least: number, most: number) => number} */
    const inside = (number, least, most) => Math.min(most, Math.max(least, number));
    const former = points[index].value;
    const point = {
        at: inside(at, low, high),
        value: inside(value, Math.min(LOWEST, former), Math.max(HIGHEST, former)),
    };
    return points.map((one, place) => (place === index ? point : one));
}

/**
 * @param {Curve} points
 * @param {Axis} axis
 * @param {string} shape
 * @param {Scale} x
 * @param {Scale} y
 */
function path(points, {max}, shape, x, y) {
    const corners = [`M${x(0)} ${y(points[0].value)}`];
    const line = (/** @type {number} */ at, /** @type {number} */ value) =>
        corners.push(`L${x(at).toFixed(2)} ${y(value).toFixed(2)}`);
    points.forEach(({at, value}, index) => {
        const before = points[index - 1];
        if (before && shape === "step") line(at, before.value);
        for (let part = 1; before && shape === "cosine" && part < 12; part += 1) {
            const between = before.at + ((at - before.at) * part) / 12;
            if (at > before.at) line(between, valueAt(points, between, shape));
        }
        line(at, value);
    });
    line(max, points[points.length - 1].value);
    return corners.join("");
}

/**
 * Draw in place of a strength's slider the schedule in small, which opens its editor.
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.what
 * @param {Curve} props.points
 * @param {string | undefined} props.shape
 * @param {string | undefined} props.by
 * @param {() => void} props.open
 */
export function Sketch({title, what, points, shape, by, open}) {
    const axis = axisOf(points, by);
    const {low, high} = viewOf(points);
    const drawn = path(
        points,
        axis,
        shape ?? "linear",
        (at) => (at / axis.max) * 100,
        (value) => 2 + ((high - value) / (high - low)) * 20,
    );
    const most = written(peak(points));
    const said = points.map((point) => saying(point, axis)).join(t("mark.list"));
    return html`<div class=${`rt-strength${title ? " rt-half" : ""}`}>
        <span aria-hidden="true">${title}</span>
        <${Button} label=${t("curve.follows", {what, points: said})} class="rt-sketch" onClick=${open}>
            <svg viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true"><path class="rt-line-drawn" d=${drawn} /></svg><//>
        <span class="rt-hint">${t("curve.upTo", {value: most})}</span>
    </div>`;
}
