// Remora on the web UI's own LoRA cards: whether a file fits, its preferred strength, and a menu. A page may have
// thousands of cards and make them anew at any time, so only cards on the screen are touched.

/**
 * @import {Lora} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 * @import {Filled, Key} from "../vendor/preact.js"
 * @import {IconName} from "./icons.js"
 *
 * @typedef {object} Shown
 * What a card on the screen has of Remora.
 * @property {HTMLElement} element
 * @property {HTMLElement} root in its shadow root
 * @property {string} path of the card's file
 */

import {html, render, useLayoutEffect, useRef} from "../vendor/preact.js";
import {find} from "../boxes.js";
import {canBeInserted} from "../catalog.js";
import {written} from "../curve.js";
import {shadowed, Theme} from "../theme.js";
import {t} from "../words.js";
import {Icon} from "./icons.js";

const LISTS = ["txt2img", "img2img", "control", "video"].map((mode) => `${mode}_lora_cards`); // ids
const CORNER = "position: absolute; top: 4px; left: 4px; z-index:";

/**
 * The cards of web UIs: what tells them, which path they have, and where they have room.
 * @type {{cards: string, path: (card: HTMLElement) => string | undefined, place: string}[]}
 */
const HOSTS = [
    // SD.Next's list, and its cards, over which a row of buttons lies at 100
    {cards: ".card-list[data-filename]", path: ({dataset}) => dataset.filename, place: "margin: 0 4px 0 auto"},
    {cards: ".card[data-filename]", path: ({dataset}) => dataset.filename, place: `${CORNER} 101`},
    // A1111, Forge and Forge Neo; the copied text is a path, older ones have the name alone
    {cards: ".card[data-name]", path: (card) => copied(card) ?? card.dataset.name, place: `${CORNER} 0`},
];

/** @param {HTMLElement} card */
const copied = (card) =>
    /** @type {HTMLElement | null} */ (card.querySelector("[data-clipboard-text]"))?.dataset.clipboardText;

const MODERN = "button[tabitemid*='#tab_remora']"; // SD.Next's Modern UI
const OPENERS = "#tabs > .tab-nav > button, [role=tab]:not(#tabs *)"; // no tabs of settings, for instance
const TITLE = "Remora"; // of the tab
const [OPENED, LOOK] = [2000, 50]; // milliseconds in which a tab comes up, and between two looks
const EDGE = 8; // pixels that are free beside the menu

/** Tell whether the page calls a function after its changes; else it has no cards that are known. */
export const hasHook = () => typeof onAfterUiUpdate === "function";

/** Puts a badge on each LoRA card that is on the screen. */
export class HostCards {
    /**
     * @param {Tab} tab
     * @param {CSSStyleSheet} sheet
     * @param {{renew: () => Promise<unknown>, isSeen: () => boolean}} page `renew` asks the server for what may have
     *     changed, `isSeen` tells whether the tab is
     */
    constructor(tab, sheet, page) {
        this.tab = tab;
        this.page = page;
        const colours = new CSSStyleSheet(); // of all badges at once
        colours.replaceSync(".rt {}");
        this.rule = /** @type {CSSStyleRule} */ (colours.cssRules[0]);
        this.sheets = [sheet, colours];
        this.theme = new Theme();
        /** @type {Map<Element, Shown>} */
        this.shown = new Map(); // by the cards on the screen
        /** @type {WeakSet<Element>} */
        this.lists = new WeakSet();
        this.screen = new IntersectionObserver((entries) => this.moved(entries));
        this.changes = new MutationObserver((records) => {
            for (const {addedNodes} of records) for (const node of addedNodes) this.watch(node);
        });
        this.menu = new Menu(tab, this.sheets, (lora, outputs) => this.show(lora, outputs));
        this.former = "";
    }

    get areSeen() {
        return !document.hidden && this.shown.size > 0;
    }

    listen() {
        if (!hasHook()) return;
        onAfterUiUpdate?.(() => this.find());
        this.tab.store.subscribe(() => this.follow());
        this.find();
    }

    /** Look for lists of cards; the page may have replaced one. */
    find() {
        if (!this.tab.state.badges) return;
        for (const id of LISTS) {
            const list = document.getElementById(id);
            if (!list || this.lists.has(list)) continue;
            this.lists.add(list);
            this.screen.observe(list);
        }
    }

    /** @param {Node} node */
    watch(node) {
        if (node instanceof HTMLElement) this.screen.observe(node);
    }

    /**
     * Take which lists and cards have come onto the screen, and which have left it.
     * @param {IntersectionObserverEntry[]} entries
     */
    moved(entries) {
        const before = this.shown.size;
        for (const {target, isIntersecting} of entries) {
            if (!isIntersecting) this.leave(target);
            else if (this.lists.has(target)) this.begin(target);
            else this.come(/** @type {HTMLElement} */ (target));
        }
        if (before || !this.shown.size) return;
        this.followTheme();
        this.page.renew();
    }

    /**
     * Watch the cards of a list that has come onto the screen.
     * @param {Element} list
     */
    begin(list) {
        this.screen.unobserve(list);
        this.changes.observe(list, {childList: true});
        for (const card of list.children) this.watch(card);
    }

    /** @param {HTMLElement} card */
    come(card) {
        const host = HOSTS.find(({cards}) => card.matches(cards));
        const path = host?.path(card);
        if (!host || !path || this.shown.has(card)) return;
        const element = document.createElement("span");
        element.style.cssText = `all: unset; ${host.place}`;
        const root = shadowed(element, ...this.sheets);
        root.classList.add("rt-bare"); // the card is seen around it
        this.shown.set(card, {element, root, path});
        this.draw(card);
    }

    /** @param {Element} card */
    leave(card) {
        this.shown.get(card)?.element.remove();
        this.shown.delete(card);
    }

    /** @param {Element} card that is shown */
    draw(card) {
        const {element, root, path} = /** @type {Shown} */ (this.shown.get(card));
        const lora = this.tab.library.catalog.fileAt(path);
        if (!lora) return element.remove();
        const open = (/** @type {Event} */ event) => {
            event.stopPropagation(); // a click on the card is the page's
            this.menu.open(lora, /** @type {HTMLElement} */ (event.currentTarget));
        };
        root.lang = this.tab.state.language;
        render(html`<${Badge} tab=${this.tab} lora=${lora} open=${open} />`, root);
        if (!element.parentNode) card.append(element);
    }

    /** Draw what is on the screen again where anything of it has changed. */
    follow() {
        const {badges, version, language, always, server} = this.tab.state;
        const now = JSON.stringify([badges, version, language, always, server?.model]);
        if (now === this.former) return;
        this.former = now;
        if (!badges) this.end();
        else this.find();
        for (const card of this.shown.keys()) this.draw(card);
    }

    followTheme() {
        const [card] = this.shown.keys();
        if (card?.parentElement) this.theme.follow(card.parentElement, this.rule);
    }

    end() {
        this.screen.disconnect();
        this.changes.disconnect();
        for (const card of [...this.shown.keys()]) this.leave(card);
        this.lists = new WeakSet();
    }

    /**
     * Show the details of a file, in the tab.
     * @param {Lora} lora
     * @param {boolean} outputs whether they begin with its pictures
     */
    async show(lora, outputs) {
        opener()?.click();
        const until = performance.now() + OPENED;
        while (!this.page.isSeen() && performance.now() < until) await new Promise((done) => setTimeout(done, LOOK));
        if (this.page.isSeen()) this.tab.set({details: lora.id, outputs});
    }
}

/**
 * Return the page's button of Remora's tab.
 * @returns {HTMLElement | undefined}
 */
export function opener() {
    /** @type {HTMLElement | null} */
    const modern = document.querySelector(MODERN);
    /** @type {NodeListOf<HTMLElement>} */
    const buttons = document.querySelectorAll(OPENERS);
    return modern ?? [...buttons].find((button) => button.textContent?.trim() === TITLE);
}

/**
 * Return what a badge says of a file: a word, sentences, whether it cannot be used or does not fit, and whether it is
 * always on.
 * @param {Tab} tab
 * @param {Lora} lora
 */
function about(tab, lora) {
    const {catalog} = tab.library;
    const [problem, misfit] = [catalog.unusable(lora), catalog.misfit(lora)];
    const isKnown = Boolean(tab.state.server?.model && catalog.familyOf(lora)); // some web UIs load a model late
    const fits = isKnown && !problem && !misfit ? t("badges.fitsModel") : "";
    let word = fits && t("badges.fits");
    if (!lora.read) word = t("card.notRead");
    if (misfit) word = t("badges.misfit");
    if (problem) word = t("badges.problem");
    const strength = lora.strength !== null && t("badges.strength", {strength: written(lora.strength)});
    const isAlways = tab.stack.pinned().has(lora.id);
    const lines = [problem || misfit || fits, strength, isAlways && t("card.always")].filter(Boolean);
    return {word, lines, isAgainst: Boolean(problem || misfit), isAlways};
}

/** @param {{tab: Tab, lora: Lora, open: (event: Event) => void}} props */
function Badge({tab, lora, open}) {
    const {word, lines, isAgainst, isAlways} = about(tab, lora);
    const said = [isAgainst && word, ...lines].filter(Boolean).join(t("mark.list"));
    const label = said ? t("badges.said", {name: lora.name, said}) : t("card.about", {name: lora.name});
    return html`<button type="button" class=${`rt-own${isAgainst ? " rt-wrong" : ""}`} aria-haspopup="menu" aria-label=${label}
        title=${lines.join("\n") || label} onClick=${open}>
        ${word && html`<span>${word}</span>`}
        ${lora.strength !== null && html`<span>${written(lora.strength)}</span>`}
        ${isAlways && html`<${Icon} name="always" />`}
        <span aria-hidden="true">⋯</span></button>`;
}

/** The menu of a badge, in an element of the page's. */
class Menu {
    /**
     * @param {Tab} tab
     * @param {CSSStyleSheet[]} sheets
     * @param {(lora: Lora, outputs: boolean) => void} show
     */
    constructor(tab, sheets, show) {
        this.tab = tab;
        this.show = show;
        const element = document.createElement("div");
        element.style.cssText = "position: absolute; top: 0; left: 0"; // no part of the page's layout
        this.element = element;
        this.root = shadowed(element, ...sheets);
    }

    /**
     * @param {Lora} lora
     * @param {HTMLElement} button
     */
    open(lora, button) {
        document.body.append(this.element);
        this.element.style.fontFamily = getComputedStyle(button).fontFamily; // the page's body may have another font
        this.root.lang = this.tab.state.language;
        this.tab.stack.readBoxes();
        const close = (isDone = false, said = "") => {
            this.draw(null, said);
            if (isDone) button.focus({preventScroll: true});
        };
        const choices = choicesOf(this.tab, lora, this.show);
        const given = {tab: this.tab, lora, choices, button, close};
        this.draw(html`<${Choices} key=${lora.id} ...${given} />`, "");
    }

    /**
     * @param {ReturnType<typeof html> | null} menu
     * @param {string} said by screen readers
     */
    draw(menu, said) {
        render(html`<div>${menu}<div class="rt-unseen" role="status">${said}</div></div>`, this.root);
    }
}

/**
 * @typedef {{icon: IconName, word: string, act: () => unknown, isOn?: boolean, isOff?: boolean, leaves?: boolean}} Choice
 * A line of the menu: `isOn` where it is a switch, `isOff` where it is not possible, `leaves` where it opens the tab.
 */

/**
 * @param {Tab} tab
 * @param {Lora} lora
 * @param {(lora: Lora, outputs: boolean) => void} show
 * @returns {Choice[]}
 */
function choicesOf(tab, lora, show) {
    const isUsed = tab.stack.used().has(lora.id);
    const isShown = Boolean(find(tab.state.target)?.box.getClientRects().length); // a change elsewhere is not noticed
    const {always} = tab.state;
    const isOther = (/** @type {{name: string}} */ {name}) => tab.library.meaning(name).lora?.id !== lora.id;
    const others = always.entries.filter(isOther);
    const isAlways = others.length < always.entries.length;
    const set = () =>
        isAlways ? tab.edits.changeAlways({...always, entries: others}) : tab.edits.addAlways(lora.name);
    const cannot = !canBeInserted(lora);
    /** @type {Choice[]} */
    const opening = [
        {icon: "grid", word: t("outputs.title"), act: () => show(lora, true), leaves: true},
        {icon: "info", word: t("details.title"), act: () => show(lora, false), leaves: true},
    ];
    return [
        {
            ...{icon: "prompt", word: t(isUsed ? "details.remove" : "details.insert")},
            ...{act: () => tab.edits.toggle(lora), isOff: !isShown || (cannot && !isUsed)},
        },
        {icon: "always", word: t("common.alwaysOn"), act: set, isOn: isAlways, isOff: cannot && !isAlways},
        ...(opener() ? opening : []),
    ];
}

/**
 * @param {{tab: Tab, lora: Lora, choices: Choice[], button: HTMLElement, close: (isDone?: boolean, said?: string) => void}} props
 * `close` is told whether the button has the focus again
 */
function Choices({tab, lora, choices, button, close}) {
    const element = /** @type {Filled<HTMLElement>} */ (useRef());
    const items = () => /** @type {HTMLElement[]} */ ([...element.current.querySelectorAll("button:enabled")]);
    useLayoutEffect(() => {
        const menu = element.current;
        menu.showPopover();
        place(menu, button);
        items()[0]?.focus();
        const {left, top} = button.getBoundingClientRect();
        const leave = () => {
            const now = button.getBoundingClientRect();
            // a page that scrolled before the click says so after it
            if (now.left !== left || now.top !== top) close();
        };
        document.addEventListener("scroll", leave, true);
        return () => document.removeEventListener("scroll", leave, true);
    }, []);
    const pressed = (/** @type {Key} */ event) => {
        const all = items();
        const at = all.indexOf(/** @type {HTMLElement} */ (event.target));
        /** @type {{[key: string]: number | undefined}} */
        const places = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1};
        const to = places[event.key];
        if (to !== undefined) all.at(to % all.length)?.focus();
        else if (event.key === "Escape" || event.key === "Tab") close(true);
        if (to !== undefined || event.key === "Escape") event.preventDefault();
    };
    const closed = (/** @type {ToggleEvent} */ event) => event.newState === "closed" && close();
    const choose = (/** @type {Choice} */ {act, leaves = false}) => {
        act();
        close(!leaves, tab.state.said);
    };
    const {lines} = about(tab, lora);
    return html`<div class="rt-menu" popover="auto" ref=${element} onToggle=${closed} onKeyDown=${pressed}>
        <p><strong>${lora.name}</strong></p>
        ${lines.length > 0 && html`<p class="rt-hint" id="about">${lines.map((line) => html`<span key=${line}>${line}</span>`)}</p>`}
        <div role="menu" aria-label=${lora.name} aria-describedby="about">${choices.map(
            (choice) => html`<button type="button" key=${choice.icon} tabindex="-1" disabled=${choice.isOff}
            role=${choice.isOn === undefined ? "menuitem" : "menuitemcheckbox"} aria-checked=${choice.isOn?.toString()}
            onClick=${() => choose(choice)}><${Icon} name=${choice.icon} /><span>${choice.word}</span>
            ${choice.isOn && html`<${Icon} name="check" />`}</button>`,
        )}</div></div>`;
}

/**
 * Put the menu below its button, or above it where there is no room. On a phone, a page that is wider than the screen is
 * seen in part.
 * @param {HTMLElement} menu
 * @param {HTMLElement} button
 */
function place(menu, button) {
    const {left, top, bottom} = button.getBoundingClientRect();
    const {offsetWidth: width, offsetHeight: height} = menu;
    const seen = /** @type {VisualViewport} */ (window.visualViewport);
    const [first, last] = [seen.offsetLeft + EDGE, seen.offsetLeft + seen.width - EDGE];
    const isBelow = bottom + height + EDGE <= seen.offsetTop + seen.height || top - seen.offsetTop < height + EDGE;
    menu.style.left = `${Math.max(first, Math.min(left, last - width))}px`;
    menu.style.top = `${isBelow ? bottom + 2 : top - height - 2}px`;
}
