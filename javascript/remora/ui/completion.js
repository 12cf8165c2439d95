// Suggestions at the caret of the web UI's own prompt boxes, while the user types.

/**
 * @import {Suggestion, Suggestions} from "../completion.js"
 * @import {Tab} from "../main.js"
 */

import {html, render} from "../vendor/preact.js";
import {query} from "../api.js";
import {completesItself, insert, isPrompt, letterPlace} from "../boxes.js";
import {MOST, Names, suggestions} from "../completion.js";
import {written} from "../curve.js";
import {shadowed, Theme} from "../theme.js";
import {t} from "../words.js";
import {Name, Picture} from "./parts.js";

const TYPED = /^(?:insertText|insertCompositionText|delete)/; // of events: pasted text is not completed
const PAUSE = 250; // milliseconds without a key, after which pictures are loaded and the number is said
const WIDE = 420; // pixels, at most, like the next
const HIGH = 400;
const EDGE = 8; // pixels that are free beside the list
const ID = "remora-completion";
const LIGHT = "all: unset; display: block"; // an element that the page's styles reach

/** Completes what is typed in the prompt boxes. */
export class Completion {
    /**
     * @param {Tab} tab
     * @param {CSSStyleSheet} sheet
     * @param {() => Promise<unknown>} renew asks the server for what may have changed
     */
    constructor(tab, sheet, renew) {
        this.tab = tab;
        this.renew = renew;
        this.names = new Names(tab.library.catalog);
        this.list = new List(tab, sheet, (at) => this.accept(at));
        /** @type {HTMLTextAreaElement | null} */
        this.box = null; // while suggestions are shown, like the next
        /** @type {Suggestions | null} */
        this.shown = null;
        this.chosen = -1;
        this.caret = 0;
        this.accepting = false;
        this.loading = false;
        this.isReady = false; // all was loaded once
        /** @type {HTMLTextAreaElement | null} */
        this.late = null; // a box that the user typed in before all was loaded
    }

    listen() {
        document.addEventListener("focusin", ({target}) => this.serves(target) && this.load());
        document.addEventListener("focusout", () => this.close());
        document.addEventListener("input", (event) => this.typed(event));
        document.addEventListener("compositionend", ({target}) => this.serves(target) && this.show(target));
        document.addEventListener("selectionchange", () => {
            if (this.box && this.box.selectionStart !== this.caret) this.close();
        });
        // before the page's own keys, of which Escape may interrupt a picture
        window.addEventListener("keydown", (event) => this.pressed(event), true);
        const move = (/** @type {Event} */ event) => this.list.isAround(event.target) || this.move();
        document.addEventListener("scroll", move, true);
        for (const view of [window, window.visualViewport]) view?.addEventListener("resize", move);
        if (this.serves(document.activeElement)) this.load(); // the user was quicker
        this.tab.store.subscribe(() => this.isReady && this.names.read()); // a changed catalog, before the next key
    }

    /**
     * Tell whether an element is a prompt box that is completed here.
     * @param {EventTarget | null} target
     * @returns {target is HTMLTextAreaElement}
     */
    serves(target) {
        return (
            this.tab.state.completes && target instanceof HTMLTextAreaElement && isPrompt(target) && !completesItself()
        );
    }

    /** Load what is suggested when the user goes to a prompt box, so that no key has to wait for it. */
    async load() {
        if (this.loading) return;
        this.loading = true;
        try {
            await this.loadAll();
        } finally {
            this.loading = false;
        }
        if (this.late?.matches(":focus")) this.show(this.late);
    }

    async loadAll() {
        const {server, kept} = this.tab;
        await this.renew();
        if (!this.tab.state.loaded || this.tab.state.lost) return;
        await server.attempt(async () => {
            await kept.loadBlocks();
            if (!this.tab.state.regions) await kept.loadRegions();
        });
        for (const typed of ["a", "a b", "ab"]) this.names.find(typed); // the lists are read, and the code is compiled
        this.list.prepare();
        this.isReady = true;
    }

    /** @param {Event} event */
    typed(event) {
        const {target} = event;
        if (this.accepting) return;
        if (!this.serves(target)) return this.close(); // the page may have begun to complete by itself
        const {inputType = "", isComposing = false} = /** @type {Partial<InputEvent>} */ (event);
        // an input method of a computer has a list of its own; on phones, every word is composed
        const isTheirs = isComposing && !matchMedia("(pointer: coarse)").matches;
        if (isTheirs || !TYPED.test(inputType)) this.close();
        else this.show(target);
    }

    /** @param {HTMLTextAreaElement} box */
    show(box) {
        const {blocks, regions} = this.tab.stack.known;
        const caret = box.selectionStart;
        const found =
            box.selectionEnd === caret
                ? suggestions(box.value, caret, {
                      names: this.names,
                      standard: this.tab.stack.standard,
                      blocks,
                      regions,
                      loraOf: (name) => this.tab.library.meaning(name).lora,
                  })
                : null;
        this.late = this.loading ? box : null;
        if (!found?.list.length) return this.close();
        const isNew = box !== this.box || found.start !== this.shown?.start || found.kind !== this.shown.kind;
        if (box !== this.box) this.close();
        Object.assign(this, {box, caret, shown: found});
        this.list.fill(found.list, box);
        if (isNew) this.move();
        // among words, Enter and Tab are the page's until the user has gone into the list
        this.choose(found.kind === "words" ? -1 : 0);
        box.setAttribute("aria-autocomplete", "list");
        box.setAttribute("aria-controls", ID);
    }

    /** @param {number} at */
    choose(at) {
        this.chosen = at;
        this.list.choose(at);
        if (at < 0) this.box?.removeAttribute("aria-activedescendant");
        else this.box?.setAttribute("aria-activedescendant", `${ID}-${at}`);
    }

    move() {
        if (this.box && this.shown) this.list.move(letterPlace(this.box, this.shown.start));
    }

    close() {
        for (const name of ["aria-controls", "aria-activedescendant"]) this.box?.removeAttribute(name);
        this.box = this.shown = null;
        this.list.hide();
    }

    /** @param {KeyboardEvent} event */
    pressed(event) {
        const {key, target, isComposing, ctrlKey, metaKey, altKey, shiftKey} = event;
        if (!this.shown || target !== this.box || isComposing || ctrlKey || metaKey || altKey || shiftKey) return;
        const last = this.shown.list.length - 1;
        if (key === "ArrowDown") this.choose(this.chosen < last ? this.chosen + 1 : 0);
        else if (key === "ArrowUp") this.choose(this.chosen > 0 ? this.chosen - 1 : last);
        else if (key === "Escape") this.close();
        else if ((key === "Enter" || key === "Tab") && this.chosen >= 0) this.accept(this.chosen);
        else return;
        event.preventDefault();
        event.stopPropagation();
    }

    /** @param {number} at */
    accept(at) {
        const {box, shown, caret} = this;
        this.close();
        if (!box || !shown || box.selectionStart !== caret) return;
        const {text, start, end} = shown.list[at];
        this.accepting = true;
        insert(box, start, end, text);
        this.accepting = false;
        if (text.endsWith("=")) this.show(box); // its values
    }
}

/**
 * The list. The box refers to its elements, so they are in the page's own tree; what they look like is in shadow roots,
 * where no style of the page applies.
 */
class List {
    /**
     * @param {Tab} tab
     * @param {CSSStyleSheet} sheet
     * @param {(at: number) => void} accept
     */
    constructor(tab, sheet, accept) {
        this.tab = tab;
        this.sheet = sheet;
        this.accept = accept;
        this.theme = new Theme();
        this.host = document.createElement("div");
        this.host.style.cssText = "position: absolute; top: 0; left: 0"; // no part of the page's layout
        this.root = shadowed(this.host, sheet);
        this.frame = Object.assign(document.createElement("div"), {className: "rt-completion", hidden: true});
        this.frame.append(document.createElement("slot"));
        this.scrolled = false; // to ask for it at each key would make the browser lay out the page at once
        this.frame.addEventListener("scroll", () => {
            this.scrolled = this.frame.scrollTop > 0;
        });
        this.status = Object.assign(document.createElement("div"), {className: "rt-unseen"});
        this.status.setAttribute("role", "status");
        this.root.append(this.frame, this.status);
        this.box = Object.assign(document.createElement("div"), {id: ID});
        this.box.style.cssText = LIGHT;
        this.box.setAttribute("role", "listbox");
        this.host.append(this.box);
        /** @type {{element: HTMLElement, root: HTMLElement}[]} */
        this.items = [];
        /** @type {Suggestion[]} */
        this.list = [];
        /** @type {Set<string>} */
        this.seen = new Set(); // addresses of pictures that were loaded
        /** @type {ReturnType<typeof setTimeout> | undefined} */
        this.pause = undefined;
    }

    /** @param {EventTarget | null} target */
    isAround(target) {
        return target === this.frame || target === this.host;
    }

    /**
     * Show suggestions.
     * @param {Suggestion[]} list
     * @param {HTMLElement} box the prompt box
     */
    fill(list, box) {
        if (this.frame.hidden) this.come(box);
        this.list = list;
        this.draw(false);
        this.box.replaceChildren(...list.map((_, at) => this.item(at).element));
        clearTimeout(this.pause);
        this.pause = setTimeout(() => {
            this.draw(true);
            this.status.textContent = t("completion.count", {count: list.length});
        }, PAUSE);
    }

    /** Make what the first key would have to wait for. */
    prepare() {
        document.body.append(this.host);
        for (let at = 0; at < MOST; at += 1) this.item(at);
        this.theme.follow(this.host, this.root);
    }

    /** @param {HTMLElement} box */
    come(box) {
        document.body.append(this.host);
        this.frame.hidden = false;
        this.root.lang = this.tab.state.language;
        this.box.setAttribute("aria-label", t("completion.suggestions"));
        // some dark pages have a white body, and that of A1111 has another font
        this.theme.follow(box, this.root);
        this.host.style.fontFamily = getComputedStyle(box.parentElement ?? box).fontFamily;
    }

    hide() {
        if (this.frame.hidden) return;
        clearTimeout(this.pause);
        this.frame.hidden = true;
        this.box.replaceChildren();
        this.status.textContent = "";
    }

    /** @param {boolean} loads whether pictures are loaded */
    draw(loads) {
        for (const [at, one] of this.list.entries()) {
            const path = pathOf(one);
            if (loads && path) this.seen.add(path);
            const {element, root} = this.item(at);
            const strength = one.strength ?? null;
            const spoken = [
                one.label,
                strength !== null && t("completion.at", {strength: written(strength)}),
                one.hint,
            ];
            element.setAttribute("aria-label", spoken.filter(Boolean).join(t("mark.list")));
            const shown = this.seen.has(path) ? path : "";
            render(html`<${Choice} key=${one.lora?.id ?? ""} tab=${this.tab} suggestion=${one} path=${shown} />`, root);
        }
    }

    /** @param {number} at */
    item(at) {
        const known = this.items[at];
        if (known) return known;
        const element = Object.assign(document.createElement("div"), {id: `${ID}-${at}`});
        element.style.cssText = LIGHT;
        element.setAttribute("role", "option");
        const root = shadowed(element, this.sheet);
        element.addEventListener("mousedown", (event) => event.preventDefault()); // the box keeps the focus
        element.addEventListener("click", () => this.accept(at));
        this.items[at] = {element, root};
        return this.items[at];
    }

    /** @param {number} chosen */
    choose(chosen) {
        for (const at of this.list.keys()) {
            const {element, root} = this.item(at);
            element.setAttribute("aria-selected", String(at === chosen));
            root.classList.toggle("rt-chosen", at === chosen);
        }
        if (chosen > 0 || this.scrolled) this.scrollTo(Math.max(0, chosen));
    }

    /** @param {number} at */
    scrollTo(at) {
        const {frame} = this;
        const own = this.item(at).element.getBoundingClientRect();
        const {top, bottom} = frame.getBoundingClientRect();
        if (!at) frame.scrollTop = 0;
        else if (own.top < top) frame.scrollTop -= top - own.top + EDGE;
        else if (own.bottom > bottom) frame.scrollTop += own.bottom - bottom + EDGE;
    }

    /**
     * Put the list below a letter, or above it where there is more room.
     * @param {{left: number, top: number, height: number}} letter
     */
    move({left, top, height}) {
        const {
            width,
            height: all,
            offsetLeft,
            offsetTop,
        } = window.visualViewport ?? {
            ...{width: innerWidth, height: innerHeight, offsetLeft: 0, offsetTop: 0},
        };
        const wide = Math.min(WIDE, width - 2 * EDGE);
        const above = top - offsetTop - EDGE;
        const below = offsetTop + all - top - height - EDGE;
        const isBelow = below >= Math.min(HIGH, this.frame.scrollHeight) || below >= above;
        Object.assign(this.frame.style, {
            width: `${wide}px`,
            left: `${Math.max(offsetLeft + EDGE, Math.min(left, offsetLeft + width - EDGE - wide))}px`,
            top: isBelow ? `${top + height + 4}px` : "auto",
            bottom: isBelow ? "auto" : `${document.documentElement.clientHeight - top + 4}px`,
            maxHeight: `${Math.min(HIGH, Math.max(below, above) - 4)}px`,
        });
    }
}

/** @param {Suggestion} suggestion */
const pathOf = ({lora}) => (lora?.picture ? `thumbnail?${query({id: lora.id, v: lora.picture})}` : "");

/** @param {{tab: Tab, suggestion: Suggestion, path: string}} props */
function Choice({tab, suggestion, path}) {
    const {label, hint, strength, against, lora, region} = suggestion;
    return html`<div class=${`rt-choice${against ? " rt-against" : ""}`}>
        ${lora && html`<span class="rt-thumb"><${Picture} api=${tab.api} path=${path} name=${lora.name} /></span>`}
        ${region && html`<span class="rt-thumb"><img src=${`data:image/png;base64,${region.picture}`} alt="" /></span>`}
        <span class=${`rt-choice-text${lora ? " rt-card-list" : ""}`}>
            <span class="rt-choice-label">${lora ? html`<${Name} text=${label} />` : label}</span>
            ${hint && html`<span class="rt-hint">${hint}</span>`}
        </span>
        ${typeof strength === "number" && html`<span class="rt-choice-side">${written(strength)}</span>`}
    </div>`;
}
