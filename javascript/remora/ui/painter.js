// A region is painted: with a brush, by keys, or from a picture.

/**
 * @import {Weights} from "../regions.js"
 * @import {FieldEvent, Filled, Key, Pointer} from "../vendor/preact.js"
 */

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {shownPicture} from "../boxes.js";
import {inverted, nameProblem, nothing, percent, SIDE, stroked} from "../regions.js";
import {t} from "../words.js";
import {Dialog, historyKey, NameForm, Trouble, useTrouble} from "./parts.js";
import {asPng, draw, weightsOfFile} from "./pixels.js";

/** @type {{[key: string]: [right: number, below: number] | undefined}} */
const MOVES = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
const MOST_UNDONE = 50;

/**
 * @typedef {{x: number, y: number}} Spot
 * A place of the picture, in cells.
 */

/**
 * @param {object} props
 * @param {string} props.name empty for a new region
 * @param {Weights | null} props.weights
 * @param {string[]} props.taken names
 * @param {(name: string, picture: string) => Promise<void>} props.save
 * @param {() => void} props.close
 */
export function Painter({name: former, weights: first, taken, save, close}) {
    const [trouble, attempt] = useTrouble();
    const [weights, setWeights] = useState(() => first ?? nothing());
    const [past, setPast] = useState(/** @type {Weights[]} */ ([])); // former weights, the latest last
    const [future, setFuture] = useState(/** @type {Weights[]} */ ([])); // what was taken back, the latest last
    const [size, setSize] = useState(12);
    const [erase, setErase] = useState(false);
    const begin = () => {
        setPast([...past, weights].slice(-MOST_UNDONE));
        setFuture([]);
    };
    const change = (/** @type {Weights} */ changed) => {
        begin();
        setWeights(changed);
    };
    const undo = () => {
        const former = past.at(-1);
        if (!former) return;
        setFuture([...future, weights]);
        setWeights(former);
        setPast(past.slice(0, -1));
    };
    const redo = () => {
        const next = future.at(-1);
        if (!next) return;
        setPast([...past, weights]);
        setWeights(next);
        setFuture(future.slice(0, -1));
    };
    const pressed = (/** @type {Key} */ event) => {
        const way = historyKey(event);
        if (!way) return;
        event.preventDefault();
        (way === "undo" ? undo : redo)();
    };
    const take = (/** @type {FieldEvent} */ event) =>
        attempt(async () => {
            const [file] = /** @type {FileList} */ (event.target.files);
            event.target.value = "";
            if (file) change(await weightsOfFile(file));
        });
    const submit = (/** @type {string} */ name) =>
        attempt(async () => {
            if (!weights.some((weight) => weight > 0)) throw new Error(t("painter.empty"));
            await save(name, asPng(weights));
        });
    const foot = html`<${Trouble} trouble=${trouble} />
        <${NameForm} label=${t("painter.name")} button=${t("common.save")} hint=${t("common.name")} former=${former} most=${60}
            problem=${(/** @type {string} */ name) => nameProblem(name, taken)} save=${submit}>
            <button type="button" class="rt-small" onClick=${close}>${t("common.cancel")}</button>
        <//>`;
    // a button that became disabled would lose the focus, and keys would be the page's
    return html`<${Dialog} title=${former ? t("painter.title", {name: former}) : t("painter.newTitle")} close=${close} unsaved=${past.length > 0} foot=${foot} pressed=${pressed}>
        <${Sheet} weights=${weights} size=${size} value=${erase ? 0 : 1} begin=${begin} put=${setWeights} />
        <p class="rt-hint" role="status">${t("painter.share", {percent: percent(weights)})}</p>
        <div class="rt-line">
            <div class="rt-switch" role="group" aria-label=${t("painter.tool")}>
                <button type="button" aria-pressed=${String(!erase)} onClick=${() => setErase(false)}>${t("painter.paint")}</button>
                <button type="button" aria-pressed=${String(erase)} onClick=${() => setErase(true)}>${t("painter.erase")}</button>
            </div>
            <label class="rt-brush"><span>${t("painter.brush")}</span><input type="range" min="2" max="40" step="1" value=${size} aria-label=${t("painter.brushSize")}
                onInput=${(event) => setSize(event.target.valueAsNumber)} /></label>
            <button type="button" class="rt-small" aria-disabled=${String(!past.length)} onClick=${undo}>${t("painter.undo")}</button>
            <button type="button" class="rt-small" aria-disabled=${String(!future.length)} onClick=${redo}>${t("painter.redo")}</button>
            <button type="button" class="rt-small" onClick=${() => change(nothing())}>${t("painter.clear")}</button>
            <button type="button" class="rt-small" onClick=${() => change(inverted(weights))}>${t("painter.invert")}</button>
            <label class="rt-small rt-file">${t("painter.fromPicture")}<input type="file" accept="image/*" aria-label=${t("painter.fromPictureHint")}
                onChange=${take} /></label>
        </div>
    <//>`;
}

/**
 * Draw the surface. A pointer draws on it; by keys, a cursor goes about, Space paints, Shift goes farther.
 * @param {object} props
 * @param {Weights} props.weights
 * @param {number} props.size of the brush, in cells
 * @param {number} props.value 1 to paint and 0 to erase
 * @param {() => void} props.begin
 * @param {(weights: Weights) => void} props.put
 */
function Sheet({weights, size, value, begin, put}) {
    const canvas = /** @type {Filled<HTMLCanvasElement>} */ (useRef()),
        last = useRef(/** @type {Spot | null} */ (null)),
        now = useRef(weights);
    const [cursor, setCursor] = useState(/** @type {Spot | null} */ (null));
    now.current = weights;
    const [under, setUnder] = useState({address: "", shape: 1}); // the page's picture, and its width by its height
    useEffect(() => draw(canvas.current, weights));
    useEffect(() => {
        let here = true,
            address = "";
        shownPicture().then(async (blob) => {
            if (!blob || !here) return;
            const {width, height} = await createImageBitmap(blob);
            if (!here) return;
            address = URL.createObjectURL(blob);
            setUnder({address, shape: width / height});
        });
        return () => {
            here = false;
            URL.revokeObjectURL(address);
        };
    }, []);
    const placeOf = (/** @type {Pointer} */ event) => {
        const box = canvas.current.getBoundingClientRect();
        return {x: ((event.clientX - box.left) / box.width) * SIDE, y: ((event.clientY - box.top) / box.height) * SIDE};
    };
    const stroke = (/** @type {Spot} */ from, /** @type {Spot} */ to) => {
        now.current = stroked(now.current, from, to, size, value); // several may come before it is drawn again
        put(now.current);
    };
    const down = (/** @type {Pointer} */ event) => {
        if (event.button !== 0) return;
        event.preventDefault();
        canvas.current.setPointerCapture(event.pointerId);
        canvas.current.focus();
        begin();
        last.current = placeOf(event);
        stroke(last.current, last.current);
    };
    const moved = (/** @type {Pointer} */ event) => {
        const to = placeOf(event);
        setCursor(to);
        if (!last.current) return;
        stroke(last.current, to);
        last.current = to;
    };
    const up = () => {
        last.current = null;
    };
    const pressed = (/** @type {Key} */ event) => {
        const at = cursor ?? {x: SIDE / 2, y: SIDE / 2};
        const [right, below] = MOVES[event.key] ?? [0, 0];
        if (right || below) {
            const by = event.shiftKey ? 8 : 2,
                within = (/** @type {number} */ place) => Math.min(SIDE, Math.max(0, place));
            setCursor({x: within(at.x + right * by), y: within(at.y + below * by)});
        } else if (event.key === " " || event.key === "Enter") {
            begin();
            stroke(at, at);
        } else return;
        event.preventDefault();
    };
    const share = (/** @type {number} */ place) => `${((place / SIDE) * 100).toFixed(2)}%`;
    const brush = cursor && {left: share(cursor.x), top: share(cursor.y), width: share(size), height: share(size)};
    return html`<div class="rt-sheet" style=${`aspect-ratio:${under.shape};--shape:${under.shape}`}>
        ${under.address && html`<img src=${under.address} alt=${t("painter.pagePicture")} draggable=${false} />`}
        <canvas width="64" height="64" ref=${canvas} tabindex="0" role="application" aria-roledescription=${t("painter.surface")}
            aria-label=${t("painter.surfaceHint")} onPointerDown=${down} onPointerMove=${moved} onPointerUp=${up}
            onPointerCancel=${up} onPointerLeave=${() => !last.current && setCursor(null)} onFocus=${() => setCursor(cursor ?? {x: SIDE / 2, y: SIDE / 2})}
            onKeyDown=${pressed}></canvas>
        ${brush && html`<span class="rt-cursor" style=${brush} aria-hidden="true"></span>`}
    </div>`;
}
