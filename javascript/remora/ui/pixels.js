// Weights of a region, and pictures of them: drawn on a canvas, read from files, and as PNG for the server.

/** @import {Weights} from "../regions.js" */

import {SIDE} from "../regions.js";
import {t} from "../words.js";

/**
 * Draw weights on a canvas of SIDE x SIDE, in the colour of its text over nothing.
 * @param {HTMLCanvasElement} canvas
 * @param {Weights} weights
 */
export function draw(canvas, weights) {
    const context = contextOf(canvas),
        pixels = new ImageData(SIDE, SIDE);
    context.fillStyle = getComputedStyle(canvas).color;
    context.fillRect(0, 0, 1, 1);
    const colour = context.getImageData(0, 0, 1, 1).data.slice(0, 3);
    for (const [at, weight] of weights.entries()) pixels.data.set([...colour, Math.round(weight * 220)], at * 4);
    context.putImageData(pixels, 0, 0);
}

/**
 * Return a grey PNG, as a data URL.
 * @param {Weights} weights
 */
export function asPng(weights) {
    const canvas = blank();
    const pixels = new ImageData(SIDE, SIDE);
    for (const [at, weight] of weights.entries()) {
        pixels.data.set([...Array(3).fill(Math.round(weight * 255)), 255], at * 4);
    }
    contextOf(canvas).putImageData(pixels, 0, 0);
    return canvas.toDataURL("image/png");
}

/**
 * Return the weights of a picture: how bright each place is; transparent places count as black.
 * @param {string} address
 * @returns {Promise<Weights>}
 */
export async function weightsAt(address) {
    const picture = new Image();
    picture.src = address;
    await picture.decode();
    const canvas = blank(),
        context = contextOf(canvas);
    context.fillStyle = "#000";
    context.fillRect(0, 0, SIDE, SIDE);
    context.imageSmoothingQuality = "high";
    context.drawImage(picture, 0, 0, SIDE, SIDE);
    const {data} = context.getImageData(0, 0, SIDE, SIDE);
    return Array.from(
        {length: SIDE * SIDE},
        (_, at) => (0.299 * data[at * 4] + 0.587 * data[at * 4 + 1] + 0.114 * data[at * 4 + 2]) / 255,
    );
}

/**
 * Return the weights of a picture that the user chose.
 * @param {File} file
 */
export async function weightsOfFile(file) {
    const address = URL.createObjectURL(file);
    try {
        return await weightsAt(address);
    } catch {
        throw new Error(t("painter.notAPicture", {file: file.name}));
    } finally {
        URL.revokeObjectURL(address);
    }
}

/** Make an empty canvas. */
function blank() {
    return Object.assign(document.createElement("canvas"), {width: SIDE, height: SIDE});
}

/** @param {HTMLCanvasElement} canvas */
function contextOf(canvas) {
    return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", {willReadFrequently: true}));
}
