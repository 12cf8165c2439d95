// Small things that several panes are made of.

/**
 * @import {Api} from "../api.js"
 * @import {Tab} from "../main.js"
 * @import {FieldEvent, Filled, Key, Value} from "../vendor/preact.js"
 * @import {IconName} from "./icons.js"
 */

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {Icon} from "./icons.js";

/**
 * Draw a button with a label.
 * @param {{label: string, children?: Value, class?: string, [attribute: string]: unknown}} props
 */
export function Button({label, children, class: name = "", ...more}) {
    return html`<button type="button" aria-label=${label} title=${label} class=${name} ...${more}>${children}</button>`;
}

const PIECES = /\p{Lu}*[^\p{Lu}\s_.-]*[\s_.-]*/gu; // of a name: StyleOf_Night-v2 has Style, Of_, Night- and v2
const END = 16; // characters of a name's end; the smallest card has room for them in two lines

/**
 * Return a text that the browser breaks at separators and capitals first.
 * @param {string} text
 */
export function broken(text) {
    return (text.match(PIECES) ?? []).filter(Boolean).map((piece, at) => (at ? [html`<wbr />`, piece] : piece));
}

/**
 * Return where the end of a name begins, which is never cut off: versions differ there. It begins with a piece, if the
 * last one is short enough.
 * @param {string} text
 */
export function endOf(text) {
    if (text.length <= END) return text.length;
    const least = text.length - END;
    let at = 0;
    for (const [piece] of text.matchAll(PIECES)) {
        if (at >= least && piece) return at;
        at += piece.length;
    }
    return least;
}

/**
 * Draw a name where there may be no room for all of it: it is cut before its end.
 * @param {{text: string}} props
 */
export function Name({text}) {
    const at = endOf(text);
    return html`<span class="rt-fit"><span class="rt-begin">${broken(text.slice(0, at))}</span>${
        at < text.length && html`<span class="rt-tail">${broken(text.slice(at))}</span>`
    }</span>`;
}

/**
 * Draw a button with a sign and a word. Where there is no room for the word, its style sheet hides it.
 * @param {{icon: IconName, word: string, label: string, [attribute: string]: unknown}} props
 */
export function WordButton({icon, word, ...more}) {
    return html`<${Button} class="rt-small" ...${more}><${Icon} name=${icon} /><span class="rt-word">${word}</span><//>`;
}

/**
 * Draw a picture of the server's, or the beginning of a name where there is none.
 * @param {{api: Api, path: string, name: string}} props
 */
export function Picture({api, path, name}) {
    const [address, setAddress] = useState(path && !api.authorization ? api.base + path : "");
    const [failed, setFailed] = useState(false);
    useEffect(() => {
        let here = true,
            held = "";
        setFailed(false);
        if (path)
            api.pictureAt(path).then(
                (found) => {
                    if (!here) return api.forget(found);
                    held = found;
                    setAddress(found);
                },
                () => here && setFailed(true),
            );
        else setAddress("");
        return () => {
            here = false;
            api.forget(held);
        };
    }, [path]);
    if (!address || failed)
        return html`<span class="rt-initial" aria-hidden="true">${name.replace(/[^\p{L}\p{N}]/gu, "").slice(0, 2)}</span>`;
    return html`<img src=${address} alt="" loading="lazy" decoding="async" draggable=${false} onError=${() => setFailed(true)} />`;
}

const LIMIT = 10; // that of extension/text/tag.py
const SLIDER = {min: -1, max: 2, step: 0.05};

/**
 * Draw a strength: a slider for the usual ones, a field for any.
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.what
 * @param {number} props.value
 * @param {(value: number) => void} props.set
 * @param {boolean} [props.disabled]
 */
export function Strength({title, what, value, set, disabled = false}) {
    const field = useRef();
    // the text of the field while it is being typed
    const [typed, setTyped] = useState(/** @type {string | null} */ (null));
    const good = typed === null || isNumber(typed);
    const type = (/** @type {FieldEvent} */ event) => {
        setTyped(event.target.value);
        if (isNumber(event.target.value)) set(numberOf(event.target.value));
    };
    const step = (/** @type {Key} */ event) => {
        /** @type {{[key: string]: number | undefined}} */
        const steps = {ArrowUp: SLIDER.step, ArrowDown: -SLIDER.step};
        const by = steps[event.key];
        if (!by || !good) return;
        event.preventDefault();
        setTyped(null);
        set(Number((value + by * (event.shiftKey ? 10 : 1)).toFixed(4)));
    };
    const shown = Number(value.toFixed(4));
    return html`<div class=${`rt-strength${title ? " rt-half" : ""}`}>
        <span aria-hidden="true">${title}</span>
        <input type="range" ...${SLIDER} value=${shown} disabled=${disabled} aria-label=${`${what}, slider`}
            onInput=${(event) => set(event.target.valueAsNumber)} />
        <input type="text" inputmode="decimal" role="spinbutton" aria-valuenow=${shown} value=${typed ?? String(shown)} ref=${field}
            disabled=${disabled} aria-label=${what} aria-invalid=${String(!good)} autocomplete="off" spellcheck=${false}
            onInput=${type} onKeyDown=${step} onBlur=${() => setTyped(null)} />
        <span class="rt-problem" role="alert">${good ? tooStrong(value) : typed.trim() ? `“${typed}” is not a number. Type one, such as 0.8.` : "Type a number, such as 0.8."}</span>
    </div>`;
}

/**
 * Say what a strength beyond all sense does; nothing of others.
 * @param {number} value
 */
export function tooStrong(value) {
    if (Math.abs(value) <= LIMIT) return "";
    return `${value} is beyond ${LIMIT}, where pictures are noise or black. Remora uses ${LIMIT}, unless “Limit strengths to ${LIMIT}” is off in the settings.`;
}

/**
 * Tell whether a text is a number within a limit, which is that of strengths unless told.
 * @param {string} text
 * @param {number} [limit]
 */
export function isNumber(text, limit = 1e6) {
    const written = /^\s*[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:e[+-]?\d+)?\s*$/i;
    return written.test(text) && Math.abs(numberOf(text)) <= limit;
}

/**
 * Return the number that a text is; it may have a comma for its point.
 * @param {string} text
 */
export function numberOf(text) {
    return Number(text.replace(",", "."));
}

/**
 * Draw a dialog over the page. Escape, a click beside it and its button close it; what is unsaved is asked about first.
 * Its children scroll between the title and the foot, which are always in sight.
 * @param {{title: string, close: () => void, unsaved?: boolean, children?: Value, foot?: Value, class?: string}} props
 */
export function Dialog({title, close, unsaved = false, children, foot, class: name = ""}) {
    const [asked, setAsked] = useState(false);
    const asks = unsaved && !asked;
    const leave = () => (asks ? setAsked(true) : close());
    const cancel = (/** @type {Event} */ event) => {
        if (!asks) return;
        event.preventDefault();
        setAsked(true);
    };
    const element = /** @type {Filled<HTMLDialogElement>} */ (useRef());
    useEffect(() => {
        const around = /** @type {Document | ShadowRoot} */ (element.current.getRootNode());
        const former = /** @type {HTMLElement | null} */ (around.activeElement);
        element.current.showModal();
        return () => former?.isConnected && former.focus();
    }, []);
    const outside = (/** @type {Event} */ event) => event.target === element.current && leave();
    // it can have the focus itself: after a click on its background keys would else be the page's
    return html`<dialog class=${`rt-dialog ${name}`} ref=${element} aria-label=${title} tabindex="-1" onClose=${close} onCancel=${cancel} onClick=${outside}>
        <div class="rt-dialog-head"><h3>${broken(title)}</h3><${Button} label="Close" class="rt-small" onClick=${leave}><${Icon} name="remove" /><//></div>
        <div class="rt-dialog-body">${children}</div>
        <div class="rt-dialog-foot">
            ${asked && unsaved && html`<${Unsaved} close=${close} stay=${() => setAsked(false)} />`}
            ${foot}
        </div>
    </dialog>`;
}

/**
 * Ask what to do with changes that are not saved.
 * @param {{close: () => void, stay: () => void}} props
 */
function Unsaved({close, stay}) {
    const button = /** @type {Filled<HTMLButtonElement>} */ (useRef());
    useEffect(() => button.current.focus(), []);
    return html`<div class="rt-notice rt-line" role="alert"><span>Your changes are not saved.</span>
        <button type="button" class="rt-small" ref=${button} onClick=${stay}>Keep editing</button>
        <button type="button" class="rt-small" onClick=${close}>Close without saving</button></div>`;
}

/**
 * Draw five stars; a click on the one that is set takes it away.
 * @param {{rating: number, set: (rating: number) => void, name: string}} props
 */
export function Stars({rating, set, name}) {
    const said = rating ? `${rating} of 5` : "not rated";
    return html`<span class="rt-stars" role="radiogroup" aria-label=${`Rating of ${name}: ${said}`} title=${rating ? undefined : "Not rated"}>
        ${[1, 2, 3, 4, 5].map(
            (star) => html`<button type="button" role="radio" key=${star}
            aria-checked=${String(rating === star)} aria-label=${`${star} of 5`} title=${`${star} of 5`}
            class=${star <= rating ? "rt-lit" : ""} onClick=${() => set(star === rating ? 0 : star)}>${star <= rating ? "★" : "☆"}</button>`,
        )}
    </span>`;
}

/**
 * Draw a form that asks for a name. What is wrong with the name is said at the field, which then has the focus.
 * @param {object} props
 * @param {string} props.label of the field
 * @param {string} props.button
 * @param {string} [props.hint] shown while the field is empty
 * @param {string} [props.former] the name that it begins with
 * @param {boolean} [props.focus] whether the field has the focus when it comes
 * @param {number} [props.most] characters
 * @param {(name: string) => string} props.problem of a name, which may be empty
 * @param {(name: string) => unknown} props.save called with a name that has no problem
 * @param {Value} [props.children] behind the button
 */
export function NameForm({label, button, hint = "", former = "", focus = false, most = 100, problem, save, children}) {
    const field = /** @type {Filled<HTMLInputElement>} */ (useRef());
    const [name, setName] = useState(former);
    const [said, setSaid] = useState("");
    useEffect(() => {
        if (focus) field.current.focus();
    }, []);
    const submit = (/** @type {Event} */ event) => {
        event.preventDefault();
        const wrong = problem(name.trim());
        setSaid(wrong);
        if (wrong) field.current.focus();
        else save(name.trim());
    };
    const type = (/** @type {FieldEvent} */ event) => {
        setName(event.target.value);
        setSaid("");
    };
    return html`<form class="rt-line rt-name-form" noValidate onSubmit=${submit}>
        <label class="rt-field rt-name-field">
            <input type="text" aria-label=${label} aria-invalid=${String(said !== "")} placeholder=${hint} maxlength=${most} autocomplete="off"
                ref=${field} value=${name} onInput=${type} />
            <span class="rt-problem" role="alert">${said}</span></label>
        <button type="submit" class="rt-small rt-primary">${button}</button>
        ${children}
    </form>`;
}

/**
 * Draw an error in place; with a button, where it can be tried again.
 * @param {{text: string, again?: (() => unknown) | null}} props
 */
export function Trouble({text, again = null}) {
    return html`<div role="alert">${text && html`<p class="rt-error">${text}</p>`}</div>
        ${text && again && html`<div><button type="button" class="rt-small" onClick=${again}>Try again</button></div>`}`;
}

/**
 * Say what was deleted or replaced, with a button that takes it back. The button has the focus, as the one before it is gone.
 * @param {{name: string, replaced?: boolean, undo: () => unknown}} props
 */
export function Deleted({name, replaced = false, undo}) {
    const button = /** @type {Filled<HTMLButtonElement>} */ (useRef());
    useEffect(() => {
        const own = button.current;
        own.focus();
        const around = own.closest("dialog, .rt-part");
        /** @type {HTMLElement | null | undefined} */
        const next = around?.querySelector("select, input, button");
        return () => {
            // where it had the focus, nothing has it now
            if (document.activeElement === document.body) next?.focus();
        };
    }, [name]);
    return html`<div class="rt-notice rt-line" role="status"><span>The ${name} is ${replaced ? "replaced" : "deleted"}.</span>
        <button type="button" class="rt-small" ref=${button} aria-label=${`Undo ${replaced ? "replacing" : "deleting"} the ${name}`} onClick=${undo}>Undo</button></div>`;
}

/**
 * @typedef {<T>(work: () => T | Promise<T>, clears?: boolean) => Promise<T | undefined>} Attempt
 * Does something, and shows its error; where it succeeds, it clears the error of what began before it, unless told not to.
 */

/**
 * Make a function that tries something and shows the last error.
 * @param {(text: string) => void} show
 * @returns {Attempt}
 */
export function attempts(show) {
    let begun = 0;
    let failed = 0; // the number of the attempt whose error is shown
    return async (work, clears = true) => {
        begun += 1;
        const number = begun;
        try {
            const result = await work();
            // what began earlier and ends later says nothing of a later error
            if (clears && number >= failed) show("");
            return result;
        } catch (error) {
            failed = number;
            show(/** @type {Error} */ (error).message);
            return undefined;
        }
    };
}

/**
 * Keep the last error, beside a function that tries something.
 * @returns {[trouble: string, attempt: Attempt]}
 */
export function useTrouble() {
    const [trouble, setTrouble] = useState("");
    const attempt = useRef(/** @type {Attempt | null} */ (null));
    attempt.current ??= attempts(setTrouble);
    return [trouble, attempt.current];
}

/**
 * Load what the server keeps when a component comes, and again when a value in `inputs` changes. What could not be loaded
 * is loaded as soon as a server that was lost is back; until then, `again` is a function that tries it.
 * @param {Tab} tab
 * @param {() => Promise<unknown>} load
 * @param {unknown[]} inputs
 * @returns {[trouble: string, attempt: Attempt, again: (() => unknown) | null]}
 */
export function useLoad(tab, load, inputs) {
    const [trouble, attempt] = useTrouble();
    const [missing, setMissing] = useState(false);
    const {lost} = tab.state;
    const begin = () =>
        attempt(async () => {
            setMissing(true);
            await load();
            setMissing(false);
        });
    useEffect(() => {
        begin();
    }, inputs);
    useEffect(() => {
        if (missing && !lost) begin();
    }, [lost]);
    return [trouble, attempt, missing ? begin : null];
}
