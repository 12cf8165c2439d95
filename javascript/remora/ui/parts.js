// Small things that several panes are made of.

/**
 * @import {Api} from "../api.js"
 * @import {Tab} from "../main.js"
 * @import {FieldEvent, Filled, Key, Value} from "../vendor/preact.js"
 * @import {IconName} from "./icons.js"
 */

import {html, useEffect, useLayoutEffect, useRef, useState} from "../vendor/preact.js";
import {ApiError, CHANGED} from "../api.js";
import {numberMeant} from "../similar.js";
import {t} from "../words.js";
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
 * Draw a title that opens what is below it. What is closed is not drawn, so that it loads nothing.
 * @param {object} props
 * @param {string} props.title
 * @param {boolean} [props.begins] whether it is open at first, and scrolled to
 * @param {Value} [props.children]
 */
export function Section({title, begins = false, children}) {
    const [open, setOpen] = useState(begins);
    const element = /** @type {Filled<HTMLDetailsElement>} */ (useRef());
    useEffect(() => {
        if (begins) element.current.scrollIntoView();
    }, []);
    return html`<details ref=${element} open=${open} onToggle=${() => setOpen(element.current.open)}>
        <summary>${title}</summary>
        ${open && children}</details>`;
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

/**
 * Draw a link that saves a file of the server's. Where a password was asked for, the browser would not send it by itself.
 * @param {{api: Api, path: string, name: string, children?: Value}} props
 */
export function FileLink({api, path, name, children}) {
    const [trouble, attempt] = useTrouble();
    const save = (/** @type {Event} */ event) => {
        if (!api.authorization) return;
        event.preventDefault();
        attempt(async () => {
            const href = await api.fileAt(path);
            Object.assign(document.createElement("a"), {href, download: name}).click();
            api.forget(href);
        });
    };
    return html`<a href=${api.base + path} download=${name} onClick=${save}>${children}</a><${Trouble} trouble=${trouble} />`;
}

const LIMIT = 10; // that of extension/text/tag.py
const SLIDER = {min: -1, max: 2, step: 0.05};

/**
 * Return where the track of the slider is filled, as shares of it: between 0 and the value.
 * @param {number} value
 */
export function filled(value) {
    const [zero, place] = [0, value].map((one) =>
        Math.min(1, Math.max(0, (one - SLIDER.min) / (SLIDER.max - SLIDER.min))),
    );
    return {"--rt-from": Math.min(zero, place), "--rt-to": Math.max(zero, place)};
}

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
    const slide = (/** @type {FieldEvent} */ event) => {
        setTyped(null);
        set(event.target.valueAsNumber);
    };
    const pick = (/** @type {string} */ number) => {
        setTyped(null);
        set(Number(number));
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
    return html`<div class=${`rt-strength${title ? " rt-half" : ""}`} onFocusOut=${leaving(() => setTyped(null))}>
        <span aria-hidden="true">${title}</span>
        <input type="range" ...${SLIDER} value=${shown} disabled=${disabled} aria-label=${t("strength.slider", {what})}
            style=${filled(value)} onInput=${slide} />
        <input type="text" inputmode="decimal" role="spinbutton" aria-valuenow=${shown} value=${typed ?? String(shown)} ref=${field}
            disabled=${disabled} aria-label=${what} aria-invalid=${String(!good)} autocomplete="off" spellcheck=${false}
            onInput=${type} onKeyDown=${step} />
        <span class="rt-problem" role="alert">${good ? tooStrong(value) : wrongNumber(typed)}</span>
        <${Meant} choices=${good ? [] : numbersMeant(typed, pick)} />
    </div>`;
}

/**
 * Say what is wrong with a text that is no number.
 * @param {string} typed
 */
function wrongNumber(typed) {
    if (!typed.trim()) return t("strength.type");
    return t("strength.wrong", {text: typed, example: numberMeant(typed) || t("strength.example")});
}

/**
 * Return the choices of `Meant` for a text that is no number.
 * @param {string} typed
 * @param {(number: string) => unknown} pick
 */
export function numbersMeant(typed, pick) {
    const number = numberMeant(typed);
    return number ? [{word: number, instead: typed, pick: () => pick(number)}] : [];
}

/**
 * Return a listener that calls a function when the focus leaves an element and all that is in it.
 * @param {() => void} left
 */
export const leaving = (left) => (/** @type {FocusEvent} */ event) => {
    const element = /** @type {Element} */ (event.currentTarget);
    if (!element.contains(/** @type {Node | null} */ (event.relatedTarget))) left();
};

/**
 * Draw a button for each text that may be meant by a wrong one. A press leaves the focus where it is: a field that is
 * left forgets what was typed.
 * @param {{choices: {word: string, instead: string, pick: () => unknown}[]}} props `instead` is empty where the word says all
 */
export function Meant({choices}) {
    return (
        choices.length > 0
        && html`<div class="rt-chips">${choices.map(
            ({word, instead, pick}) => html`<button type="button" class="rt-small" key=${word}
            aria-label=${instead ? t("parts.write", {word, instead}) : word}
            onMouseDown=${(/** @type {Event} */ event) => event.preventDefault()} onClick=${pick}>${word}</button>`,
        )}</div>`
    );
}

/**
 * Say what a strength beyond all sense does; nothing of others.
 * @param {number} value
 */
export function tooStrong(value) {
    if (Math.abs(value) <= LIMIT) return "";
    return t("strength.tooStrong", {value: String(value), limit: LIMIT});
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
 * Return what Ctrl+Z, Ctrl+Y and Ctrl+Shift+Z are for; null of other keys, and where something is being typed.
 * @param {KeyboardEvent | Key} event
 * @returns {"undo" | "redo" | null}
 */
export function historyKey(event) {
    const target = /** @type {Element} */ (event.target);
    const isTyping = target.matches("textarea, input:not([type=checkbox], [type=range], [type=radio], [type=file])");
    const key = event.key.toLowerCase();
    if (isTyping || event.altKey || !(event.ctrlKey || event.metaKey) || !["z", "y"].includes(key)) return null;
    return key === "y" || event.shiftKey ? "redo" : "undo";
}

/**
 * Draw a dialog over the page. Escape, a click beside it and its button close it; what is unsaved is asked about first.
 * Its children scroll between the title and the foot, which are always in sight.
 * @param {{title: string, close: () => void, unsaved?: boolean, children?: Value, foot?: Value, class?: string,
 *     pressed?: (event: Key) => void}} props
 */
export function Dialog({title, close, unsaved = false, children, foot, class: name = "", pressed}) {
    const [asked, setAsked] = useState(false);
    const asks = unsaved && !asked;
    const leave = () => (asks ? setAsked(true) : close());
    const cancel = (/** @type {Event} */ event) => {
        if (!asks) return;
        event.preventDefault();
        setAsked(true);
    };
    const element = /** @type {Filled<HTMLDialogElement>} */ (useRef());
    const former = useRef(/** @type {HTMLElement | null} */ (null));
    // the focus moves before the next key
    useLayoutEffect(() => {
        const around = /** @type {Document | ShadowRoot} */ (element.current.getRootNode());
        // what a dropped file or a card of the page opens begins with no focus in the tab
        former.current = /** @type {HTMLElement | null} */ (
            around.activeElement ?? around.querySelector(".rt-panes button")
        );
        element.current.showModal();
    }, []);
    // where what had it is gone, the next key would else be the page's
    useLayoutEffect(() => {
        if (document.activeElement === document.body) element.current.focus();
    });
    // behind the dialog nothing can have the focus until it is gone
    useEffect(() => () => former.current?.isConnected && former.current.focus(), []);
    const outside = (/** @type {Event} */ event) => event.target === element.current && leave();
    // it can have the focus itself: after a click on its background keys would else be the page's
    return html`<dialog class=${`rt-dialog ${name}`} ref=${element} aria-label=${title} tabindex="-1" onClose=${close} onCancel=${cancel} onClick=${outside} onKeyDown=${pressed}>
        <div class="rt-dialog-head"><h3>${broken(title)}</h3><${Button} label=${t("common.close")} class="rt-small" onClick=${leave}><${Icon} name="remove" /><//></div>
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
    useLayoutEffect(() => button.current.focus(), []); // before the next key
    return html`<div class="rt-notice rt-line" role="alert"><span>${t("parts.unsaved")}</span>
        <button type="button" class="rt-small" ref=${button} onClick=${stay}>${t("parts.keepEditing")}</button>
        <button type="button" class="rt-small" onClick=${close}>${t("parts.closeUnsaved")}</button></div>`;
}

/**
 * Draw five stars; a click on the one that is set takes it away.
 * @param {{rating: number, set: (rating: number) => void, name: string}} props
 */
export function Stars({rating, set, name}) {
    const of = (/** @type {number} */ stars) => t("parts.stars", {stars});
    const said = rating ? of(rating) : t("parts.notRated");
    return html`<span class="rt-stars" role="radiogroup" aria-label=${t("parts.rating", {name, stars: said})} title=${rating ? undefined : t("parts.notRatedTitle")}>
        ${[1, 2, 3, 4, 5].map(
            (star) => html`<button type="button" role="radio" key=${star}
            aria-checked=${String(rating === star)} aria-label=${of(star)} title=${of(star)}
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
 * @param {() => void} [props.cancel] called by Escape, which otherwise takes back what is typed
 * @param {Value} [props.children] behind the button
 */
export function NameForm(props) {
    const {label, button, hint = "", former = "", focus = false, most = 100, problem, save, cancel, children} = props;
    const field = /** @type {Filled<HTMLInputElement>} */ (useRef());
    const [name, setName] = useState(former);
    const [said, setSaid] = useState("");
    useLayoutEffect(() => {
        if (focus) field.current.focus(); // before the next key
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
    const pressed = (/** @type {Key} */ event) => {
        if (event.key !== "Escape" || (!cancel && name === former)) return;
        event.preventDefault(); // or a dialog around it closes
        event.stopPropagation();
        setName(former);
        setSaid("");
        cancel?.();
    };
    return html`<form class="rt-line rt-name-form" noValidate onSubmit=${submit}>
        <label class="rt-field rt-name-field">
            <input type="text" aria-label=${label} aria-invalid=${String(said !== "")} placeholder=${hint} maxlength=${most} autocomplete="off"
                ref=${field} value=${name} onInput=${type} onKeyDown=${pressed} />
            <span class="rt-problem" role="alert">${said}</span></label>
        <button type="submit" class="rt-small rt-primary">${button}</button>
        ${children}
    </form>`;
}

/**
 * Draw an error in place. Where a change was refused because another page or program made one first, a button makes it
 * all the same. Where something could not be loaded, a button tries it again.
 * @param {{trouble: TroubleShown}} props
 */
export function Trouble({trouble: {text, again, load}}) {
    return html`<div role="alert">${
        text
        && html`<p class="rt-error">${text}
        ${again && html`<button type="button" class="rt-small" onClick=${again}>${t("parts.changeAnyway")}</button>`}</p>`
    }</div>
    ${text && load && html`<div><button type="button" class="rt-small" onClick=${load}>${t("parts.tryAgain")}</button></div>`}`;
}

/**
 * Tell whether something is still deleted, or replaced: another page may have made one of its name since.
 * @param {string} name
 * @param {boolean | undefined} replaced
 * @param {{name: string}[] | null} now what there is
 */
export const isStill = (name, replaced, now) => (now ?? []).some((one) => one.name === name) === Boolean(replaced);

/**
 * Say what was deleted or replaced, with a button that takes it back. The button has the focus, as the one before it is gone.
 * @param {{name: string, replaced?: boolean, undo: () => unknown}} props
 */
export function Deleted({name, replaced = false, undo}) {
    const button = /** @type {Filled<HTMLButtonElement>} */ (useRef());
    useLayoutEffect(() => button.current.focus(), [name]); // before the next key
    useEffect(() => {
        const around = button.current.closest("dialog, .rt-part");
        /** @type {HTMLElement | null | undefined} */
        const next = around?.querySelector("select, input, button");
        return () => {
            // where it had the focus, nothing has it now
            if (document.activeElement === document.body) next?.focus();
        };
    }, [name]);
    return html`<div class="rt-notice rt-line" role="status"><span>${t(replaced ? "parts.replaced" : "parts.deleted", {what: name})}</span>
        <button type="button" class="rt-small" ref=${button} aria-label=${t(replaced ? "parts.undoReplacing" : "parts.undoDeleting", {what: name})} onClick=${undo}>${t("common.undo")}</button></div>`;
}

/**
 * @typedef {<T>(work: () => T | Promise<T>, clears?: boolean) => Promise<T | undefined>} Attempt
 * Does something, and shows its error; where it succeeds, it clears the error of what began before it, unless told not to.
 */

/**
 * Make a function that tries something and shows the last error, with a function that tries again what another page or
 * program came before.
 * @param {(text: string, again: (() => unknown) | null) => void} show
 * @returns {Attempt}
 */
export function attempts(show) {
    let begun = 0;
    let failed = 0; // the number of the attempt whose error is shown
    /** @type {Attempt} */
    const attempt = async (work, clears = true) => {
        begun += 1;
        const number = begun;
        try {
            const result = await work();
            // what began earlier and ends later says nothing of a later error
            if (clears && number >= failed) show("", null);
            return result;
        } catch (error) {
            failed = number;
            const isLate = error instanceof ApiError && error.status === CHANGED;
            show(/** @type {Error} */ (error).message, isLate ? () => attempt(work, clears) : null);
            return undefined;
        }
    };
    return attempt;
}

/**
 * @typedef {{text: string, again: (() => unknown) | null, load?: (() => unknown) | null}} TroubleShown
 * An error, empty where there is none. `again` makes a change that was refused, `load` loads what could not be loaded.
 */

/**
 * Keep the last error, beside a function that tries something.
 * @returns {[trouble: TroubleShown, attempt: Attempt]}
 */
export function useTrouble() {
    const [trouble, setTrouble] = useState(/** @type {TroubleShown} */ ({text: "", again: null}));
    const attempt = useRef(/** @type {Attempt | null} */ (null));
    attempt.current ??= attempts((text, again) => setTrouble({text, again}));
    return [trouble, attempt.current];
}

/**
 * Do something some time after a value in `inputs` changes.
 * @param {(() => unknown) | false | null | undefined} work nothing where there is nothing to do
 * @param {number} milliseconds
 * @param {unknown[]} inputs
 */
export function useLater(work, milliseconds, inputs) {
    useEffect(() => {
        if (!work) return undefined;
        const timer = setTimeout(work, milliseconds);
        return () => clearTimeout(timer);
    }, inputs);
}

/**
 * Load what the server keeps when a component comes, when a value in `inputs` changes, and when a server that was lost is
 * back. Until what could not be loaded is there, `load` of the error is a function that tries it.
 * @param {Tab} tab
 * @param {() => Promise<unknown>} load
 * @param {unknown[]} inputs
 * @returns {[trouble: TroubleShown, attempt: Attempt]}
 */
export function useLoad(tab, load, inputs) {
    const [trouble, attempt] = useTrouble();
    const [missing, setMissing] = useState(false);
    const begin = () =>
        attempt(async () => {
            setMissing(true);
            await load();
            setMissing(false);
        });
    useEffect(() => {
        begin();
    }, [...inputs, tab.state.returns]);
    return [{...trouble, load: missing ? begin : null}, attempt];
}
