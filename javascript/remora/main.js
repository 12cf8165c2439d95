// The tab of Remora: mounted on whatever element of the page is `#remora-tab`.

import {html, render} from "./vendor/preact.js";
import {Controller, POLL, READ} from "./controller.js";
import {App} from "./ui/app.js";

const LOOK = 100; // milliseconds between two looks for the element

/**
 * Begin.
 * @param {string} base the address below which the server's routes are
 */
export function start(base) {
    const controller = new Controller(base);
    /** @type {HTMLElement | null} */
    let root = null;
    let seen = false;

    function mount() {
        const element = document.getElementById("remora-tab");
        if (!element || element === root) return;
        if (root) render(null, root);
        root = element;
        root.classList.add("rt");
        root.replaceChildren();
        render(html`<${App} controller=${controller} root=${root} />`, root);
        tick();
    }

    const isSeen = () => root?.isConnected === true && !document.hidden && root.getClientRects().length > 0;

    // Called again and again; asks only while somebody looks.
    function tick() {
        const now = isSeen();
        const came = now && !seen;
        seen = now;
        if (came) {
            controller.readBoxes();
            controller.start();
        } else if (now) {
            controller.poll();
        }
    }

    // Pages make their elements late, and some make them anew.
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
    setInterval(() => isSeen() && controller.readBoxes(), READ);
    document.addEventListener("input", (event) => {
        if (isSeen() && /** @type {Element} */ (event.target).tagName === "TEXTAREA") controller.readBoxes();
    });
    document.addEventListener("click", () => setTimeout(() => !seen && tick(), 50)); // a tab was chosen
    return controller;
}
