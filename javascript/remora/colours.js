// The tab's colours, made from the colours of the page around it. Text has a contrast of at least 4.5. Pure.

/**
 * @typedef {readonly [red: number, green: number, blue: number]} Colour
 * Each 0 to 255.
 *
 * @typedef {{back: Colour, text: Colour, accent: Colour | null}} PageColours
 * The page's background, text and, where it has one, its colour for what is chosen.
 */

const TEXT = 4.5; // contrast of text, by WCAG 2.2, 1.4.3
const PARTS = 3; // contrast of parts of controls, by 1.4.11
const PLAIN = 7; // contrast of text from which there is room for fainter text and for other backgrounds

/** @type {Colour[]} */
const INKS = [
    [26, 26, 26],
    [242, 242, 242],
];
/** @type {Colour[]} */
const POLES = [
    [0, 0, 0],
    [255, 255, 255],
];
/** @type {Colour} */
const ACCENT = [13, 148, 136];
/** @type {{[name: string]: Colour}} */
const SIGNS = {bad: [208, 48, 48], doubt: [185, 122, 0], good: [31, 157, 85]};

/**
 * Read a colour as computed styles have it; undefined for other notations.
 * @param {string} text
 * @returns {{colour: Colour, alpha: number} | undefined}
 */
export function readColour(text) {
    const match = /^(rgba?\(|color\(srgb )([^()]*)\)$/.exec(text);
    if (!match) return undefined;
    const numbers = match[2].split(/[\s,/]+/).map(Number);
    if (numbers.length < 3 || numbers.length > 4 || numbers.some(Number.isNaN)) return undefined;
    const unit = match[1].startsWith("color") ? 255 : 1;
    const [red, green, blue] = numbers.map((part) => Math.min(255, Math.max(0, Math.round(part * unit))));
    return {colour: [red, green, blue], alpha: numbers[3] ?? 1};
}

/**
 * Mix two colours.
 * @param {Colour} one
 * @param {Colour} other
 * @param {number} share of the other
 * @returns {Colour}
 */
export function mix(one, other, share) {
    const [red, green, blue] = one.map((part, at) => Math.round(part + (other[at] - part) * share));
    return [red, green, blue];
}

/** @param {Colour} colour */
function luminance(colour) {
    const [red, green, blue] = colour.map((part) => {
        const value = part / 255;
        return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/**
 * Return the contrast of two colours, 1 to 21, as WCAG defines it.
 * @param {Colour} one
 * @param {Colour} other
 */
export function contrast(one, other) {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
}

/**
 * Return the colour that has the most contrast to a background.
 * @param {Colour} back
 * @param {Colour[]} colours
 */
const best = (back, colours) =>
    colours.reduce((one, other) => (contrast(other, back) > contrast(one, back) ? other : one));

/**
 * Return the page's colour of text where it can be read, else black or white.
 * @param {Colour} back
 * @param {Colour} text
 */
function inkOn(back, text) {
    if (contrast(text, back) >= PLAIN) return text;
    const ink = best(back, INKS);
    return contrast(ink, back) >= PLAIN ? ink : best(back, POLES);
}

/**
 * Return a colour, changed towards the ink as far as it must be to be seen on all of some backgrounds.
 * @param {Colour} colour
 * @param {Colour} ink
 * @param {Colour[]} backs
 * @param {number} least contrast
 */
function seen(colour, ink, backs, least) {
    for (let share = 0; share < 1; share += 0.05) {
        const mixed = mix(colour, ink, share);
        if (backs.every((back) => contrast(mixed, back) >= least)) return mixed;
    }
    return ink;
}

/**
 * Return a background with a share of a colour, as large as the ink can still be read on it.
 * @param {Colour} back
 * @param {Colour} colour
 * @param {Colour} ink
 * @param {number} most
 */
function tinted(back, colour, ink, most) {
    for (let share = most; share > 0; share -= 0.05) {
        const mixed = mix(back, colour, share);
        if (contrast(ink, mixed) >= TEXT) return mixed;
    }
    return back;
}

/** @param {Colour} colour */
const css = (colour) => `rgb(${colour.join(", ")})`;

/**
 * Return the tab's colours by the names that its style sheet has for them, and whether the page is dark.
 * @param {PageColours} page
 */
export function palette({back, text, accent}) {
    const ink = inkOn(back, text);
    // on a background of middling brightness there is no contrast to spare: others differ from it away from the ink
    const spare = contrast(ink, back) >= PLAIN;
    const away = spare ? ink : best(ink, POLES);
    const [box, thumb] = [mix(back, away, 0.05), mix(back, away, 0.1)];
    const backs = [back, box, thumb];
    const signs = Object.entries(SIGNS).map(([name, colour]) => [name, seen(colour, ink, [back, box], TEXT)]);
    const own = seen(accent ?? ACCENT, ink, [back, box], PARTS);
    const [pressed, warn] = [tinted(box, own, ink, 0.25), tinted(box, SIGNS.doubt, ink, 0.2)];
    /** @type {{[name: string]: Colour}} */
    const colours = {
        ...{text: ink, back, box, thumb, pressed, warn, accent: own},
        // a browser draws the rest of a slider in the colours of the other scheme where the accent has little contrast
        slider: seen(own, ink, [back, box], TEXT),
        faint: seen(mix(ink, back, 0.3), ink, [...backs, pressed, warn], TEXT),
        edge: mix(back, ink, 0.25),
        ...Object.fromEntries(signs),
    };
    return {colours, dark: luminance(back) < luminance(ink)};
}

/**
 * Return the tab's colours as declarations of CSS.
 * @param {PageColours} page
 * @returns {{[property: string]: string}}
 */
export function declarations(page) {
    const {colours, dark} = palette(page);
    const entries = Object.entries(colours).map(([name, colour]) => [`--rt-${name}`, css(colour)]);
    return {...Object.fromEntries(entries), "color-scheme": dark ? "dark" : "light"};
}
