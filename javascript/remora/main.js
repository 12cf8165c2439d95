// The tab of Remora, mounted on the page's element `#remora-tab`.

/**
 * @import {Lora} from "../api.d.ts"
 * @import {SavedTag, What} from "./save.js"
 */

import {html, render} from "./vendor/preact.js";
import {Api} from "./api.js";
import {Edits} from "./edits.js";
import {KEPT, Kept} from "./kept.js";
import {GROWING, Growing} from "./growing.js";
import {PICTURES, Pictures} from "./pictures.js";
import {Language} from "./language.js";
import {LIBRARY, Library, remember, remembered} from "./library.js";
import {MANY, Many} from "./many.js";
import {presetOf, RECIPES} from "./recipes.js";
import {SERVER, Server} from "./server.js";
import {STACK, Stack} from "./stack.js";
import {same, Store} from "./store.js";
import {loadSheet, shadowed, Theme} from "./theme.js";
import {App} from "./ui/app.js";
import {Completion} from "./ui/completion.js";
import {HostCards, opener} from "./ui/hostcards.js";
import {spoken, translated} from "./words.js";

const POLL = 2000; // milliseconds between two polls of the server, while the tab is visible
const READ = 250; // the same for the prompts and the colours of the page
const LOOK = 100; // milliseconds between two searches for the element
const EMBEDDED = "prompt"; // what its prompt is called, in `boxes.js`
const MODERN_LETTERS = "button[tabitemid*='#tab_remora'] .icon-letters";
const MODERN_NAME = "LoRA";

/** @type {(keyof State)[]} what a sentence in `said` is about */
const SPOKEN_OF = ["target", "prompt", "negative", "always", "off"];
const REMEMBERED = ["sort", "view", "tree", "chosen", "completes", "badges"];

const SHOWN = {
    pane: "library",
    details: /** @type {string | null} */ (null), // id of a file
    outputs: false, // whether its details begin with the pictures in the output folders
    dialog: "",
    compared: /** @type {string[]} */ ([]), // names of LoRA that the comparison begins with; the first one without any
    comparing: "strengths", // how it begins
    balanced: "", // the tags that the check of the stack has set
    more: "", // key of the row whose settings are shown
    section: /** @type {"words" | "schedule" | "region" | "passes" | "blocks"} */ ("schedule"), // of them
    comparison: "", // id of the one that this page began
    sheet: "", // id of the file that it shows; empty where it compares the stack
    copied: /** @type {Lora | null} */ (null), // the file that is saved in another form
    /** The job that this page began, and of what. */
    saving: {id: "", key: "", rows: /** @type {SavedTag[]} */ ([]), what: /** @type {What} */ ("file")},
    language: "en", // that is spoken: all is drawn again in another one
    theme: 0, // how often the page has changed its colours: canvases are drawn again
};

/**
 * @typedef {typeof STACK & typeof KEPT & typeof LIBRARY & typeof MANY & typeof SERVER & typeof PICTURES
 *     & typeof RECIPES & typeof GROWING & typeof SHOWN} State
 */

/** The tab without its elements: its state, and the parts that change it. */
export class Tab {
    /** @param {string} base the address below which the server's routes are */
    constructor(base) {
        this.api = new Api(base);
        /** @type {Store<State>} */
        this.store = new Store({
            ...STACK,
            ...KEPT,
            ...LIBRARY,
            ...MANY,
            ...SERVER,
            ...PICTURES,
            ...RECIPES,
            ...GROWING,
            ...SHOWN,
            ...remembered(),
        });
        this.server = new Server(this);
        this.library = new Library(this);
        this.many = new Many(this);
        this.kept = new Kept(this);
        this.stack = new Stack(this);
        this.edits = new Edits(this);
        this.pictures = new Pictures(this);
        this.growing = new Growing(this);
        this.language = new Language();
    }

    get state() {
        return this.store.state;
    }

    /** Speak the language that is wanted now. */
    async followLanguage() {
        if (!(await this.language.follow(this.state.chosen))) return;
        this.set({language: spoken()});
        const detail = {language: spoken(), translated}; // the embedded page is the server's, too
        document.dispatchEvent(new CustomEvent("remora:language", {detail}));
    }

    /**
     * Change the state. What is said of the stack ends when another stack is shown.
     * @param {Partial<State>} changes
     */
    set(changes) {
        const isOther = SPOKEN_OF.some((name) => name in changes && !same(changes[name], this.state[name]));
        this.store.set(isOther ? {said: "", ...changes} : changes);
        if (REMEMBERED.some((name) => name in changes)) remember(this.state);
    }
}

/**
 * Mount the tab as soon as the page has its element, and keep it up to date.
 * @param {string} base the address below which the server's routes are
 */
export async function start(base) {
    const tab = new Tab(base);
    const [sheet] = await Promise.all([loadSheet(), tab.language.load().then(() => tab.followLanguage())]);
    const theme = new Theme();
    /** @type {HTMLElement | null} */
    let host = null;
    /** @type {HTMLElement | null} */
    let root = null;
    let seen = false;

    function mount() {
        nameInModern();
        const element = document.getElementById("remora-tab");
        if (!element || element === host) return;
        if (root) render(null, root);
        host = element;
        root = shadowed(host, sheet);
        theme.follow(host, root);
        render(html`<${App} tab=${tab} root=${root} />`, root);
        openLink();
        tick();
    }

    /** Show the preset that the address of the page names. */
    function openLink() {
        const preset = presetOf(window.location.hash);
        if (!preset) return;
        opener()?.click();
        tab.set({recipe: {preset, file: null}});
        tab.server.attempt(() => tab.kept.loadPresets()); // it has their pictures
    }

    function followTheme() {
        if (host && root && theme.follow(host, root)) tab.set({theme: tab.state.theme + 1});
    }

    function readPage() {
        tab.stack.readBoxes();
        tab.pictures.read();
    }

    let answers = true;
    tab.store.subscribe(() => {
        if (answers === !tab.state.lost) return;
        answers = !tab.state.lost;
        document.dispatchEvent(new CustomEvent("remora:server", {detail: {answers}}));
    });

    const isEmbedded = () => !document.hidden && tab.state.target === EMBEDDED;
    const isSeen = () => root?.isConnected === true && !document.hidden && root.getClientRects().length > 0;

    // What is shown outside of the tab needs this: the tab keeps itself up to date while it is seen.
    async function renew() {
        if (!tab.state.loaded) await tab.server.start();
        else if (!isSeen()) await tab.server.poll();
    }
    const cards = new HostCards(tab, sheet, {renew, isSeen});

    // Called every `POLL` milliseconds; sends requests only while the tab or a badge is visible. The embedded page waits
    // to hear whether the server answers, also while its panel of LoRA is closed.
    function tick() {
        const now = isSeen();
        const came = now && !seen;
        seen = now;
        if (came) {
            followTheme();
            readPage();
            tab.server.start();
        } else if (now || isEmbedded() || cards.areSeen) {
            cards.followTheme();
            tab.server.poll();
        }
    }

    // Pages make their elements late, and some replace them.
    let waiting = false;
    new MutationObserver(() => {
        if (waiting) return;
        waiting = true;
        setTimeout(() => {
            waiting = false;
            mount();
        }, LOOK);
    }).observe(document.body, {childList: true, subtree: true});
    mount();
    window.addEventListener("hashchange", openLink);
    setInterval(tick, POLL);
    setInterval(() => {
        if (!isSeen()) return;
        followTheme();
        tab.followLanguage();
        readPage();
    }, READ);
    document.addEventListener("keydown", (event) => isSeen() && generateByKey(tab, event), true);
    document.addEventListener("input", (event) => {
        if (isSeen() && /** @type {Element} */ (event.target).tagName === "TEXTAREA") tab.stack.readBoxes();
    });
    document.addEventListener("click", () => setTimeout(() => !seen && tick(), 50)); // a tab was chosen
    new Completion(tab, sheet, renew).listen();
    cards.listen();
    return tab;
}

/**
 * Let Ctrl+Enter make a picture, wherever the focus is; in a dialog it is the dialog's. Where the page's own button is
 * seen, the page does so itself; else its own keys would look for a button in Remora's tab, and fail.
 * @param {Tab} tab
 * @param {KeyboardEvent} event
 */
function generateByKey(tab, event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing) return;
    const path = /** @type {Partial<Element>[]} */ (event.composedPath());
    if (path.some((element) => element.localName === "dialog")) return;
    tab.pictures.read();
    if (!tab.pictures.needsButton) return;
    event.preventDefault();
    event.stopPropagation();
    if (!tab.state.page.busy && !tab.state.lost) tab.pictures.generate();
}

/**
 * Name the button of Remora's tab in SD.Next's Modern UI, which writes the first two letters of a tab's id on it.
 */
function nameInModern() {
    /** @type {HTMLElement | null} */
    const letters = document.querySelector(MODERN_LETTERS);
    if (!letters || letters.textContent === MODERN_NAME) return;
    letters.textContent = MODERN_NAME;
    letters.style.fontSize = "0.7em"; // it is made for two letters
    letters.closest("button")?.setAttribute("title", "Remora");
}
