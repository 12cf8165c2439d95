// The server: requests, their errors, and the state that is polled while the tab is visible.

/**
 * @import {State as ServerState} from "../api.d.ts"
 * @import {AnswerTo, Path} from "./api.js"
 * @import {Tab} from "./main.js"
 */

import {ApiError, CHANGED} from "./api.js";
import {same} from "./store.js";
import {t} from "./words.js";

export const SERVER = {
    error: "",
    login: false, // ask for a password
    lost: false, // the server does not answer
    returns: 0, // how often it answered again: what could not be loaded is loaded then
    server: /** @type {ServerState | null} */ (null),
    said: "", // about the last action
};

export class Server {
    /** @param {Tab} tab */
    constructor(tab) {
        this.tab = tab;
        /** @type {string | null | undefined} */
        this.model = undefined; // the family of the model at the latest poll
    }

    /**
     * Send requests; on an error of the server, show it and return null.
     * @template T
     * @param {() => Promise<T>} work
     */
    async attempt(work) {
        try {
            const result = await work();
            this.tab.set({error: "", login: false, ...this.back()});
            return result;
        } catch (error) {
            if (!(error instanceof ApiError)) throw error;
            const login = error.status === 401 && error.detail.includes("password");
            const lost = error.status === 0; // the next poll that is answered clears the error
            this.tab.set({error: error.message, login: login || this.tab.state.login, lost});
            return null;
        }
    }

    /** Return the state after an answer; the number of returns changes where the server was lost before. */
    back() {
        const {lost, returns} = this.tab.state;
        return {lost: false, returns: lost ? returns + 1 : returns};
    }

    /**
     * Change data that the server keeps, and return the answer. If another page or program has changed them meanwhile,
     * reload them first; then send the change again if the part it changes is the same, else throw.
     * @template {Path} P
     * @param {string} method
     * @param {P} path
     * @param {object | undefined} body
     * @param {object} kept
     * @param {() => Promise<void>} kept.reload reloads the data
     * @param {() => unknown} kept.part returns the part that the request changes, as this page has it
     * @returns {Promise<AnswerTo<P>>}
     */
    async write(method, path, body, {reload, part}) {
        try {
            return await this.tab.api.ask(method, path, body);
        } catch (error) {
            if (!(error instanceof ApiError) || error.status !== CHANGED) throw error;
            const before = part();
            await reload();
            if (!same(before, part())) throw new ApiError(t("server.late"), CHANGED);
            return await this.tab.api.ask(method, path, body);
        }
    }

    start() {
        return this.attempt(async () => {
            await this.tab.library.refresh();
            await this.tab.kept.loadStack();
            await this.update();
        });
    }

    async update() {
        const server = await this.tab.api.get("state");
        if (!this.tab.state.server) this.tab.stack.others.begin(server.loras);
        if (JSON.stringify(server) !== JSON.stringify(this.tab.state.server)) this.tab.set({server});
        const behind =
            server.catalog.revision !== this.tab.library.catalog.revision || this.tab.library.catalog.scan.running;
        if (server.stack !== this.tab.api.tags.get("stack")) await this.tab.kept.loadStack();
        await this.tab.pictures.update();
        const other = server.model !== this.model;
        this.model = server.model;
        if (behind || other) {
            await this.tab.library.catalog.update();
            if (other) this.tab.library.catalog.version += 1; // other files fit now
            this.tab.library.changed();
        }
        await this.tab.library.countPictures();
        await this.tab.growing.add();
    }

    /** Update the state; called every `POLL` milliseconds while the tab or a badge on a card is visible. */
    async poll() {
        if (this.tab.state.login || this.tab.kept.pending !== null) return;
        try {
            await this.update();
            if (this.tab.state.lost) this.tab.set({error: "", ...this.back()});
        } catch (error) {
            if (!(error instanceof ApiError)) throw error;
            this.tab.set({error: error.message, lost: true});
        }
    }
}
