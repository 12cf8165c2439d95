// The tab of Remora, mounted on the page's element `#remora-tab`.

import {html, render} from "./vendor/preact.js";
import {Api} from "./api.js";
import {Edits} from "./edits.js";
import {KEPT, Kept} from "./kept.js";
import {LIBRARY, Library, remember, remembered} from "./library.js";
import {SERVER, Server} from "./server.js";
import {STACK, Stack} from "./stack.js";
import {same, Store} from "./store.js";
import {loadSheet, shadowed, Theme} from "./theme.js";
import {App} from "./ui/app.js";

const POLL = 2000; // milliseconds between two polls of the server, while the tab is visible
const READ = 250; // the same for the prompts and the colours of the page
const LOOK = 100; // milliseconds between two searches for the element

/** @type {(keyof State)[]} what a sentence in `said` is about */
const SPOKEN_OF = ["target", "prompt", "negative", "always", "off"];

const SHOWN = {
    pane: "library",
    details: /** @type {string | null} */ (null), // id of a file
    dialog: "",
    more: "", // key of the row whose settings are shown
    section: /** @type {"schedule" | "region" | "passes" | "blocks"} */ ("schedule"), // of them
    comparison: "", // id of the one that this page began
    theme: 0, // how often the page has changed its colours: canvases are drawn again
};

/** @typedef {typeof STACK & typeof KEPT & typeof LIBRARY & typeof SERVER & typeof SHOWN} State */

/** The tab without its elements: its state, and the parts that change it. */
export class Tab {
    /** @param {string} base the address below which the server's routes are */
    constructor(base) {
        this.api = new Api(base);
        /** @type {Store<State>} */
        this.store = new Store({...STACK, ...KEPT, ...LIBRARY, ...SERVER, ...SHOWN, ...remembered()});
        this.server = new Server(this);
        this.library = new Library(this);
        this.kept = new Kept(this);
        this.stack = new Stack(this);
        this.edits = new Edits(this);
    }

    get state() {
        return this.store.state;
    }

    /**
     * Change the state. What is said of the stack ends when another stack is shown.
     * @param {Partial<State>} changes
     */
    set(changes) {
        const isOther = SPOKEN_OF.some((name) => name in changes && !same(changes[name], this.state[name]));
        this.store.set(isOther ? {said: "", ...changes} : changes);
        if ("sort" in changes || "view" in changes) remember(this.state);
    }
}

/**
 * Mount the tab as soon as the page has its element, and keep it up to date.
 * @param {string} base the address below which the server's routes are
 */
export async function start(base) {
    const sheet = await loadSheet();
    const tab = new Tab(base);
    const theme = new Theme();
    /** @type {HTMLElement | null} */
    let host = null;
    /** @type {HTMLElement | null} */
    let root = null;
    let seen = false;

    function mount() {
        const element = document.getElementById("remora-tab");
        if (!element || element === host) return;
        if (root) render(null, root);
        host = element;
        root = shadowed(host, sheet);
        theme.follow(host, root);
        render(html`<${App} tab=${tab} root=${root} />`, root);
        tick();
    }

    function followTheme() {
        if (host && root && theme.follow(host, root)) tab.set({theme: tab.state.theme + 1});
    }

    const isSeen = () => root?.isConnected === true && !document.hidden && root.getClientRects().length > 0;

    // Called every `POLL` milliseconds; sends requests only while the tab is visible.
    function tick() {
        const now = isSeen();
        const came = now && !seen;
        seen = now;
        if (came) {
            followTheme();
            tab.stack.readBoxes();
            tab.server.start();
        } else if (now) {
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
    setInterval(tick, POLL);
    setInterval(() => {
        if (!isSeen()) return;
        followTheme();
        tab.stack.readBoxes();
    }, READ);
    document.addEventListener("input", (event) => {
        if (isSeen() && /** @type {Element} */ (event.target).tagName === "TEXTAREA") tab.stack.readBoxes();
    });
    document.addEventListener("click", () => setTimeout(() => !seen && tick(), 50)); // a tab was chosen
    return tab;
}
