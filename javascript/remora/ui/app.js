// The whole tab.

/**
 * @import {State, Tab} from "../main.js"
 * @import {FieldEvent, Filled} from "../vendor/preact.js"
 */

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {completesItself} from "../boxes.js";
import {settingsOfPage} from "../language.js";
import {useStore} from "../store.js";
import {t, translated} from "../words.js";
import {Compare} from "./compare.js";
import {Copies} from "./copies.js";
import {Details} from "./details.js";
import {hasHook} from "./hostcards.js";
import {Library} from "./library.js";
import {Online} from "./online.js";
import {historyKey} from "./parts.js";
import {Pictures} from "./pictures.js";
import {Presets} from "./presets.js";
import {Recipe, useDrop} from "./recipe.js";
import {Save} from "./save.js";
import {Stack} from "./stack.js";
import {Strip} from "./strip.js";
import {StackCheck} from "./together.js";
import {Trash} from "./trash.js";

const WIDE = 720; // pixels from which both panes are side by side

/** @param {{tab: Tab, root: HTMLElement}} props */
export function App({tab, root}) {
    const state = useStore(tab.store);
    const wide = useWide(root);
    useKeys(tab, root);
    const isOver = useDrop(tab, root);
    useEffect(() => {
        root.lang = state.language; // for its fonts, and for how it is read aloud
    }, [root, state.language]);
    const count = tab.stack.rows().length + state.always.entries.length;
    const outcomes = tab.stack.outcomes(); // also while the stack is not shown: it knows which rows there were
    const errors = outcomes.errors ? t("app.errors", {count: outcomes.errors}) : "";
    const content = [count || "", errors].filter(Boolean).join(t("mark.list"));
    const shown = (/** @type {string} */ pane) => wide || state.pane === pane;
    return html`
        ${isOver && html`<div class="rt-drop" aria-hidden="true">${t("recipe.drop")}</div>`}
        <${Notices} tab=${tab} state=${state} />
        ${state.login && html`<${Login} tab=${tab} />`}
        <${Strip} tab=${tab} state=${state} />
        ${
            !wide
            && html`<div class="rt-switch" role="group" aria-label=${t("app.panes")}>
            ${[
                ["library", t("common.library")],
                ["stack", content ? t("app.stackWith", {content}) : t("common.stack")],
            ].map(
                ([pane, title]) => html`
                <button type="button" key=${pane} aria-pressed=${String(state.pane === pane)}
                    onClick=${() => tab.set({pane})}>${title}</button>`,
            )}
        </div>`
        }
        <div class=${`rt-panes${wide ? " rt-wide" : ""}`}>
            ${shown("library") && html`<${Library} tab=${tab} state=${state} />`}
            ${shown("stack") && html`<${Stack} tab=${tab} state=${state} outcomes=${outcomes} />`}
        </div>
        <div class="rt-choices">
            <${ChosenCompletion} tab=${tab} completes=${state.completes} />
            ${
                hasHook()
                && html`<label class="rt-check"><input type="checkbox" checked=${state.badges}
                onChange=${(/** @type {FieldEvent} */ event) => tab.set({badges: event.target.checked})} />
                <span>${t("badges.setting")}</span></label>`
            }
            ${!settingsOfPage() && html`<${ChosenLanguage} tab=${tab} chosen=${state.chosen} />`}
        </div>
        ${state.recipe && html`<${Recipe} tab=${tab} state=${state} shown=${state.recipe} />`}
        ${state.details && html`<${Details} key=${state.details} tab=${tab} id=${state.details} />`}
        ${state.dialog === "presets" && html`<${Presets} tab=${tab} state=${state} />`}
        ${state.dialog === "pictures" && html`<${Pictures} tab=${tab} state=${state} />`}
        ${state.dialog === "compare" && html`<${Compare} tab=${tab} state=${state} />`}
        ${state.dialog === "trash" && html`<${Trash} tab=${tab} />`}
        ${state.dialog === "copies" && html`<${Copies} tab=${tab} />`}
        ${state.dialog === "online" && html`<${Online} tab=${tab} />`}
        ${state.dialog === "save" && html`<${Save} tab=${tab} state=${state} />`}
        ${state.dialog === "check" && html`<${StackCheck} tab=${tab} />`}`;
}

/**
 * Draw the choice whether what is typed in a prompt box is completed, unless the page does so by other means.
 * @param {{tab: Tab, completes: boolean}} props
 */
function ChosenCompletion({tab, completes}) {
    const isAside = completesItself();
    return html`<label class="rt-check"><input type="checkbox" checked=${completes && !isAside} disabled=${isAside}
        onChange=${(/** @type {FieldEvent} */ event) => tab.set({completes: event.target.checked})} />
        <span>${t("completion.setting")}${isAside && html` <span class="rt-hint">${t("completion.aside")}</span>`}</span></label>`;
}

/**
 * Draw the choice of the language, where the web UI has no setting for it.
 * @param {{tab: Tab, chosen: string}} props
 */
function ChosenLanguage({tab, chosen}) {
    return html`<label class="rt-language"><span>${t("language.label")}</span>
        <select value=${chosen} onChange=${(/** @type {FieldEvent} */ event) => tab.set({chosen: event.target.value})}>
            <option value="">${t("language.browser")}</option>
            ${Object.entries(tab.language.all).map(
                ([tag, name]) => html`<option key=${tag} value=${tag} lang=${tag}>${name}</option>`,
            )}
        </select></label>`;
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
 * @param {Tab} tab
 * @param {HTMLElement} root
 */
function useKeys(tab, root) {
    useEffect(() => {
        const pressed = (/** @type {KeyboardEvent} */ event) => {
            const target = /** @type {Element} */ (event.target);
            if (target.closest("dialog")) return; // what is behind it stays as it is
            const typing = target.matches("textarea, input:not([type=checkbox], [type=range], [type=radio])");
            const way = historyKey(event);
            if (way === "redo") tab.stack.redo();
            else if (way === "undo") tab.stack.undo();
            else if (event.key === "/" && !typing && !event.altKey && !event.ctrlKey && !event.metaKey) {
                /** @type {HTMLElement | null} */ (root.querySelector("input[type=search]"))?.focus();
            } else {
                return;
            }
            event.preventDefault();
            event.stopPropagation();
        };
        root.addEventListener("keydown", pressed);
        return () => root.removeEventListener("keydown", pressed);
    }, [tab, root]);
}

/** @param {{tab: Tab, state: State}} props */
function Notices({tab, state}) {
    const {server} = state;
    const {stackProblem, presetProblem, regionProblem, blocks} = state;
    const texts = [stackProblem, tab.library.catalog.problem, presetProblem, regionProblem, blocks?.problem];
    if (server && !server.enabled) {
        texts.push(server.own_lora ? t("app.offHanded") : t("app.offNone"));
    }
    if (server) texts.push(...server.conflicts, ...server.notes);
    const said = texts.map((text) => translated(text ?? "")).filter(Boolean);
    return html`
        <div class="rt-notices" role="status">
            ${[...new Set(said)].map((text) => html`<p class="rt-notice" key=${text}>${text}</p>`)}
        </div>
        <div role="alert">${state.error && html`<p class="rt-error">${state.error}</p>`}</div>`;
}

/** @param {{tab: Tab}} props */
function Login({tab}) {
    const user = /** @type {Filled<HTMLInputElement>} */ (useRef()),
        password = /** @type {Filled<HTMLInputElement>} */ (useRef());
    const enter = (/** @type {Event} */ event) => {
        event.preventDefault();
        tab.api.logIn(user.current.value, password.current.value);
        tab.server.start();
    };
    return html`<form class="rt-login rt-line rt-low" onSubmit=${enter}>
        <label class="rt-field"><span>${t("app.user")}</span><input type="text" autocomplete="username" required ref=${user} /></label>
        <label class="rt-field"><span>${t("app.password")}</span><input type="password" autocomplete="current-password" required ref=${password} /></label>
        <button type="submit" class="rt-primary">${t("app.logIn")}</button>
    </form>`;
}
