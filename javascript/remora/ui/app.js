// The whole tab.

/**
 * @import {Controller, State} from "../controller.js"
 * @import {Filled} from "../vendor/preact.js"
 */

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {useStore} from "../store.js";
import {Compare} from "./compare.js";
import {Details} from "./details.js";
import {Library} from "./library.js";
import {Presets} from "./presets.js";
import {Stack} from "./stack.js";

const WIDE = 720; // pixels from which both panes are side by side

/** @param {{controller: Controller, root: HTMLElement}} props */
export function App({controller, root}) {
    const state = useStore(controller.store);
    const wide = useWide(root);
    useKeys(controller, root);
    const count = controller.rows().length + state.always.entries.length;
    const outcomes = controller.outcomes(); // also while the stack is not shown: it knows which rows there were
    const errors = outcomes.errors ? `${outcomes.errors} ${outcomes.errors > 1 ? "errors" : "error"}` : "";
    const content = [count || "", errors].filter(Boolean).join(", ");
    const shown = (/** @type {string} */ pane) => wide || state.pane === pane;
    return html`
        <${Notices} controller=${controller} state=${state} />
        ${state.login && html`<${Login} controller=${controller} />`}
        ${
            !wide
            && html`<div class="rt-switch" role="group" aria-label="What is shown">
            ${[
                ["library", "Library"],
                ["stack", content ? `Stack (${content})` : "Stack"],
            ].map(
                ([pane, title]) => html`
                <button type="button" key=${pane} aria-pressed=${String(state.pane === pane)}
                    onClick=${() => controller.set({pane})}>${title}</button>`,
            )}
        </div>`
        }
        <div class=${`rt-panes${wide ? " rt-wide" : ""}`}>
            ${shown("library") && html`<${Library} controller=${controller} state=${state} />`}
            ${shown("stack") && html`<${Stack} controller=${controller} state=${state} outcomes=${outcomes} />`}
        </div>
        ${state.details && html`<${Details} key=${state.details} controller=${controller} id=${state.details} />`}
        ${state.dialog === "presets" && html`<${Presets} controller=${controller} state=${state} />`}
        ${state.dialog === "compare" && html`<${Compare} controller=${controller} state=${state} />`}`;
}

/** @param {HTMLElement} root */
function useWide(root) {
    const [wide, setWide] = useState(root.clientWidth >= WIDE);
    useEffect(() => {
        const observer = new ResizeObserver(() => {
            if (root.clientWidth) setWide(root.clientWidth >= WIDE);
        });
        observer.observe(root);
        return () => observer.disconnect();
    }, [root]);
    return wide;
}

/**
 * Listen to Ctrl+Z and Ctrl+Y, where nothing is being typed; "/" goes to the search.
 * @param {Controller} controller
 * @param {HTMLElement} root
 */
function useKeys(controller, root) {
    useEffect(() => {
        const pressed = (/** @type {KeyboardEvent} */ event) => {
            const target = /** @type {Element} */ (event.target);
            if (target.closest("dialog")) return; // what is behind it stays as it is
            const typing = target.matches("textarea, input:not([type=checkbox], [type=range], [type=radio])");
            if (typing || event.altKey) return;
            const key = event.key.toLowerCase();
            if ((event.ctrlKey || event.metaKey) && (key === "z" || key === "y")) {
                if (key === "y" || event.shiftKey) controller.redo();
                else controller.undo();
            } else if (key === "/" && !event.ctrlKey && !event.metaKey) {
                /** @type {HTMLElement | null} */ (root.querySelector("input[type=search]"))?.focus();
            } else {
                return;
            }
            event.preventDefault();
            event.stopPropagation();
        };
        root.addEventListener("keydown", pressed);
        return () => root.removeEventListener("keydown", pressed);
    }, [controller, root]);
}

/** @param {{controller: Controller, state: State}} props */
function Notices({controller, state}) {
    const {server} = state;
    const {stackProblem, presetProblem, regionProblem, blocks} = state;
    const texts = [stackProblem, controller.catalog.problem, presetProblem, regionProblem, blocks?.problem];
    if (server && !server.enabled) {
        texts.push(
            "Remora is off in the settings: the web UI applies LoRA itself, and what is set here has no effect.",
        );
    }
    if (server) texts.push(...server.conflicts, ...server.notes);
    return html`
        <div class="rt-notices" role="status">
            ${[...new Set(texts.filter(Boolean))].map((text) => html`<p class="rt-notice" key=${text}>${text}</p>`)}
        </div>
        <div role="alert">${state.error && html`<p class="rt-error">${state.error}</p>`}</div>`;
}

/** @param {{controller: Controller}} props */
function Login({controller}) {
    const user = /** @type {Filled<HTMLInputElement>} */ (useRef()),
        password = /** @type {Filled<HTMLInputElement>} */ (useRef());
    const enter = (/** @type {Event} */ event) => {
        event.preventDefault();
        controller.api.logIn(user.current.value, password.current.value);
        controller.start();
    };
    return html`<form class="rt-login rt-line" onSubmit=${enter}>
        <label>User <input type="text" autocomplete="username" required ref=${user} /></label>
        <label>Password <input type="password" autocomplete="current-password" required ref=${password} /></label>
        <button type="submit">Log in</button>
    </form>`;
}
