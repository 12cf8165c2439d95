// A long list of which only what is seen, and as much above and below, is there.

/** @import {Filled, Key, Value} from "../vendor/preact.js" */

import {html, useEffect, useLayoutEffect, useReducer, useRef} from "../vendor/preact.js";

const GAP = 6; // pixels between items
const TWO = 240; // pixels from which two items are side by side, as on a phone, though narrower than they should be

/**
 * @template {{id: string}} T
 * @param {object} props
 * @param {T[]} props.items
 * @param {{width: number, height: number}} props.size in pixels; a width of 0 is all of it
 * @param {string} props.label
 * @param {(item: T) => Value} props.draw
 */
export function Virtual({items, size, label, draw}) {
    const box = /** @type {Filled<HTMLElement>} */ (useRef());
    const [, again] = useReducer(/** @type {(count: number, action: void) => number} */ ((count) => count + 1), 0);
    const place = useRef({top: 0, width: 0, height: 0});
    useLayoutEffect(() => {
        const measure = () => {
            const {scrollTop: top, clientWidth: width, clientHeight: height} = box.current;
            const former = place.current;
            if (top !== former.top || width !== former.width || height !== former.height) {
                place.current = {top, width, height};
                again();
            }
        };
        measure();
        const observer = new ResizeObserver(measure);
        observer.observe(box.current);
        box.current.addEventListener("scroll", measure, {passive: true});
        const element = box.current;
        return () => {
            observer.disconnect();
            element.removeEventListener("scroll", measure);
        };
    }, []);
    const {top, width, height} = place.current;
    const fit = Math.floor((width - GAP) / (size.width + GAP));
    const across = size.width ? Math.max(width < TWO ? 1 : 2, fit) : 1;
    const wide = (width - GAP) / across - GAP;
    const high = size.height + GAP;
    const rows = Math.ceil(items.length / across);
    const beyond = Math.ceil(height / high) + 2;
    const first = Math.max(0, Math.floor(top / high) - beyond);
    const last = Math.min(rows, Math.ceil((top + height) / high) + beyond);
    const shown = items.slice(first * across, last * across);
    // in another size, the list begins with the same item
    const former = useRef({high, across});
    useLayoutEffect(() => {
        const item = Math.round(top / former.current.high) * former.current.across;
        if (item) box.current.scrollTop = Math.floor(item / across) * high;
        former.current = {high, across};
    }, [high, across]);
    // a list that has become shorter is shown from where it still is
    useEffect(() => {
        if (box.current.scrollTop > rows * high) box.current.scrollTop = 0;
    }, [rows]);
    const go = (/** @type {Key} */ event) => walk(event, box.current, across, high, items.length);
    return html`<div class="rt-scroll" ref=${box} onKeyDown=${go} tabindex=${items.length ? -1 : undefined}>
        <ul class="rt-virtual" aria-label=${label} style=${`height:${rows * high + GAP}px`}>
            ${
                width > 0
                && shown.map((item, offset) => {
                    const at = first * across + offset;
                    const x = GAP + (at % across) * (wide + GAP),
                        y = GAP + Math.floor(at / across) * high;
                    return html`<li key=${item.id} aria-setsize=${items.length} aria-posinset=${at + 1} data-at=${at}
                    style=${`transform:translate(${x}px,${y}px);width:${wide}px;height:${size.height}px`}>${draw(item)}</li>`;
                })
            }
        </ul>
    </div>`;
}

/**
 * Go from item to item by arrow keys, also to items that are not there yet.
 * @param {Key} event
 * @param {HTMLElement} box
 * @param {number} across
 * @param {number} high
 * @param {number} count
 */
function walk(event, box, across, high, count) {
    /** @type {HTMLElement | null} */
    const item = /** @type {Element} */ (event.target).closest("li[data-at]");
    /** @type {{[key: string]: number | undefined}} */
    const moves = {
        ArrowRight: 1,
        ArrowLeft: -1,
        ArrowDown: across,
        ArrowUp: -across,
        Home: -Infinity,
        End: Infinity,
    };
    const by = moves[event.key];
    if (!item || !by) return;
    event.preventDefault();
    const at = Math.min(count - 1, Math.max(0, Number(item.dataset.at) + by));
    const top = Math.floor(at / across) * high;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + high > box.scrollTop + box.clientHeight) box.scrollTop = top + high - box.clientHeight + GAP;
    requestAnimationFrame(() =>
        requestAnimationFrame(() => {
            /** @type {HTMLElement | null} */
            const button = box.querySelector(`li[data-at="${at}"] button`);
            button?.focus({preventScroll: true});
        }),
    );
}
