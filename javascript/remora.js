// Loads the tab, whose modules the server makes into one. Web UIs load this file by themselves, as a plain script.
"use strict";

(() => {
    const LOOK = 500; // milliseconds between two searches for the element
    const base = location.pathname.replace(/\/*$/, "");
    const begin = async () => {
        try {
            /** @type {Pick<typeof import("./remora/main.js"), "start">} */
            const tab = await import(`${base}/remora/app/tab.js`);
            /** @type {Window & {remoraTab?: unknown}} */ (window).remoraTab = await tab.start(base);
        } catch (error) {
            console.error("Remora: the tab could not be loaded:", error);
            say(
                `Remora's tab could not be loaded: ${/** @type {Error} */ (error).message}. Reload the page; if that does not help, restart the web UI.`,
            );
        }
    };
    /** @param {string} text */
    const say = (text) => {
        const element = document.getElementById("remora-tab");
        if (element) element.textContent = text;
        else setTimeout(say, LOOK, text); // pages make their elements late
    };
    if (document.body) begin();
    else document.addEventListener("DOMContentLoaded", begin);
})();
